//! Positions of a log by time, on real nodes.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use staves_client::{AppendMode, LogTimes};
use staves_model::Medium;

use crate::logs::{client_of, cluster};

#[test]
fn a_search_by_time_leaves_nothing_out_and_begins_at_the_last_mark_before() {
    let cluster = cluster(3, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    runtime.block_on(async {
        for name in ["l", "l.times"] {
            let made = client.create_log(None, name, AppendMode::Bind).await;
            made.expect("made");
        }
        let log = client.open_log(None, "l").await.expect("opened");
        let marks = client.open_log(None, "l.times").await.expect("opened");
        let times = LogTimes::new(log.clone(), marks);
        let pause = || tokio::time::sleep(Duration::from_millis(10));
        let before_all = SystemTime::now();
        assert_eq!(times.seek(before_all).await.expect("found"), 0);
        pause().await;
        let mut began = Vec::new();
        for n in 0_u64..24 {
            if n % 3 == 0 {
                times.mark().await.expect("marked");
            }
            pause().await;
            let now = SystemTime::now();
            let text = Bytes::from(n.to_string());
            let position = log.append(&[text]).await.expect("appended");
            began.push((now, position));
            pause().await;
        }
        for (n, (time, position)) in began.iter().enumerate() {
            let found = times.seek(*time).await.expect("found");
            assert!(found <= *position, "{n}: {found}, {position}");
            // The mark lies before the first of each three.
            let marked = match n / 3 * 3 {
                0 => 0,
                first => began[first - 1].1 + 1,
            };
            assert!(found >= marked, "{n}: {found}, {marked}");
        }
        assert_eq!(times.seek(before_all).await.expect("found"), 0);
        let log_tail = log.tail().await.expect("the tail");
        times.mark().await.expect("marked");
        let end = SystemTime::now() + Duration::from_secs(3600);
        assert_eq!(times.seek(end).await.expect("found"), log_tail);
    });
}
