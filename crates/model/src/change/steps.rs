//! Steps that groups come to by themselves: an epoch opens, a joiner is complete (GROUP rules 11, 16).

use serde::{Deserialize, Serialize};

use super::Change;
use super::outcome::{Outcome, Refusal};
use crate::ids::{Epoch, GroupId, Incarnation, MemberSlot, Revision};
use crate::map::{ClusterMap, Group, LastOpen, Member};

/// A step that a group has come to by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum GroupStep {
    /// The coordinator of an epoch has brought every listed member to the cut (GROUP rule 11).
    Open {
        /// The group.
        group: GroupId,
        /// The epoch: refused unless it is the newest and not yet open.
        epoch: Epoch,
    },
    /// A joiner has all pages (GROUP rule 16).
    Complete {
        /// The group.
        group: GroupId,
        /// The open epoch in which it reports so.
        epoch: Epoch,
        /// Its member slot.
        slot: MemberSlot,
        /// Its life.
        incarnation: Incarnation,
    },
}

impl GroupStep {
    /// The group and the epoch.
    pub fn of(&self) -> (GroupId, Epoch) {
        match *self {
            GroupStep::Open { group, epoch } | GroupStep::Complete { group, epoch, .. } => {
                (group, epoch)
            }
        }
    }
}

impl Change {
    /// One step alone.
    pub fn step(step: GroupStep) -> Change {
        Change::Steps(vec![step])
    }
}

impl ClusterMap {
    /// Makes those of the steps that are possible. Refused with the first refusal if none is.
    pub(super) fn take_steps(&mut self, steps: &[GroupStep]) -> Result<Outcome, Refusal> {
        let revision = self.revision.next();
        let (mut any, mut refused) = (false, None);
        for step in steps {
            match self.check_step(step) {
                Ok(()) => any |= self.take_step(step, revision),
                Err(refusal) => _ = refused.get_or_insert(refusal),
            }
        }
        match refused {
            Some(refusal) if !any => Err(refusal),
            _ if any => self.moved(Outcome::Done),
            _ => Ok(Outcome::Unchanged),
        }
    }

    /// Refuses a step that the map does not allow, or that is done.
    pub fn check_step(&self, step: &GroupStep) -> Result<(), Refusal> {
        let (id, epoch) = step.of();
        let group = self.known_group(id)?;
        if group.epoch != epoch || epoch == Epoch(0) {
            let newest = group.epoch;
            return Err(Refusal::NotNewest {
                group: id,
                epoch,
                newest,
            });
        }
        match *step {
            GroupStep::Open { .. } if group.open => Err(Refusal::AlreadyOpen { group: id, epoch }),
            GroupStep::Open { .. } => check_lives(group),
            GroupStep::Complete { .. } if !group.open => Err(Refusal::NotOpen { group: id, epoch }),
            GroupStep::Complete {
                slot, incarnation, ..
            } => check_joiner(group, slot, incarnation),
        }
    }

    /// Takes a step that was found possible.
    fn take_step(&mut self, step: &GroupStep, revision: Revision) -> bool {
        let Some(group) = self.groups.get_mut(&step.of().0) else {
            return false;
        };
        match step {
            GroupStep::Open { epoch, .. } => {
                // All that is up to its cut is on the disks of all that it lists.
                self.volumes.broken.remove(&group.id);
                group.open = true;
                group.lost = false;
                group.last_open = LastOpen {
                    epoch: *epoch,
                    members: group.members.clone(),
                };
            }
            GroupStep::Complete { slot, .. } => {
                // An open epoch is its own last open one: sources are distinguished by this mark. No more than that
                // changes there: others may be sources in a later life than the one listed.
                for members in [&mut group.members, &mut group.last_open.members] {
                    let member = members.get_mut(slot.index());
                    if let Some(member) = member.and_then(Option::as_mut) {
                        member.complete = true;
                    }
                }
            }
        }
        group.revision = revision;
        true
    }
}

/// An epoch does not open with a life of which the node's disk has been claimed for a later one: that one would be a source no more.
fn check_lives(group: &Group) -> Result<(), Refusal> {
    let is_later = |x: &Member| {
        let mut sources = group.last_open.members.iter().flatten();
        sources.any(|s| s.id.place() == x.id.place() && s.id.incarnation > x.id.incarnation)
    };
    let ended = group.listed().find(|(_, x)| is_later(x));
    ended.map_or(Ok(()), |(slot, x)| {
        Err(Refusal::NotThatMember {
            group: group.id,
            slot,
            incarnation: x.id.incarnation,
        })
    })
}

fn check_joiner(group: &Group, slot: MemberSlot, life: Incarnation) -> Result<(), Refusal> {
    match group.member(slot).filter(|x| x.id.incarnation == life) {
        None => Err(Refusal::NotThatMember {
            group: group.id,
            slot,
            incarnation: life,
        }),
        Some(member) if member.complete => Err(Refusal::AlreadyComplete {
            group: group.id,
            slot,
        }),
        Some(_) => Ok(()),
    }
}
