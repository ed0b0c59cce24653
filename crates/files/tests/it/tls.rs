//! A web server by TLS, whose certificate is of nobody whom the machine trusts.

use std::path::Path;
use std::process::{Command, Output};

use staves_files::{Source, SourceError};

use crate::stores::{check, files, tree, write};
use staves_testkit::servers;

/// Not a test: what a process reads whose environment is as its starter says. The tests below start it.
#[test]
#[ignore = "another test starts it"]
fn a_process_that_reads() {
    let url = std::env::var("STAVES_TEST_URL").expect("started by a test");
    let source = Source::parse(&url).expect("an address");
    check(&source).expect("it is trusted");
    assert_eq!(tree(&source, ""), files());
    println!("\nread");
}

fn read_by_another(url: &str, certificates: &Path) -> Output {
    Command::new(std::env::current_exe().expect("it runs"))
        .args(["--exact", "tls::a_process_that_reads"])
        .args(["--ignored", "--nocapture"])
        .env("STAVES_TEST_URL", url)
        .env("SSL_CERT_FILE", certificates)
        .env_remove("SSL_CERT_DIR")
        .output()
        .expect("it runs")
}

/// The section about TLS of docs/how-to/buckets.md holds.
#[test]
fn a_server_by_tls_is_read_by_who_trusts_it_and_refused_with_a_remedy_by_others() {
    let (root, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(server) = servers::web_tls(root.path(), scratch.path()) else {
        return;
    };
    let all = files();
    write(&root.path().join("data"), &all);
    let paths: Vec<&str> = all.iter().map(|(path, _)| path.as_str()).collect();
    std::fs::write(root.path().join("data/MANIFEST"), paths.join("\n")).unwrap();
    let url = format!("https://127.0.0.1:{}/data", server.port);

    let read = read_by_another(&url, &scratch.path().join("certificate"));
    let told = String::from_utf8_lossy(&read.stdout);
    assert!(
        read.status.success() && told.contains("\nread\n"),
        "{told}{}",
        String::from_utf8_lossy(&read.stderr)
    );

    let refused = check(&Source::parse(&url).unwrap()).unwrap_err();
    assert!(
        matches!(refused, SourceError::Unreachable { .. }),
        "{refused:?}"
    );
    let refused = refused.to_string();
    for word in ["certificate", &url, "SSL_CERT_FILE"] {
        assert!(refused.contains(word), "{word}: {refused}");
    }
    // Another's certificate is no remedy, and it is said which file was looked into.
    let other = scratch.path().join("nothing");
    let refused = read_by_another(&url, &other);
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{told}");
    assert!(told.contains(&*other.to_string_lossy()), "{told}");
}
