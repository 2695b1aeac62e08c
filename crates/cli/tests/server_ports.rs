//! Ports of a sandbox through the server: by path, headers or host name, for authorised clients.

mod http;

use http::websocket::{Message, WebSocket};
use http::{Server, eventually};
use serde_json::{Value, json};

/// Echoes requests, and speaks enough WebSocket to echo a message.
const ECHO: &str = r#"
import base64, hashlib, http.server, socketserver
class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *a): pass
    def answer(self):
        if self.headers.get('Upgrade') == 'websocket':
            accept = base64.b64encode(hashlib.sha1((self.headers['Sec-WebSocket-Key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').encode()).digest())
            self.wfile.write(b'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ' + accept + b'\r\n\r\n')
            self.wfile.flush()
            while True:
                head = self.rfile.read(2)
                if len(head) < 2 or head[0] & 15 == 8: break
                length = head[1] & 127
                self.rfile.read(4)
                self.wfile.write(bytes([head[0], length]) + self.rfile.read(length)); self.wfile.flush()
            self.close_connection = True
            return
        length = int(self.headers.get('Content-Length') or 0)
        body = (self.command + ' ' + self.path + '\n' + str(self.headers)).encode() + self.rfile.read(length)
        self.send_response(203)
        self.send_header('Content-Length', str(len(body)))
        self.send_header('Set-Cookie', 'saggar_token=forged')
        self.send_header('Set-Cookie', 'theirs=1')
        self.send_header('Set-Cookie', '=saggar_token=forged')
        for name in ('Clear-Site-Data', 'Strict-Transport-Security', 'Alt-Svc', 'NEL', 'Service-Worker-Allowed'): self.send_header(name, 'x')
        self.send_header('Connection', 'x-private'); self.send_header('X-Private', '1')
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = do_PUT = do_DELETE = answer
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer): daemon_threads = True
Server(('127.0.0.1', 8000), Echo).serve_forever()
"#;

struct Listening {
    server: Server,
    id: String,
    token: String,
}

fn listening(create: &Value) -> Listening {
    let server = Server::start();
    let created = server.post("/api/v1/sandboxes", create).expect(201);
    let id = created["id"].as_str().expect("it is there").to_owned();
    let sandbox = format!("/api/v1/sandboxes/{id}");
    server.post(&format!("{sandbox}/execs"), &json!({ "command": ["python3", "-c", ECHO], "wait": false })).expect(201);
    eventually("it listens", || server.get(&format!("{sandbox}/ports/8000/")).status == 203);
    let token = created["access_token"].as_str().expect("it is there").to_owned();
    Listening { server, id, token }
}

#[test]
fn a_port_is_reached_by_path_by_headers_and_by_host() {
    let Listening { server, id, token } = listening(&json!({}));
    let path = format!("/api/v1/sandboxes/{id}/ports/8000");
    let answer = server.request("POST", &format!("{path}/a%2Fb/../c?x=1&y=%20"), &["X-Mine: 1"], b"body");
    assert_eq!(answer.status, 203);
    let text = answer.text();
    assert!(text.starts_with("POST /a%2Fb/../c?x=1&y=%20\n") && text.ends_with("body"), "{text}");
    assert!(text.to_ascii_lowercase().contains("x-mine: 1") && text.contains("localhost:8000"), "{text}");
    assert!(answer.header("content-security-policy").unwrap().starts_with("sandbox"));
    assert!(answer.header("x-private").is_none());
    let cookies: Vec<&str> =
        answer.headers.iter().filter(|(name, _)| name == "set-cookie").map(|(_, value)| value.as_str()).collect();
    assert_eq!(cookies, [format!("theirs=1; Path={path}/")]);
    for name in ["clear-site-data", "strict-transport-security", "alt-svc", "nel", "service-worker-allowed"] {
        assert_eq!(answer.header(name), None, "{name} would act on all of the server's origin");
    }
    let headers =
        [format!("Saggar-Sandbox: {id}"), "Saggar-Port: 8000".to_owned(), format!("Saggar-Access-Token: {token}")];
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    assert!(server.request_without_key("GET", "/by/headers", &headers, b"").text().starts_with("GET /by/headers\n"));
    server.request("GET", "/x", &["Saggar-Port: 8000"], b"").problem(400, "invalid_request");
    for host in [format!("8000-{id}.localhost"), format!("8000-{}.localhost:7420", id.replace('_', "-"))] {
        let mut connection = server.connect();
        let request = format!("GET /by/host HTTP/1.1\r\nHost: {host}\r\nSaggar-Access-Token: {token}\r\n\r\n");
        std::io::Write::write_all(&mut connection, request.as_bytes()).unwrap();
        let answer = http::read_answer(&mut std::io::BufReader::new(connection));
        assert!(answer.text().starts_with("GET /by/host\n") && answer.text().contains(&host), "{}", answer.text());
    }
}

