//! What a node saw of another, as it is reported to the leader's detector.

use serde::{Deserialize, Serialize};
use staves_model::detector::{Finding, Report};
use staves_model::{Incarnation, NodeId};

/// What was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Sign {
    /// It answered. Takes an earlier word against it back.
    Alive,
    /// No answer for the suspicion time.
    Silent,
    /// Its machine refused the connection: no such process listens.
    Refused,
    /// A request to it failed: the connection broke, or a deadline passed.
    Failed,
}

/// One observation of one life of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Evidence {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// What was seen.
    pub sign: Sign,
}

impl Evidence {
    pub(crate) fn by(self, reporter: NodeId) -> Report {
        let finding = match self.sign {
            Sign::Alive => Finding::Alive,
            Sign::Silent => Finding::Silent,
            Sign::Refused => Finding::Refused,
            Sign::Failed => Finding::Failed,
        };
        Report {
            reporter,
            suspect: self.node,
            incarnation: self.incarnation,
            finding,
        }
    }
}
