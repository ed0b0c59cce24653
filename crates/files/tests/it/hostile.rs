//! A server that lies, breaks off, hangs: bytes are right, or there is one clear error within a bound (row D9).

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use staves_files::{FileVersion, Kind, Source, SourceError};

const SIZE: usize = 100_000;
const OLD: &str = "Mon, 05 Jan 2026 10:00:00 GMT";
const NEW: &str = "Tue, 06 Jan 2026 10:00:00 GMT";
/// All tries of one request, on a machine that is slow.
const BOUND: Duration = Duration::from_secs(60);

pub struct Request {
    pub head: bool,
    pub method: String,
    pub path: String,
    headers: BTreeMap<String, String>,
}

impl Request {
    /// The range of the file that is requested.
    pub fn range(&self) -> (usize, usize) {
        let range = self.headers.get("range").expect("a range is asked for");
        let (from, to) = range
            .strip_prefix("bytes=")
            .unwrap()
            .split_once('-')
            .unwrap();
        (from.parse().unwrap(), to.parse::<usize>().unwrap() + 1)
    }
}

/// A server's reaction to each request for bytes, from the first on.
type Answer = dyn Fn(usize, &Request, &mut TcpStream) + Send + Sync;

struct Server {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// The headers of the first version.
pub const FIRST: &str = "ETag: \"one\"\r\nLast-Modified: Mon, 05 Jan 2026 10:00:00 GMT\r\n";

impl Server {
    /// One that has a manifest and a file `f`, whose HEAD has these headers.
    fn start(headers: impl Fn() -> String + Send + Sync + 'static, answer: Box<Answer>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, ended) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (count, end) = (asked.clone(), ended.clone());
        let work: Arc<dyn Fn(TcpStream) + Send + Sync> = Arc::new(move |mut stream| {
            let Some(request) = read(&stream) else { return };
            let own = headers();
            if request.path == "/data/MANIFEST" {
                send(
                    &mut stream,
                    "200 OK",
                    FIRST,
                    "f\nsub/g\n".len(),
                    b"f\nsub/g\n",
                );
            } else if request.head {
                let known = matches!(&*request.path, "/data/f" | "/data/sub/g");
                let status = if known { "200 OK" } else { "404 Not Found" };
                send(&mut stream, status, &own, SIZE, b"");
            } else {
                answer(count.fetch_add(1, Ordering::SeqCst), &request, &mut stream);
            }
        });
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let (work, stream) = (work.clone(), stream.unwrap());
                std::thread::spawn(move || work(stream));
            }
        });
        Server {
            address,
            asked,
            ended,
            thread: Some(thread),
        }
    }

    fn source(&self) -> Source {
        Source::parse(&format!("http://{}/data", self.address)).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

pub fn read(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line.ok()?;
        let Some((key, value)) = line.split_once(':') else {
            break;
        };
        headers.insert(key.to_ascii_lowercase(), value.trim().to_owned());
    }
    let head = method == "HEAD";
    Some(Request {
        head,
        method,
        path,
        headers,
    })
}

pub fn send(stream: &mut TcpStream, status: &str, headers: &str, length: usize, bytes: &[u8]) {
    let head = format!(
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    // Who is told enough may hang up.
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(bytes);
}

/// A part, as it should be sent.
fn part(stream: &mut TcpStream, headers: &str, (from, to): (usize, usize), bytes: &[u8]) {
    let range = format!("{headers}Content-Range: bytes {from}-{}/{SIZE}\r\n", to - 1);
    send(stream, "206 Partial Content", &range, to - from, bytes);
}

fn bytes(from: usize, to: usize) -> Vec<u8> {
    (from..to).map(|at| (at * 31 % 251) as u8).collect()
}

fn open(source: &Source, path: &str) -> FileVersion {
    let stat = source.stat(path.as_bytes()).unwrap();
    let Kind::File { version, .. } = stat.kind else {
        panic!("{stat:?}")
    };
    FileVersion {
        dataset: "d".into(),
        path: path.into(),
        size: stat.size,
        version,
    }
}

fn get(source: &Source, file: &FileVersion, from: u64, len: usize) -> Result<Bytes, SourceError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let began = Instant::now();
    let read = runtime.block_on(source.read(file, from, len));
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    read.map(|(bytes, _)| bytes)
}

