//! Servers that have more names than anybody holds in memory.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// A bucket with so many objects; how many pages of it were asked for.
fn bucket(names: usize) -> (Source, Arc<AtomicUsize>) {
    let pages = Arc::new(AtomicUsize::new(0));
    let asked = pages.clone();
    let address = server(move |request, stream| {
        if request.head {
            return send(stream, "200 OK", FIRST, 5, b"");
        }
        asked.fetch_add(1, Ordering::SeqCst);
        let token = request.path.split_once("continuation-token=");
        let token = token.map(|(_, rest)| rest.split('&').next().unwrap_or_default());
        let from = token.map_or(0, |token| token.parse().expect("a number"));
        let page = page(from, names);
        send(stream, "200 OK", "", page.len(), page.as_bytes());
    });
    let source = Source::parse(&format!("s3://lab#endpoint=http://{address}")).unwrap();
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
    let address = server(move |request, stream| {
        if request.head {
            return send(stream, "200 OK", FIRST, 5, b"");
        }
        std::thread::sleep(std::time::Duration::from_millis(
            pause.load(Ordering::SeqCst) as u64,
        ));
        let token = request.path.split_once("continuation-token=");
        let token = token.map(|(_, rest)| rest.split('&').next().unwrap_or_default());
        let from = token.map_or(0, |token| token.parse().expect("a number"));
        let page = page(from, 4500);
        send(stream, "200 OK", "", page.len(), page.as_bytes());
    });
    let source = Source::parse(&format!("s3://lab#endpoint=http://{address}")).unwrap();
    assert_eq!(source.list(b"").unwrap().len(), 4501);
    slow.store(1700, Ordering::SeqCst);
    let began = std::time::Instant::now();
    assert_eq!(source.list(b"").unwrap().len(), 4501);
    assert!(began.elapsed().as_secs() >= 8, "five pages");
    assert!(source.outage().is_none(), "it has answered all the time");
}

/// A store that says for ever that there is more is not asked for ever.
#[test]
fn a_list_that_does_not_go_on_ends() {
    let pages = Arc::new(AtomicUsize::new(0));
    let asked = pages.clone();
    let address = server(move |request, stream| {
        if request.head {
            return send(stream, "200 OK", FIRST, 5, b"");
        }
        asked.fetch_add(1, Ordering::SeqCst);
        let page =
            "<ListBucketResult><NextContinuationToken>1</NextContinuationToken></ListBucketResult>";
        send(stream, "200 OK", "", page.len(), page.as_bytes());
    });
    let source = Source::parse(&format!("s3://lab#endpoint=http://{address}")).unwrap();
    let error = source.list(b"").map(drop).unwrap_err().to_string();
    assert!(error.contains("for ever"), "{error}");
    let pages = pages.load(Ordering::SeqCst);
    assert!(pages <= 3, "{pages} pages");
}
