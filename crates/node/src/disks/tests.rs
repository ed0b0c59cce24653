//! The places of members on several disks, as disks are emptied and fail.

use staves_model::GroupId;

use super::*;

const G: GroupId = GroupId(7);

/// A data folder whose first disk takes 1 MiB and whose second one takes 4.
fn two(data: &Path) -> Arc<Disks> {
    drop(opened(data));
    let second = data.join("second");
    create(&second, 4 << 20).expect("room");
    let mut list = DiskList::default();
    list.set_draining(&second, false);
    list.write(data).expect("room");
    opened(data)
}

fn opened(data: &Path) -> Arc<Disks> {
    let mut started = StartedDisks::open(Some(data), 1 << 20, 1 << 30).expect("it has disks");
    started.own(ClusterId(1), NodeId(1)).expect("nobody's");
    started.disks
}

fn name(disk: Option<Arc<NodeDisk>>) -> Option<String> {
    let name = disk?.folder().file_name()?.to_string_lossy().into_owned();
    Some(name)
}

#[test]
fn a_new_member_comes_to_the_disk_with_the_most_room_that_is_not_emptied() {
    let data = tempfile::tempdir().expect("a folder");
    let disks = two(data.path());
    assert_eq!(name(disks.place(G)).as_deref(), Some("second"));
    let all = disks.open_ones();
    assert!(disks.page_bytes() >= 5 << 20);
    all.iter()
        .for_each(|disk| disk.set_draining(disk.page_bytes() > 2 << 20));
    assert_eq!(
        name(disks.place(G)).as_deref(),
        Some("second"),
        "it is there"
    );
    assert_eq!(name(disks.place(GroupId(8))).as_deref(), Some("disk"));
    // Where all are to be emptied a member has a place all the same.
    all.iter().for_each(|disk| disk.set_draining(true));
    assert_eq!(name(disks.place(GroupId(9))).as_deref(), Some("second"));
    let failed = all.iter().find(|disk| disk.page_bytes() > 2 << 20);
    failed.expect("the second").fail("a test has it fail");
    assert_eq!(
        name(disks.place(G)),
        None,
        "what was there is to be given up first"
    );
    assert_eq!(name(disks.place(GroupId(10))).as_deref(), Some("disk"));
    assert!(disks.page_bytes() < 2 << 20);
    assert_eq!(disks.why_over(), None);
    all.iter().for_each(|disk| disk.fail("a test has it fail"));
    assert!(
        disks
            .why_over()
            .is_some_and(|why| why.contains("a test has it fail"))
    );
}

/// Regression: a disk that was drained counted as room that the node has.
#[test]
fn disks_that_are_emptied_are_no_room() {
    let data = tempfile::tempdir().expect("a folder");
    let disks = two(data.path());
    let all = disks.page_bytes();
    assert_eq!(disks.room_bytes(), all);
    for disk in disks.open_ones() {
        disk.set_draining(true);
        assert_eq!(disks.room_bytes(), all - disk.page_bytes());
        disk.set_draining(false);
    }
    let open = disks.open_ones();
    open.iter().for_each(|disk| disk.set_draining(true));
    assert_eq!(disks.room_bytes(), all, "where else should members be?");
}

#[test]
fn a_member_that_was_given_up_has_no_place_until_the_directory_knows() {
    let data = tempfile::tempdir().expect("a folder");
    let disks = two(data.path());
    let second = disks.place(G).expect("a place");
    disks.give_up(G, Epoch(3));
    assert_eq!(name(disks.place(G)), None);
    assert_eq!(disks.given_up().get(&G), Some(&Epoch(3)));
    assert_eq!(
        (disks.leaving(), disks.groups_on(&second)),
        (vec![G], vec![])
    );
    disks.is_known(G);
    // The same disk again: what was there of the former member goes first, and not later with the new one's.
    assert_eq!(name(disks.place(G)).as_deref(), Some("second"));
    assert_eq!(
        (disks.leaving(), disks.groups_on(&second)),
        (vec![], vec![G])
    );
    second.set_draining(true);
    disks.give_up(G, Epoch(4));
    disks.is_known(G);
    assert_eq!(name(disks.place(G)).as_deref(), Some("disk"));
    assert_eq!(disks.leaving(), [G], "it is kept until the group is whole");
    let states: Vec<DiskState> = disks.facts().iter().map(|disk| disk.state).collect();
    assert_eq!(states, [DiskState::Healthy, DiskState::Draining]);
    disks.has_left(G);
    let states: Vec<DiskState> = disks.facts().iter().map(|disk| disk.state).collect();
    assert_eq!(states, [DiskState::Healthy, DiskState::Drained]);
    // What a failed disk had is not kept.
    second.set_draining(false);
    let other = disks.place(GroupId(8)).expect("a place");
    other.fail("a test has it fail");
    disks.give_up(GroupId(8), Epoch(1));
    assert_eq!(disks.leaving(), []);
}

#[test]
fn a_node_starts_without_a_disk_that_is_not_there_but_not_without_all() {
    let data = tempfile::tempdir().expect("a folder");
    let first = data.path().join("disk");
    drop(two(data.path()));
    std::fs::remove_dir_all(data.path().join("second")).expect("it is there");
    let disks = opened(data.path());
    let facts = disks.facts();
    let states: Vec<DiskState> = facts.iter().map(|disk| disk.state).collect();
    assert_eq!(states, [DiskState::Healthy, DiskState::Failed]);
    assert!(facts[1].why.contains("second"), "{}", facts[1].why);
    assert!(
        !data.path().join("second").exists(),
        "none is made in its place"
    );
    assert!(disks.take_out(&first).is_err(), "it takes buckets");
    disks
        .take_out(&data.path().join("second"))
        .expect("it is listed");
    assert_eq!(disks.facts().len(), 1);
    drop(disks);
    std::fs::remove_file(first.join("pages")).expect("it is there");
    let started = StartedDisks::open(Some(data.path()), 1 << 20, 1 << 30);
    assert!(started.is_err(), "the only one");
}

/// Regression: a node that was started with a relative folder kept that of its first disk so, and refused its own list at the next start.
#[test]
fn disks_of_a_relative_data_folder_have_names_from_the_root() {
    let here = std::env::current_dir().expect("it is there");
    let data = tempfile::tempdir_in(&here).expect("a folder");
    let name = data.path().strip_prefix(&here).expect("in it");
    let disks = opened(name);
    let open = disks.open_ones();
    assert!(open.iter().all(|disk| disk.folder().is_absolute()));
    assert_eq!(open.len(), 1);
}
