//! Writes of a volume's sessions, and bytes that become zeroes.

use bytes::Bytes;
use staves_model::mutant::{Mutant, plant};
use staves_model::{BUCKET_CHUNKS_MAX, CHUNK_BYTES, REGION_BUCKET_BYTES_MAX};
use staves_store::EXTENT_BYTES;
use staves_wire::ErrorCode;
use staves_wire::memory::{Action, ChunkBits};
use staves_wire::service::Answer;

use crate::cluster::{Cluster, bytes, code, write};

fn put(session: u64, offset: u64, bytes: &[u8]) -> Action {
    Action::Put {
        image: 0,
        session,
        offset,
        bytes: Bytes::copy_from_slice(bytes),
    }
}

fn zero(session: u64, offset: u64, len: u64) -> Action {
    Action::Zero {
        image: 0,
        session,
        offset,
        len: len as u32,
    }
}

fn allocated(offset: u64, len: u64) -> Action {
    Action::Allocated {
        image: 0,
        offset,
        len: len as u32,
    }
}

/// The chunks that an answer says take up memory, counted from the first one asked for.
fn set_of(answer: &Answer, asked: &Action) -> Vec<u64> {
    let Answer::Value(bits) = answer else {
        panic!("{asked:?} is answered {answer:?}")
    };
    assert_eq!(bits.len(), ChunkBits::bytes_of(asked.chunks()), "{asked:?}");
    let all = 0..8 * bits.len() as u64;
    all.filter(|chunk| ChunkBits::is_set(bits, *chunk))
        .collect()
}

/// The bytes of a session stay until a later one writes; nothing of an earlier one takes effect behind a fence, whoever serves.
fn old_sessions_are_refused(scheme: (u8, u8), seats: &[usize]) -> Result<(), String> {
    let (m, k) = scheme;
    let mut c = Cluster::new(m, k, 4, 64);
    let fence = |session| Action::Fence { image: 0, session };
    let is_ok = |answer: Answer| match answer {
        Answer::Ok => Ok(()),
        other => Err(format!("{scheme:?}: {other:?}")),
    };
    is_ok(c.run(0, Some(1), &put(3, 0, b"third")))?;
    is_ok(c.run(0, Some(2), &fence(4)))?;
    is_ok(c.run(0, Some(3), &fence(4)))?;
    // The delayed writes of the door before.
    let late = [
        put(3, 0, b"late"),
        put(3, 40 * CHUNK_BYTES, b"late"),
        zero(3, 0, CHUNK_BYTES),
        fence(3),
        write(0, b"plain"),
        Action::FetchAdd { offset: 0, by: 1 },
    ];
    let refused = |c: &mut Cluster, first: u64| {
        for (number, action) in (first..).zip(&late) {
            for _ in 0..2 {
                let answer = c.run(0, Some(number), action);
                if code(&answer) != Some(ErrorCode::Fenced) {
                    return Err(format!("{scheme:?}: {action:?} is answered {answer:?}"));
                }
            }
        }
        Ok(())
    };
    refused(&mut c, 10)?;
    c.cut_off = vec![0];
    c.change(seats);
    c.settle();
    refused(&mut c, 30)?;
    // A request that was refused stays so, also where its session comes back.
    refused(&mut c, 10)?;
    assert_eq!(c.read(0, 0, 5)[..], *b"third");
    is_ok(c.run(0, Some(50), &put(4, 0, b"fourth")))?;
    is_ok(c.run(0, Some(51), &put(9, 0, b"ninth")))?;
    let answer = c.run(0, Some(52), &put(8, 0, b"eighth"));
    match code(&answer) {
        Some(ErrorCode::Fenced) => Ok(()),
        _ => Err(format!(
            "a first write is its session's fence, too: {answer:?}"
        )),
    }
}

#[test]
fn nothing_of_a_session_takes_effect_behind_the_fence_of_the_next() {
    for (scheme, seats) in [((1, 1), vec![1, 2]), ((2, 1), vec![3, 1, 2])] {
        assert_eq!(old_sessions_are_refused(scheme, &seats), Ok(()));
    }
    plant(Some(Mutant::OldSessionWrites));
    let found = old_sessions_are_refused((1, 1), &[1, 2]);
    plant(None);
    assert!(
        found.is_err(),
        "a bucket that lets old sessions write is found"
    );
}