/// Every way in which an answer can be wrong for good: an error that names the file and says what is wrong.
#[test]
fn d9_no_lie_becomes_bytes() {
    let right = |request: &Request| {
        let (from, to) = request.range();
        ((from, to), bytes(from, to))
    };
    let lies: Vec<(&str, Box<Answer>)> = vec![
        (
            "ranges",
            Box::new(|_, _, stream| send(stream, "200 OK", FIRST, SIZE, &bytes(0, SIZE))),
        ),
        (
            "end of file",
            Box::new(move |_, request, stream| {
                // It breaks off.
                let (range, bytes) = right(request);
                part(stream, FIRST, range, &bytes[..bytes.len() / 2]);
            }),
        ),
        (
            "of the",
            Box::new(move |_, request, stream| {
                // It says in its length that it sends less than it says in its range.
                let ((from, to), bytes) = right(request);
                let range = format!("{FIRST}Content-Range: bytes {from}-{}/{SIZE}\r\n", to - 1);
                send(stream, "206 Partial Content", &range, 10, &bytes[..10]);
            }),
        ),
        (
            "more than",
            Box::new(move |_, request, stream| {
                let ((from, to), mut bytes) = right(request);
                bytes.extend_from_slice(&[7; 5000]);
                let range = format!("{FIRST}Content-Range: bytes {from}-{}/{SIZE}\r\n", to - 1);
                send(stream, "206 Partial Content", &range, bytes.len(), &bytes);
            }),
        ),
        (
            "equested",
            Box::new(move |_, request, stream| {
                let ((from, to), bytes) = right(request);
                part(stream, FIRST, (from + 1, to + 1), &bytes);
            }),
        ),
        (
            "503",
            Box::new(|_, _, stream| send(stream, "503 Slow Down", "", 0, b"")),
        ),
        (
            "418",
            Box::new(|_, _, stream| send(stream, "418 Teapot", "", 0, b"")),
        ),
        (
            "",
            Box::new(|_, _, stream| drop(stream.write_all(b"\0\0\0garbage\r\n\r\n"))),
        ),
        ("", Box::new(|_, _, _| ())),
    ];
    for (i, (word, lie)) in lies.into_iter().enumerate() {
        let server = Server::start(|| FIRST.to_owned(), lie);
        let source = server.source();
        let file = open(&source, "f");
        let error = get(&source, &file, 1000, 30_000).unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, SourceError::Unreachable { .. }),
            "{i}: {text}"
        );
        assert!(
            text.contains("/data/f") && text.contains(word),
            "{i}: {text}"
        );
        assert!(text.len() < 500, "{i}: {text}");
        assert!(
            server.asked.load(Ordering::SeqCst) <= 3,
            "{i}: tries are bounded"
        );
    }
}

#[test]
fn what_fails_at_first_is_tried_again() {
    let server = Server::start(
        || FIRST.to_owned(),
        Box::new(|turn, request, stream| {
            let (from, to) = request.range();
            match turn {
                0 => send(stream, "503 Slow Down", "", 0, b""),
                1 => part(stream, FIRST, (from, to), &bytes(from, from + 100)),
                _ => part(stream, FIRST, (from, to), &bytes(from, to)),
            }
        }),
    );
    let source = server.source();
    let file = open(&source, "sub/g");
    assert_eq!(get(&source, &file, 77, 50_000).unwrap(), bytes(77, 50_077));
    assert_eq!(server.asked.load(Ordering::SeqCst), 3);
}

/// However a server lets it be seen that there is another version: it is not read as this one, and is seen by the next who opens.
#[test]
fn d9_another_version_is_changed_whatever_the_server_makes_of_conditions() {
    const SECOND: &str = "ETag: \"two\"\r\nLast-Modified: Tue, 06 Jan 2026 10:00:00 GMT\r\n";
    let answers: [fn(&Request, &mut TcpStream); 4] = [
        |request, stream| {
            assert_eq!(request.headers["if-match"], "\"one\"");
            send(stream, "412 Precondition Failed", SECOND, 0, b"");
        },
        // It knows no conditions.
        |request, stream| {
            let (from, to) = request.range();
            part(stream, SECOND, (from, to), &vec![9; to - from]);
        },
        |_, stream| send(stream, "416 Range Not Satisfiable", SECOND, 0, b""),
        // The first half is of one version, and the server dies.
        |request, stream| {
            let (from, to) = request.range();
            part(stream, FIRST, (from, to), &bytes(from, from + 100));
        },
    ];
    for answer in answers {
        let now = Arc::new(AtomicBool::new(false));
        let is_second = now.clone();
        let headers = move || {
            let is_second = is_second.load(Ordering::SeqCst);
            if is_second {
                SECOND.to_owned()
            } else {
                FIRST.to_owned()
            }
        };
        let server = Server::start(
            headers,
            Box::new(move |_, request, stream| answer(request, stream)),
        );
        let source = server.source();
        let file = open(&source, "f");
        assert_eq!(file.version, "\"one\"");
        now.store(true, Ordering::SeqCst);
        let read = get(&source, &file, 0, 30_000);
        assert!(matches!(read, Err(SourceError::Changed { .. })), "{read:?}");
        assert_eq!(
            open(&source, "f").version,
            "\"two\"",
            "what was known of it is forgotten"
        );
    }
}

