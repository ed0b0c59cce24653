//! Connections that were accepted and have not said yet what they want.
//!
//! They are few at a time. Whoever comes when all places are taken is let in, and one of the others has to go: of the address
//! that has the most of them, the one that has said nothing for the longest. So who opens connections and is silent keeps
//! nobody out who speaks at once, as often as they may come again.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

const SILENT: u8 = 0;
const SPOKE: u8 = 1;
const DISPLACED: u8 = 2;

/// Those of one listener.
#[derive(Debug)]
pub struct Newcomers {
    max: usize,
    /// As they came; those that have spoken or gone are taken out when there is no room.
    all: VecDeque<(IpAddr, Newcomer)>,
}

/// One of them.
#[derive(Clone, Debug)]
pub struct Newcomer(Arc<Standing>);

#[derive(Debug, Default)]
struct Standing {
    is: AtomicU8,
    displaced: Notify,
}

impl Newcomers {
    /// With so many places, one at least.
    pub fn new(max: usize) -> Newcomers {
        Newcomers {
            max: max.max(1),
            all: VecDeque::new(),
        }
    }

    /// One more has come. The second is true if another had to go.
    pub fn enter(&mut self, from: IpAddr) -> (Newcomer, bool) {
        let mut displaced = false;
        if self.all.len() >= self.max {
            self.all.retain(|(_, newcomer)| newcomer.is_silent());
        }
        while self.all.len() >= self.max {
            displaced |= self.displace_one();
        }
        let newcomer = Newcomer(Arc::default());
        self.all.push_back((from, newcomer.clone()));
        (newcomer, displaced)
    }

    fn displace_one(&mut self) -> bool {
        let mut of_address: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for (from, _) in &self.all {
            *of_address.entry(*from).or_default() += 1;
        }
        let most = of_address.values().max().copied();
        let at = self
            .all
            .iter()
            .position(|(from, _)| of_address.get(from).copied() == most);
        let gone = at.and_then(|at| self.all.remove(at));
        gone.is_some_and(|(_, newcomer)| newcomer.displace())
    }
}

impl Newcomer {
    fn is_silent(&self) -> bool {
        // A connection that has ended has let go of its own.
        Arc::strong_count(&self.0) > 1 && self.0.is.load(Ordering::Acquire) == SILENT
    }

    fn becomes(&self, state: u8) -> bool {
        let (silent, relaxed) = (SILENT, Ordering::Relaxed);
        let (is, order) = (&self.0.is, Ordering::AcqRel);
        is.compare_exchange(silent, state, order, relaxed).is_ok()
    }

    fn displace(&self) -> bool {
        let displaced = self.becomes(DISPLACED);
        self.0.displaced.notify_one();
        displaced
    }

    /// It has said what it wants, and is none of them any more. False if it has to go.
    pub fn has_spoken(&self) -> bool {
        self.becomes(SPOKE) || self.0.is.load(Ordering::Acquire) == SPOKE
    }

    /// Waits until it has to go, for another that has come. One may wait.
    pub async fn displaced(&self) {
        while self.0.is.load(Ordering::Acquire) != DISPLACED {
            self.0.displaced.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn the_oldest_silent_one_of_the_address_with_the_most_has_to_go() {
        let mut all = Newcomers::new(4);
        let (old_b, _) = all.enter(B);
        let ones: Vec<Newcomer> = (0..3).map(|_| all.enter(A).0).collect();
        assert!(ones[0].has_spoken(), "it has its hello said");
        let (_next, displaced) = all.enter(A);
        assert!(!displaced, "there is a place of one that has spoken");
        let (_next_b, displaced) = all.enter(B);
        assert!(displaced && !ones[1].has_spoken());
        assert!(old_b.has_spoken() && ones[0].has_spoken() && ones[2].has_spoken());
    }

    /// However many come, one that speaks before as many as there are places have come after it is let in.
    #[test]
    fn who_speaks_soon_is_let_in_beside_any_number_of_silent_ones() {
        let mut all = Newcomers::new(8);
        let mut silent = Vec::new();
        for _ in 0..100 {
            let (speaker, _) = all.enter(B);
            silent.extend((0..7).map(|_| all.enter(B).0));
            assert!(speaker.has_spoken());
        }
        assert!(silent.iter().filter(|one| one.is_silent()).count() <= 8);
        drop(silent);
        let room = all.enter(A);
        assert!(!room.1, "those that are gone need no place");
    }

    #[tokio::test]
    async fn who_has_to_go_is_told() {
        let mut all = Newcomers::new(1);
        let (first, _) = all.enter(A);
        let (second, displaced) = all.enter(A);
        first.displaced().await;
        assert!(displaced && !first.has_spoken() && second.has_spoken());
    }
}
