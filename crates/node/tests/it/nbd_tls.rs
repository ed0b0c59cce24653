//! TLS at the NBD door: certificates that are refused at the start, and connections whose bounds and ends are those of others.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use staves_client::Client;
use staves_model::{Change, VolumeLimit};
use staves_node::config::{Config, TlsPolicy};
use staves_testkit::cluster::TestCluster;
use staves_testkit::nbd::NbdClient;
use staves_testkit::{DEADLINE, certificates, wait_until};
use tempfile::TempDir;

use crate::memory::{POOL, make_pool, pattern};
use crate::volumes::{MIB, create, nbd};

const GO: u32 = 7;
const STARTTLS: u32 = 5;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;

/// Nodes with a certificate, and a volume `v`.
fn cluster(folder: &Path, nodes: usize, policy: TlsPolicy) -> (TestCluster, Client) {
    let cluster = TestCluster::start_with(nodes, |_, config| {
        config.nbd = Some("127.0.0.1:0".parse().expect("an address"));
        config.tls_cert = Some(folder.join("server-cert.pem"));
        config.tls_key = Some(folder.join("server-key.pem"));
        config.nbd_tls = Some(policy);
    });
    make_pool(&cluster, POOL, "1+0", 48 * MIB);
    let client = cluster.native_client();
    create(&cluster, &client, "v", 40 * MIB);
    (cluster, client)
}

/// A folder with certificates; `None` where the test is to be skipped.
fn made() -> Option<TempDir> {
    let folder = tempfile::tempdir().expect("a folder");
    certificates::make(folder.path()).then_some(folder)
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn go() -> Vec<u8> {
    option(GO, b"\0\0\0\x01v\0\0")
}

fn request(kind: u16, cookie: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend((len as u32).to_be_bytes());
    bytes
}

/// The kind and the data of an answer to an option.
fn option_reply(stream: &mut impl Read) -> (u32, Vec<u8>) {
    let mut head = [0; 20];
    stream.read_exact(&mut head).expect("an answer");
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let mut data = vec![0; word(16) as usize];
    stream.read_exact(&mut data).expect("its data");
    (word(12), data)
}

/// A connection that has been greeted, and sent its flags.
fn greeted(address: SocketAddr) -> TcpStream {
    let mut socket = TcpStream::connect(address).expect("it listens");
    socket.set_read_timeout(Some(DEADLINE)).expect("a time-out");
    socket.read_exact(&mut [0; 18]).expect("greeted");
    socket.write_all(&[0, 0, 0, 3]).expect("sent");
    socket
}

/// One that was granted TLS, and has not begun it.
fn granted(address: SocketAddr) -> TcpStream {
    let mut socket = greeted(address);
    socket.write_all(&option(STARTTLS, b"")).expect("sent");
    assert_eq!(option_reply(&mut socket), (1, Vec::new()));
    socket
}

/// True if the server closes the connection without a byte of NBD.
fn is_closed(mut socket: TcpStream) -> bool {
    let mut rest = Vec::new();
    let ended = socket.read_to_end(&mut rest);
    let closed = ended
        .as_ref()
        .map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true);
    // An alert of TLS may come before.
    closed && (rest.is_empty() || rest[0] == 21)
}

/// A client within TLS that has chosen the volume.
struct TlsClient(StreamOwned<ClientConnection, TcpStream>);

impl TlsClient {
    fn connect(folder: &Path, address: SocketAddr) -> TlsClient {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_file(folder.join("ca-cert.pem"));
        roots.add(authority.expect("PEM")).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions();
        let config = config.expect("versions").with_root_certificates(roots);
        let config = Arc::new(config.with_no_client_auth());
        let name = Ipv4Addr::LOCALHOST.into();
        let tls = ClientConnection::new(config, rustls::pki_types::ServerName::IpAddress(name));
        let mut stream = StreamOwned::new(tls.expect("a client"), granted(address));
        stream.write_all(&go()).expect("sent");
        let (kind, data) = option_reply(&mut stream);
        assert_eq!((kind, data.len()), (3, 12), "the export");
        assert_eq!(option_reply(&mut stream).0, 1, "acknowledged");
        TlsClient(stream)
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("sent");
        self.0.flush().expect("sent");
    }

    /// The cookie of the next reply, and its bytes.
    fn reply(&mut self, len: usize) -> (u64, Vec<u8>) {
        let mut head = [0; 16];
        self.0.read_exact(&mut head).expect("a reply");
        assert_eq!(head[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "done");
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).expect("its bytes");
        let cookie = head[8..].iter().fold(0, |sum, b| sum << 8 | u64::from(*b));
        (cookie, bytes)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let head = request(WRITE, 7, offset, bytes.len());
        self.send(&[&head[..], bytes].concat());
        assert_eq!(self.reply(0).0, 7);
    }
}

fn writer(cluster: &TestCluster, client: &Client) -> Option<u64> {
    let stat = cluster.nodes[0].runtime().block_on(client.volume("v"));
    stat.expect("a volume").writer.map(|writer| writer.node.0)
}

