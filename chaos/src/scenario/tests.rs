//! Sentences are understood, and what is wrong is told with its line.

use super::disk::{DiskAction, Whose};
use super::*;
use crate::load::flood::FloodKind;

#[test]
fn sentences_are_understood() {
    let text = "# about\n5 nodes, pool cache 1+1, 7 keys, counted keys, clocks apart\nexpect stalls below 9s\n\
        after 2s kill the directory's leader\nrestart it without its data\n\
        cut n1, n2 from n3 and n4 one way for 3s\nslow a random node to 1mbit for 500ms # comment\n\
        fill the disk of n2 for 1s\nrun for 5s\n";
    let s = parse("x", text).expect("it parses");
    assert_eq!(
        (s.nodes, s.scheme.as_str(), s.clocks_apart),
        (5, "1+1", true)
    );
    assert_eq!((s.keys.count, s.keys.counted), (7, true));
    assert_eq!(s.stall_max, Duration::from_secs(9));
    assert_eq!(s.steps[0].after, Duration::from_secs(2));
    assert_eq!(s.steps[0].action, Action::Kill(Who::Leader));
    assert_eq!(
        s.steps[1].action,
        Action::Restart {
            who: Who::Last,
            forget: true
        }
    );
    let (from, to) = (Who::Nodes(vec![0, 1]), Who::Nodes(vec![2, 3]));
    assert_eq!(
        s.steps[2].action,
        Action::Cut {
            from,
            to,
            one_way: true
        }
    );
    assert_eq!(s.steps[2].lasting, Some(Duration::from_secs(3)));
    assert_eq!(s.steps.len(), 6);
}

#[test]
fn sentences_about_files_are_understood() {
    let text = "3 nodes, files\ncut the clients from n1 and n2 for 1s\noverwrite the files\nflip bits of n3\n";
    let s = parse("x", text).expect("it parses");
    assert!(s.files);
    let actions: Vec<Action> = s.steps.into_iter().map(|step| step.action).collect();
    let cut = Action::Cut {
        from: Who::Clients,
        to: Who::Nodes(vec![0, 1]),
        one_way: false,
    };
    let flip = Action::Flip(Who::Nodes(vec![2]));
    assert_eq!(actions, [cut, Action::Overwrite, flip]);
}

#[test]
fn sentences_about_floods_and_clocks_are_understood() {
    let text = "5 nodes, memory 2+1, files too, wall clocks apart, few descriptors\nexpect no deaths\n\
        expect stalls at every node but n2 below 3s\nflood the directory's leader with unfinished values for 3s\nflood n1 and n2 with reads\nstarve every node for 2s\n\
        set the clock of n2 3d behind\nset the clock of every node right\ncut two random followers from the directory's leader one way for 1s\n";
    let s = parse("x", text).expect("it parses");
    assert!(s.files && !s.only_files && s.wall_clocks_apart && s.few_descriptors && !s.deaths);
    assert!(s.everywhere && s.but_node == Some(1));
    let actions: Vec<Action> = s.steps.into_iter().map(|step| step.action).collect();
    let flood = |who, kind| Action::Flood { who, kind };
    let clock = |who, to: &str| Action::SetClock { who, to: to.into() };
    let cut = Action::Cut {
        from: Who::Followers(2),
        to: Who::Leader,
        one_way: true,
    };
    assert_eq!(
        actions,
        [
            flood(Who::Leader, FloodKind::Unfinished),
            flood(Who::Nodes(vec![0, 1]), FloodKind::Reads),
            Action::Starve(Who::Every),
            clock(Who::Nodes(vec![1]), "-3d"),
            clock(Who::Every, "+0d"),
            cut
        ]
    );
}

#[test]
fn sentences_about_disks_and_volumes_are_understood() {
    let text = "3 nodes, memory 1+1 on disk, two disks, volume, snapshots\nadd a disk to n1\nfail a disk of a random node\nreplace that disk\n\
        drain the first disk of it and wait\nresume the first disk of it\ndrain a disk of n2\nremove that disk\ntake the volume over\nsnapshot the volume\nkill the lowest node\n";
    let s = parse("x", text).expect("it parses");
    assert!(s.two_disks && s.volume && s.snapshots && s.on_disk);
    let actions: Vec<Action> = s.steps.into_iter().map(|step| step.action).collect();
    let disk = |action, whose| Action::Disk { action, whose };
    let first = || Whose::First(Who::Last);
    let newest = |at| Whose::Newest(Who::Nodes(vec![at]));
    assert_eq!(
        actions,
        [
            disk(DiskAction::Add, newest(0)),
            disk(DiskAction::Fail, Whose::Newest(Who::Random(1))),
            disk(DiskAction::Replace, Whose::That),
            disk(DiskAction::Drain { waits: true }, first()),
            disk(DiskAction::Resume, first()),
            disk(DiskAction::Drain { waits: false }, newest(1)),
            disk(DiskAction::Remove, Whose::That),
            Action::TakeOver,
            Action::Snapshot,
            Action::Kill(Who::Lowest),
        ]
    );
}

