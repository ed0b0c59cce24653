//! The time that a holder of files may stay silent, before another holder or the source is asked instead.
//!
//! A few bytes come at once or not at all, and 40 ms of silence are enough. Many bytes take as long as the slowest link
//! on their way: 1 MiB over 100 Mb/s takes 84 ms, and four of them at once take four times that. So of long answers it is
//! learned how long they took lately, and one that is late does not yet show that the node is gone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use staves_model::NodeId;

/// A holder that has not begun to answer after this is silent.
const SILENT: Duration = Duration::from_millis(40);
/// A silent node is passed over for this long.
const SHUNNED: Duration = Duration::from_secs(1);
/// Answers of so many bytes and more are long: their time is that of the link.
const LONG_BYTES: u32 = 128 << 10;
/// The time that every link has for a MiB: 8 MiB/s.
const MIB: Duration = Duration::from_millis(125);
/// Long answers that are late one after the other, with none in between, until the node is passed over.
const LATE_MAX: u32 = 3;
/// The longest that anything is waited for, so that a cut link costs less than a second.
const MOST: Duration = Duration::from_millis(800);

/// The measured times of the nodes.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    nodes: Mutex<BTreeMap<NodeId, Node>>,
}

#[derive(Debug, Default)]
struct Node {
    shunned: Option<Instant>,
    /// Long answers that were late, since the last one that came.
    late: u32,
    /// The recent time of a MiB.
    mib: Duration,
}

impl Patience {
    /// Returns true if a node is passed over now.
    pub(crate) fn shuns(&self, node: NodeId) -> bool {
        let since = self.nodes.lock().get(&node).and_then(|n| n.shunned);
        since.is_some_and(|since| since.elapsed() < SHUNNED)
    }

    /// The time to wait for this node's answer of `len` bytes.
    pub(crate) fn within(&self, node: NodeId, len: u32) -> Duration {
        if len < LONG_BYTES {
            return SILENT;
        }
        let lately = self.nodes.lock().get(&node).map_or(MIB, |n| n.mib * 4);
        (SILENT + lately.max(MIB).mul_f64(f64::from(len) / (1 << 20) as f64)).min(MOST)
    }

    /// It has answered.
    pub(crate) fn answered(&self, node: NodeId, len: u32, took: Duration) {
        if len < LONG_BYTES {
            return; // as nearly all are: nothing is learned of them
        }
        let mut nodes = self.nodes.lock();
        let node = nodes.entry(node).or_default();
        let mib = took.mul_f64(f64::from(1 << 20) / f64::from(len));
        node.late = 0;
        node.mib = match node.mib {
            Duration::ZERO => mib,
            lately => (lately * 3 + mib) / 4,
        };
    }

    /// It has not.
    pub(crate) fn silent(&self, node: NodeId, len: u32) {
        let mut nodes = self.nodes.lock();
        let node = nodes.entry(node).or_default();
        node.late += 1;
        if len < LONG_BYTES || node.late >= LATE_MAX {
            node.late = 0;
            node.shunned = Some(Instant::now());
        }
    }

    /// It has answered what cannot be. Whether it was not passed over yet.
    pub(crate) fn wrong(&self, node: NodeId) -> bool {
        let is_news = !self.shuns(node);
        let mut nodes = self.nodes.lock();
        nodes.entry(node).or_default().shunned = Some(Instant::now());
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(3);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_few_bytes_come_at_once_or_not_at_all() {
        let patience = Patience::default();
        assert_eq!(patience.within(NODE, 8192), SILENT);
        assert!(!patience.shuns(NODE));
        patience.silent(NODE, 8192);
        assert!(patience.shuns(NODE));
        assert!(!patience.shuns(NodeId(4)));
    }

    /// Row D10: a slow link is no dead node, and does not send its readers to the source.
    #[test]
    fn many_bytes_have_the_time_that_a_slow_link_takes() {
        let patience = Patience::default();
        assert!(
            patience.within(NODE, 1 << 20) > ms(84),
            "1 MiB over 100 Mb/s"
        );
        patience.answered(NODE, 1 << 20, ms(84));
        patience.silent(NODE, 1 << 20);
        assert!(!patience.shuns(NODE), "one of four at once");
        assert!(
            patience.within(NODE, 1 << 20) >= ms(4 * 84),
            "the others behind it"
        );
        for _ in 0..10 {
            patience.answered(NODE, 1 << 20, ms(2));
        }
        let soon = patience.within(NODE, 1 << 20);
        assert!(
            (ms(165)..ms(200)).contains(&soon),
            "{soon:?}: a faster link again"
        );
    }

    #[test]
    fn a_cut_link_costs_less_than_a_second_however_slow_it_was() {
        let patience = Patience::default();
        for _ in 0..10 {
            patience.answered(NODE, 1 << 20, ms(2000));
        }
        assert_eq!(patience.within(NODE, 1 << 20), MOST);
        for _ in 0..LATE_MAX {
            assert!(!patience.shuns(NODE));
            patience.silent(NODE, 1 << 20);
        }
        assert!(patience.shuns(NODE));
    }
}
