//! The end of a turn on a host of one node.

use std::sync::Arc;
use std::time::Duration;

use crate::host::testing;

#[tokio::test]
async fn whoever_ends_the_turn_flushes_for_all() {
    let host = testing::host(Duration::from_secs(2));
    let cell = host.routes().cells().next().cloned().expect("its group");
    let holders = Arc::strong_count(&cell);
    assert!(!host.put_off(&mut Vec::new()) && !host.has_put_off());
    for batch in 1..=5 {
        let mut touched = vec![cell.clone()];
        assert!(host.put_off(&mut touched) && touched.is_empty());
        assert!(host.has_put_off());
        assert_eq!(Arc::strong_count(&cell), holders + batch);
    }
    host.end_turn();
    assert!(!host.has_put_off());
    assert_eq!(Arc::strong_count(&cell), holders);
}
