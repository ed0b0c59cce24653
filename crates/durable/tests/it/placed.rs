//! Whole pages of deltas are written once: to the page file with their record, and not again with a round of saving.

use staves_model::GroupId;

use crate::cluster::Cluster;

const GROUP: GroupId = GroupId(1);

/// One write of the client, acknowledged and saved on both nodes; how often the save wrote to and synced the first one's page file. `None`: the write was not taken.
fn write_and_save(c: &mut Cluster) -> Option<u64> {
    let acked = c.acked;
    c.write(GROUP);
    for _ in 0..8 {
        while c.deliver() {}
        (0..c.nodes.len()).for_each(|at| c.commit_whole(at));
        c.tick();
    }
    let before = c.nodes[0].files.pages.calls();
    (0..c.nodes.len()).for_each(|at| c.save(at, GROUP, true));
    let calls = c.nodes[0].files.pages.calls() - before;
    (0..c.nodes.len()).for_each(|at| c.release(at));
    (c.acked > acked).then_some(calls)
}

#[test]
fn a_round_of_saving_writes_no_page_that_a_record_of_the_journal_has() {
    for (seed, puts_pages) in [(1, true), (2, false)] {
        let mut c = Cluster::new(seed, 2, 1, (1, 2));
        c.heal();
        assert_eq!(c.puts_pages(), puts_pages);
        let saves: Vec<u64> = (0..120).filter_map(|_| write_and_save(&mut c)).collect();
        let without = saves.iter().filter(|calls| **calls == 0).count();
        match puts_pages {
            true => assert!(
                without * 8 > saves.len(),
                "{without} of {} saves",
                saves.len()
            ),
            false => assert_eq!(
                without,
                0,
                "each of {} saves has a page to write",
                saves.len()
            ),
        }
        assert!(saves.len() > 60, "{} writes", saves.len());
        // What the rows name is there, also after a loss of power.
        (0..c.nodes.len()).for_each(|at| c.crash(at, true));
        c.heal();
        c.check_copies();
        c.check_disks();
    }
}
