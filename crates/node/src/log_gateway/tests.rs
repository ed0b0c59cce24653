//! Bounds of the gateway, without a node behind it.

use super::appends::GatewayAppend;
use super::*;
use crate::config::Config;
use staves_client::ClientError;

fn gateway() -> Arc<LogGateway> {
    let config = Config::default();
    LogGateway::new(
        Entry::new(&config, false),
        config.listen.to_string(),
        None,
        LogDoorFigures::new(32 << 20),
    )
}

#[tokio::test]
async fn as_many_lists_are_made_as_may_and_no_more() {
    let gateway = gateway();
    let until = Instant::now() + REQUEST_MAX;
    let places = gateway.lists.acquire_many(LISTS_MAX as u32).await;
    let refused = gateway.list(None, None, 1, until).await;
    let refused = refused.err().expect("no place");
    assert_eq!(refused.code, ErrorCode::Busy, "{refused:?}");
    assert!(!refused.is_uncertain, "{refused:?}");
    drop(places);
    let refused = gateway.list(None, None, 1, until).await;
    let refused = refused.err().expect("the node has not joined");
    assert_eq!(refused.code, ErrorCode::NotServing, "{refused:?}");
}

#[tokio::test]
async fn only_a_failed_change_may_have_been_done() {
    let until = Instant::now() + REQUEST_MAX;
    let failed = async || {
        let text = "nobody answers".to_owned();
        let code = ErrorCode::Unreachable;
        Err::<(), _>(ClientError::Operation { code, text })
    };
    let read = by(until, "", failed()).await.expect_err("it failed");
    assert!(!read.is_uncertain, "{read:?}");
    let change = by(until, "it may have been done", failed()).await;
    assert!(change.expect_err("it failed").is_uncertain);
    let now = Instant::now();
    let never = || std::future::pending::<Result<(), ClientError>>();
    let read = by(now, "", never()).await.expect_err("it is late");
    assert!(!read.is_uncertain, "{read:?}");
    let change = by(now, "it may have been done", never()).await;
    let change = change.expect_err("it is late");
    assert!(change.is_uncertain, "{change:?}");
    assert!(change.text.contains("it may have been done"), "{change:?}");
}

#[test]
fn appends_are_checked_before_a_log_is_opened() {
    let append = |bytes: usize, tags: &[u64], condition| {
        let records = vec![bytes::Bytes::from(vec![0; bytes])];
        let append = GatewayAppend::new(records, tags.to_vec(), condition);
        append.map(|append| append.condition)
    };
    let eight: Vec<u64> = (0..8).collect();
    assert!(append(LOG_BATCH_BYTES_MAX, &eight, (None, None)).is_ok());
    let code = |refused: Result<_, LogError>| refused.map_err(|error| error.code).err();
    let large = append(LOG_BATCH_BYTES_MAX + 1, &[], (None, None));
    assert_eq!(code(large), Some(ErrorCode::TooLarge));
    let nine: Vec<u64> = (0..9).collect();
    for tags in [&nine[..], &[1, 2, 1], &[5, 5]] {
        let refused = append(1, tags, (None, None));
        assert_eq!(code(refused), Some(ErrorCode::Malformed), "{tags:?}");
    }
    let lone = append(1, &[], (None, Some(7)));
    assert_eq!(code(lone), Some(ErrorCode::Malformed));
    let condition = append(1, &[], (Some(3), Some(7)));
    let condition = condition.expect("a condition").expect("one");
    assert_eq!((condition.tag, condition.tail), (Some(7), 3));
}
