//! Memory for a bucket's growth: reserved at every member before a delta needs it, so that a delta is never
//! refused.

use std::time::Duration;

use staves_model::{Epoch, Time};

use crate::BucketContext;

/// A bucket is said to lack memory for so long after a write that found none: whoever writes there comes again, or has given up.
const LACKS_FOR: Duration = Duration::from_secs(10);

/// The extents that were requested of the members and not granted.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    /// The epoch that this is about: in the next one all members report anew, and none has refused yet.
    pub(crate) epoch: Epoch,
    /// The time of a request that is not granted yet.
    requested: Option<Time>,
    /// The number of extents that was refused, and until when it is not requested again.
    refused: Option<(u32, Time)>,
    /// The last time that a write found no memory, and the extents beyond those in use that it needed.
    lacked: Option<(Time, u32)>,
}

impl Reservation {
    /// Nothing requested in this epoch.
    pub(crate) fn of(epoch: Epoch) -> Reservation {
        Reservation {
            epoch,
            ..Reservation::default()
        }
    }
}

/// The state of a request for memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// Every member has it.
    Granted,
    /// Some member has not reported yet.
    Pending,
    /// Some member lacks it.
    Refused,
}

impl BucketContext {
    /// Makes sure that `need` extents in all are reserved. Where fewer are, it asks the members for `request`; where
    /// exactly so many are, for `ahead`, before they are needed.
    pub fn grow(&mut self, now: Time, need: u32, request: u32, ahead: u32) -> Growth {
        let usable = self.member.usable_extents();
        if usable >= need {
            self.reservation.requested = None;
            if usable == need
                && self.member.wanted_extents() <= need
                && !self.is_refused(now, ahead)
            {
                self.want(ahead);
            }
            return Growth::Granted;
        }
        if self.is_refused(now, need) {
            self.note_lack(now, need);
            return Growth::Refused;
        }
        // A request is only raised until it is refused. Were it changed back and forth between two writes,
        // each step would send to all members, and each of their answers is a step.
        if self.member.wanted_extents() < need {
            let request = match self.is_refused(now, request) {
                true => need,
                false => request,
            };
            self.want(request);
            self.reservation.requested = Some(now);
        }
        if self.member.usable_extents() >= need {
            self.reservation.requested = None;
            return Growth::Granted;
        }
        self.wait_or_lower(now, need)
    }

    fn wait_or_lower(&mut self, now: Time, need: u32) -> Growth {
        let wanted = self.member.wanted_extents();
        let here = self.member.pages().map_or(0, |p| p.reserved());
        let since = *self.reservation.requested.get_or_insert(now);
        // A member that is behind has not refused: it will report, or be removed.
        let behind = self.member.stable() < self.member.last();
        if here >= wanted && (behind || now.since(since) < self.limits.grant_wait) {
            return Growth::Pending;
        }
        self.reservation.refused = Some((wanted, now + self.limits.refused_for));
        if wanted > need {
            // More was requested than there is; this may still be granted.
            self.want(need);
            self.reservation.requested = Some(now);
            return Growth::Pending;
        }
        // A standing request would keep the members trying for what is not there.
        self.want(self.member.usable_extents().max(self.used_extents()));
        self.reservation.requested = None;
        self.note_lack(now, need);
        Growth::Refused
    }

    fn note_lack(&mut self, now: Time, need: u32) {
        let more = need.saturating_sub(self.used_extents()).max(1);
        self.reservation.lacked = Some((now, more));
    }

    /// The extents beyond those in use that a write of a short time ago did not find; 0 if there was none, or all members have reserved them since.
    pub fn lacked_extents(&self, now: Time) -> u32 {
        let lacked = self.reservation.lacked;
        let lacked = lacked.filter(|(at, _)| now.since(*at) < LACKS_FOR);
        let spare = self
            .member
            .usable_extents()
            .saturating_sub(self.used_extents());
        lacked.map_or(0, |(_, more)| if more > spare { more } else { 0 })
    }

    /// Asks the members for so many extents in all.
    pub fn want(&mut self, extents: u32) {
        self.member.want_extents(extents);
        self.unflushed = true;
    }

    /// True if so many extents were refused a short time ago.
    pub fn is_refused(&self, now: Time, extents: u32) -> bool {
        self.reservation
            .refused
            .is_some_and(|(refused, until)| extents >= refused && now < until)
    }

    /// Extents in use.
    pub fn used_extents(&self) -> u32 {
        self.member.pages().map_or(0, |p| p.used())
    }
}
