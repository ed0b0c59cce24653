//! The steps about nodes' disks, and their words.

use super::action::{Action, Who, who};

/// The action on a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskAction {
    /// A further disk is made, and used.
    Add,
    /// Every write to it fails from now on; what it has can be read.
    Fail,
    /// Its buckets go to the node's other disks.
    Drain {
        /// Nothing else is done before they are gone.
        waits: bool,
    },
    /// It takes buckets again.
    Resume,
    /// Another one takes its place; that it does is looked at when all is well again.
    Replace,
    /// It is taken out; the same.
    Remove,
}

/// The disk of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Whose {
    /// The newest one of these nodes.
    Newest(Who),
    /// The one that these nodes began with. It never fails.
    First(Who),
    /// That of the last step about disks.
    That,
}

const WORDS: &str = "say 'add a disk to WHO'; or fail, drain, resume, replace or remove 'a disk of WHO', 'the first disk of WHO' or 'that disk'; \
     the first disk of a node can be drained and resumed, and does not fail";

impl DiskAction {
    /// The fault's kind, for counting.
    pub fn fault(self) -> &'static str {
        match self {
            DiskAction::Add => "disk added",
            DiskAction::Fail => "failing disk",
            DiskAction::Drain { .. } => "disk drained",
            DiskAction::Resume => "disk resumed",
            DiskAction::Replace => "disk replaced",
            DiskAction::Remove => "disk removed",
        }
    }
}

/// The action of a step about disks; `None` if it is about something else.
pub(super) fn action(verb: &str, rest: &[&str]) -> Option<Result<Action, String>> {
    let (rest, waits) = match rest {
        [rest @ .., "and", "wait"] => (rest, true),
        rest => (rest, false),
    };
    let (action, whose) = match (verb, rest) {
        ("add", ["a", "disk", "to", nodes @ ..]) => {
            (DiskAction::Add, who(nodes).map(Whose::Newest))
        }
        (_, ["a", "disk", "of", nodes @ ..]) => {
            (known(verb, waits)?, who(nodes).map(Whose::Newest))
        }
        (_, ["the", "first", "disk", "of", nodes @ ..]) => {
            (known(verb, waits)?, who(nodes).map(Whose::First))
        }
        (_, ["that", "disk"]) => (known(verb, waits)?, Ok(Whose::That)),
        _ => return None,
    };
    let drains = matches!(action, DiskAction::Drain { .. });
    let first_may = drains || action == DiskAction::Resume;
    Some(match whose {
        _ if waits && !drains => Err(WORDS.into()),
        Ok(Whose::First(_)) if !first_may => Err(WORDS.into()),
        whose => whose.map(|whose| Action::Disk { action, whose }),
    })
}

fn known(verb: &str, waits: bool) -> Option<DiskAction> {
    Some(match verb {
        "fail" => DiskAction::Fail,
        "drain" => DiskAction::Drain { waits },
        "resume" => DiskAction::Resume,
        "replace" => DiskAction::Replace,
        "remove" => DiskAction::Remove,
        _ => return None,
    })
}
