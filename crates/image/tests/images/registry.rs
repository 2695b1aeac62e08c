//! Imports from a registry that behaves, and from registries that lie, hang or lead elsewhere. All on loopback.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use saggar_domain::Problem;
use saggar_domain::net::AddressClass;
use saggar_image::{Credentials, Dial, Dialled, Direct, Imported, Pace, Reach, RegistryOptions, Request, Source};
use zeroize::Zeroizing;

use crate::image::{Image, Parts, blob};
use crate::place::{Place, request};
use crate::tar::Tar;

/// What a client asked for.
#[derive(Clone, Debug)]
struct Asked {
    target: String,
    authorization: Option<String>,
}

type Behaviour = dyn Fn(&Asked) -> Vec<u8> + Send + Sync;

/// A server on a port of its own. Stops when it is dropped.
struct Server {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// An empty answer keeps the client waiting until it leaves.
    fn new(behaviour: impl Fn(&Asked) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback works");
        let address = listener.local_addr().expect("loopback works");
        let (asked, is_over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (heard, ends) = (Arc::clone(&asked), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                serve(stream.expect("loopback works"), &behaviour, &heard);
            }
        });
        Self { address, asked, is_over, thread: Some(thread) }
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no thread of a test panics").clone()
    }

    fn targets(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.target).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread; if it has ended, there is nothing to wake.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no thread of a test panics");
        }
    }
}

fn serve(mut stream: TcpStream, behaviour: &Behaviour, heard: &Mutex<Vec<Asked>>) {
    let mut lines = BufReader::new(stream.try_clone().expect("loopback works")).lines();
    let Some(Ok(first)) = lines.next() else { return };
    let mut asked =
        Asked { target: first.split(' ').nth(1).expect("a request has a target").to_owned(), authorization: None };
    for line in lines.by_ref() {
        let line = line.expect("loopback works");
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("Authorization: ") {
            asked.authorization = Some(value.to_owned());
        }
    }
    let answer = behaviour(&asked);
    heard.lock().expect("no thread of a test panics").push(asked);
    if answer.is_empty() {
        // Until the client gives up and closes.
        assert!(lines.next().is_none_or(|line| line.is_err()));
        return;
    }
    // The client may have seen enough.
    let _ = stream.write_all(&answer);
}

fn ok(body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
}

fn chunked(body: &[u8]) -> Vec<u8> {
    let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for part in body.chunks(700) {
        answer.extend_from_slice(format!("{:x};x=y\r\n", part.len()).as_bytes());
        answer.extend_from_slice(part);
        answer.extend_from_slice(b"\r\n");
    }
    answer.extend_from_slice(b"0\r\n\r\n");
    answer
}

fn status(code: u16, headers: &str) -> Vec<u8> {
    format!("HTTP/1.1 {code} X\r\n{headers}Content-Length: 0\r\n\r\n").into_bytes()
}

fn parts() -> Parts {
    let mut image = Image::new([Tar::new().file("a", &[3; 5000]).end()]);
    image.layers[0].blob = crate::image::gzip(&image.layers[0].archive);
    image.parts()
}

/// What a registry has, by target.
fn contents(parts: &Parts) -> BTreeMap<String, Vec<u8>> {
    let mut contents = BTreeMap::new();
    for blob in [&parts.config].into_iter().chain(&parts.layers) {
        contents.insert(format!("/v2/team/app/blobs/{}", blob.digest), blob.bytes.clone());
    }
    contents.insert("/v2/team/app/manifests/1".into(), parts.manifest.bytes.clone());
    contents.insert(format!("/v2/team/app/manifests/{}", parts.manifest.digest), parts.manifest.bytes.clone());
    contents
}

/// A registry without manners or malice.
fn registry() -> Server {
    let contents = contents(&parts());
    Server::new(move |asked| contents.get(&asked.target).map_or_else(|| status(404, ""), |body| ok(body)))
}

fn fetch(place: &Place, server: &Server, version: &str, options: RegistryOptions) -> Result<Imported, Problem> {
    let source = Source::parse(&format!("docker://{}/team/app{version}", server.address)).expect("the test wrote it");
    place.request(Request { registry: options, ..request(source) })
}

fn plain() -> RegistryOptions {
    RegistryOptions { is_plain_http: true, ..RegistryOptions::default() }
}

