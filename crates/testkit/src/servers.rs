//! Object stores and web servers as processes of this machine, ended when dropped.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::free_port;
use crate::tools::{python, runs};

/// The deadline of a start: Python programs are slow to start on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// A server process.
pub struct Server {
    /// Its port on 127.0.0.1.
    pub port: u16,
    child: Child,
}

impl Server {
    fn start(port: u16, program: &str, args: &[&str]) -> Server {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut server = Server {
            port,
            child: child.expect("the server starts"),
        };
        let until = Instant::now() + DEADLINE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = server.child.try_wait().expect("it is a child");
            assert!(ended.is_none(), "{program} {args:?} ended: {ended:?}");
            assert!(Instant::now() < until, "{program} {args:?} does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }

    /// Kills it.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends an HTTP request and returns the status of the response.
    pub fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> u16 {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a socket");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n",
            self.port,
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("it is open");
        stream.write_all(body).expect("it is open");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it answers");
        let text = String::from_utf8_lossy(&answer);
        let status = text
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        status.unwrap_or_else(|| panic!("no status in {text:?}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An object store (PyPI: `moto[server]`).
pub fn object_store() -> Option<Server> {
    let python = python();
    if !runs(&python, &["-c", "import moto.server"]) {
        return None;
    }
    let port = free_port();
    let at = port.to_string();
    Some(Server::start(
        port,
        &python,
        &["-m", "moto.server", "-H", "127.0.0.1", "-p", &at],
    ))
}

/// The store accepts any key's signature as the owner's.
const OWNER: &str = "Authorization: AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0\r\nContent-Type: application/octet-stream\r\n";

impl Server {
    /// Creates a bucket.
    pub fn make_bucket(&self, name: &str) {
        assert_eq!(self.ask("PUT", &format!("/{name}"), OWNER, b""), 200);
    }

    /// Puts a public object into a bucket.
    pub fn put(&self, path: &str, bytes: &[u8]) {
        let headers = format!("{OWNER}x-amz-acl: public-read\r\n");
        assert_eq!(
            self.ask("PUT", &format!("/{path}"), &headers, bytes),
            200,
            "{path}"
        );
    }

    /// Puts an object that is read with credentials only.
    pub fn put_for_owner(&self, path: &str, bytes: &[u8]) {
        assert_eq!(
            self.ask("PUT", &format!("/{path}"), OWNER, bytes),
            200,
            "{path}"
        );
    }
}

/// A web server with ranges and without listings (Debian: `nginx-light`).
pub fn web(root: &Path, scratch: &Path) -> Option<Server> {
    web_with(root, scratch, "")
}

/// The same with TLS and a self-signed certificate for 127.0.0.1 in `scratch/certificate` (Debian: `openssl`).
pub fn web_tls(root: &Path, scratch: &Path) -> Option<Server> {
    if !runs("openssl", &["version"]) {
        return None;
    }
    let (key, certificate) = (scratch.join("key"), scratch.join("certificate"));
    let mut make = Command::new("openssl");
    make.args(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test"
            .split(' '),
    );
    make.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    make.args(["-addext", "subjectAltName=IP:127.0.0.1"]);
    make.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    let made = make.output().expect("it ran before");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    let (key, certificate) = (key.display(), certificate.display());
    let tls = format!(" ssl; ssl_certificate {certificate}; ssl_certificate_key {key}");
    web_with(root, scratch, &tls)
}

fn web_with(root: &Path, scratch: &Path, tls: &str) -> Option<Server> {
    if !runs("nginx", &["-v"]) {
        return None;
    }
    let port = free_port();
    let (root, at) = (root.display(), scratch.display());
    let text = format!(
        "daemon off; master_process off; pid {at}/pid; error_log {at}/error;\nevents {{}}\nhttp {{ access_log {at}/access;\n\
         client_body_temp_path {at}/1; proxy_temp_path {at}/2; fastcgi_temp_path {at}/3; uwsgi_temp_path {at}/4; scgi_temp_path {at}/5;\n\
         server {{ listen 127.0.0.1:{port}{tls}; root {root}; }} }}\n"
    );
    let file = scratch.join("conf");
    std::fs::write(&file, text).expect("a file");
    let file = file.to_string_lossy();
    Some(Server::start(
        port,
        "nginx",
        &["-c", &file, "-e", &format!("{at}/error")],
    ))
}

/// A WebDAV server (PyPI: `wsgidav`, `cheroot`).
pub fn dav(root: &Path) -> Option<Server> {
    let python = python();
    if !runs(
        &python,
        &["-c", "import wsgidav.server.server_cli, cheroot"],
    ) {
        return None;
    }
    let port = free_port();
    let (at, root) = (port.to_string(), root.to_string_lossy());
    let args = [
        "-m",
        "wsgidav.server.server_cli",
        "--host",
        "127.0.0.1",
        "--port",
        &at,
        "--root",
        &root,
        "--auth",
        "anonymous",
    ];
    Some(Server::start(port, &python, &args))
}