#[test]
fn what_proves_who_asks_never_gets_inside() {
    let Listening { server, id, token } = listening(&json!({}));
    let path = format!("/api/v1/sandboxes/{id}/ports/8000/");
    let headers = [
        format!("X-API-Key: {}", server.key),
        format!("Saggar-Access-Token: {token}"),
        format!("Cookie: theirs=1; saggar_token={token}"),
        "Proxy-Authorization: Basic eA==".to_owned(),
    ];
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    let seen = server.request("GET", &path, &headers, b"").text();
    assert!(!seen.contains("sgr_") && !seen.contains(&token), "{seen}");
    assert!(seen.contains("theirs=1"), "{seen}");
    let posted = server.request_without_key("POST", &format!("{path}?saggar_token={token}&z=1"), &[], b"x").text();
    assert!(posted.starts_with("POST /?z=1\n") && !posted.contains(&token), "{posted}");
    let basic = server.request_without_key(
        "GET",
        &path,
        &[&format!("Saggar-Access-Token: {token}"), "Authorization: Basic dTpw"],
        b"",
    );
    assert!(basic.text().contains("Basic dTpw"), "{}", basic.text());
}

#[test]
fn only_who_may_reaches_a_port() {
    let Listening { server, id, token } = listening(&json!({ "ports": { "public": [8000] } }));
    let public = format!("/api/v1/sandboxes/{id}/ports/8000/");
    assert_eq!(server.request_without_key("GET", &public, &[], b"").status, 203);
    let closed = format!("/api/v1/sandboxes/{id}/ports/9");
    server.request_without_key("GET", &closed, &[], b"").problem(401, "unauthorized");
    let wrong = format!("Saggar-Access-Token: {}", http::altered(&token));
    server.request_without_key("GET", &closed, &[&wrong], b"").problem(401, "unauthorized");
    server.get(&closed).problem(502, "port_refused");
    let other = server.post("/api/v1/sandboxes", &json!({})).expect(201);
    let others = format!("/api/v1/sandboxes/{}/ports/8000/", other["id"].as_str().unwrap());
    // The token belongs to one sandbox, and a port that is public in one is not public in another.
    server
        .request_without_key("GET", &others, &[&format!("Saggar-Access-Token: {token}")], b"")
        .problem(401, "unauthorized");
    server.request_without_key("GET", &others, &[], b"").problem(401, "unauthorized");
    for port in ["0", "65536", "-1", "x", "80x"] {
        server.get(&format!("/api/v1/sandboxes/{id}/ports/{port}/")).problem(404, "not_found");
    }
}

#[test]
fn a_link_with_a_token_becomes_a_cookie() {
    let Listening { server, id, token } = listening(&json!({}));
    let path = format!("/api/v1/sandboxes/{id}/ports/8000/page");
    let redirect = server.request_without_key("GET", &format!("{path}?saggar_token={token}&tab=2"), &[], b"");
    assert_eq!((redirect.status, redirect.header("location")), (303, Some(format!("{path}?tab=2").as_str())));
    let cookie = redirect.header("set-cookie").unwrap();
    for part in ["HttpOnly", "SameSite=Lax", &format!("Path=/api/v1/sandboxes/{id}/ports/8000/")] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let cookie = format!("Cookie: {}", cookie.split(';').next().unwrap());
    assert!(server.request_without_key("GET", &path, &[&cookie], b"").text().starts_with("GET /page\n"));
    server.request_without_key("GET", &format!("{path}?saggar_token=wrong"), &[], b"").problem(401, "unauthorized");
    // A browser sends a cookie for any page; a WebSocket must come from our origin.
    assert_eq!(WebSocket::open(&server, &path, &[&cookie, "Origin: https://evil.example"]).err(), Some(403));
    assert_eq!(WebSocket::open(&server, &path, &[&cookie]).err(), Some(403));
    assert!(WebSocket::open(&server, &path, &[&cookie, "Origin: http://localhost"]).is_ok());
}