fn check_refused(name: &str, server: &Server, options: RegistryOptions, expected: &str) {
    let place = Place::new();
    let problem = fetch(&place, server, ":1", options).map(|_| ()).expect_err("it is refused");
    assert!(problem.message.contains(expected), "{name}: {problem}");
    assert!(!problem.help.is_empty(), "{name}");
    let stored = place.path("data/templates/local");
    if stored.exists() {
        assert_eq!(place.stored(), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn an_image_is_fetched_by_tag_and_by_digest() {
    let server = registry();
    let place = Place::new();
    let imported = fetch(&place, &server, ":1", plain()).unwrap();
    assert_eq!(imported.manifest.image().config, parts().config.digest);
    let digest = parts().manifest.digest;
    assert_eq!(fetch(&place, &server, &format!("@{digest}"), plain()).unwrap().id, imported.id);
    assert!(place.store().check().unwrap().findings.is_empty());
    let blobs = server.targets().iter().filter(|target| target.contains("/blobs/")).count();
    assert_eq!(blobs, 3, "the layer is fetched once: {:?}", server.targets());
}

#[test]
fn chunked_answers_are_read() {
    let contents = contents(&parts());
    let server = Server::new(move |asked| chunked(&contents[&asked.target]));
    assert!(fetch(&Place::new(), &server, ":1", plain()).is_ok());
}

#[test]
fn a_token_is_fetched_with_credentials_which_a_redirect_does_not_get() {
    let parts = parts();
    let contents = contents(&parts);
    let layer = parts.layers[0].bytes.clone();
    let storage = Server::new(move |_| ok(&layer));
    let location = format!("Location: http://localhost:{}/x\r\n", storage.address.port());
    let layer_target = format!("/v2/team/app/blobs/{}", parts.layers[0].digest);
    let own = Arc::new(Mutex::new(String::new()));
    let address = Arc::clone(&own);
    let server = Server::new(move |asked| {
        let authorization = asked.authorization.as_deref();
        if asked.target == "/token?scope=repository%3Ateam%2Fapp%3Apull&service=reg" {
            let is_user = authorization == Some("Basic dXNlcjpwYXNz");
            return if is_user { ok(br#"{"token": "t0k3n"}"#) } else { status(401, "") };
        }
        if authorization != Some("Bearer t0k3n") {
            let host = address.lock().unwrap().clone();
            return status(401, &format!("WWW-Authenticate: Bearer realm=\"http://{host}/token\",service=\"reg\"\r\n"));
        }
        if asked.target == layer_target {
            return status(307, &location);
        }
        ok(&contents[&asked.target])
    });
    *own.lock().unwrap() = server.address.to_string();
    let password =
        |text: &str| Credentials { username: "user".into(), password: Zeroizing::new(text.into()), bound_to: None };
    let options = RegistryOptions { credentials: Some(password("pass")), ..plain() };
    fetch(&Place::new(), &server, ":1", options).unwrap();
    let stored = storage.asked();
    assert!(matches!(&stored[..], [Asked { authorization: None, .. }]), "{stored:?}");
    let tokens = server.targets().iter().filter(|target| target.starts_with("/token")).count();
    assert_eq!(tokens, 1, "one token is enough");

    check_refused("none", &server, plain(), "refuses access to team/app");
    let wrong = RegistryOptions { credentials: Some(password("wrong")), ..plain() };
    check_refused("wrong", &server, wrong.clone(), "refuses access to team/app");
    assert!(!format!("{:?}", wrong.credentials).contains("wrong"));
}

#[test]
fn registries_that_lie_are_refused() {
    let lying = |change: fn(&mut BTreeMap<String, Vec<u8>>)| {
        let mut contents = contents(&parts());
        change(&mut contents);
        Server::new(move |asked| contents.get(&asked.target).map_or_else(|| status(404, ""), |body| ok(body)))
    };
    fn of_layer(contents: &mut BTreeMap<String, Vec<u8>>) -> &mut Vec<u8> {
        contents.get_mut(&format!("/v2/team/app/blobs/{}", parts().layers[0].digest)).unwrap()
    }
    check_refused("changed", &lying(|contents| of_layer(contents)[20] ^= 1), plain(), "has another content");
    check_refused("longer", &lying(|contents| of_layer(contents).push(0)), plain(), "has more than the");
    check_refused("shorter", &lying(|contents| of_layer(contents).truncate(20)), plain(), "has fewer than the");
    check_refused(
        "no blobs",
        &lying(|contents| contents.retain(|target, _| target.contains("manifests"))),
        plain(),
        "has no blobs/",
    );
    let huge = lying(|contents| {
        contents.insert("/v2/team/app/manifests/1".into(), vec![b' '; (4 << 20) + 1]);
    });
    check_refused("huge manifest", &huge, plain(), "larger than");

    let server = lying(|contents| {
        let other = blob(b"{}".to_vec()).bytes;
        contents.insert(format!("/v2/team/app/manifests/{}", parts().manifest.digest), other);
    });
    let version = format!("@{}", parts().manifest.digest);
    let problem = fetch(&Place::new(), &server, &version, plain()).map(|_| ()).unwrap_err();
    assert!(problem.message.contains("another manifest"), "{problem}");
}

#[test]
fn answers_that_make_no_sense_are_refused() {
    let head = |head: &'static str| Server::new(move |_| head.as_bytes().to_vec());
    for (name, answer, expected) in [
        ("no HTTP", "SSH-2.0-OpenSSH\r\n\r\n", "doesn't answer as a registry"),
        (
            "two lengths",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
            "doesn't answer as a registry",
        ),
        (
            "length and chunks",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
            "doesn't answer as a registry",
        ),
        (
            "encoded",
            "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
            "doesn't answer as a registry",
        ),
        ("bad chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", "malformed"),
        ("cut", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "closed the connection"),
        ("server error", "HTTP/1.1 503 Busy\r\n\r\n", "status 503"),
        ("rate limit", "HTTP/1.1 429 Slow down\r\n\r\n", "status 429"),
        (
            "unknown challenge",
            "HTTP/1.1 401 No\r\nWWW-Authenticate: Digest realm=x\r\n\r\n",
            "in a way that isn't known",
        ),
        (
            "realm that is no address",
            "HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer realm=\"file:///etc/shadow\"\r\n\r\n",
            "is no web address",
        ),
        (
            "realm without TLS",
            "HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer realm=\"http://example.com/\"\r\n\r\n",
            "has no TLS",
        ),
        ("redirect to a file", "HTTP/1.1 302 X\r\nLocation: file:///etc/passwd\r\n\r\n", "no web address"),
        ("redirect to itself", "HTTP/1.1 302 X\r\nLocation: /again\r\n\r\n", "more than five times"),
    ] {
        check_refused(name, &head(answer), plain(), expected);
    }
    let endless = Server::new(|_| [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'x'; 1 << 20]].concat());
    check_refused("endless head", &endless, plain(), "doesn't answer as a registry");
}

#[test]
fn a_registry_that_hangs_is_given_up() {
    let silent = Server::new(|_| Vec::new());
    let patience = Duration::from_millis(100);
    let options = RegistryOptions { dialer: Arc::new(Direct::new(patience)), ..plain() };
    check_refused("silent", &silent, options, "silent for too long");
}

#[test]
fn a_registry_that_is_too_slow_is_given_up() {
    let contents = contents(&parts());
    let server = Server::new(move |asked| contents.get(&asked.target).map_or_else(|| status(404, ""), |body| ok(body)));
    // No connection is fast enough for this, so nothing depends on how fast this one is.
    let pace = Pace { grace: Duration::ZERO, bytes_per_second: u64::MAX };
    check_refused("slow", &server, RegistryOptions { pace, ..plain() }, "the registry is too slow");
    assert!(fetch(&Place::new(), &server, ":1", plain()).is_ok());
}

/// Connects to the registry, and elsewhere as if the registry were on a public address.
struct AsIfPublic {
    registry: SocketAddr,
    /// What the client said about the registry.
    told: Mutex<Vec<bool>>,
}

impl Dial for AsIfPublic {
    fn dial(&self, host: &str, port: u16, reach: Reach) -> Result<Dialled, Problem> {
        match reach {
            Reach::Named => {
                let connection = Box::new(TcpStream::connect(self.registry).expect("loopback works"));
                // Plain HTTP needs a loopback address.
                Ok(Dialled { connection, class: Some(AddressClass::Loopback) })
            }
            Reach::Led { is_registry_special } => {
                self.told.lock().expect("no thread of a test panics").push(is_registry_special);
                Direct::new(Duration::from_secs(5)).dial(host, port, Reach::Led { is_registry_special: false })
            }
        }
    }
}

#[test]
fn a_public_registry_cannot_lead_to_internal_addresses() {
    let inside = Server::new(|_| ok(b"secret"));
    for (name, location) in [
        ("loopback", format!("http://{}/", inside.address)),
        ("by name", format!("http://localhost:{}/", inside.address.port())),
        ("private", "http://10.0.0.1/".to_owned()),
        ("metadata", "http://169.254.169.254/latest/meta-data/".to_owned()),
        ("embedded", "http://[::ffff:10.0.0.1]/".to_owned()),
    ] {
        let answer = format!("HTTP/1.1 307 X\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n");
        let server = Server::new(move |_| answer.clone().into_bytes());
        let dialer = Arc::new(AsIfPublic { registry: server.address, told: Mutex::default() });
        check_refused(name, &server, RegistryOptions { dialer: dialer.clone(), ..plain() }, "which is refused");
        assert_eq!(*dialer.told.lock().unwrap(), [true], "{name}: the registry is on loopback");
    }
    assert!(inside.asked().is_empty(), "{:?}", inside.asked());
    // A registry on loopback may lead to loopback, but not to the metadata service.
    let metadata = Server::new(|_| status(307, "Location: http://169.254.169.254/\r\n"));
    check_refused("metadata from loopback", &metadata, plain(), "which is refused");
}

/// A registry on another host.
struct Elsewhere(SocketAddr);

impl Dial for Elsewhere {
    fn dial(&self, _host: &str, _port: u16, _reach: Reach) -> Result<Dialled, Problem> {
        Ok(Dialled {
            connection: Box::new(TcpStream::connect(self.0).expect("loopback works")),
            class: Some(AddressClass::Private),
        })
    }
}

#[test]
fn without_tls_only_loopback_is_used() {
    let server = registry();
    let options = RegistryOptions { dialer: Arc::new(Elsewhere(server.address)), ..plain() };
    check_refused("private", &server, options, "not used without TLS");
    assert!(server.asked().is_empty());
}
