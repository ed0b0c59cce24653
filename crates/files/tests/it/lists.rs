//! Servers that have more names than anybody holds in memory.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use staves_files::{Kind, Source, SourceError};

use crate::hostile::{FIRST, Request, read, send};

/// A server whose `lists` counts what it was asked for; it ends with the test's process.
fn server(answer: impl Fn(&Request, &mut TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), answer.clone());
            std::thread::spawn(move || {
                if let Some(request) = read(&stream) {
                    answer(&request, &mut stream);
                }
            });
        }
    });
    address
}

/// A page of a bucket's list: a thousand names from a number on, and where to go on.
fn page(from: usize, names: usize) -> String {
    let end = (from + 1000).min(names);
    let object = |at: usize| {
        format!(
            "<Contents><Key>f{at:07}</Key><Size>5</Size><LastModified>2026-01-05T10:00:00.000Z</LastModified><ETag>&quot;e{at}&quot;</ETag></Contents>"
        )
    };
    let objects: String = (from..end).map(object).collect();
    // The folder of this name comes on a page after the file.
    let folder = match end == names {
        true => "<CommonPrefixes><Prefix>f0000000/</Prefix></CommonPrefixes><CommonPrefixes><Prefix>sub/</Prefix></CommonPrefixes>".to_owned(),
        false => format!("<NextContinuationToken>{end}</NextContinuationToken>"),
    };
    format!("<ListBucketResult>{objects}{folder}</ListBucketResult>")
}

/// A bucket whose lists are these texts.
fn bucket_of(list: impl Fn(&Request) -> String + Send + Sync + 'static) -> Source {
    let address = server(move |request, stream| {
        if request.head {
            return send(stream, "200 OK", FIRST, 5, b"");
        }
        let list = list(request);
        send(stream, "200 OK", "", list.len(), list.as_bytes());
    });
    Source::parse(&format!("s3://lab#endpoint=http://{address}")).unwrap()
}

/// The number that a page's first name has.
fn from(request: &Request) -> usize {
    let token = request.path.split_once("continuation-token=");
    let token = token.map(|(_, rest)| rest.split('&').next().unwrap_or_default());
    token.map_or(0, |token| token.parse().expect("a number"))
}

/// A bucket with so many objects; how many pages of it were asked for.
fn bucket(names: usize) -> (Source, Arc<AtomicUsize>) {
    let pages = Arc::new(AtomicUsize::new(0));
    let asked = pages.clone();
    let source = bucket_of(move |request| {
        asked.fetch_add(1, Ordering::SeqCst);
        page(from(request), names)
    });
    (source, pages)
}

fn check(source: &Source) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(source.check()).unwrap();
}

#[test]
fn a_bucket_is_listed_by_pages_and_no_further_than_its_names_may_be() {
    let (source, pages) = bucket(2500);
    check(&source);
    assert_eq!(
        pages.swap(0, Ordering::SeqCst),
        1,
        "one shows that it is there"
    );
    let names = source.list(b"").unwrap();
    assert_eq!((names.len(), pages.swap(0, Ordering::SeqCst)), (2501, 3));
    let kind = |name: &str| {
        let mut names = names.iter().filter(|(n, _)| n == name.as_bytes());
        names.next().expect("it is listed").1.kind.clone()
    };
    assert!(
        matches!(kind("f0000000"), Kind::File { .. }),
        "it hides the folder"
    );
    assert!(matches!(kind("f0002499"), Kind::File { .. }));
    assert_eq!(kind("sub"), Kind::Folder);
    // As good as without end.
    let (source, pages) = bucket(usize::MAX);
    check(&source);
    pages.store(0, Ordering::SeqCst);
    let error = source.list_at_most(b"", 4500).unwrap_err();
    assert!(
        matches!(error, SourceError::Unreachable { .. }),
        "{error:?}"
    );
    let error = error.to_string();
    assert!(error.contains("more than 4500 names"), "{error}");
    assert_eq!(pages.load(Ordering::SeqCst), 5);
    assert_eq!(source.stat(b"f123").unwrap().size, 5, "by its name");
}

#[test]
fn a_webdav_list_that_is_too_long_is_not_taken() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let address = server(move |request, stream| {
        if request.path == "/data/MANIFEST" {
            return send(stream, "404 Not Found", "", 0, b"");
        }
        count.fetch_add(1, Ordering::SeqCst);
        send(
            stream,
            "207 Multi-Status",
            "",
            (64 << 20) + 1,
            b"<multistatus>",
        );
    });
    let source = Source::parse(&format!("http://{address}/data")).unwrap();
    let error = source.list(b"").unwrap_err().to_string();
    assert!(error.contains("longer than 64 MiB"), "{error}");
    assert_eq!(
        asked.load(Ordering::SeqCst),
        1,
        "another try would find the same"
    );
}

