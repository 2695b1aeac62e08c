//! The words of refusals: what was refused, by which rule, and what to write to allow it.
//!
//! A refused program chooses the host, the method and the path. All of them are canonical or checked before they get into a
//! message, so that none can forge output on a terminal or a command for a shell.

use std::net::IpAddr;

use crate::net::address::{AddressClass, Range};
use crate::net::authority::Destination;
use crate::net::host::{Host, HostError};
use crate::net::method::Unusable;
use crate::net::refusal::{Refusal, RuleRef};
use crate::net::rule::Rule;
use crate::net::sets::Set;

/// Maximum length of a path that a remedy repeats, in bytes.
const PATH_REPEATED_MAX: usize = 120;

impl From<HostError> for Refusal {
    fn from(error: HostError) -> Self {
        Self::new(
            "egress/ambiguous-host",
            error.to_string(),
            "use the plain form of the host: api.example.com, 192.0.2.1 or [2001:db8::1]",
        )
    }
}

pub(super) fn denied(to: &Destination, rule: &RuleRef) -> Refusal {
    Refusal::new(format!("egress/deny:{rule}"), format!("a deny rule forbids {to}"), without(rule))
}

pub(super) fn denied_request(to: &Destination, method: &str, path: &str, rule: &RuleRef) -> Refusal {
    let path = repeated(path).map_or(String::new(), |path| format!("{path} "));
    let message = format!("a deny rule forbids {} {path}on {to}", shown_method(method));
    Refusal::new(format!("egress/deny:{rule}"), message, without(rule))
}

pub(super) fn denied_address(to: &Destination, address: IpAddr, rule: &RuleRef) -> Refusal {
    let message = match to.host.name() {
        Some(name) => format!("a deny rule forbids {address}, which {name} leads to"),
        None => format!("a deny rule forbids {address}"),
    };
    Refusal::new(format!("egress/deny:{rule}"), message, without(rule))
}

pub(super) fn special(to: &Destination, address: IpAddr, class: AddressClass) -> Refusal {
    let rule = with_port(&Range::single(address).to_string(), to.port);
    let warning = match class {
        AddressClass::Metadata => "; it can hand out the credentials of this machine",
        AddressClass::Own | AddressClass::Loopback => "; it leads to services of this machine",
        _ => "",
    };
    Refusal::new(
        format!("egress/address-{class}"),
        match to.host.name() {
            Some(name) => format!("{name} leads to {address}, which is {}", class.describe()),
            None => format!("{address} is {}", class.describe()),
        },
        format!("such addresses must be named: {}{warning}", allow(&rule)),
    )
}

pub(super) fn no_rule(to: &Destination, is_other_port: bool, is_hidden: bool) -> Refusal {
    let host = written(&to.host);
    let rule = with_port(&host, to.port);
    let message = match () {
        () if is_hidden => format!("no rule allows {to}: `*` means public hosts, and this name is internal"),
        () if is_other_port => format!("no rule allows port {} of {host}", to.port),
        () => format!("no rule allows {to}"),
    };
    let sets = sets_with(to);
    let help = match sets.is_empty() {
        true => allow(&rule),
        false => format!("{} (it is also in {})", allow(&rule), sets.join(" and ")),
    };
    Refusal::new("egress/default", message, help)
}

pub(super) fn no_rule_for_request(to: &Destination, method: &str, path: &str) -> Refusal {
    let request =
        format!("{}{}", shown_method(method), repeated(path).map_or(String::new(), |path| format!(" {path}")));
    let message = format!("no rule allows {request} on {to}");
    // A path after an address reads as a prefix length, unless a port stands between them.
    let host = match to.host {
        Host::Name(_) => with_port(&written(&to.host), to.port),
        Host::V4(_) | Host::V6(_) => to.to_string(),
    };
    let with_path = repeated(path).map(|path| format!("{method} {host}{path}"));
    let candidates = with_path.into_iter().chain([format!("{method} {host}")]);
    // Only text that is a rule is suggested: the refused program has chosen method and path.
    let rule = candidates.into_iter().find(|text| text.parse::<Rule>().is_ok());
    let help = match rule {
        Some(rule) => allow(&rule),
        None => format!("rules name methods in capitals, and only known ones; for every method, {}", allow(&host)),
    };
    Refusal::new("egress/default", message, help)
}

pub(super) fn no_port(to: &Destination) -> Refusal {
    Refusal::new("egress/port", format!("{} has no port 0", to.host), "connect to the port that the service listens on")
}

pub(super) fn ambiguous_path(to: &Destination, why: &str) -> Refusal {
    Refusal::new(
        "egress/ambiguous-path",
        format!("the path of a request to {to} {why}, and servers don't agree on what that means"),
        "send the path in its plain form; rules with paths apply to this host",
    )
}

pub(super) fn unusable_method(to: &Destination, why: Unusable) -> Refusal {
    let (what, help) = match why {
        Unusable::Never => ("is never allowed", "use another method: CONNECT, TRACE and TRACK are never passed on"),
        Unusable::Upgrade => (
            "is WEBSOCKET, which only rules have",
            "open a WebSocket with a GET that has `Connection: Upgrade` and `Upgrade: websocket`",
        ),
        Unusable::Long => ("is longer than 32 bytes", "use a method of at most 32 bytes"),
        Unusable::Malformed => ("is not a word of HTTP", "use a method such as GET or POST"),
    };
    Refusal::new("egress/method", format!("the method of a request to {to} {what}"), help)
}

fn allow(rule: &str) -> String {
    let quoted = if rule.contains([' ', '*', '[']) { format!("'{rule}'") } else { rule.to_owned() };
    format!("allow it with `--allow {quoted}`, or add it to `egress.allow` in the spec")
}

fn without(rule: &RuleRef) -> String {
    format!("remove the deny rule `{rule}` to allow it: deny rules win over allow rules")
}

fn written(host: &Host) -> String {
    match host {
        Host::V6(address) => format!("[{address}]"),
        Host::Name(_) | Host::V4(_) => host.to_string(),
    }
}

/// Ports 80 and 443 need not be written.
fn with_port(host: &str, port: u16) -> String {
    if matches!(port, 80 | 443) { host.to_owned() } else { format!("{host}:{port}") }
}

/// The path, if it can be repeated in a command as it is.
fn repeated(path: &str) -> Option<&str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~@+,=:".contains(&byte);
    (path.len() <= PATH_REPEATED_MAX && path.bytes().all(is_plain)).then_some(path)
}

/// The method, if it can be repeated in a message.
fn shown_method(method: &str) -> &str {
    let is_plain = method.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if is_plain { method } else { "this method" }
}

fn sets_with(to: &Destination) -> Vec<String> {
    let has = |set: &&Set| set.matches().iter().any(|rule| rule.host.allows(&to.host) && rule.ports.allows(to.port));
    Set::all().iter().filter(has).map(|set| format!("@{}", set.name())).collect()
}
