//! Something else that answers in a server's place: a log-in page, a proxy's words, a page of maintenance, all with the status of success.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use staves_files::{FileVersion, Kind, Source, SourceError, Stat};

use crate::hostile::{FIRST, Request, read, send};

const PAGE: &[u8] = b"<!doctype html>\n<html><body>log in</body></html>\n";
const MANIFEST: &[u8] = b"f\nsub/g\n";
const SIZE: usize = 1000;
/// Longer than an answer is believed without a question.
const BELIEVED: Duration = Duration::from_millis(5100);
const BOUND: Duration = Duration::from_secs(60);

/// The answer to everything while the server is not itself.
type Portal = fn(&Request, &mut TcpStream);

/// A web server with two files and a manifest. It ends with the test's process.
fn server(is_away: Arc<AtomicBool>, portal: Portal) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, is_away) = (stream.unwrap(), is_away.clone());
            std::thread::spawn(move || {
                let Some(request) = read(&stream) else { return };
                match &*request.path {
                    _ if is_away.load(Ordering::SeqCst) => portal(&request, &mut stream),
                    "/data/MANIFEST" if !request.head => {
                        send(&mut stream, "200 OK", FIRST, MANIFEST.len(), MANIFEST);
                    }
                    "/data/f" | "/data/sub/g" => send(&mut stream, "200 OK", FIRST, SIZE, b""),
                    _ => send(&mut stream, "404 Not Found", "", 0, b""),
                }
            });
        }
    });
    address
}

/// A page of some headers for whatever is asked for.
fn page(request: &Request, stream: &mut TcpStream, headers: &str, page: &[u8]) {
    let body = if request.head { b"" } else { page };
    send(stream, "200 OK", headers, page.len(), body);
}

fn names(source: &Source) -> Result<Vec<Vec<u8>>, SourceError> {
    let names = source.list(b"")?.into_iter().map(|(name, _)| name);
    Ok(names.collect())
}

fn read_some(source: &Source, stat: &Stat) -> Result<(), SourceError> {
    let Kind::File { version, .. } = &stat.kind else {
        panic!("{stat:?}")
    };
    let file = FileVersion {
        dataset: "d".into(),
        path: b"f".to_vec(),
        version: version.clone(),
        size: stat.size,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let read = runtime.unwrap().block_on(source.read(&file, 0, 100));
    read.map(drop)
}

/// All that was looked at and listed is so still, the outage is told, and ends with the server's own next answer.
fn survives(portal: Portal, manifest: Option<&str>, why: &str) {
    let is_away = Arc::new(AtomicBool::new(false));
    let address = server(is_away.clone(), portal);
    let manifest = manifest.map(|path| format!("#manifest={path}"));
    let address = format!("http://{address}/data{}", manifest.unwrap_or_default());
    let source = Source::parse(&address).unwrap();
    let before = source.stat(b"f").unwrap();
    assert_eq!(names(&source).unwrap(), [b"f".to_vec(), b"sub".to_vec()]);
    is_away.store(true, Ordering::SeqCst);
    std::thread::sleep(BELIEVED);
    let began = Instant::now();
    while source.outage().is_none_or(|told| !told.why.contains(why)) {
        assert_eq!(source.stat(b"f").as_ref(), Ok(&before), "{why}");
        assert!(began.elapsed() < BOUND, "{why}: {:?}", source.outage());
    }
    let read = read_some(&source, &before);
    assert!(
        matches!(read, Err(SourceError::Unreachable { .. })),
        "{why}: {read:?}"
    );
    assert_eq!(
        source.stat(b"f").as_ref(),
        Ok(&before),
        "{why}, after a read"
    );
    assert_eq!(names(&source).unwrap().len(), 2, "{why}");
    assert!(source.outage().is_some(), "{why}");
    is_away.store(false, Ordering::SeqCst);
    let began = Instant::now();
    while source.outage().is_some() {
        assert!(began.elapsed() < BOUND, "{why}: it is asked again");
        let _ = source.stat(b"f");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(source.stat(b"f"), Ok(before));
    let none = source.stat(b"none");
    assert!(
        matches!(none, Err(SourceError::NotFound { .. })),
        "{none:?}"
    );
}

/// Regression: a page with the status of success in place of a manifest ended the time in which what was looked at before counts: files in
/// memory could not be opened, and nothing said that the server was away (row D11).
#[test]
fn d11_a_page_in_a_servers_place_is_no_answer_of_the_server() {
    let (without, with): (Portal, Portal) = (
        |request, stream| page(request, stream, "", PAGE),
        |request, stream| page(request, stream, "ETag: \"page\"\r\n", PAGE),
    );
    let noise: Portal = |request, stream| page(request, stream, "", b"\xff\xfe\xfd");
    let words: Portal = |request, stream| page(request, stream, "", b"Please log in\n");
    let versioned: Portal = |request, stream| page(request, stream, FIRST, b"Please log in\n");
    let empty: Portal = |request, stream| page(request, stream, "", b"");
    std::thread::scope(|scope| {
        scope.spawn(|| survives(without, None, "its manifest is none"));
        scope.spawn(|| survives(with, None, "its manifest is none"));
        scope.spawn(|| survives(noise, None, "its manifest is not UTF-8"));
        scope.spawn(|| survives(empty, None, "names no file"));
        scope.spawn(|| survives(words, None, "names none of the files"));
        scope.spawn(|| survives(versioned, None, "names none of the files"));
    });
}

/// Regression: the same of files without a version, where they had one.
#[test]
fn d11_a_file_without_a_version_where_it_had_one_is_no_answer_of_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manifest");
    std::fs::write(&path, MANIFEST).unwrap();
    let portal: Portal = |request, stream| match request.head {
        true => page(request, stream, "", PAGE),
        false => {
            let (from, to) = request.range();
            let range = format!("Content-Range: bytes {from}-{}/{SIZE}\r\n", to - 1);
            send(
                stream,
                "206 Partial Content",
                &range,
                to - from,
                &[7; SIZE][from..to],
            );
        }
    };
    survives(portal, path.to_str(), "any more");
    // One that never had a version is an answer.
    let server = server(Arc::new(AtomicBool::new(true)), portal);
    let text = format!("http://{server}/data#manifest={}", path.display());
    let source = Source::parse(&text).unwrap();
    let error = source.stat(b"f").unwrap_err().to_string();
    assert!(error.contains("neither an ETag nor"), "{error}");
    assert_eq!(source.outage(), None);
}

/// Regression: a manifest of this machine that could not be read any more made all names unknown.
#[test]
fn d11_a_manifest_that_cannot_be_read_any_more_takes_no_names_away() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manifest");
    let server = server(Arc::new(AtomicBool::new(false)), |_, _| ());
    let text = format!("http://{server}/data#manifest={}", path.display());
    let source = Source::parse(&text).unwrap();
    let error = source.stat(b"f").unwrap_err().to_string();
    assert!(error.contains("cannot be read"), "{error}");
    std::fs::write(&path, MANIFEST).unwrap();
    let before = source.stat(b"f").unwrap();
    std::fs::remove_file(&path).unwrap();
    std::thread::sleep(BELIEVED);
    assert_eq!(source.stat(b"f"), Ok(before));
}
