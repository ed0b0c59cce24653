//! Flushes, where writes are answered before they are synced.

use std::collections::BTreeMap;

use bytes::Bytes;
use staves_group::{Durability, Options};
use staves_model::mutant::{Mutant, plant};
use staves_store::Journal;
use staves_wire::ErrorCode;
use staves_wire::memory::Action;
use staves_wire::service::Answer;

use crate::cluster::{Cluster, code};

/// Steps of a member until a sync ends.
const LATE: usize = 30;

fn cluster((m, k): (u8, u8)) -> Cluster {
    let options = Options {
        durability: Durability::Writeback,
        journal: Journal::late(LATE),
        ..Options::default()
    };
    Cluster::with((m, k), 4, 64, options)
}

fn put(session: u64, bytes: &'static [u8]) -> Action {
    Action::Put {
        image: 0,
        session,
        offset: 0,
        bytes: Bytes::from_static(bytes),
    }
}

fn sync(session: u64) -> Action {
    Action::Sync { image: 0, session }
}

/// True if every member has synced all that was made.
fn all_is_synced(c: &Cluster) -> bool {
    let streams = || (0..usize::from(c.group.m)).map(|stream| stream as u8);
    streams().all(|stream| {
        let made = c.buckets[c.node_of(stream)].member().last();
        let keeps = |x: &&staves_model::Member| {
            let member = c.buckets[x.id.node.0 as usize].member();
            member.keeps(stream.into())
        };
        let listed = c.group.members.iter().flatten().filter(keeps);
        listed.into_iter().all(|x| {
            let member = c.buckets[x.id.node.0 as usize].member();
            member
                .stream(stream.into())
                .is_some_and(|s| s.synced >= made)
        })
    })
}

/// Nothing is said to be flushed, or copied, before it is synced everywhere; and writes do not wait for that.
fn waits_for_the_sync(scheme: (u8, u8)) -> Result<(), String> {
    let mut c = cluster(scheme);
    let copy = Action::Copy {
        of: 0,
        session: 2,
        image: 9,
    };
    let answer = c.run(0, Some(1), &put(1, b"first"));
    if answer != Answer::Ok || all_is_synced(&c) {
        return Err(format!("{scheme:?}: a write waits for disks: {answer:?}"));
    }
    for (number, action) in [(None, sync(1)), (Some(2), copy.clone()), (Some(2), copy)] {
        c.run(0, Some(10), &put(2, b"second"));
        let token = c.submit(0, number, &action);
        for _ in 0..4 * LATE {
            if let Some(answer) = c.answered(token) {
                let is_good = answer == Answer::Ok && all_is_synced(&c);
                match is_good {
                    true => break,
                    false => return Err(format!("{scheme:?}: {action:?}: {answer:?}")),
                }
            }
            c.tick();
        }
        if !all_is_synced(&c) {
            return Err(format!("{scheme:?}: {action:?} is not answered"));
        }
    }
    // With nothing to wait for it is answered at once.
    let token = c.submit(0, None, &sync(1));
    match c.answered(token) {
        Some(Answer::Ok) => Ok(()),
        other => Err(format!("{scheme:?}: {other:?}")),
    }
}

#[test]
fn a_flush_and_a_copy_wait_for_the_sync_of_all_and_the_planted_bugs_are_found() {
    for scheme in [(1, 0), (1, 1), (1, 2), (2, 1)] {
        assert_eq!(waits_for_the_sync(scheme), Ok(()));
    }
    for mutant in [Mutant::FlushAnsweredAtHeld, Mutant::CopyAnsweredAtHeld] {
        plant(Some(mutant));
        let found = waits_for_the_sync((1, 1));
        plant(None);
        assert!(found.is_err(), "{mutant:?} was not found");
    }
}

/// A member that others may have gone on without knows nothing of what they answered (D-3).
fn needs_a_lease() -> Result<(), String> {
    let mut c = cluster((1, 1));
    c.run(0, Some(1), &put(1, b"first"));
    c.ticks(4 * LATE);
    assert!(all_is_synced(&c));
    c.cut_off = vec![0];
    c.ticks(40);
    let token = c.submit_at(0, 0, None, &sync(1));
    c.ticks(40);
    match c.answered(token) {
        Some(Answer::Ok) => Err("answered without a lease".into()),
        _ => Ok(()),
    }
}

#[test]
fn a_flush_needs_a_lease_and_the_planted_bug_is_found() {
    assert_eq!(needs_a_lease(), Ok(()));
    plant(Some(Mutant::FlushWithoutLease));
    let found = needs_a_lease();
    plant(None);
    assert!(found.is_err());
}

/// A session whose unflushed writes may be gone: nothing of it is done any more, and no flush of it says that all is well.
fn ended_sessions_are_refused() -> Result<(), String> {
    let mut c = cluster((1, 1));
    c.run(0, Some(1), &put(3, b"third"));
    c.bucket().set_sessions_over(BTreeMap::from([(0, 4)]));
    let fence = |session| Action::Fence { image: 0, session };
    let old = [sync(3), sync(4), put(3, b"x"), fence(4)];
    for (number, action) in (10..).zip(&old) {
        let answer = c.run(0, action.is_write().then_some(number), action);
        if code(&answer) != Some(ErrorCode::Fenced) {
            return Err(format!("{action:?}: {answer:?}"));
        }
    }
    // Those that come after go on, other images too, and a flush of nobody's.
    let other = Action::Sync {
        image: 7,
        session: 1,
    };
    for (number, action) in (20..).zip([fence(5), put(5, b"fifth"), sync(5), sync(0), other]) {
        let answer = c.run(0, action.is_write().then_some(number), &action);
        if answer != Answer::Ok {
            return Err(format!("{action:?}: {answer:?}"));
        }
    }
    Ok(())
}

#[test]
fn sessions_that_are_over_neither_write_nor_flush_and_the_planted_bug_is_found() {
    assert_eq!(ended_sessions_are_refused(), Ok(()));
    plant(Some(Mutant::FlushOfOldSession));
    let found = ended_sessions_are_refused();
    plant(None);
    assert!(found.is_err());
}

/// With every answer waiting for the sync, a flush waits for no more than that.
#[test]
fn a_durable_bucket_flushes_too() {
    let options = Options {
        journal: Journal::late(LATE),
        ..Options::default()
    };
    let mut c = Cluster::with((1, 1), 4, 64, options);
    assert_eq!(c.run(0, Some(1), &put(1, b"first")), Answer::Ok);
    assert!(all_is_synced(&c));
    assert_eq!(c.run(0, None, &sync(1)), Answer::Ok);
}