/// Without a strong ETag, the time of the last change tells versions apart; without either, nothing is read.
#[test]
fn d9_versions_without_a_strong_etag_go_by_their_time() {
    let of = |time: &str| format!("ETag: W/\"weak\"\r\nLast-Modified: {time}\r\n");
    let server = Server::start(
        move || of(OLD),
        Box::new(move |turn, request, stream| {
            assert_eq!(request.headers["if-unmodified-since"], OLD);
            let (from, to) = request.range();
            let headers = of(if turn == 0 { OLD } else { NEW });
            part(stream, &headers, (from, to), &bytes(from, to));
        }),
    );
    let source = server.source();
    let file = open(&source, "f");
    assert_eq!(get(&source, &file, 5, 10).unwrap(), bytes(5, 15));
    let changed = get(&source, &file, 5, 10);
    assert!(
        matches!(changed, Err(SourceError::Changed { .. })),
        "{changed:?}"
    );

    let server = Server::start(String::new, Box::new(|_, _, _| ()));
    let error = server.source().stat(b"f").unwrap_err().to_string();
    assert!(error.contains("neither an ETag nor"), "{error}");
}

/// A server that takes the question and says nothing.
#[test]
fn who_is_silent_is_not_waited_for_for_ever() {
    let hang = |_: usize, _: &Request, _: &mut TcpStream| std::thread::sleep(BOUND * 2);
    let server = Server::start(|| FIRST.to_owned(), Box::new(hang));
    let source = server.source();
    let file = open(&source, "f");
    let error = get(&source, &file, 0, 10).unwrap_err().to_string();
    assert!(error.contains("/data/f"), "{error}");
}

#[test]
fn what_is_not_there_is_not_found_and_nobody_there_is_said() {
    let server = Server::start(|| FIRST.to_owned(), Box::new(|_, _, _| ()));
    let source = server.source();
    for path in ["none", "f/x", "sub/g/x", "su"] {
        let stat = source.stat(path.as_bytes());
        assert!(
            matches!(stat, Err(SourceError::NotFound { .. })),
            "{path}: {stat:?}"
        );
    }
    assert_eq!(source.stat(b"sub").unwrap().kind, Kind::Folder);
    let names: Vec<_> = source
        .list(b"")
        .unwrap()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, [b"f".to_vec(), b"sub".to_vec()]);
    drop(server);
    let began = Instant::now();
    let error = source.stat(b"sub/g").unwrap_err().to_string();
    assert!(
        error.contains("/data/sub/g") && began.elapsed() < BOUND,
        "{error}"
    );
}

/// Regression: a list of names that was too old cost a round trip before the question for the name itself.
#[test]
fn a_name_is_asked_for_beside_the_list_that_it_is_in() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    // It lists nothing before it was asked for the name. It ends with the test's process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, asked) = (stream.unwrap(), asked.clone());
            std::thread::spawn(move || {
                let Some(request) = read(&stream) else { return };
                let name = request.path.trim_start_matches("/data/");
                if request.head {
                    asked.fetch_add(1, Ordering::SeqCst);
                    let status = if name == "f" {
                        "200 OK"
                    } else {
                        "404 Not Found"
                    };
                    return send(&mut stream, status, FIRST, SIZE, b"");
                }
                while asked.load(Ordering::SeqCst) == 0 {
                    std::thread::sleep(Duration::from_millis(5));
                }
                send(&mut stream, "200 OK", FIRST, 8, b"f\nsub/g\n");
            });
        }
    });
    let source = || Source::parse(&format!("http://{address}/data")).unwrap();
    assert_eq!(open(&source(), "f").version, "\"one\"");
    assert_eq!(source().stat(b"sub").unwrap().kind, Kind::Folder);
    let none = source().stat(b"h");
    assert!(
        matches!(none, Err(SourceError::NotFound { .. })),
        "{none:?}"
    );
}

