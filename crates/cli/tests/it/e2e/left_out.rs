//! A preload of a dataset of which some folders cannot be listed.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use staves_client::{Client, ClientOptions};

use super::Cluster;

/// An entry of a WebDAV list.
fn entry(path: &str, is_folder: bool) -> String {
    let kind = if is_folder { "<collection/>" } else { "" };
    format!(
        "<response><href>{path}</href><propstat><prop><getlastmodified>Mon, 05 Jan 2026 10:00:00 GMT</getlastmodified>\
         <getcontentlength>5</getcontentlength><getetag>\"one\"</getetag><resourcetype>{kind}</resourcetype></prop>\
         <status>HTTP/1.1 200 OK</status></propstat></response>"
    )
}

fn answer(stream: &mut TcpStream) -> Option<()> {
    let mut head = BufReader::new(&*stream).lines();
    let first = head.next()?.ok()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    while !head.next()?.ok()?.is_empty() {}
    let list = |entries: &[String]| format!("<multistatus>{}</multistatus>", entries.concat());
    let folders: Vec<String> = (0..4).map(|at| format!("/data/ill{at}/")).collect();
    let ill = folders.iter().map(|path| entry(path, true));
    let version = "ETag: \"one\"\r\nLast-Modified: Mon, 05 Jan 2026 10:00:00 GMT\r\n";
    let (status, headers, body) = match (method, path) {
        ("PROPFIND", "/data") => {
            let well = [entry("/data/a", false), entry("/data/sub/", true)];
            let all: Vec<String> = well.into_iter().chain(ill).collect();
            ("207 Multi-Status", "", list(&all))
        }
        ("PROPFIND", "/data/sub") => {
            let all = [entry("/data/sub/b", false), entry("/data/sub/ill/", true)];
            ("207 Multi-Status", "", list(&all))
        }
        ("PROPFIND", "/data/ill0") => ("403 Forbidden", "", String::new()),
        ("PROPFIND", "/data/ill1" | "/data/sub/ill") => {
            ("500 Internal Server Error", "", String::new())
        }
        ("PROPFIND", _) => ("207 Multi-Status", "", list(&[entry(path, true)])),
        ("HEAD", "/data/a" | "/data/sub/b") => ("200 OK", version, "acgt\n".into()),
        ("GET", "/data/a" | "/data/sub/b") => {
            let range = "ETag: \"one\"\r\nLast-Modified: Mon, 05 Jan 2026 10:00:00 GMT\r\nContent-Range: bytes 0-4/5\r\n";
            ("206 Partial Content", range, "acgt\n".into())
        }
        _ => ("404 Not Found", "", String::new()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let body = if method == "HEAD" { "" } else { &body };
    stream.write_all(format!("{head}{body}").as_bytes()).ok()
}

/// A WebDAV server, of whose folders two can be listed. It ends with the test's process.
fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || stream.ok().and_then(|mut stream| answer(&mut stream)));
        }
    });
    address
}

/// Regression: one folder that could not be listed ended a preload of everything else before it began.
#[test]
fn folders_that_cannot_be_listed_are_named_and_hold_up_no_other() {
    let cluster = Cluster::start(1);
    let made = cluster.run(
        0,
        &[
            "pool", "create", "files", "--kind", "files", "--memory", "64MiB",
        ],
    );
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let native = cluster.nodes[0].native.clone();
    let source = format!("http://{}/data", server());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let client = Client::connect(&[native], ClientOptions::default()).await;
        let client = client.expect("a client");
        let data = client.dataset("files", "data", &source).await;
        data.map(drop).expect("a dataset");
    });
    let ran = cluster.run(0, &["files", "preload", "data", "-o", "json"]);
    let told: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
    assert_eq!(
        (&told["files"], &told["in_memory_bytes"]),
        (&2.into(), &10.into()),
        "{told} {}",
        ran.stderr
    );
    assert_eq!(told["unlisted_folders"], 3, "{told}");
    assert_eq!(told["result"], "partly", "{told}");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("3 folders are left out"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("/ill"), "{}", ran.stderr);
    // A folder that is asked for by its name is no part of a whole.
    let ran = cluster.run(0, &["files", "preload", "data", "ill1"]);
    assert_ne!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("/data/ill1"), "{}", ran.stderr);
    let shown = cluster.run(0, &["files", "show", "data"]);
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    assert!(shown.stderr.contains("left out"), "{}", shown.stderr);
}
