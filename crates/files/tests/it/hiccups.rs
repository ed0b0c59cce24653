//! A server that denies once what it has, fails once, or has a page for every name: a list is whole, or there is an error that says why.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use staves_files::{FileVersion, Kind, Source, SourceError};

use crate::hostile::{FIRST, Request, read, send};

/// Longer than an answer is believed without a question.
const BELIEVED: Duration = Duration::from_millis(5100);
const ABSENT: &str = "404 Not Found";

/// The statuses that a server has for its next requests, by method and path.
type Faults = Arc<Mutex<BTreeMap<String, Vec<&'static str>>>>;

/// A server that first has the faults of a request for it, then the answer. It ends with the test's process.
fn server(
    faults: &Faults,
    answer: impl Fn(&Request, &mut TcpStream) + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (answer, faults) = (Arc::new(answer), faults.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer, faults) = (stream.unwrap(), answer.clone(), faults.clone());
            std::thread::spawn(move || {
                let Some(request) = read(&stream) else { return };
                let key = format!("{} {}", request.method, request.path);
                let fault = faults.lock().get_mut(&key).and_then(Vec::pop);
                match fault {
                    Some(status) => send(&mut stream, status, "", 0, b""),
                    None => answer(&request, &mut stream),
                }
            });
        }
    });
    address
}