/// Each of the first sixteen chunks is written, some become zeroes in part or whole, others take their places.
fn zeroed_bytes_are_zero(scheme: (u8, u8)) -> Result<(), String> {
    let (m, k) = scheme;
    let mut c = Cluster::new(m, k, usize::from(m + k), 64);
    for chunk in 0..16 {
        c.write(0, chunk * CHUNK_BYTES, &bytes(chunk, CHUNK_BYTES as usize));
    }
    let used = c.buckets[0].member().pages().map_or(0, |p| p.used());
    assert_eq!(used, 5, "17 places of 64 KiB");
    // In part: the rest stays.
    assert_eq!(c.run(0, None, &zero(0, 5000, 3000)), Answer::Ok);
    let mut expected = bytes(0, CHUNK_BYTES as usize);
    expected[5000..8000].fill(0);
    let read = c.read(0, 0, CHUNK_BYTES as u32);
    let differs = read.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{scheme:?}");
    // Whole: chunks 3 to 6 have the places 4 to 7, which are one extent.
    for chunk in 3..7 {
        assert_eq!(
            c.run(0, None, &zero(0, chunk * CHUNK_BYTES, CHUNK_BYTES)),
            Answer::Ok
        );
    }
    c.ticks(4);
    let used = c.buckets[0].member().pages().map_or(0, |p| p.used());
    if used != 4 {
        return Err(format!(
            "{scheme:?}: an extent that holds no chunk is not free"
        ));
    }
    assert_eq!(
        c.run(0, None, &zero(0, 9 * CHUNK_BYTES, CHUNK_BYTES)),
        Answer::Ok
    );
    // A chunk that takes a free place has nothing of the one before.
    for chunk in [100, 101, 102, 103, 104] {
        c.write(0, chunk * CHUNK_BYTES + 7, b"x");
        let read = c.read(0, chunk * CHUNK_BYTES, CHUNK_BYTES as u32);
        let others = read.iter().enumerate().filter(|(at, _)| *at != 7);
        if others.into_iter().any(|(_, byte)| *byte != 0) {
            return Err(format!("{scheme:?}: chunk {chunk} shows what another held"));
        }
    }
    for chunk in [3, 9] {
        assert!(c.read(0, chunk * CHUNK_BYTES, 70).iter().all(|b| *b == 0));
    }
    assert!(c.read(0, 15 * CHUNK_BYTES, 900) == bytes(15, 900));
    c.settle();
    c.check();
    c.check_code();
    Ok(())
}

#[test]
fn zeroed_bytes_read_as_zeroes_and_their_places_serve_others() {
    for scheme in [(1, 0), (1, 1), (2, 1), (2, 2)] {
        assert_eq!(zeroed_bytes_are_zero(scheme), Ok(()));
    }
    plant(Some(Mutant::FreedNotZeroed));
    let found = zeroed_bytes_are_zero((1, 1));
    plant(None);
    assert!(
        found.is_err(),
        "places that are free and not zero are found"
    );
}

/// True if a read of a chunk that was just zeroed is answered before a copy has that.
fn an_unsafe_zero_is_shown() -> bool {
    let mut c = Cluster::new(1, 1, 2, 64);
    c.write(0, CHUNK_BYTES, &[7; 9000]);
    let zeroed = c.submit(0, Some(1), &zero(0, CHUNK_BYTES, CHUNK_BYTES));
    let read = |offset| Action::Read {
        image: 0,
        offset,
        len: 100,
    };
    let early = c.submit(0, None, &read(CHUNK_BYTES));
    let shown = c.answers.contains_key(&early);
    c.deliver();
    assert_eq!(c.wait(zeroed), Answer::Ok);
    if !shown {
        assert_eq!(c.wait(early), Answer::Value(vec![0; 100].into()));
    }
    shown
}

/// Regression: a member that took over without that delta showed the old bytes again.
#[test]
fn zeroes_are_shown_once_every_member_has_them() {
    assert!(!an_unsafe_zero_is_shown());
    plant(Some(Mutant::PlaceShowsUnstable));
    let shown = an_unsafe_zero_is_shown();
    plant(None);
    assert!(shown, "a read that looks at the place alone is seen");
}

