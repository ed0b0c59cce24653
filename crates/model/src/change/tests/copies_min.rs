//! The copies that writes to a pool wait for.

use super::super::*;
use crate::Group;
use crate::map::ClusterMap;
use crate::testing::*;

fn set(map: &mut ClusterMap, pool: &str, copies: u8) -> Result<Outcome, Refusal> {
    let pool = pool.into();
    map.apply(None, &Change::SetCopiesMin { pool, copies })
}

fn scheme(map: &mut ClusterMap, name: &str, scheme: &str) -> Result<Outcome, Refusal> {
    let change = Change::SetPool {
        name: name.into(),
        scheme: Some(scheme.parse().expect("a scheme")),
        node_budget_bytes: None,
    };
    map.apply(None, &change)
}

#[test]
fn writes_wait_for_no_more_copies_than_the_scheme_has() {
    let mut map = cluster(3);
    map.apply(None, &create_memory_pool("p", "2+2", 1 << 29))
        .expect("it is new");
    let id = map.pool_named("p").expect("made").id;
    let before = postcard::to_allocvec(&map).expect("plain data");
    assert_eq!(map.copies_min(id), 1);
    for copies in [0, 4, 255] {
        let refused = set(&mut map, "p", copies);
        assert!(matches!(
            refused,
            Err(Refusal::BadCopiesMin { most: 3, .. })
        ));
    }
    assert_eq!(set(&mut map, "p", 1), Ok(Outcome::Unchanged));
    assert_eq!(set(&mut map, "p", 3), Ok(Outcome::Done));
    assert_eq!(map.copies_min(id), 3);
    let read: ClusterMap =
        postcard::from_bytes(&postcard::to_allocvec(&map).expect("plain data")).expect("a map");
    assert_eq!(read, map);
    assert!(matches!(
        scheme(&mut map, "p", "2+1"),
        Err(Refusal::BadCopiesMin { copies: 3, .. })
    ));
    assert_eq!(set(&mut map, "p", 2), Ok(Outcome::Done));
    assert_eq!(scheme(&mut map, "p", "2+1"), Ok(Outcome::Done));
    assert!(set(&mut map, "q", 2).is_err_and(|refusal| refusal.is_missing()));
    // A map without any has the bytes that it had.
    assert_eq!(set(&mut map, "p", 1), Ok(Outcome::Done));
    assert_eq!(scheme(&mut map, "p", "2+2"), Ok(Outcome::Done));
    let after = postcard::to_allocvec(&map).expect("plain data");
    assert_eq!(before.len(), after.len());
    set(&mut map, "p", 2).expect("again");
    map.apply(None, &Change::DeletePool { name: "p".into() })
        .expect("it is there");
    assert!(map.volumes.copies_min.is_empty());
}

#[test]
fn what_is_written_without_parity_is_not_where_writes_wait_for_copies() {
    let mut map = cluster(3);
    let change = |map: &mut ClusterMap, change: Change| map.apply(None, &change);
    change(&mut map, create_memory_pool("p", "1+1", 1 << 29)).expect("new");
    let create = Change::CreateRegion {
        pool: "p".into(),
        name: "r".into(),
        size_bytes: 64 << 20,
    };
    change(&mut map, create).expect("new");
    let load = |on: bool| Change::LoadRegion {
        name: "r".into(),
        load: on.then_some(0..64 << 20),
    };
    change(&mut map, load(true)).expect("it is empty");
    assert!(matches!(
        set(&mut map, "p", 2),
        Err(Refusal::RegionIsLoaded { .. })
    ));
    change(&mut map, load(false)).expect("it ends");
    set(&mut map, "p", 2).expect("nothing is loaded");
    assert!(matches!(
        change(&mut map, load(true)),
        Err(Refusal::LoadHasNoCopies { copies: 2, .. })
    ));
    change(&mut map, create_files_pool("f", 4, 1 << 29)).expect("new");
    assert!(matches!(
        set(&mut map, "f", 2),
        Err(Refusal::FilesAreNotWritten { .. })
    ));
}

#[test]
fn a_group_lacks_copies_by_what_it_may_lose() {
    let mut map = cluster_with_pool(3, "1+2", 1);
    let id = *map.groups.keys().next().expect("one");
    start_group(&mut map, id.0, &[1, 2, 3]);
    let group = map.groups.get_mut(&id).expect("one");
    let lacks = |group: &Group| [1, 2, 3].map(|copies| group.lacks_copies(copies));
    assert_eq!(lacks(group), [false; 3]);
    group.members[2].as_mut().expect("listed").complete = false;
    assert_eq!(lacks(group), [false, false, true]);
    group.members[1] = None;
    assert_eq!(lacks(group), [false, true, true]);
}

/// Of 2+1 on two nodes one has both data buckets: with it all is lost.
#[test]
fn two_buckets_on_one_node_are_one_loss() {
    let mut map = cluster(3);
    map.apply(None, &create_memory_pool("p", "2+1", 1 << 29))
        .expect("it is new");
    let create = Change::CreateRegion {
        pool: "p".into(),
        name: "r".into(),
        size_bytes: 64 << 20,
    };
    map.apply(None, &create).expect("it is new");
    let id = *map.groups.keys().next().expect("one");
    start_group(&mut map, id.0, &[1, 2, 3]);
    let group = map.groups.get_mut(&id).expect("one");
    assert!(!group.lacks_copies(2));
    let (first, second) = (group.members[0], &mut group.members[1]);
    let node = first.expect("listed").id;
    second.as_mut().expect("listed").id = node.second();
    assert!(group.lacks_copies(2) && !group.lacks_copies(1));
}