#[test]
fn a_manifest_with_too_many_names_in_a_folder_is_not_listed() {
    let address = server(|request, stream| {
        let text: String = (0..300).map(|at| format!("f{at}\t5\t\"e\"\n")).collect();
        let length = if request.head { 5 } else { text.len() };
        let text = if request.head { String::new() } else { text };
        send(stream, "200 OK", FIRST, length, text.as_bytes());
    });
    let source = Source::parse(&format!("http://{address}/data")).unwrap();
    assert_eq!(source.list_at_most(b"", 300).unwrap().len(), 300);
    let error = source.list_at_most(b"", 299).unwrap_err().to_string();
    assert!(error.contains("more than 299 names"), "{error}");
    assert_eq!(source.stat(b"f7").unwrap().size, 5);
}

/// Regression: a second list that took longer than a server is waited for was cut, the first one given in its place, and the server said to be away.
#[test]
fn a_list_that_comes_page_by_page_is_whole_however_long_it_takes() {
    let slow = Arc::new(AtomicUsize::new(0));
    let pause = slow.clone();
    let source = bucket_of(move |request| {
        let pause = pause.load(Ordering::SeqCst) as u64;
        std::thread::sleep(Duration::from_millis(pause));
        page(from(request), 4500)
    });
    assert_eq!(source.list(b"").unwrap().len(), 4501);
    slow.store(1700, Ordering::SeqCst);
    let began = Instant::now();
    assert_eq!(source.list(b"").unwrap().len(), 4501);
    assert!(began.elapsed().as_secs() >= 8, "five pages");
    assert!(source.outage().is_none(), "it has answered all the time");
}

/// Regression: the same for a list in one answer, as WebDAV servers give it, while they answer others.
#[test]
fn a_list_that_comes_slowly_in_one_answer_is_waited_for_while_others_are_answered() {
    let slow = Arc::new(AtomicBool::new(false));
    let is_slow = slow.clone();
    let address = server(move |request, stream| {
        if request.head {
            return send(stream, "200 OK", FIRST, 5, b"");
        }
        let page = page(0, 20);
        if !is_slow.load(Ordering::SeqCst) {
            return send(stream, "200 OK", "", page.len(), page.as_bytes());
        }
        send(stream, "200 OK", "", page.len(), b"");
        for part in page.as_bytes().chunks(page.len() / 9) {
            std::thread::sleep(Duration::from_secs(1));
            let _ = stream.write_all(part);
        }
    });
    let source = Source::parse(&format!("s3://lab#endpoint=http://{address}")).unwrap();
    assert_eq!(source.list(b"").unwrap().len(), 21);
    slow.store(true, Ordering::SeqCst);
    let began = Instant::now();
    assert_eq!(source.list(b"").unwrap().len(), 21);
    assert!(began.elapsed().as_secs() >= 8, "it was waited for");
    assert!(source.outage().is_none(), "it answers others");
}

/// A store that says for ever that there is more is not asked for ever.
#[test]
fn a_list_that_does_not_go_on_ends() {
    let pages = Arc::new(AtomicUsize::new(0));
    let asked = pages.clone();
    let source = bucket_of(move |_| {
        asked.fetch_add(1, Ordering::SeqCst);
        "<ListBucketResult><NextContinuationToken>1</NextContinuationToken></ListBucketResult>"
            .to_owned()
    });
    let error = source.list(b"").map(drop).unwrap_err().to_string();
    assert!(error.contains("for ever"), "{error}");
    let pages = pages.load(Ordering::SeqCst);
    assert!(pages <= 3, "{pages} pages");
}

/// Regression: a page for people, as a wrong address gives it, was an empty bucket.
#[test]
fn a_page_that_is_no_list_is_no_empty_folder() {
    let source = bucket_of(|_| "<!doctype html><html><body>log in</body></html>".to_owned());
    let error = source.list(b"sub").map(drop).unwrap_err().to_string();
    assert!(error.contains("is the endpoint"), "{error}");
}

/// Regression: one file that the server refuses, or of which it tells no version, hid its whole folder.
#[test]
fn files_that_cannot_be_read_are_in_the_list_of_their_folder() {
    let address = server(|request, stream| match (&*request.path, request.head) {
        ("/data/closed", true) => send(stream, "403 Forbidden", "", 0, b""),
        ("/data/odd", true) => send(stream, "400 Bad Request", "", 0, b""),
        ("/data/ill", true) => send(stream, "500 Internal Server Error", "", 0, b""),
        ("/data/open" | "/data/z/y", true) => send(stream, "200 OK", FIRST, 5, b""),
        (_, true) => send(stream, "404 Not Found", "", 0, b""),
        (_, false) => send(stream, "200 OK", FIRST, 23, b"closed\nill\nodd\nopen\nz/y"),
    });
    let source = Source::parse(&format!("http://{address}/data")).unwrap();
    let kinds: BTreeMap<_, _> = source.list(b"").unwrap().into_iter().collect();
    let kind = |name: &str| &kinds[name.as_bytes()].kind;
    assert_eq!(kinds.len(), 5);
    let closed = ["closed", "odd", "ill"].map(kind);
    assert_eq!(closed, [&Kind::Unreadable; 3]);
    assert!(matches!(kind("open"), Kind::File { .. }));
    assert_eq!(kind("z"), &Kind::Folder);
    let error = source.stat(b"closed").unwrap_err();
    assert!(matches!(error, SourceError::Denied { .. }), "{error:?}");
    // Regression: one such name, while nobody asked for others, was an outage of its server.
    assert!(source.stat(b"ill").is_err());
    assert_eq!(source.outage(), None);
}

