//! A joiner's requests for pages that are under way: how many there may be, and when one is made again.
//!
//! A request is made again only after clearly longer than answers take lately. Where processors or
//! links are busy, answers come late because there is much to do, and asking again would add to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use staves_model::Time;
use staves_store::Budget;

/// The least time after which a request is made again.
const PATIENCE_MIN: Duration = Duration::from_millis(250);
/// The longest.
const PATIENCE_MAX: Duration = Duration::from_secs(2);
/// As many times as answers take lately.
const PATIENCE_TIMES: u32 = 4;
/// The newest answer's share in what answers take lately is one in so many.
const SMOOTHING: u32 = 8;

/// One request: for a run of pages, at several members.
pub(crate) struct PageRequest {
    pub count: u32,
    /// At so many members.
    pub of: usize,
    /// The time of the last try.
    at: Time,
    /// The time of the first try.
    since: Time,
    tries: u32,
    /// Its pages, taken from what the node's buckets may ask for together. None for a client that waits, and none
    /// any more once it was made again in vain.
    permit: Option<Permit>,
}

/// Pages taken from a budget, given back when this is dropped.
struct Permit {
    budget: Arc<Budget>,
    pages: u32,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.give(self.pages);
    }
}

/// Requests under way, by first page.
#[derive(Default)]
pub(crate) struct PageRequests {
    sweep: BTreeMap<u32, PageRequest>,
    /// Those for which a client waits. Their pages may be among those of the sweep, too.
    urgent: BTreeMap<u32, PageRequest>,
    /// The time that recent answers took.
    usual: Duration,
}

impl PageRequests {
    /// Another epoch: nothing is under way. How long answers take is still known.
    pub fn clear(&mut self) {
        self.sweep.clear();
        self.urgent.clear();
    }

    /// The number of requests of the sweep under way.
    pub fn sweeping(&self) -> usize {
        self.sweep.len()
    }

    /// The end of the sweep's request that names this page, if one does.
    pub fn sweep_end(&self, page: u32) -> Option<u32> {
        let (first, request) = self.sweep.range(..=page).next_back()?;
        Some(first + request.count).filter(|end| page < *end)
    }

    /// The first page at or after this one that a request of the sweep names.
    pub fn next_sweep(&self, page: u32) -> Option<u32> {
        self.sweep.range(page..).next().map(|(first, _)| *first)
    }

    /// Returns whether somebody was asked for this page out of turn.
    pub fn is_urgent(&self, page: u32) -> bool {
        let before = self.urgent.range(..=page).next_back();
        before.is_some_and(|(first, request)| page - first < request.count)
    }

    /// The request that pages from `first` to `last` answer: its first page, how many it asks for, and at how many
    /// members. Of two the one for which a client waits, which is the shorter.
    pub fn answered_by(&self, first: u32, last: u32) -> Option<(u32, u32, usize)> {
        let of = |requests: &BTreeMap<u32, PageRequest>| {
            let (page, request) = requests.range(..=first).next_back()?;
            (last - page < request.count).then_some((*page, request.count, request.of))
        };
        of(&self.urgent).or_else(|| of(&self.sweep))
    }

    /// Returns whether a request begins with this page.
    pub fn begins(&self, page: u32) -> bool {
        self.sweep.contains_key(&page) || self.urgent.contains_key(&page)
    }

    /// Notes a request of the sweep. False if the node's buckets have asked for as much as they may.
    pub fn sweep(
        &mut self,
        now: Time,
        page: u32,
        count: u32,
        of: usize,
        budget: &Arc<Budget>,
    ) -> bool {
        let taken = budget.take(count);
        if taken {
            let permit = Permit {
                budget: budget.clone(),
                pages: count,
            };
            self.sweep
                .insert(page, PageRequest::new(now, count, of, Some(permit)));
        }
        taken
    }

    /// Notes a request for which a client waits.
    pub fn demand(&mut self, now: Time, page: u32, count: u32, of: usize) {
        self.urgent
            .insert(page, PageRequest::new(now, count, of, None));
    }

    /// Parts from this page on have come: requests that begin with it are done, if all their pages are
    /// below `until`.
    pub fn answered(&mut self, now: Time, page: u32, until: u32) {
        for requests in [&mut self.sweep, &mut self.urgent] {
            if requests
                .get(&page)
                .is_none_or(|request| page + request.count > until)
            {
                continue;
            }
            if let Some(request) = requests.remove(&page) {
                // Where a request was made again, a message may have been lost: that it took long says little.
                let took = match now.since(request.since) {
                    took if request.tries > 0 => took.min(PATIENCE_MIN),
                    took => took,
                };
                self.usual = match self.usual {
                    Duration::ZERO => took,
                    usual => usual - usual / SMOOTHING + took / SMOOTHING,
                };
            }
        }
    }

