//! A bucket's role: the data slot that the map gives its node, and what a change of it means to who waits.

use std::sync::Arc;

use staves_group::Event;
use staves_model::Group;
use staves_wire::group::GroupMessage;

use super::Bucket;
use crate::reservation::Reservation;
use crate::{BucketEffects, OpHeader, Refused, Service};

impl<S: Service> Bucket<S> {
    // Operations for the data slot that the newest entry of the map gives this node may wait here for the
    // epoch to open.
    pub(super) fn look_at_map(&mut self, event: &Event) {
        let member = &self.context.member;
        let group: &Arc<Group> = match event {
            Event::Map(group) => group,
            Event::Message(envelope) if envelope.group == member.id() => match &envelope.message {
                GroupMessage::Seal { group, .. } | GroupMessage::Sync { group, .. } => group,
                _ => return,
            },
            _ => return,
        };
        if group.id == member.id() && group.revision >= self.newest {
            self.newest = group.revision;
            let slot = group.slot_of(member.me());
            self.chosen = slot.filter(|slot| slot.0 < group.m);
        }
    }

    pub(super) fn follow_role(&mut self, others: bool, out: &mut BucketEffects) {
        let serving = self.serving();
        if self.was_serving && !serving {
            self.service.stop(out);
        }
        let member = &self.context.member;
        let pages = member.pages().map(|pages| pages.generation());
        let source = member.slot().zip(pages).filter(|_| member.is_data());
        // A data bucket that stays the data bucket keeps everything up to the cut, so answers wait on. Any
        // other one's successor knows the requests; the client retries there.
        let moved = self.source.is_some() && self.source != source;
        if others || moved || (!serving && self.chosen.is_none()) {
            out.refuse(self.context.waiters.drain(), Refused::Interrupted);
            out.refuse(self.context.syncing.drain(), Refused::Interrupted);
            self.context.unstable.clear();
        }
        if serving && !self.was_serving {
            self.context.begin_serving();
        }
        self.source = source;
        // A newer epoch may be committed, with another slot for this member, before the older one has opened:
        // operations stay parked only for a slot that is served or promised.
        let serves = serving.then(|| self.context.member.slot()).flatten();
        let chosen = self.chosen;
        let waits = |header: &OpHeader| serves == Some(header.slot) || chosen == Some(header.slot);
        let gone = self.queue.remove(|header| !waits(header));
        out.refuse(gone, Refused::NotServing);
        let epoch = self.context.member.epoch();
        if self.context.reservation.epoch != epoch {
            self.context.reservation = Reservation::of(epoch);
        }
        if serving && (others || !self.was_serving) {
            self.service.start();
        }
        self.was_serving = serving;
    }
}