#[test]
fn a_volume_is_read_and_written_within_tls_as_without() {
    let Some(folder) = made() else { return };
    let (cluster, _client) = cluster(folder.path(), 1, TlsPolicy::Offered);
    let address = nbd(&cluster, 0);
    let mut tls = TlsClient::connect(folder.path(), address);
    let bytes = pattern(3, 17 * MIB as usize + 11);
    tls.write(777, &bytes);
    // Others do without TLS where it is only offered.
    let mut plain = NbdClient::connect(address, "v").expect("it connects");
    assert!(plain.read(777, bytes.len()).expect("read") == bytes);
    drop(plain);
    // More than sockets hold, taken slowly: what TLS has kept back is sent in the end.
    let len = 8 * MIB as usize;
    tls.send(&request(READ, 1, 777, len));
    std::thread::sleep(Duration::from_millis(300));
    let (cookie, read) = tls.reply(len);
    assert!(cookie == 1 && read == bytes[..len]);
    // A client that has no more requests, and takes the replies to those that it had.
    for at in 0..16u64 {
        tls.send(&request(READ, at, 777 + at * MIB, MIB as usize));
    }
    tls.send(&request(DISCONNECT, 99, 0, 0));
    tls.0.conn.send_close_notify();
    tls.0.flush().expect("sent");
    let mut came = [false; 16];
    for _ in 0..16 {
        let (cookie, read) = tls.reply(MIB as usize);
        let at = cookie as usize * MIB as usize;
        assert!(read == bytes[at..at + MIB as usize], "{cookie}");
        came[cookie as usize] = true;
    }
    assert!(came.iter().all(|came| *came));
    let ended = tls.0.read(&mut [0; 1]).expect("an end in good order");
    assert_eq!(ended, 0);
}

#[test]
fn without_tls_nothing_is_done_where_it_is_required() {
    let Some(folder) = made() else { return };
    let (cluster, _client) = cluster(folder.path(), 1, TlsPolicy::Required);
    let address = nbd(&cluster, 0);
    let refused = NbdClient::connect(address, "v").err().expect("refused");
    let text = "error 0x80000005: this server requires TLS; connect with it";
    assert_eq!(refused, text);
    TlsClient::connect(folder.path(), address).write(0, b"within");
    // A node without a certificate grants none.
    let plain = TestCluster::start_with(1, |_, config| {
        config.nbd = Some("127.0.0.1:0".parse().expect("an address"));
    });
    let mut socket = greeted(nbd(&plain, 0));
    socket.write_all(&option(STARTTLS, b"")).expect("sent");
    let (kind, text) = option_reply(&mut socket);
    assert_eq!(kind, 0x8000_0002, "{}", String::from_utf8_lossy(&text));
}

/// Bytes behind `STARTTLS` in the clear may be of anybody on the way.
#[test]
fn bytes_that_came_before_tls_are_never_taken_as_if_within() {
    let Some(folder) = made() else { return };
    let (cluster, client) = cluster(folder.path(), 1, TlsPolicy::Offered);
    let address = nbd(&cluster, 0);
    let write = [request(WRITE, 1, 0, 5), b"wrong".to_vec()].concat();
    let injected = [go(), write].concat();
    // In one piece with the option, and behind its answer.
    let mut together = greeted(address);
    let both = [option(STARTTLS, b""), injected.clone()].concat();
    together.write_all(&both).expect("sent");
    assert!(is_closed(together));
    let mut behind = granted(address);
    behind.write_all(&injected).expect("sent");
    assert!(is_closed(behind));
    let mut sound = TlsClient::connect(folder.path(), address);
    sound.send(&request(READ, 1, 0, 5));
    assert_eq!(sound.reply(5), (1, vec![0; 5]));
    assert_eq!(writer(&cluster, &client), None);
}

