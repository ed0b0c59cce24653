//! The cluster's status as a command sees it, and what it explains of other commands' failures.

use std::time::{Duration, Instant};

use staves_node::status::StatusReport;
use staves_wire::{ErrorCode, Message};

use super::{Cluster, FACTS, read_status};
use crate::codes::Code;
use crate::failure::{self, Failure};

/// The least time of a look into a failure.
const LEAST: Duration = Duration::from_millis(50);

/// The remedy if the directory has no majority.
pub const MAJORITY_REMEDY: &str = "bring its voters back with their data folders";

impl Cluster {
    /// The status of the cluster, with the facts of each node that answers in time.
    pub fn status(&self) -> anyhow::Result<StatusReport> {
        self.status_by(self.until())
    }

    /// The same, within another time.
    pub fn status_by(&self, until: Instant) -> anyhow::Result<StatusReport> {
        let (mut report, asked) = self.look(until, &[])?;
        let rows = report.nodes.iter().filter(|node| node.facts.is_none());
        let silent: Vec<u64> = rows.map(|n| n.id).filter(|n| asked.contains(n)).collect();
        // Those that do answer know by now who answers their pings, and whether the directory has a leader.
        let again = (!silent.is_empty()).then(|| self.look(until, &silent));
        if let Some(Ok((newer, _))) = again {
            report = newer;
        }
        report.silent(&asked);
        Ok(report)
    }

    /// The report of the node that is asked, with the facts of all others but some; and who was asked for those.
    fn look(&self, until: Instant, but: &[u64]) -> anyhow::Result<(StatusReport, Vec<u64>)> {
        let mut report = self.own_report(until)?;
        let without = report.nodes.iter();
        let without = without.filter(|n| n.up && n.facts.is_none() && !but.contains(&n.id));
        let (asked, asks): (Vec<u64>, Vec<_>) = without
            .map(|node| (node.id, (node.native.clone(), Message::Status)))
            .unzip();
        // A node that does not answer is shown without its figures.
        let answers = self.ask_all_by(asks, until.min(Instant::now() + FACTS));
        let others = answers.into_iter().flatten().map(read_status);
        others.flatten().for_each(|other| report.absorb(other));
        Ok((report, asked))
    }

    /// The report that the node that is asked makes by itself.
    fn own_report(&self, until: Instant) -> anyhow::Result<StatusReport> {
        let address = self.client.answered_at();
        read_status(self.ask_by(&address, &Message::Status, until)?)
    }

    /// Fails if the directory can decide nothing, and names the voters that are missing.
    pub fn can_decide(&self) -> anyhow::Result<()> {
        match self.status()?.undecided() {
            None => Ok(()),
            Some(why) => {
                let code = ErrorCode::NoQuorum;
                Err(no_majority(code, &why, "nothing was changed"))
            }
        }
    }

    /// The reason why a change was not answered for: most often, the directory has no majority.
    pub(super) fn undecided(&self, error: anyhow::Error) -> anyhow::Error {
        let (code, then) = match failure::code(&error) {
            Code::Wire(ErrorCode::NoQuorum | ErrorCode::NotLeader) => {
                (ErrorCode::NoQuorum, "nothing was changed")
            }
            Code::Wire(code @ (ErrorCode::Deadline | ErrorCode::Unreachable)) => {
                (code, "the change may still be made once it has")
            }
            _ => return error,
        };
        match self.missing_majority(self.until_told()) {
            Some(why) => no_majority(code, &why, then),
            None => error,
        }
    }

    /// The voters that the directory misses, if it can decide nothing.
    pub fn missing_majority(&self, until: Instant) -> Option<String> {
        self.status_by(until).ok()?.undecided()
    }

    /// The end of a look into a failure.
    pub fn until_told(&self) -> Instant {
        self.end().max(Instant::now() + LEAST)
    }

    /// Says of what the map has not that it may be there all the same, if the node that was asked does not reach the directory's
    /// leader: its map is as old as that.
    pub fn by_an_old_map(&self, error: anyhow::Error) -> anyhow::Error {
        if !matches!(error.downcast_ref(), Some(Failure::NotInMap(_))) {
            return error;
        }
        let report = self.own_report(self.until_told());
        match report.ok().and_then(|report| report.may_be_old()) {
            None => error,
            Some(why) => {
                let asked = self.client.answered_at();
                let text = format!(
                    "as far as {asked} knows, {error:#}; its map may be old: {why}; ask a node that has a majority, or {MAJORITY_REMEDY}"
                );
                Failure::Wire(ErrorCode::NoQuorum, text).into()
            }
        }
    }
}

fn no_majority(code: ErrorCode, why: &str, then: &str) -> anyhow::Error {
    Failure::Wire(code, format!("{why}; {then}; {MAJORITY_REMEDY}")).into()
}