/// The maps that are shown before a copy has the change: of a chunk that has just been written, and of one that was zeroed.
fn unsafe_maps_that_are_shown() -> usize {
    let mut c = Cluster::new(1, 1, 2, 64);
    c.write(0, CHUNK_BYTES, &[7; 9000]);
    let changes = [put(0, 0, b"new"), zero(0, CHUNK_BYTES, CHUNK_BYTES)];
    let mut shown = 0;
    for (number, (change, after)) in (1..).zip(changes.iter().zip([&[0, 1][..], &[0]])) {
        let changed = c.submit(0, Some(number), change);
        let map = allocated(0, 2 * CHUNK_BYTES);
        let early = c.submit(0, None, &map);
        let elsewhere = c.submit(0, None, &allocated(2 * CHUNK_BYTES, 9 * CHUNK_BYTES));
        assert!(
            c.answered(elsewhere).is_some(),
            "of other chunks nothing is awaited"
        );
        let at_once = c.answered(early);
        shown += usize::from(at_once.is_some());
        c.deliver();
        assert_eq!(c.wait(changed), Answer::Ok);
        let told = at_once.unwrap_or_else(|| c.wait(early));
        assert_eq!(set_of(&told, &map), after);
    }
    shown
}

#[test]
fn a_map_is_shown_once_every_member_has_what_it_shows() {
    assert_eq!(unsafe_maps_that_are_shown(), 0);
    plant(Some(Mutant::PlaceShowsUnstable));
    let shown = unsafe_maps_that_are_shown();
    plant(None);
    assert_eq!(shown, 2, "a map that looks at the places alone is seen");
}

#[test]
fn a_bucket_tells_which_chunks_take_up_memory() {
    for (scheme, seats) in [((1, 1), vec![1, 2]), ((2, 1), vec![3, 1, 2])] {
        let mut c = Cluster::new(scheme.0, scheme.1, 4, 64);
        let all = allocated(0, REGION_BUCKET_BYTES_MAX);
        let map = |c: &mut Cluster, asked: &Action| {
            let answer = c.run(0, None, asked);
            set_of(&answer, asked)
        };
        assert!(map(&mut c, &all).is_empty());
        assert_eq!(c.budgets[0].taken(), 0, "a question takes no memory");
        for chunk in [0, 9, 40, 1023, 1024, 3071, 3072, 16_383] {
            c.write(0, chunk * CHUNK_BYTES + 77, b"x");
        }
        for (offset, len) in [(9 * CHUNK_BYTES, CHUNK_BYTES), (40 * CHUNK_BYTES, 7000)] {
            assert_eq!(c.run(0, None, &zero(0, offset, len)), Answer::Ok);
        }
        let set = [0, 40, 1023, 1024, 3071, 3072, 16_383];
        assert_eq!(map(&mut c, &all), set, "{scheme:?}");
        let parts = [
            (0, 1, vec![0]),
            (CHUNK_BYTES - 1, 2, vec![0]),
            (CHUNK_BYTES, 39 * CHUNK_BYTES, vec![]),
            (39 * CHUNK_BYTES + 9, CHUNK_BYTES, vec![1]),
            (
                30 * CHUNK_BYTES - 1,
                REGION_BUCKET_BYTES_MAX - 30 * CHUNK_BYTES + 1,
                vec![11, 994, 995, 3042, 3043, 16_354],
            ),
            (1024 * CHUNK_BYTES, 2047 * CHUNK_BYTES, vec![0]),
            (3071 * CHUNK_BYTES, 2 * CHUNK_BYTES, vec![0, 1]),
            (5000 * CHUNK_BYTES, 9000 * CHUNK_BYTES, vec![]),
        ];
        for (offset, len, set) in parts {
            assert_eq!(
                map(&mut c, &allocated(offset, len)),
                set,
                "{len} at {offset}"
            );
        }
        c.cut_off = vec![0];
        c.change(&seats);
        c.open();
        assert_eq!(map(&mut c, &all), set, "{scheme:?}, another member");
        for (offset, len) in [(0, 0), (1, REGION_BUCKET_BYTES_MAX), (u64::MAX, 8)] {
            let answer = c.run(0, None, &allocated(offset, len));
            assert_eq!(
                code(&answer),
                Some(ErrorCode::Malformed),
                "{len} at {offset}"
            );
        }
    }
}

