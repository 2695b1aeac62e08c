"""A small internet for tests: servers on public, private and metadata addresses, in a network namespace of its own.

    unshare --net --mount python3 tests/network/world.py LOG COMMAND ...

Runs the command in there and ends with its exit status. LOG gets one line of JSON for each request that a server saw, and one
for each connection to the raw service. Names are in /etc/hosts, which is replaced in the mount namespace only; the certificates
are signed by an authority of our own, which the command finds in SSL_CERT_FILE. Files below SAGGAR_WORLD_FILES are served, if it is
set; other paths show what the server saw, except those of the model providers, which get an answer of their kind.
"""

import http.server
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading

HOSTS = {
    "good.test": "203.0.113.10",
    "api.good.test": "203.0.113.10",
    "evil.test": "203.0.113.11",
    "expired.test": "203.0.113.12",
    "wrong.test": "203.0.113.13",
    "private.test": "10.9.9.9",
    "metadata.test": "169.254.169.254",
}
RAW_PORT = 7000
LOCK = threading.Lock()
TEXT = "hello from the world"
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": TEXT}}
ANSWERS = {
    "/v1/chat/completions": {"id": "1", "object": "chat.completion", "created": 1, "model": "any", "choices": [CHOICE], "usage": USAGE},
    "/v1/messages": {
        "id": "1", "type": "message", "role": "assistant", "model": "any", "content": [{"type": "text", "text": TEXT}],
        "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}


def note(log_path, **entry):
    with LOCK, open(log_path, "a") as log:
        log.write(json.dumps(entry) + "\n")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length).decode(errors="replace")
        seen = {
            "server": self.connection.getsockname()[0],
            "tls": isinstance(self.connection, ssl.SSLSocket),
            "method": self.command,
            "path": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "body": body,
        }
        note(self.server.log, **seen)
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("location", "http://evil.test/from-redirect")
            self.send_header("content-length", "0")
            self.end_headers()
            return
        text, kind = json.dumps(ANSWERS.get(self.path, seen)).encode(), "application/json"
        if files := os.environ.get("SAGGAR_WORLD_FILES"):
            found = self.file(files)
            if found is not None:
                text, kind = found, "text/html" if b"<a " in found[:200] else "application/octet-stream"
            elif self.path not in ANSWERS and self.path.count("/") > 1:
                self.send_error(404)
                return
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def file(self, files):
        path = os.path.normpath(files + self.path.split("?")[0])
        if not path.startswith(files + "/"):
            return None
        path = os.path.join(path, "index.html") if os.path.isdir(path) else path
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            return file.read()

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = answer

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    # A client that leaves is no event.
    def handle_error(self, *_):
        pass


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def certificate(directory, name, names, *options):
    """Makes a key and a certificate for the names, signed by the authority."""
    key, request, made = (f"{directory}/{name}.{end}" for end in ("key", "csr", "pem"))
    extension = f"{directory}/{name}.ext"
    with open(extension, "w") as file:
        file.write("subjectAltName=" + ",".join(f"DNS:{one}" for one in names) + "\nextendedKeyUsage=serverAuth\n")
    run("openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key,
        "-out", request, "-subj", f"/CN={names[0]}")
    authority = ("-CA", f"{directory}/ca.pem", "-CAkey", f"{directory}/ca.key", "-CAcreateserial")
    run("openssl", "x509", "-req", "-in", request, *authority, "-out", made, "-extfile", extension, *(options or ("-days", "30")))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    context.set_alpn_protocols(["http/1.1"])
    return context


def certificates(directory):
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
        "-keyout", f"{directory}/ca.key", "-out", f"{directory}/ca.pem", "-subj", "/CN=Test authority")
    good = certificate(directory, "good", ["good.test", "api.good.test"])
    return {
        "203.0.113.10": good,
        "203.0.113.11": certificate(directory, "evil", ["evil.test"]),
        "203.0.113.12": certificate(directory, "expired", ["expired.test"], "-days", "-1"),
        "203.0.113.13": certificate(directory, "wrong", ["another.test"]),
        "10.9.9.9": certificate(directory, "private", ["private.test"]),
    }


def raw(address, log):
    """A service that speaks first, as mail servers and databases do, and then echoes."""
    listener = socket.create_server((address, RAW_PORT))

    def converse(connection):
        with connection:
            note(log, server=address, raw=True)
            connection.sendall(b"hello\n")
            while data := connection.recv(4096):
                connection.sendall(data)

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=converse, args=(connection,), daemon=True).start()


def serve(address, port, log, context=None):
    server = Server((address, port), Handler)
    server.log = log
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main():
    log, command = sys.argv[1], sys.argv[2:]
    open(log, "a").close()
    run("ip", "link", "set", "lo", "up")
    addresses = sorted(set(HOSTS.values()))
    # Routes and not addresses of an interface: those would be the host's own, which no rule but an exact one opens.
    for address in addresses:
        run("ip", "route", "replace", "local", address.rsplit(".", 1)[0] + ".0/24", "dev", "lo")
    with tempfile.TemporaryDirectory(prefix="saggar-world-") as directory:
        # The command may run as another user, who has to read the certificates.
        os.chmod(directory, 0o755)
        with open(f"{directory}/hosts", "w") as file:
            file.write("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in HOSTS.items()))
        run("mount", "--bind", f"{directory}/hosts", "/etc/hosts")
        contexts = certificates(directory)
        for address in addresses:
            serve(address, 80, log)
            threading.Thread(target=raw, args=(address, log), daemon=True).start()
        for address, context in contexts.items():
            serve(address, 443, log, context)
        environment = dict(os.environ, SSL_CERT_FILE=f"{directory}/ca.pem")
        code = subprocess.run(command, env=environment).returncode
        run("umount", "/etc/hosts")
    sys.exit(code if code >= 0 else 128 - code)


main()