/// Row D11: a name that was asked for lately is known while its server is away, and asked for again once it is back. Regression: bytes
/// in memory could not be opened without a bucket or a web server.
#[test]
fn d11_names_are_known_while_their_server_hangs() {
    let is_away = Arc::new(AtomicBool::new(false));
    let version = Arc::new(AtomicUsize::new(1));
    let (away, now) = (is_away.clone(), version.clone());
    let headers = move || {
        while away.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let version = now.load(Ordering::SeqCst);
        format!("ETag: \"{version}\"\r\nLast-Modified: Mon, 05 Jan 2026 10:00:00 GMT\r\n")
    };
    let server = Server::start(headers, Box::new(|_, _, _| ()));
    let source = server.source();
    let before = source.stat(b"f").unwrap();
    let listed = |names: Vec<(Vec<u8>, staves_files::Stat)>| -> Vec<Vec<u8>> {
        names.into_iter().map(|(name, _)| name).collect()
    };
    let names = listed(source.list(b"").unwrap());
    assert_eq!(source.outage(), None);
    is_away.store(true, Ordering::SeqCst);
    // Longer than an answer is believed without a question.
    std::thread::sleep(Duration::from_millis(5100));
    assert_eq!(source.stat(b"f").as_ref(), Ok(&before));
    // Regression: every 5 s one caller was held for 6 s, though it was known that there is no answer.
    let began = Instant::now();
    let mut held = Duration::ZERO;
    while began.elapsed() < Duration::from_secs(12) {
        let asked = Instant::now();
        assert_eq!(source.stat(b"f").as_ref(), Ok(&before));
        held = held.max(asked.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(held < Duration::from_secs(5), "{held:?}");
    // Regression: no folder could be listed, and nothing said that the server was away.
    assert_eq!(source.list(b"").map(listed), Ok(names));
    assert!(source.list(b"sub").is_err(), "nobody listed it before");
    let outage = source.outage().expect("it is away");
    assert!(
        outage.was_reached && outage.since.elapsed() < BOUND,
        "{outage:?}"
    );
    let unknown = source.stat(b"sub/g");
    assert!(
        matches!(unknown, Err(SourceError::Unreachable { .. })),
        "{unknown:?}"
    );
    version.store(2, Ordering::SeqCst);
    is_away.store(false, Ordering::SeqCst);
    let began = Instant::now();
    while source.stat(b"f").as_ref() == Ok(&before) {
        assert!(began.elapsed() < BOUND, "it is asked again");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(source.stat(b"f").is_ok());
    assert_eq!(source.outage(), None);
}

/// Regression: a manifest on a file server that was gone held the one thread that asks all servers. A pipe that nobody writes to
/// holds whoever opens it as well.
#[test]
fn a_manifest_that_hangs_holds_no_other_source() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let server = Server::start(|| FIRST.to_owned(), Box::new(|_, _, _| ()));
    let text = format!("http://{}/data#manifest={}", server.address, pipe.display());
    let source = Source::parse(&text).unwrap();
    let hung = std::thread::spawn(move || source.stat(b"f"));
    std::thread::sleep(Duration::from_millis(200));
    let began = Instant::now();
    open(&server.source(), "f");
    let took = began.elapsed();
    let error = hung.join().unwrap().unwrap_err().to_string();
    assert!(
        error.contains("pipe") && error.contains("not answered"),
        "{error}"
    );
    assert!(took < BOUND && began.elapsed() < BOUND, "{took:?}");
}

/// The first byte takes two requests, whoever reads it: a mount asks for the name, and a home, which has never heard of it,
/// for the bytes of that version at once.
#[test]
fn d8_the_first_byte_takes_two_requests() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
    let log = asked.clone();
    // A bucket. It ends with the test's process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let Some(request) = read(&stream) else {
                continue;
            };
            let on = request.headers.get("if-match");
            let method = if request.head { "HEAD" } else { "GET" };
            let line = format!("{method} {} {}", request.path, on.map_or("", |on| on));
            log.lock().unwrap().push(line);
            match request.head {
                true => send(&mut stream, "200 OK", FIRST, SIZE, b""),
                false => {
                    let (from, to) = request.range();
                    part(&mut stream, FIRST, (from, to), &bytes(from, to));
                }
            }
        }
    });
    let source = || Source::parse(&format!("s3://lab#endpoint=http://{address}")).unwrap();
    let (mount, home) = (source(), source());
    let file = open(&mount, "f");
    assert_eq!(get(&home, &file, 100, 1000).unwrap(), bytes(100, 1100));
    assert_eq!(get(&mount, &file, 100, 1000).unwrap(), bytes(100, 1100));
    let get = "GET /lab/f \"one\"";
    assert_eq!(*asked.lock().unwrap(), ["HEAD /lab/f ", get, get]);
}
