//! Results of scrubs and checks.

use super::*;

#[test]
fn progress_tells_what_is_left() {
    let at = |done, total| progress(done, total, Duration::from_secs(10));
    assert_eq!(at(250, 1000), "250 of 1,000 pages, 25 %, about 30 s left");
    assert_eq!(
        at(1200, 1000),
        "1,200 of 1,200 pages, 100 %, about 0 s left"
    );
    assert_eq!(at(0, 0), "0 of 0 pages, 0 %, about 0 s left");
}

fn tally(of: impl FnOnce(&mut ScrubTally)) -> ScrubTally {
    let mut tally = ScrubTally::new(false, BTreeMap::new());
    of(&mut tally);
    tally.end();
    tally
}

#[test]
fn nothing_checked_does_not_look_like_a_pass() {
    let said = |of: fn(&mut ScrubTally)| {
        let tally = tally(of);
        assert_eq!(tally.found().result, "nothing-checked");
        tally.failure().expect("a failure")
    };
    assert!(said(|_| {}).contains("no group"));
    assert!(said(|t| t.group(GroupId(1), true, true)).contains("nothing was ever written"));
    assert!(said(|t| t.group(GroupId(1), true, false)).contains("no group has parity"));
    assert!(said(|t| t.group(GroupId(1), false, true)).contains("not whole"));
    assert_eq!(tally(|t| t.checked()).failure(), None);
}

#[test]
fn blocks_of_files_are_checked_though_they_have_no_pages() {
    let clean = tally(|t| t.blocks(1 << 20, 0));
    assert_eq!((clean.found().result, clean.failure()), ("clean", None));
    let dropped = tally(|t| t.blocks(1 << 20, 2));
    assert_eq!(
        (dropped.found().result, dropped.failure()),
        ("repaired", None)
    );
    let silent = tally(|t| t.silent(3));
    assert!(
        silent
            .failure()
            .is_some_and(|text| text.contains("did not answer"))
    );
}

#[test]
fn what_was_repaired_is_no_failure_and_what_was_not_is() {
    let wrong = |outcome| {
        tally(|t| {
            t.checked();
            t.wrong(Difference {
                group: 7,
                page: 3,
                slot: 1,
                node: 2,
                name: "n2".into(),
                outcome,
            });
        })
    };
    let repaired = wrong(PageOutcome::Repaired);
    assert_eq!(
        (repaired.found().result, repaired.failure()),
        ("repaired", None)
    );
    for outcome in [
        PageOutcome::BeingRepaired,
        PageOutcome::Parity,
        PageOutcome::Data,
        PageOutcome::Several,
    ] {
        let left = wrong(outcome);
        assert_eq!(left.found().result, "wrong");
        assert!(left.failure().is_some());
        assert!(left.told().contains("what to do: "), "{}", left.told());
    }
}

#[test]
fn a_check_that_did_not_compare_everything_is_no_pass() {
    let check = |of: fn(&mut ScrubTally)| {
        let mut tally = ScrubTally::of_all(false, BTreeMap::new());
        of(&mut tally);
        tally.end();
        (tally.found().result, tally.failure())
    };
    assert_eq!(check(|t| t.checked()), ("clean", None));
    let unwritten = check(|t| t.group(GroupId(1), true, true));
    assert_eq!(unwritten, ("nothing-written", None));
    type Lack = (fn(&mut ScrubTally), &'static str);
    let incomplete: [Lack; 5] = [
        (|t| t.group(GroupId(1), true, false), "without a copy"),
        (|t| t.group(GroupId(1), false, true), "not whole"),
        (ScrubTally::changed, "not whole"),
        (ScrubTally::missing, "rebuilt"),
        (ScrubTally::busy, "being written"),
    ];
    for (of, part) in incomplete {
        let mut tally = ScrubTally::of_all(false, BTreeMap::new());
        tally.checked();
        of(&mut tally);
        tally.end();
        assert_eq!(tally.found().result, "incomplete");
        assert!(
            tally.failure().is_some_and(|why| why.contains(part)),
            "{part}"
        );
    }
}