    /// Requests that have waited too long. They are to be made again, at `of` members, but for those of
    /// which `void` says that nothing is needed.
    pub fn due(
        &mut self,
        now: Time,
        of: SourceCounts,
        void: impl Fn(u32, u32) -> bool,
    ) -> Vec<Due> {
        let patience = (self.usual * PATIENCE_TIMES).clamp(PATIENCE_MIN, PATIENCE_MAX);
        let mut due = Vec::new();
        for (urgent, of, requests) in [
            (false, of.sweep, &mut self.sweep),
            (true, of.urgent, &mut self.urgent),
        ] {
            requests.retain(|first, request| {
                let wait = (patience * (1 << request.tries.min(4))).min(PATIENCE_MAX);
                if now.since(request.at) < wait {
                    return true;
                }
                if void(*first, request.count) {
                    return false;
                }
                (request.at, request.of) = (now, of);
                request.tries += 1;
                // A group that lost too many members is not answered any more: it must not hold what others on this
                // node could fetch. What it goes on to ask for is bounded by its window.
                if request.tries > 1 {
                    request.permit = None;
                }
                due.push(Due {
                    page: *first,
                    count: request.count,
                    urgent,
                });
                true
            });
        }
        due
    }
}

/// At how many members a request is made again.
#[derive(Clone, Copy)]
pub(crate) struct SourceCounts {
    pub sweep: usize,
    pub urgent: usize,
}

/// A request that is to be made again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Due {
    pub page: u32,
    pub count: u32,
    pub urgent: bool,
}

impl PageRequest {
    fn new(now: Time, count: u32, of: usize, permit: Option<Permit>) -> PageRequest {
        PageRequest {
            count,
            of,
            at: now,
            since: now,
            tries: 0,
            permit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn due_at(requests: &mut PageRequests, ms: u64) -> usize {
        let of = SourceCounts {
            sweep: 2,
            urgent: 3,
        };
        requests.due(Time(ms * MS), of, |_, _| false).len()
    }

    /// Regression: on a machine with much to do, answers took longer than the fixed time after which all
    /// was asked for again, so that the same pages were sent many times over.
    #[test]
    fn who_answers_slowly_is_given_more_time() {
        let budget = Arc::new(Budget::new(1000));
        let mut requests = PageRequests::default();
        assert!(requests.sweep(Time(0), 0, 64, 2, &budget));
        let again: usize = (1..600).map(|ms| due_at(&mut requests, ms)).sum();
        assert_eq!(again, 1, "times in 600 ms");
        requests.answered(Time(600 * MS), 0, 63);
        assert_eq!(budget.taken(), 64, "its last page has not come");
        requests.answered(Time(600 * MS), 0, 64);
        // Answers take 600 ms: what was asked for just now is not asked for again before that.
        assert!(requests.sweep(Time(600 * MS), 64, 64, 2, &budget));
        let again: usize = (600..1400).map(|ms| due_at(&mut requests, ms)).sum();
        assert_eq!(again, 0);
        requests.answered(Time(1400 * MS), 64, 128);
        assert_eq!(budget.taken(), 0);
        // They come fast again, and soon patience is short again.
        for i in 0..64 {
            requests.demand(Time(1400 * MS), i, 1, 2);
            requests.answered(Time(1401 * MS), i, i + 1);
        }
        requests.demand(Time(2000 * MS), 0, 1, 2);
        assert_eq!(due_at(&mut requests, 2249), 0);
        assert_eq!(due_at(&mut requests, 2251), 1);
    }

    /// Regression: groups that had lost too many members held what the node may ask for until they were
    /// deleted, and the node rebuilt nothing else.
    #[test]
    fn who_is_never_answered_holds_nothing_that_others_could_ask_for() {
        let budget = Arc::new(Budget::new(64));
        let (mut lost, mut other) = (PageRequests::default(), PageRequests::default());
        assert!(lost.sweep(Time(0), 0, 64, 2, &budget));
        let again: usize = (1..5000).map(|ms| due_at(&mut lost, ms)).sum();
        assert!(again > 1 && lost.sweeping() == 1, "it is still request for");
        assert!(other.sweep(Time(5000 * MS), 0, 64, 2, &budget));
        lost.answered(Time(5001 * MS), 0, 64);
        assert_eq!((lost.sweeping(), budget.taken()), (0, 64));
    }

    #[test]
    fn what_the_node_may_ask_for_bounds_the_sweep_and_not_who_waits() {
        let budget = Arc::new(Budget::new(100));
        let (mut one, mut two) = (PageRequests::default(), PageRequests::default());
        assert!(one.sweep(Time(0), 0, 64, 4, &budget));
        assert!(!two.sweep(Time(0), 0, 64, 4, &budget));
        two.demand(Time(0), 5, 1, 4);
        assert!(two.is_urgent(5) && !two.is_urgent(6));
        one.clear();
        assert!(two.sweep(Time(0), 0, 64, 4, &budget));
        assert_eq!((two.sweep_end(63), two.sweep_end(64)), (Some(64), None));
        drop(two);
        assert_eq!(budget.taken(), 0);
    }
}
