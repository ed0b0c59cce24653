//! Memory for places: reserved at every member before a delta needs it, so that a delta is never refused.

use staves_model::{Epoch, Time};

use crate::bucket::Bucket;

/// Most extents that are wanted beyond those needed now, so that a long write need not wait for each.
const AHEAD_MAX: u32 = 16;

/// What is known of the memory that was asked for.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Of this epoch: with the next all members say anew what they have, and nobody has refused anything yet.
    pub(crate) epoch: Epoch,
    /// Asked for and not granted since.
    asked: Option<Time>,
    /// So many extents were refused, and are not asked for again until then.
    refused: Option<(u32, Time)>,
}

/// Whether memory can be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Growth {
    Granted,
    Pending,
    Refused,
}

impl Room {
    /// Nothing is known yet in this epoch.
    pub(crate) fn of(epoch: Epoch) -> Room {
        Room {
            epoch,
            ..Room::default()
        }
    }
}

impl Bucket {
    /// Makes sure of so many extents in all: every member has them, or will say, or lacks them.
    pub(crate) fn grow(&mut self, now: Time, need: u32) -> Growth {
        let usable = self.member.usable_extents();
        let ahead = need + (need / 8).clamp(1, AHEAD_MAX);
        if usable >= need {
            self.room.asked = None;
            if usable == need
                && self.member.wanted_extents() <= need
                && !self.is_refused(now, ahead)
            {
                self.wish(ahead);
            }
            return Growth::Granted;
        }
        if self.is_refused(now, need) {
            return Growth::Refused;
        }
        // A wish is only raised until it is refused. Were it changed back and forth between two writes,
        // each step would tell all members, and each of their answers is a step.
        if self.member.wanted_extents() < need {
            self.wish(if self.is_refused(now, ahead) {
                need
            } else {
                ahead
            });
            self.room.asked = Some(now);
        }
        if self.member.usable_extents() >= need {
            self.room.asked = None;
            return Growth::Granted;
        }
        self.wait_or_lower(now, need)
    }

    fn wait_or_lower(&mut self, now: Time, need: u32) -> Growth {
        let wish = self.member.wanted_extents();
        let here = self.member.pages().map_or(0, |p| p.reserved());
        let since = *self.room.asked.get_or_insert(now);
        // A member that is behind has not refused: it will answer, or be removed.
        let behind = self.member.stable() < self.member.last();
        if here >= wish && (behind || now.since(since) < self.options.grant_wait) {
            return Growth::Pending;
        }
        self.room.refused = Some((wish, now + self.options.refused_for));
        if wish > need {
            // More was wished for than there is; this may still be had.
            self.wish(need);
            self.room.asked = Some(now);
            return Growth::Pending;
        }
        // Wanting on would keep the members trying for what is not there.
        let used = self.member.pages().map_or(0, |p| p.used());
        let usable = self.member.usable_extents();
        self.wish(usable.max(used));
        self.room.asked = None;
        Growth::Refused
    }

    fn wish(&mut self, extents: u32) {
        self.member.want_extents(extents);
        self.unflushed = true;
    }

    fn is_refused(&self, now: Time, need: u32) -> bool {
        self.room
            .refused
            .is_some_and(|(refused, until)| need >= refused && now < until)
    }
}
