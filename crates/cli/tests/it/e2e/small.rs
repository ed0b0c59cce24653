//! Many small files in the memory of a node.

use super::*;
use staves_client::{Client, ClientOptions};

/// Regression: a pool had room for one file in seven of 4 KiB, for lack of entries in its table.
#[test]
fn small_files_take_8_kib_of_memory_each() {
    const FILES: usize = 3000;
    let cluster = Cluster::start(1);
    let folder = tempfile::tempdir().expect("a folder");
    for file in 0..FILES {
        std::fs::write(folder.path().join(file.to_string()), [7; 4000]).expect("written");
    }
    std::thread::sleep(Duration::from_millis(2100));
    let run = |args: &[&str]| {
        let ran = cluster.run(0, args);
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
        ran.stdout
    };
    run(&[
        "pool", "create", "files", "--kind", "files", "--memory", "32MiB",
    ]);
    let source = folder.path().to_str().expect("a path").to_owned();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let seeds = [cluster.nodes[0].native.clone()];
        let client = Client::connect(&seeds, ClientOptions::default()).await;
        let data = client.expect("a client");
        let data = data.dataset("files", "data", &source).await;
        data.map(drop).expect("a dataset");
    });
    let told = run(&["files", "preload", "data", "-o", "json"]);
    let told: serde_json::Value = serde_json::from_str(&told).expect("json");
    assert_eq!(told["in_memory_bytes"], 4000 * FILES, "{told}");
    let shown = run(&["files", "show", "data", "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("json");
    assert_eq!(shown["files_in_memory"], FILES, "{shown}");
    let status = run(&["status", "-o", "json"]);
    let status: serde_json::Value = serde_json::from_str(&status).expect("json");
    let takes = status["nodes"][0]["facts"]["files_bytes"].as_u64();
    let least = (FILES as u64) * 8192;
    assert!(
        takes.is_some_and(|takes| takes <= least),
        "{takes:?} of {least}"
    );
}
