//! The longest wait of clients that stay at one node each for a write to be done, refusals and all.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::judge::Stall;

/// The waits of all such clients. One whose write was not done writes the same key until it is.
#[derive(Default)]
pub struct Waits {
    waiting: BTreeMap<u32, Wait>,
    worst: BTreeMap<u32, Stall>,
}

/// Of one client.
#[derive(Clone)]
struct Wait {
    key: u64,
    /// The time of the first try.
    since: u64,
    /// The last refusal.
    refused: String,
}

impl Waits {
    /// A write of a client, called at the first of the times, has ended at the second, in nanoseconds of the run.
    pub fn ended(
        &mut self,
        (client, key): (u32, u64),
        (called, now): (u64, u64),
        refused: Option<&str>,
    ) {
        let wait = self.waiting.entry(client).or_insert(Wait {
            key,
            since: called,
            refused: String::new(),
        });
        if let Some(text) = refused {
            wait.refused = text.to_owned();
        }
        let length = Duration::from_nanos(now.saturating_sub(wait.since));
        let worst = self.worst.entry(client).or_default();
        if length > worst.length {
            let (key, refused) = (wait.key, &wait.refused);
            *worst = Stall {
                key: format!("key-{key}, written through n{client} ('{refused}')"),
                from: wait.since,
                length,
            };
        }
        if refused.is_none() {
            self.waiting.remove(&client);
        }
    }

    /// The key that a client is to write again.
    pub fn again(&self, client: u32) -> Option<u64> {
        self.waiting.get(&client).map(|wait| wait.key)
    }

    /// The longest, but for those of the client of this node.
    pub fn worst(&self, but: Option<usize>) -> Stall {
        let counts = |client: &u32| but.is_none_or(|at| *client as usize != at + 1);
        let of = self.worst.iter().filter(|(client, _)| counts(client));
        let worst = of.map(|(_, stall)| stall).max_by_key(|s| s.length);
        worst.cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_lasts_from_the_first_try_to_the_answer() {
        let mut waits = Waits::default();
        let second = 1_000_000_000;
        waits.ended((2, 7), (second, 2 * second), None);
        waits.ended((1, 5), (second, 3 * second), Some("no"));
        assert_eq!((waits.again(1), waits.again(2)), (Some(5), None));
        waits.ended((1, 5), (4 * second, 6 * second), None);
        assert_eq!(waits.again(1), None);
        let worst = waits.worst(None);
        assert_eq!(
            (worst.key.as_str(), worst.from, worst.length),
            (
                "key-5, written through n1 ('no')",
                second,
                Duration::from_secs(5)
            )
        );
        let of_second = Duration::from_secs(1);
        assert_eq!(waits.worst(Some(0)).length, of_second);
    }
}