#[test]
fn a_websocket_goes_through_both_ways() {
    let Listening { server, id, token } = listening(&json!({}));
    let header = format!("Saggar-Access-Token: {token}");
    let mut socket =
        WebSocket::open(&server, &format!("/api/v1/sandboxes/{id}/ports/8000/ws"), &[&header]).expect("it opens");
    for text in ["one", "two"] {
        socket.text(text);
        assert_eq!(socket.next(), Message::Text(text.to_owned()));
    }
    server.delete(&format!("/api/v1/sandboxes/{id}")).expect(200);
    assert!(matches!(socket.next(), Message::Gone | Message::Close));
}

#[test]
fn only_listed_ports_can_be_reached_and_the_program_gets_the_host_that_its_sandbox_says() {
    let ports = json!({ "allow": [8000, 8001], "public": [8000], "host": "app.internal:${PORT}" });
    let Listening { server, id, token } = listening(&json!({ "ports": ports }));
    let sandbox = format!("/api/v1/sandboxes/{id}");
    let shown = server.get(&sandbox).expect(200);
    assert_eq!(
        shown["ports"],
        json!({ "allow": [8000, 8001], "public": [8000], "every": false, "host": "app.internal:${PORT}" })
    );
    let inside = server.request_without_key("GET", &format!("{sandbox}/ports/8000/"), &[], b"").text();
    assert!(inside.contains("app.internal:8000") && !inside.contains("localhost:8000"), "{inside}");
    // For every caller, by every name.
    let proof = format!("Saggar-Access-Token: {token}");
    let refused = server.request_without_key("GET", &format!("{sandbox}/ports/22/"), &[&proof], b"");
    let problem = refused.problem(403, "forbidden");
    assert!(
        problem["detail"].as_str().unwrap().contains("port 22")
            && problem["help"].as_str().unwrap().contains("ports.allow")
    );
    server.get(&format!("{sandbox}/ports/22/")).problem(403, "forbidden");
    server.request_without_key("GET", &format!("{sandbox}/ports/22/"), &[], b"").problem(401, "unauthorized");
    // One that is allowed and not public still needs a proof; nothing listens there.
    server.request_without_key("GET", &format!("{sandbox}/ports/8001/"), &[], b"").problem(401, "unauthorized");
    server.get(&format!("{sandbox}/ports/8001/")).problem(502, "port_refused");
    // It can be changed while it runs, and a server that comes after knows it.
    let patch = |ports: Value| {
        let body = json!({ "ports": ports }).to_string();
        server.request("PATCH", &sandbox, &["Content-Type: application/json"], body.as_bytes())
    };
    patch(json!({ "allow": [] })).expect(200);
    server.get(&format!("{sandbox}/ports/8000/")).problem(403, "forbidden");
    patch(json!({})).expect(200);
    let open = server.get(&format!("{sandbox}/ports/8000/"));
    assert!(open.status == 203 && open.text().contains("localhost:8000"), "{}", open.text());
    for wrong in [
        json!({ "allow": [80], "public": [81] }),
        json!({ "allow": [0] }),
        json!({ "host": "a b" }),
        json!({ "host": "a\r\nX-Forged: 1" }),
        json!({ "allow": (1..=65).collect::<Vec<u16>>() }),
    ] {
        assert_eq!(patch(wrong.clone()).status, 400, "{wrong}");
        assert_eq!(server.post("/api/v1/sandboxes", &json!({ "ports": wrong })).status, 400, "{wrong}");
    }
}
