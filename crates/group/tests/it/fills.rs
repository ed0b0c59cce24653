//! The pages that a node asks for while its joiners are filled: so many for all of them, and first those that a client waits for (rule 16).

use std::collections::BTreeSet;

use staves_group::Effects;
use staves_model::NodeId;
use staves_wire::group::GroupMessage;

use crate::coded::{check_parity, load};
use crate::test_group::{TestGroup, options};

const PAGES: u64 = 100;
/// Pages that the node may have asked for.
const MOST: u32 = 8;
const JOINER: NodeId = NodeId(4);

/// The pages that a joiner has asked for, of which none has come.
fn asked(cluster: &TestGroup) -> BTreeSet<u32> {
    let to_joiner = cluster.kept_back.iter().filter(|(to, _)| *to == JOINER);
    let parts = to_joiner.filter_map(|(_, envelope)| match &envelope.message {
        GroupMessage::Parts { parts, .. } => Some(parts),
        _ => None,
    });
    parts.flatten().map(|part| part.page).collect()
}

/// A group whose parity is to be made anew by a fourth node, and none of whose pages comes.
fn begin(cluster: &mut TestGroup) {
    cluster.keep_parts = true;
    cluster.exchange(&[(2, JOINER.0)]);
    // Not so long that anything is asked for again.
    cluster.ticks(15);
    assert!(cluster.group.open, "it serves meanwhile");
}

/// Lets the pages come, until the group is whole.
fn end(cluster: &mut TestGroup) {
    cluster.keep_parts = false;
    cluster.kept_back.clear();
    cluster.fill();
    check_parity(cluster, &[0, 1], &[3], PAGES);
}

#[test]
fn a_joiner_asks_for_no_more_than_its_node_may_and_for_what_a_client_waits_for_at_once() {
    let mut cluster = TestGroup::new(2, 1, 1);
    load(&mut cluster, 2, PAGES);
    cluster.backfill_budget.set_limit(MOST);
    begin(&mut cluster);
    let first: BTreeSet<u32> = (0..MOST).collect();
    assert_eq!(asked(&cluster), first);
    // All that the node may ask for is under way, and a client waits for another page.
    let (mut out, now) = (Effects::default(), cluster.now);
    cluster.members[3].demand(now, 70, 2, &mut out);
    cluster.carry(out);
    let both: BTreeSet<u32> = first.into_iter().chain([70, 71]).collect();
    assert_eq!(asked(&cluster), both);
    end(&mut cluster);
}

/// The groups of a node share what it may ask for: however many are filled, they ask for no more together, and one goes on when another is
/// done.
#[test]
fn joiners_of_one_node_ask_for_no_more_together_than_one_alone() {
    let shared = options();
    let mut groups = [0; 3].map(|_| TestGroup::with(shared.clone(), 2, 1, 1));
    for group in &mut groups {
        load(group, 2, PAGES);
    }
    shared.backfill_budget.set_limit(MOST);
    for group in &mut groups {
        begin(group);
    }
    let all: usize = groups.iter().map(|group| asked(group).len()).sum();
    assert_eq!(all, MOST as usize, "by the first, and none by the others");
    for group in &mut groups {
        end(group);
        assert_eq!(shared.backfill_budget.taken(), 0);
    }
}