/// The member that takes over knows of places what the table says, which it has not made itself.
#[test]
fn another_member_gives_away_the_places_that_are_free() {
    for (scheme, seats) in [((1, 1), vec![1, 2]), ((2, 1), vec![3, 1, 2])] {
        let mut c = Cluster::new(scheme.0, scheme.1, 4, 64);
        for chunk in [0, 9, 1023, 1024, 3071, 3072, 16_383] {
            c.write(0, chunk * CHUNK_BYTES + 77, &[7 + (chunk % 200) as u8]);
        }
        let zeroed = |c: &mut Cluster, chunk: u64| {
            let answer = c.run(0, None, &zero(0, chunk * CHUNK_BYTES, CHUNK_BYTES));
            assert_eq!(answer, Answer::Ok);
        };
        zeroed(&mut c, 9);
        c.cut_off = vec![0];
        c.change(&seats);
        c.open();
        for chunk in [3071, 5000, 8000] {
            c.write(0, chunk * CHUNK_BYTES + 9, b"y");
        }
        zeroed(&mut c, 16_383);
        let asked = allocated(0, REGION_BUCKET_BYTES_MAX);
        let set = [0, 1023, 1024, 3071, 3072, 5000, 8000];
        assert_eq!(set_of(&c.run(0, None, &asked), &asked), set, "{scheme:?}");
        for chunk in [0, 1023, 1024, 3071, 3072] {
            let byte = c.read(0, chunk * CHUNK_BYTES + 77, 1);
            assert_eq!(byte[0], 7 + (chunk % 200) as u8, "{chunk}");
        }
        c.check();
    }
}

#[test]
fn a_bucket_that_was_filled_and_zeroed_gives_its_memory_back_on_all_members() {
    let chunks = 200;
    let mut c = Cluster::new(1, 1, 2, 80);
    for chunk in 0..chunks {
        c.write(0, chunk * CHUNK_BYTES, &[1; 9000]);
    }
    let full = c.budgets.iter().map(|b| b.taken()).max();
    assert!(full >= Some(50), "{full:?} extents");
    for chunk in 0..chunks {
        assert_eq!(
            c.run(0, None, &zero(0, chunk * CHUNK_BYTES, CHUNK_BYTES)),
            Answer::Ok
        );
    }
    c.ticks(40);
    assert!(c.budgets.iter().all(|b| b.taken() <= 2), "{:?}", c.budgets);
    // All of the bucket can be written after that, and zeroes where nothing is take nothing.
    let last = u64::from(BUCKET_CHUNKS_MAX) - 1;
    assert_eq!(
        c.run(0, None, &zero(0, last * CHUNK_BYTES, CHUNK_BYTES)),
        Answer::Ok
    );
    c.write(0, last * CHUNK_BYTES, b"again");
    assert!(c.budgets.iter().all(|b| b.taken() <= 3), "{:?}", c.budgets);
    c.settle();
    c.check();
}

#[test]
fn a_bucket_can_be_written_whole_and_anew() {
    let extents = BUCKET_CHUNKS_MAX / (EXTENT_BYTES as u64 / CHUNK_BYTES) as u32 + 40;
    let mut c = Cluster::new(1, 0, 1, extents);
    for round in 0..2 {
        for chunk in 0..u64::from(BUCKET_CHUNKS_MAX) {
            c.write(0, chunk * CHUNK_BYTES + round, &chunk.to_le_bytes());
        }
        if round == 0 {
            for chunk in (0..u64::from(BUCKET_CHUNKS_MAX)).rev().step_by(3) {
                assert_eq!(
                    c.run(0, None, &zero(0, chunk * CHUNK_BYTES, CHUNK_BYTES)),
                    Answer::Ok
                );
            }
        }
    }
    for chunk in 0..u64::from(BUCKET_CHUNKS_MAX) {
        assert_eq!(
            c.read(0, chunk * CHUNK_BYTES + 1, 8)[..],
            chunk.to_le_bytes()
        );
    }
    c.check();
}
