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

/// Bounded in time and memory, should it read what has no end.
fn read_by_another(url: &str, certificates: &Path) -> Output {
    Command::new("sh")
        .args(["-c", "ulimit -v 8000000; exec timeout 60 \"$@\"", "sh"])
        .arg(std::env::current_exe().expect("it runs"))
        .args(["--exact", "tls::a_process_that_reads"])
        .args(["--ignored", "--nocapture"])
        .env("STAVES_TEST_URL", url)
        .env("SSL_CERT_FILE", certificates)
        .env_remove("SSL_CERT_DIR")
        .output()
        .expect("it runs")
}

/// Regression: the file was read without a bound, and a pipe that nobody writes to held whoever opened a source.
#[test]
fn a_file_of_certificates_that_would_never_end_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let (pipe, large) = (scratch.path().join("pipe"), scratch.path().join("large"));
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let file = std::fs::File::create(&large).unwrap();
    file.set_len((16 << 20) + 1).unwrap();
    for (file, why) in [
        (pipe.as_path(), "no regular file"),
        (Path::new("/dev/zero"), "no regular file"),
        (scratch.path(), "no regular file"),
        (&large, "16777216 at most"),
    ] {
        // Nobody listens there, and nobody is asked.
        let refused = read_by_another("https://127.0.0.1:1/data", file);
        let told = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success(), "{told}");
        for part in [why, "SSL_CERT_FILE", &*file.to_string_lossy()] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
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
