//! On which side the operations of a batch are done, bucket by bucket.

use std::collections::BTreeMap;

use staves_model::GroupId;
use staves_service::Refused;

/// The way of a bucket's operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// To this node's own bucket.
    Here,
    /// To another node.
    Elsewhere,
    /// Nowhere: one was refused, and the asker will ask again for it and for all after it, in their order.
    Refused(Refused),
}

/// The side of each bucket that a batch has come to. A bucket may come to this node, or leave it, while a batch is
/// taken apart; were its operations parted, a later one could be done before an earlier one.
#[derive(Debug, Default)]
pub(crate) struct Sides(BTreeMap<GroupId, Side>);

impl Sides {
    /// A bucket's side: that of its first operation is that of all.
    pub(crate) fn of(&mut self, bucket: GroupId, is_here: impl FnOnce() -> bool) -> Side {
        *self.0.entry(bucket).or_insert_with(|| match is_here() {
            true => Side::Here,
            false => Side::Elsewhere,
        })
    }

    /// The bucket has refused an operation.
    pub(crate) fn refuse(&mut self, bucket: GroupId, why: Refused) {
        self.0.insert(bucket, Side::Refused(why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: of SET k 1 and SET k 2, which came while the bucket did, the second was done here and the
    /// first, asked again, after it.
    #[test]
    fn operations_of_a_bucket_stay_together_whatever_comes_in_between() {
        let mut sides = Sides::default();
        assert_eq!(sides.of(GroupId(3), || false), Side::Elsewhere);
        assert_eq!(
            sides.of(GroupId(3), || true),
            Side::Elsewhere,
            "it came just now"
        );
        assert_eq!(sides.of(GroupId(4), || true), Side::Here);
        assert_eq!(
            sides.of(GroupId(4), || false),
            Side::Here,
            "the bucket itself refuses it"
        );
        sides.refuse(GroupId(4), Refused::Busy);
        assert_eq!(sides.of(GroupId(4), || true), Side::Refused(Refused::Busy));
        assert_eq!(sides.of(GroupId(5), || true), Side::Here);
    }
}