/// Regression: names of a web server that were seen in a list, and not asked for one by one, could not be opened in an outage.
#[test]
fn names_of_a_list_are_known_while_their_server_is_away() {
    let is_away = Arc::new(AtomicBool::new(false));
    let away = is_away.clone();
    let address = server(move |request, stream| match request.head {
        _ if away.load(Ordering::SeqCst) => {}
        true => send(stream, "200 OK", FIRST, 5, b""),
        false => send(stream, "200 OK", FIRST, 9, b"f\t5\t\"one\""),
    });
    let source = Source::parse(&format!("http://{address}/data")).unwrap();
    let names = source.list(b"").unwrap();
    assert_eq!(names.len(), 1);
    is_away.store(true, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(5100));
    assert_eq!(source.stat(b"f").as_ref(), Ok(&names[0].1));
    assert!(source.outage().is_some());
    assert_eq!(source.list(b""), Ok(names));
    assert!(source.stat(b"g").is_err(), "nobody has seen it");
}

/// Regression: in an outage a list brought back a name that the server had said since to be gone.
#[test]
fn a_name_that_is_gone_stays_gone_while_its_server_is_away() {
    let state = Arc::new(AtomicUsize::new(0));
    let now = state.clone();
    let address = server(
        move |request, stream| match (now.load(Ordering::SeqCst), request.head) {
            (2, _) => {}
            (1, true) => send(stream, "404 Not Found", "", 0, b""),
            (_, true) => send(stream, "200 OK", FIRST, 5, b""),
            (_, false) => send(stream, "200 OK", FIRST, 9, b"f\t5\t\"one\""),
        },
    );
    let source = Source::parse(&format!("http://{address}/data")).unwrap();
    assert_eq!(source.list(b"").unwrap().len(), 1);
    state.store(1, Ordering::SeqCst);
    let gone = source.stat(b"f");
    assert!(
        matches!(gone, Err(SourceError::NotFound { .. })),
        "{gone:?}"
    );
    state.store(2, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(5100));
    assert!(source.stat(b"f").is_err());
}

/// Regression: a server that was away counted as there again whenever a list was made of a manifest on this machine.
#[test]
fn a_manifest_on_this_machine_is_no_sign_of_its_server() {
    let manifest = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(manifest.path(), "f\t5\t\"one\"\n").unwrap();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let text = format!(
        "http://{address}/data#manifest={}",
        manifest.path().display()
    );
    let source = Source::parse(&text).unwrap();
    assert!(source.stat(b"f").is_err(), "the file itself is asked");
    assert!(source.outage().is_some());
    assert_eq!(source.list(b"").map(|names| names.len()), Ok(1));
    assert!(source.outage().is_some(), "nobody has answered");
}

/// Regression: of 100,000 names that were listed, or looked at, a bucket's none was known once it was away (row D11).
#[test]
fn d11_all_names_of_a_large_folder_are_known_while_its_bucket_is_away() {
    const NAMES: usize = 100_000;
    let is_away = Arc::new(AtomicBool::new(false));
    let away = is_away.clone();
    let address = server(move |request, stream| match request.head {
        _ if away.load(Ordering::SeqCst) => send(stream, "503 Slow Down", "", 0, b""),
        true => send(stream, "200 OK", FIRST, 5, b""),
        false => {
            let page = page(from(request), NAMES);
            send(stream, "200 OK", "", page.len(), page.as_bytes());
        }
    });
    let source = Source::parse(&format!("s3://lab#endpoint=http://{address}")).unwrap();
    assert_eq!(source.list(b"").unwrap().len(), NAMES + 1);
    is_away.store(true, Ordering::SeqCst);
    assert_eq!(source.list(b"").unwrap().len(), NAMES + 1);
    for at in (0..NAMES).step_by(997) {
        let known = source.stat(format!("f{at:07}").as_bytes()).unwrap();
        assert!(matches!(known.kind, Kind::File { .. }), "{at}");
    }
    assert!(source.outage().is_some());
}
