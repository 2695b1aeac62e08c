//! Programs: turns a request to run a program into the agent's request.
//!
//! The environment is built, never inherited: it contains only variables named here, in the spec or in the request.

use std::collections::BTreeMap;

use saggar_domain::template::Account;
use saggar_domain::{NetworkMode, Spec, Template, TerminalSize, User};
use saggar_guest::{ExecId, ExecRequest};
use saggar_jail::{Identity, PROXY_PORT, Rule};

use crate::guest_wire;

/// The certificates that programs of a proxied sandbox trust: the host's, and the authority of the sandbox's session.
pub const TRUST_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// That authority alone, for programs that add to their own list: Node reads the file at every start.
pub const TRUST_OWN: &str = "/etc/ssl/certs/saggar-egress.pem";
/// What programs look for that use a proxy. With `http://`: some fail without it. No SOCKS: without an optional package
/// Python's clients fail on it.
const PROXY_VARIABLES: [&str; 6] = ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "all_proxy", "https_proxy", "http_proxy"];
/// In forms that every client understands.
const NOT_PROXIED: &str = "localhost,127.0.0.1,::1";

/// The default `PATH`.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Clone, Debug)]
pub struct Program<'a> {
    /// The number that every frame about it carries.
    pub exec: ExecId,
    /// The program and its arguments.
    pub argv: Vec<Vec<u8>>,
    /// Added to the environment; later maps take precedence.
    pub env: &'a [&'a BTreeMap<String, String>],
    /// `None` for the sandbox's working directory.
    pub cwd: Option<&'a str>,
    pub user: User,
    /// Whether stdin is sent in frames.
    pub has_stdin: bool,
    /// `None` for no terminal.
    pub terminal: Option<TerminalSize>,
    /// The terminal type given to the program.
    pub terminal_name: Option<&'a str>,
    /// Bytes of output that may be in flight; `None` for any amount.
    pub output_window: Option<u32>,
    /// Number of its own cgroups that it joins.
    pub joins: u8,
    /// Whether the sandbox ends with it.
    pub is_one_shot: bool,
}

impl Program<'_> {
    pub fn into_request(self, spec: &Spec) -> ExecRequest {
        // The template's own user is the sandbox's, and no other that is asked for by name.
        let account = spec.account_of(self.user);
        let name = account.map_or(self.user.as_str(), |account| account.name.as_str());
        let mut env = BTreeMap::from([
            ("HOME", account.map_or(self.user.home(), |account| account.home.as_str())),
            ("LANG", "C.UTF-8"),
            ("LOGNAME", name),
            ("PATH", SEARCH_PATH),
            ("SHELL", "/bin/sh"),
            ("USER", name),
        ]);
        let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
        if spec.network == NetworkMode::Proxied {
            env.extend(PROXY_VARIABLES.map(|name| (name, proxy.as_str())));
            env.extend(["NO_PROXY", "no_proxy"].map(|name| (name, NOT_PROXIED)));
            env.extend([("SSL_CERT_FILE", TRUST_BUNDLE), ("REQUESTS_CA_BUNDLE", TRUST_BUNDLE)]);
            env.insert("NODE_EXTRA_CA_CERTS", TRUST_OWN);
        }
        if let Some(terminal) = self.terminal_name.filter(|_| self.terminal.is_some()) {
            env.insert("TERM", terminal);
        }
        let inherited: Vec<(String, String)> =
            if Rule::Environment.is_on() { Vec::new() } else { std::env::vars().collect() };
        env.extend(inherited.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        for layer in std::iter::once(&&spec.env).chain(self.env) {
            env.extend(layer.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        }
        ExecRequest {
            exec: self.exec,
            argv: self.argv,
            env: env.into_iter().map(|(name, value)| format!("{name}={value}").into_bytes()).collect(),
            cwd: self.cwd.unwrap_or_else(|| default_cwd(spec, self.user)).as_bytes().to_vec(),
            uid: account.map_or(self.user.id(), |account| account.uid),
            gid: account.map_or(self.user.id(), |account| account.gid),
            groups: groups(spec, self.user, account),
            keep_capabilities: self.user == User::Root,
            tty: self.terminal.map(guest_wire::terminal),
            stdin: self.has_stdin,
            nofile: Some(files_within_reach(spec.limits.files.value.get())).filter(|_| Rule::Files.is_on()),
            nproc: None,
            storage_paths: vec![b"/tmp".to_vec()],
            one_shot: self.is_one_shot,
            output_window: self.output_window,
            joins: self.joins,
        }
    }
}

/// Root of an image manages its services, and has to see their processes. With a single id there is no group apart from it, and no
/// process of another user.
fn groups(spec: &Spec, user: User, account: Option<&Account>) -> Vec<u32> {
    let mut groups = account.map_or_else(Vec::new, |account| account.groups.clone());
    if user == User::Root && spec.template != Template::Host && rustix::process::geteuid().is_root() {
        groups.push(Identity::AGENTS_GROUP);
    }
    groups
}

/// A user other than the sandbox's starts in its own home if the sandbox's user would start in theirs.
pub(crate) fn default_cwd(spec: &Spec, user: User) -> &str {
    let home = |user: User| spec.account_of(user).map_or(user.home(), |account| account.home.as_str());
    if spec.cwd.as_str() == home(spec.user) { home(user) } else { spec.cwd.as_str() }
}

/// Capped at our own limit: a tighter limit than requested is fine.
fn files_within_reach(asked: u64) -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.map_or(asked, |most| most.min(asked))
}

