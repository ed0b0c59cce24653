//! Metrics of logs.

use bytes::Bytes;
use staves_client::AppendMode;
use staves_model::Medium;

use super::{client_of, cluster};

/// A name that a label has to escape.
const NAME: &str = "a\"b\\c";

#[test]
fn appends_reads_and_sequencers_are_counted() {
    let cluster = cluster(3, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    runtime.block_on(async {
        let made = client.create_log(None, NAME, AppendMode::Corfu).await;
        made.expect("the log is made");
        let log = client.open_log(None, NAME).await.expect("a log");
        for n in 0..10_u8 {
            let record = Bytes::from(vec![n; 100]);
            log.append(&[record]).await.expect("appended");
        }
        for n in 0..5 {
            log.read(n).await.expect("read");
        }
        log.trim(3).await.expect("trimmed");
    });
    let sum = |name: &str| {
        let name = format!("staves_log_{name}");
        cluster
            .nodes
            .iter()
            .map(|node| node.metric(&name))
            .sum::<u64>()
    };
    assert_eq!(sum("appends_total "), 10);
    assert_eq!(sum("appended_records_total "), 10);
    assert_eq!(sum("appended_bytes_total "), 1000);
    assert!(sum("reads_total ") >= 4, "{}", sum("reads_total "));
    assert!(sum("read_bytes_total ") >= 400);
    assert!(sum("live_bytes ") >= 700);
    assert_eq!(
        (sum("without_room_total "), sum("requests_waiting ")),
        (0, 0)
    );
    assert_eq!(sum("sequencers "), 1);
    assert!(sum("terms_total ") >= 1);
    assert!(sum("tokens_total ") >= 10);
    assert!(sum("sequencer_requests_total{kind=\"position\"} ") >= 10);
    assert!(sum("sequencer_requests_total{kind=\"trim\"} ") >= 1);
    let is_its =
        |node: &&staves_testkit::cluster::TestNode| node.metric("staves_log_sequencers ") == 1;
    let node = cluster.nodes.iter().find(is_its).expect("one has it");
    let of = |name: &str| {
        let labels = r#"{pool="logs",log="a\"b\\c"} "#;
        node.metric(&format!("staves_log_{name}{labels}"))
    };
    assert!(of("tail") >= 10, "{}", of("tail"));
    assert_eq!(of("trim"), 3);
}
