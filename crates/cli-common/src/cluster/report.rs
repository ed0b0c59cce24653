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
        let address = self.client.answered_at();
        let mut report = read_status(self.ask_by(&address, &Message::Status, until)?)?;
        let without = report.nodes.iter().filter(|n| n.up && n.facts.is_none());
        let (asked, asks): (Vec<u64>, Vec<_>) = without
            .map(|node| (node.id, (node.native.clone(), Message::Status)))
            .unzip();
        // A node that does not answer is shown without its figures.
        let answers = self.ask_all_by(asks, until.min(Instant::now() + FACTS));
        let others = answers.into_iter().flatten().map(read_status);
        others.flatten().for_each(|other| report.absorb(other));
        report.silent(&asked);
        Ok(report)
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
}

fn no_majority(code: ErrorCode, why: &str, then: &str) -> anyhow::Error {
    Failure::Wire(code, format!("{why}; {then}; {MAJORITY_REMEDY}")).into()
}
