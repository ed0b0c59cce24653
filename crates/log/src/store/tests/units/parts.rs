//! Checkpoints of the largest states, and heads that others have written over.

use super::*;
use crate::store::PART_BYTES;
use crate::unit::{IDS_MAX, SESSIONS_MAX};

/// As many appends as may be known, in deltas of many, without data.
fn append_all(units: &mut Units, log: LogId) {
    let each = (IDS_MAX / SESSIONS_MAX) as u32;
    let many = IDS_MAX as u32;
    for from in (0..many).step_by(256) {
        let commit = |n: u32| Entry::Commit {
            log,
            position: n.into(),
            id: AppendId {
                session: SessionId {
                    term: Term(1),
                    count: 1 + n / each,
                },
                seq: n % each,
            },
            low: 0,
            links: Vec::new(),
            places: Vec::new(),
        };
        let entries: Vec<_> = (from..from + 256).map(commit).collect();
        entries
            .iter()
            .for_each(|entry| units.own.1.apply(entry, &mut Vec::new()));
        let stored = entries.into_iter().map(StoredEntry::Change);
        let all: Vec<_> = stored.map(|entry| (entry, NewData::Nothing)).collect();
        let edit = units.own.0.append(&all).unwrap();
        let made: Vec<_> = all
            .into_iter()
            .map(|(entry, _)| (entry, Vec::new()))
            .collect();
        units.make(&edit, &made);
    }
}

/// The largest state that a log's ids can have, and the room that dead entries give back by its checkpoint.
#[test]
fn a_log_of_as_many_sessions_and_ids_as_there_may_be_has_its_checkpoint_in_parts() {
    let (log, options) = (LogId(1), LogOptions::default());
    let mut units = Units::new();
    units.change(Entry::Seal {
        log,
        term: Term(1),
        options,
    });
    append_all(&mut units, log);
    let share = units.own.1.share(log).unwrap();
    let sessions = &share.sessions;
    assert_eq!(
        (sessions.lows().len(), sessions.ids().len()),
        (SESSIONS_MAX, IDS_MAX)
    );
    assert!(units.own.0.ledger.large_bytes() >= IDS_MAX * 28);
    let before = units.own.0.log.live_bytes();
    let mut parts = 0;
    loop {
        units.part(CheckpointOf::Log(log), PART_BYTES);
        parts += 1;
        // What comes between is told by entries of its own.
        units.commit(log, 0, (2, 700), 1);
        run(&mut units, Do::Prefix(1));
        run(&mut units, Do::Trim(1, 3));
        if units.parts.is_none() {
            break;
        }
    }
    assert!(parts > 18, "{parts} parts");
    // The segments that the parts and what came between lie in are full, and cleaned: what is dead is gone.
    (0..3000).for_each(|_| units.commit(log, 0, (1, 8), 0));
    for step in [0, 2].into_iter().cycle().take(200) {
        units.tidy(step);
    }
    let live = units.own.0.log.live_bytes();
    assert!(live < before / 2, "{live} bytes live of {before}");
    let extents = units.own.0.log.extents();
    assert!(extents < 60, "{extents} extents");
    units.check();
    units.restart();
    units.check();
}

/// The checksum of a head that lies where data do: once the entry is dead, others have written over it, and a start takes it for dead.
#[test]
fn a_dead_entry_whose_head_was_written_over_is_no_damage() {
    let (log, mut units) = (LogId(1), Units::new());
    run(&mut units, Do::Seal(1));
    write_page(&mut units, 1, 3);
    write_page(&mut units, 1, 9);
    (0..4).for_each(|_| units.commit(log, 40, (2, 90_000), 0));
    let position = units.own.1.share(log).unwrap().claimed;
    units.change(Entry::Trim { log, position });
    units.checkpoint(log);
    let before = units.own.0.log.extents();
    units.tidy(0);
    assert!(units.own.0.log.extents() < before, "its data is gone");
    (0..4).for_each(|_| units.commit(log, 0, (2, 90_000), 0));
    units.check();
}

/// A record that is deleted while its checkpoint is being made does not come back by it.
#[test]
fn a_checkpoint_in_parts_brings_nothing_back() {
    let mut units = Units::new();
    let of = || CheckpointOf::Name("log 1".into());
    run(&mut units, Do::Record(1, 0));
    units.part(of(), 40);
    assert!(units.parts.is_some());
    run(&mut units, Do::Record(1, 0));
    assert!(units.own.1.records().is_empty());
    (0..20).for_each(|_| units.part(of(), 40));
    units.check();
}