#[cfg(test)]
mod tests {
    use saggar_domain::template::{GivenByTemplate, TemplateId};

    use super::*;

    fn request(spec: &str, env: &[&BTreeMap<String, String>], user: User) -> ExecRequest {
        request_of(&Spec::resolve(serde_json::from_str(spec).unwrap()).unwrap(), env, user)
    }

    fn request_of(spec: &Spec, env: &[&BTreeMap<String, String>], user: User) -> ExecRequest {
        let program = Program {
            exec: 1,
            argv: vec![b"true".to_vec()],
            env,
            cwd: None,
            user,
            has_stdin: false,
            terminal: None,
            terminal_name: Some("dumb"),
            output_window: None,
            joins: 0,
            is_one_shot: false,
        };
        program.into_request(spec)
    }

    fn value(request: &ExecRequest, name: &str) -> Option<String> {
        let entries = request.env.iter().map(|entry| String::from_utf8(entry.clone()).unwrap());
        entries.filter_map(|entry| Some(entry.strip_prefix(name)?.strip_prefix('=')?.to_owned())).next()
    }

    #[test]
    fn the_requests_environment_is_above_the_sandboxes_and_nothing_is_inherited() {
        let (below, above) = (
            BTreeMap::from([("A".to_owned(), "claim".to_owned()), ("B".to_owned(), "claim".to_owned())]),
            BTreeMap::from([("B".to_owned(), "exec".to_owned())]),
        );
        let request = request(r#"{"env": {"A": "spec", "C": "spec"}}"#, &[&below, &above], User::User);
        assert_eq!(request.env.len(), 9);
        let seen = ["A", "B", "C", "TERM"].map(|name| value(&request, name));
        assert_eq!(seen.map(|value| value.unwrap_or_default()), ["claim", "exec", "spec", ""]);
    }

    #[test]
    fn an_image_changes_no_variable_of_a_managed_network() {
        // Whatever is set there and not elsewhere.
        let (managed, none) = (request(r#"{"network": "proxied"}"#, &[], User::User), request("{}", &[], User::User));
        let ours: Vec<Vec<u8>> = managed.env.into_iter().filter(|entry| !none.env.contains(entry)).collect();
        assert_eq!(ours.len(), 11);
        let name = |entry: &[u8]| String::from_utf8(entry.to_vec()).unwrap().split('=').next().unwrap().to_owned();
        let image: BTreeMap<String, String> = ours.iter().map(|entry| (name(entry), "image".to_owned())).collect();
        let given = || GivenByTemplate { id: TemplateId::of(b"x"), env: image.clone(), cwd: None, account: None };
        let from = |json: &str| {
            let spec = Spec::resolve_from(serde_json::from_str(json).unwrap(), given()).unwrap();
            request_of(&spec, &[], User::User)
        };
        let managed = from(r#"{"network": "proxied", "template": "mine"}"#);
        assert!(ours.iter().all(|entry| managed.env.contains(entry)), "{:?}", managed.env);
        // What was asked for counts, and in other networks so does what the image says.
        let asked = from(r#"{"network": "proxied", "template": "mine", "env": {"SSL_CERT_FILE": "asked"}}"#);
        assert_eq!(value(&asked, "SSL_CERT_FILE").as_deref(), Some("asked"));
        let without = from(r#"{"template": "mine"}"#);
        assert_eq!(value(&without, "SSL_CERT_FILE").as_deref(), Some("image"));
    }

    #[test]
    fn another_user_begins_at_home_unless_the_spec_says_where() {
        let cwd = |spec: &str, user: User| String::from_utf8(request(spec, &[], user).cwd).unwrap();
        assert_eq!(cwd("{}", User::Root), "/root");
        assert_eq!(cwd("{}", User::User), "/home/user");
        assert_eq!(cwd(r#"{"cwd": "/tmp"}"#, User::Root), "/tmp");
    }
}
