//! The rule of each change.

use super::Change;
use super::outcome::{Outcome, Refusal};
use crate::ids::{ClusterId, Revision};
use crate::map::{ClusterMap, NodeState};

impl ClusterMap {
    /// Makes a change whole, or refuses it and changes nothing.
    ///
    /// `expected` is the revision on which the proposer decided. The change is refused with
    /// [`Refusal::MapMovedOn`] if anything that it rests on has changed since: for `CommitEpochs` and
    /// `MarkLost` that is the groups they name (nodes are checked by life and state anyway), so that
    /// a takeover is not held up by every other group that opens; for `Hold` the pool's holders; for all else it is the whole map.
    pub fn apply(
        &mut self,
        expected: Option<Revision>,
        change: &Change,
    ) -> Result<Outcome, Refusal> {
        self.check_expected(expected, change)?;
        match change {
            Change::Bootstrap { cluster } => self.bootstrap(*cluster),
            _ if self.cluster == ClusterId(0) => Err(Refusal::NotBootstrapped),
            Change::NodeUp { .. } => self.node_up(change),
            Change::NodeDown { node, incarnation } | Change::NodeLeft { node, incarnation } => {
                self.set_state(*node, *incarnation, NodeState::Down)
            }
            Change::NodeBack { node, incarnation } => {
                self.set_state(*node, *incarnation, NodeState::Up)
            }
            Change::ForgetNode { node } => self.forget_node(*node),
            Change::Drain { node, on } => self.drain(*node, *on),
            Change::CreatePool { .. } => self.create_pool(change),
            Change::SetPool { .. } => self.set_pool(change),
            Change::DeletePool { name } => self.delete_pool(name),
            Change::CommitEpochs(new) => self.commit_epochs(new, false),
            Change::GiveUpUnflushed(new) => self.commit_epochs(new, true),
            Change::Steps(steps) => self.take_steps(steps),
            Change::MarkLost { groups } => self.mark_lost(groups),
            Change::CreateRegion { .. }
            | Change::CreateVolume { .. }
            | Change::MakeRegion { .. }
            | Change::MakeSharedVolume { .. }
            | Change::MakeWriteback { .. } => self.make_region(change),
            Change::GrowRegion { .. } | Change::ExtendRegion { .. } => self.extend_region(change),
            Change::AttachVolume {
                volume,
                after,
                writer,
            } => self.attach_volume(*volume, *after, writer),
            Change::DetachVolume { volume, session } => self.detach_volume(*volume, *session),
            Change::SetDisks(disks) => self.set_disks(disks),
            Change::LimitVolume { name, limit } => self.limit_volume(name, *limit),
            Change::CopyVolumes {
                copies,
                kind,
                at_ms,
            } => self.copy_volumes(copies, *kind, *at_ms),
            Change::EndCopies { together, are_good } => self.end_copies(*together, *are_good),
            Change::ForgetImage(region) => self.forget_image(*region),
            Change::SetCopiesMin { pool, copies } => self.set_copies_min(pool, *copies),
            Change::LeaveVolume { .. } => self.leave_volume(change),
            Change::DeleteRegion { name } => self.delete_region(name),
            Change::LoadRegion { name, load } => self.load_region(name, load.clone()),
            Change::WriteRegion { region, offsets } => self.write_region(*region, offsets),
            Change::Hold(new) => self.hold(new),
            Change::SetDataset { pool, name, source } => self.set_dataset(pool, name, source),
            Change::DropDataset { name } => self.drop_dataset(name),
            Change::PinFiles(pins) => self.pin_files(pins),
            Change::UnpinFiles { dataset, paths } => self.unpin_files(dataset, paths),
        }
    }

    /// Every change that takes effect ends here.
    pub(super) fn moved(&mut self, outcome: Outcome) -> Result<Outcome, Refusal> {
        self.revision = self.revision.next();
        Ok(outcome)
    }
}