#[test]
fn snapshots_want_a_volume() {
    for (text, says) in [
        ("memory 1+1, snapshots\nrun for 1s", "no 'volume' in it"),
        (
            "memory 1+1, volume\nsnapshot the volume",
            "no 'snapshots' in it",
        ),
    ] {
        let wrong = parse("x", &format!("5 nodes, {text}")).expect_err(text);
        assert!(wrong.to_string().contains(says), "{text:?}: {wrong}");
    }
}

#[test]
fn coded_pools_on_disk_are_understood() {
    for scheme in ["2+1", "4+2"] {
        let heading = format!("7 nodes, memory {scheme} on disk, two disks, volume");
        let s = parse("x", &format!("{heading}\nrun for 1s\n")).expect("it parses");
        assert_eq!((s.memory.as_deref(), s.on_disk), (Some(scheme), true));
    }
}

#[test]
fn a_delay_between_nodes_and_between_zones_is_understood() {
    let wan = |heading: &str| {
        let s = parse("x", &format!("4 nodes, {heading}\nrun for 1s\n"));
        s.map(|s| s.wan.map(|wan| (wan.one_way, wan.zone)))
    };
    let ms = Duration::from_millis;
    assert_eq!(wan("7 keys"), Ok(None));
    assert_eq!(wan("wan 10ms one way"), Ok(Some((ms(10), 1))));
    let zones = wan("wan 20ms one way between zones of 2");
    assert_eq!(zones, Ok(Some((ms(20), 2))));
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    for (text, line, says) in [
        ("5 node\nfly n1", 2, "one can kill"),
        ("5 nodes\nkill x1", 2, "nobody"),
        ("5 nodes\nkill n0", 2, "nobody"),
        ("5 nodes\nkill", 2, "who?"),
        ("5 nodes\nkill n1 for 3s", 2, "'for' goes with"),
        ("5 nodes\nafter soon kill n1", 2, "no time"),
        ("5 nodes\nafter", 2, "after what"),
        ("5 nodes\nafter 3s", 2, "nothing is to be done"),
        ("5 nodes\nrun", 2, "how long"),
        ("5 nodes\nexpect miracles", 2, "one can expect"),
        ("5 nodes\nkill the clients", 2, "clients can only be"),
        ("5 nodes\noverwrite the files", 2, "no 'files' in it"),
        ("5 nodes\nflip bits of n1", 2, "no 'files' in it"),
        ("5 nodes\nset the clock of n1 2d ahead", 2, "no 'wall"),
        ("5 nodes\nset the clock of n1 2 ahead", 2, "from 1 to"),
        ("5 nodes\nflood n1 with tears", 2, "can be flooded with"),
        ("5 nodes\nflood with reads", 2, "who?"),
        ("5 nodes\nfail a disk of n1", 2, "no 'two disks' in it"),
        (
            "5 nodes, memory 1+1, two disks\nrun for 1s",
            2,
            "'memory on disk'",
        ),
        ("5 nodes, volume\nrun for 1s", 2, "no 'memory' in it"),
        ("5 nodes\ntake the volume over", 2, "no 'volume' in it"),
        ("5 nodes\nfail the first disk of n1", 2, "does not fail"),
        (
            "5 nodes\nfail a disk of n1 and wait",
            2,
            "add a disk to WHO",
        ),
        ("5 nodes\nscratch a disk of n1", 2, "one can kill"),
        ("5 nodes\nfail a disk of me", 2, "nobody"),
        ("5 nodes, wan 10ms\nkill n1", 1, "wan 10ms one way"),
        ("5 nodes, wan 9 one way\nkill n1", 1, "a time like"),
        ("5 nodes, wan 3s one way\nkill n1", 1, "at most 2s"),
        (
            "5 nodes, wan 3ms one way between us\nkill n1",
            1,
            "between zones",
        ),
        ("99 nodes\nkill n1", 1, "from 1 to"),
        ("kill n1", 1, "first line"),
        ("5 nodes\n", 1, "nothing happens"),
        ("", 0, "how many nodes"),
    ] {
        let wrong = parse("x", text).expect_err(text);
        assert!(
            wrong.line == line && wrong.to_string().contains(says),
            "{text:?}: {wrong}"
        );
    }
}

#[test]
fn sentences_about_logs_are_understood() {
    let text = "4 nodes, log 1+2 on disk\nexpect losses\nkill the log's sequencer and a unit\nrestart them\n\
        pause a log's unit for 1s\ncut the log's sequencer from every node one way for 1s\n";
    let s = parse("x", text).expect("it parses");
    assert_eq!((s.log.as_deref(), s.log_on_disk), (Some("1+2"), true));
    let actions: Vec<Action> = s.steps.into_iter().map(|step| step.action).collect();
    let cut = Action::Cut {
        from: Who::LogSequencer,
        to: Who::Every,
        one_way: true,
    };
    let restart = Action::Restart {
        who: Who::Last,
        forget: false,
    };
    let pause = Action::Pause(Who::LogUnit);
    assert_eq!(actions, [Action::Kill(Who::LogBoth), restart, pause, cut]);
    for (text, says) in [
        (
            "4 nodes, log 1+1\nexpect losses\nkill n1\n",
            "'log on disk'",
        ),
        ("4 nodes\nkill the log's sequencer\n", "'log'"),
    ] {
        let wrong = parse("x", text).expect_err(text).to_string();
        assert!(wrong.contains(says), "{wrong}");
    }
}