#[test]
fn a_handshake_that_does_not_come_ends() {
    let Some(folder) = made() else { return };
    let (cluster, _client) = cluster(folder.path(), 1, TlsPolicy::Required);
    let address = nbd(&cluster, 0);
    let began = Instant::now();
    let silent = granted(address);
    let mut dribbles = granted(address);
    // The head of a hello of 500 bytes, which come one by one.
    dribbles.write_all(&[22, 3, 1, 1, 0xf4]).expect("sent");
    while dribbles.write_all(&[0]).is_ok() {
        assert!(began.elapsed() < DEADLINE, "it stands");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(is_closed(silent));
    assert!(began.elapsed() < DEADLINE);
    // Nonsense ends at once.
    let mut rude = granted(address);
    rude.write_all(&[0xff; 4000]).expect("sent");
    assert!(is_closed(rude));
    wait_until("their places are free", || {
        cluster.nodes[0].metric("staves_nbd_connections") == 0
    });
}

/// A client that is gone while its requests wait holds neither its place nor its volume.
#[test]
fn a_client_that_goes_within_tls_is_seen_to_go() {
    let Some(folder) = made() else { return };
    let (cluster, client) = cluster(folder.path(), 1, TlsPolicy::Offered);
    let mut a = TlsClient::connect(folder.path(), nbd(&cluster, 0));
    a.write(0, b"attached");
    assert!(writer(&cluster, &client).is_some());
    let limit = VolumeLimit {
        iops: Some(1),
        bytes_per_second: None,
        burst_ms: 1000,
    };
    let limited = Change::LimitVolume {
        name: "v".to_owned(),
        limit: Some(limit),
    };
    cluster.nodes[0].propose(&limited).expect("limited");
    wait_until("the door knows the limit", || {
        let map = cluster.nodes[0].map();
        !map.volumes.limits.is_empty()
    });
    // More than are done within the time of this test.
    for _ in 0..300 {
        a.send(&[request(WRITE, 9, 4096, 4), vec![1; 4]].concat());
    }
    drop(a);
    wait_until("the volume is free", || writer(&cluster, &client).is_none());
}

#[test]
fn a_node_that_leaves_ends_tls_in_good_order() {
    let Some(folder) = made() else { return };
    let (mut cluster, _client) = cluster(folder.path(), 1, TlsPolicy::Offered);
    let mut a = TlsClient::connect(folder.path(), nbd(&cluster, 0));
    a.write(0, b"attached");
    cluster.nodes[0].leave();
    let ended = a.0.read(&mut [0; 1]).expect("told by TLS");
    assert_eq!(ended, 0);
}

/// The error of a start with these files.
fn refused(cert: &Path, key: &Path, client_ca: Option<&Path>) -> String {
    let config = Config {
        tls_cert: Some(cert.to_owned()),
        tls_key: Some(key.to_owned()),
        tls_client_ca: client_ca.map(Path::to_owned),
        ..Config::default()
    };
    match staves_node::check_files(&config) {
        Ok(()) => "taken".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Files that cannot be used, beside those that can.
fn put_wrong_files(folder: &Path, other: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let put = |name: &str, mode: u32, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    let read = |path: &Path| fs::read(path).expect("a file");
    let (cert, key) = (
        folder.join("server-cert.pem"),
        folder.join("server-key.pem"),
    );
    let whole = read(&cert);
    put("cut", 0o600, &whole[..whole.len() / 2]);
    for (name, kind) in [("der", "CERTIFICATE"), ("strange", "PRIVATE KEY")] {
        let text = format!("-----BEGIN {kind}-----\nAAAA\n-----END {kind}-----\n");
        put(name, 0o600, text.as_bytes());
    }
    put("open", 0o644, &read(&key));
    put("others", 0o600, &read(&other.join("server-key.pem")));
    let mut lock = Command::new("openssl");
    lock.args(["pkey", "-aes128", "-passout", "pass:x", "-in"]);
    lock.arg(&key).arg("-out").arg(folder.join("locked"));
    assert!(lock.status().expect("it runs").success());
    let pipe = Command::new("mkfifo").arg(folder.join("pipe")).status();
    assert!(pipe.expect("it runs").success());
}

const CERT: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";
/// A certificate, a key, an authority of clients, and two parts of the error.
const WRONG: &[[&str; 5]] = &[
    ["none", KEY, "", "none cannot be read", "--tls-cert"],
    [CERT, "none", "", "none cannot be read", "--tls-key"],
    [CERT, KEY, "none", "none cannot be read", "--tls-client-ca"],
    ["/dev/zero", KEY, "", "/dev/zero", "more than 1048576 bytes"],
    ["pipe", KEY, "", "pipe", "was not written to"],
    [KEY, KEY, "", "no certificate in it", "--tls-cert"],
    ["cut", KEY, "", "cut", "no END line"],
    ["der", KEY, "", "der cannot be used", "certificate"],
    [CERT, CERT, "", "open to others (mode 0644)", "chmod o="],
    [CERT, "open", "", "open to others", "chmod o="],
    [
        CERT,
        "locked",
        "",
        "no private key in it",
        "openssl pkey -in",
    ],
    [
        CERT,
        "others",
        "",
        "does not fit the certificate",
        "--tls-key",
    ],
    [CERT, "strange", "", "strange cannot be used", "RSA"],
    [CERT, KEY, KEY, "no certificate in it", "--tls-client-ca"],
    [CERT, KEY, "der", "der cannot be used", "authorities"],
];

#[test]
fn files_of_tls_that_cannot_be_used_are_named_with_a_remedy() {
    let (Some(folder), Some(other)) = (made(), made()) else {
        return;
    };
    put_wrong_files(folder.path(), other.path());
    let start = |cert: &str, key: &str, client_ca: &str| {
        let path = |name: &str| folder.path().join(name);
        let client_ca = Some(path(client_ca)).filter(|_| !client_ca.is_empty());
        refused(&path(cert), &path(key), client_ca.as_deref())
    };
    assert_eq!(start(CERT, KEY, "ca-cert.pem"), "taken");
    for [cert, key, client_ca, part, other] in WRONG {
        let error = start(cert, key, client_ca);
        let names = error.contains(part) && error.contains(other);
        assert!(names, "{part}, {other}: {error}");
    }
}