fn fails(faults: &Faults, request: &str, statuses: &[&'static str]) {
    faults.lock().insert(request.to_owned(), statuses.to_vec());
}

/// True if all of them have come to pass.
fn is_over(faults: &Faults) -> bool {
    faults.lock().values().all(Vec::is_empty)
}

fn names(source: &Source, folder: &str) -> Result<Vec<String>, SourceError> {
    let names = source.list(folder.as_bytes())?.into_iter();
    Ok(names
        .map(|(name, _)| String::from_utf8(name).unwrap())
        .collect())
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

fn read_all(source: &Source, file: &FileVersion) -> Result<(), SourceError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let read = runtime.block_on(source.read(file, 0, file.size as usize));
    read.map(drop)
}

/// Two files behind a manifest.
fn with_manifest(request: &Request, stream: &mut TcpStream) {
    match (&*request.path, &*request.method) {
        ("/data/MANIFEST", "GET") => send(stream, "200 OK", FIRST, 8, b"f\nsub/g\n"),
        ("/data/f" | "/data/sub/g", "HEAD") => send(stream, "200 OK", FIRST, 5, b""),
        ("/data/f" | "/data/sub/g", _) => {
            let range = format!("{FIRST}Content-Range: bytes 0-4/5\r\n");
            send(stream, "206 Partial Content", &range, 5, b"bytes");
        }
        _ => send(stream, ABSENT, "", 0, b""),
    }
}

/// An entry of a WebDAV list.
fn entry(path: &str, is_folder: bool) -> String {
    let kind = if is_folder { "<collection/>" } else { "" };
    format!(
        "<response><href>{path}</href><propstat><prop><getlastmodified>Mon, 05 Jan 2026 10:00:00 GMT</getlastmodified>\
         <getcontentlength>5</getcontentlength><getetag>\"one\"</getetag><resourcetype>{kind}</resourcetype></prop>\
         <status>HTTP/1.1 200 OK</status></propstat></response>"
    )
}

/// The same by WebDAV.
fn with_dav(request: &Request, stream: &mut TcpStream) {
    let list = |entries: &[String]| format!("<multistatus>{}</multistatus>", entries.concat());
    let text = match (&*request.path, &*request.method) {
        ("/data", "PROPFIND") => list(&[
            entry("/data/", true),
            entry("/data/f", false),
            entry("/data/sub/", true),
        ]),
        ("/data/sub", "PROPFIND") => {
            list(&[entry("/data/sub/", true), entry("/data/sub/g", false)])
        }
        ("/data/MANIFEST", _) => return send(stream, ABSENT, "", 0, b""),
        _ => return with_manifest(request, stream),
    };
    send(stream, "207 Multi-Status", "", text.len(), text.as_bytes());
}

#[test]
fn a_web_server_that_denies_once_what_it_has_hides_nothing() {
    let faults = Faults::default();
    let source = Source::parse(&format!("http://{}/data", server(&faults, with_manifest))).unwrap();
    fails(&faults, "HEAD /data/f", &[ABSENT]);
    assert_eq!(names(&source, "").unwrap(), ["f", "sub"]);
    fails(&faults, "HEAD /data/sub/g", &[ABSENT]);
    assert_eq!(source.stat(b"sub/g").unwrap().size, 5);
    let file = open(&source, "f");
    fails(&faults, "GET /data/f", &[ABSENT]);
    assert_eq!(read_all(&source, &file), Ok(()));
    std::thread::sleep(BELIEVED);
    fails(&faults, "GET /data/MANIFEST", &[ABSENT]);
    assert_eq!(names(&source, "").unwrap(), ["f", "sub"]);
    std::thread::sleep(BELIEVED);
    fails(&faults, "GET /data/MANIFEST", &["503 Slow Down"]);
    assert_eq!(names(&source, "sub").unwrap(), ["g"]);
    assert!(is_over(&faults));
}

#[test]
fn a_webdav_server_that_fails_once_has_no_empty_folder() {
    for status in [ABSENT, "500 Internal Server Error"] {
        let faults = Faults::default();
        let source = Source::parse(&format!("http://{}/data", server(&faults, with_dav))).unwrap();
        fails(&faults, "PROPFIND /data", &[status]);
        assert_eq!(names(&source, "").unwrap(), ["f", "sub"], "{status}");
        fails(&faults, "PROPFIND /data/sub", &[status]);
        assert_eq!(names(&source, "sub").unwrap(), ["g"], "{status}");
        assert!(is_over(&faults));
    }
    // One that denies it each time has none, and does not show an empty one.
    let faults = Faults::default();
    let source = Source::parse(&format!("http://{}/data", server(&faults, with_dav))).unwrap();
    fails(&faults, "PROPFIND /data/sub", &[ABSENT; 20]);
    let denied = names(&source, "sub");
    assert!(
        matches!(denied, Err(SourceError::NotFound { .. })),
        "{denied:?}"
    );
    let left = faults.lock()["PROPFIND /data/sub"].len();
    assert!(
        left >= 16,
        "it is asked a few times: {left} faults are left"
    );
}

/// A page of plain words for whatever is asked for, with the status of success and a version.
#[test]
fn a_page_for_every_name_is_no_manifest() {
    let faults = Faults::default();
    let page = |request: &Request, stream: &mut TcpStream| {
        let body: &[u8] = if request.head {
            b""
        } else {
            b"Please log in\n"
        };
        send(stream, "200 OK", FIRST, 14, body);
    };
    let source = Source::parse(&format!("http://{}/data", server(&faults, page))).unwrap();
    let error = names(&source, "").unwrap_err().to_string();
    assert!(
        error.contains("page for people") && error.contains("404"),
        "{error}"
    );
    let error = source.stat(b"Please log in").unwrap_err().to_string();
    assert!(error.contains("page for people"), "{error}");
}

/// Nothing is shown of a list that is wrong in one line, or came to half.
#[test]
fn half_of_a_manifest_is_none() {
    let faults = Faults::default();
    let bad = |request: &Request, stream: &mut TcpStream| match &*request.path {
        "/data/MANIFEST" => send(
            stream,
            "200 OK",
            FIRST,
            24,
            b"f\t5\nsub/g\tmuch\nsub/h\t5\n\n",
        ),
        _ => with_manifest(request, stream),
    };
    let source = Source::parse(&format!("http://{}/data", server(&faults, bad))).unwrap();
    let error = names(&source, "").unwrap_err().to_string();
    assert!(
        error.contains("line 2 has no size after the first tab") && error.contains("sub/g"),
        "{error}"
    );
    assert!(source.stat(b"f").is_err(), "the line before it is good");
    let half = |request: &Request, stream: &mut TcpStream| match &*request.path {
        "/data/MANIFEST" => send(stream, "200 OK", FIRST, 8, b"f\nsu"),
        _ => with_manifest(request, stream),
    };
    let source = Source::parse(&format!("http://{}/data", server(&faults, half))).unwrap();
    assert!(names(&source, "").is_err());
    assert!(source.stat(b"f").is_err());
}
