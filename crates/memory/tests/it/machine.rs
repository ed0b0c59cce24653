//! One bucket as its clients meet it.

use std::collections::BTreeMap;

use proptest::prelude::*;
use staves_memory::Memory;
use staves_model::{CHUNK_BYTES, REGION_BUCKET_BYTES_MAX};
use staves_service::Refused;
use staves_store::EXTENT_BYTES;
use staves_wire::ErrorCode;
use staves_wire::memory::Action;
use staves_wire::service::Answer;

use crate::cluster::{Cluster, bytes, code, write};

const PLENTY: u32 = 64;

#[test]
fn what_was_never_written_reads_as_zeroes_and_takes_no_memory() {
    let mut c = Cluster::new(2, 1, 3, PLENTY);
    assert!(
        c.read(0, REGION_BUCKET_BYTES_MAX - 100, 100)
            .iter()
            .all(|b| *b == 0)
    );
    assert_eq!(c.budgets[0].taken(), 0);
    // The last byte of the bucket alone takes one extent and the one ahead, not the whole bucket.
    c.write(0, REGION_BUCKET_BYTES_MAX - 1, b"x");
    assert_eq!(&c.read(0, REGION_BUCKET_BYTES_MAX - 2, 2)[..], b"\0x");
    assert!(c.read(0, 0, 4096).iter().all(|b| *b == 0));
    assert!(
        c.read(1, REGION_BUCKET_BYTES_MAX - 2, 2)
            .iter()
            .all(|b| *b == 0)
    );
    assert!(c.budgets.iter().all(|b| b.taken() <= 2), "{:?}", c.budgets);
    assert_eq!(Memory::written_bytes(c.buckets[0].member()), CHUNK_BYTES);
}

#[test]
fn a_write_is_answered_once_parity_has_it_and_a_read_waits_for_it() {
    for (m, k) in [(1, 1), (2, 1), (1, 2)] {
        let mut c = Cluster::new(m, k, usize::from(m + k), PLENTY);
        c.write(0, 0, b"before");
        let token = c.submit(0, None, &write(0, b"after!"));
        let read = c.submit(
            0,
            None,
            &Action::Read {
                image: 0,
                offset: 3,
                len: 2,
            },
        );
        assert!(c.answers.is_empty(), "{m}+{k}: nobody has it yet");
        let other = c.submit(
            0,
            None,
            &Action::Read {
                image: 0,
                offset: 8192,
                len: 1,
            },
        );
        assert!(
            c.answers.contains_key(&other),
            "{m}+{k}: other pages need not wait"
        );
        c.deliver();
        assert_eq!(c.wait(token), Answer::Ok);
        assert_eq!(c.wait(read), Answer::Value("er".into()));
    }
}

/// Regression: reads of bytes that no parity had yet held copies of 64 MiB in each bucket, whatever memory the node had.
#[test]
fn a_read_that_would_wait_as_a_copy_without_memory_is_refused() {
    let mut c = Cluster::new(2, 1, 3, PLENTY);
    let large = |len| Action::Read {
        image: 0,
        offset: 0,
        len,
    };
    c.write(0, 0, b"a place");
    let token = c.submit(0, None, &write(0, &[7; 8192]));
    c.value_bytes_max = Some(8000);
    let refused = c.submit(0, None, &large(8192));
    let small = c.submit(0, None, &large(4096));
    let fits = c.submit(0, None, &large(8000));
    assert!(matches!(c.answers[&refused], Err(Refused::Busy)));
    assert!(!c.answers.contains_key(&small) && !c.answers.contains_key(&fits));
    let waiting = c.bucket().waiting_bytes();
    assert_eq!(waiting, 4096 + 8000);
    c.deliver();
    assert_eq!(c.wait(token), Answer::Ok);
    assert_eq!(c.wait(fits), Answer::Value(vec![7; 8000].into()));
    assert_eq!(c.bucket().waiting_bytes(), 0);
    // What need not wait needs no memory here.
    let read = c.submit(0, None, &large(8192));
    assert!(matches!(&c.answers[&read], Ok(Answer::Value(bytes)) if bytes.len() == 8192));
}

#[test]
fn a_read_needs_a_lease_and_ends_by_its_deadline() {
    let mut c = Cluster::new(2, 1, 3, PLENTY);
    c.write(0, 0, b"x");
    c.no_lease = true;
    c.cut_off = vec![2];
    c.ticks(40);
    let answer = c.run(
        0,
        None,
        &Action::Read {
            image: 0,
            offset: 0,
            len: 1,
        },
    );
    assert_eq!(
        code(&answer),
        Some(ErrorCode::NotServing),
        "nothing was done"
    );
}

#[test]
fn words_are_swapped_and_added_to_once() {
    let mut c = Cluster::new(2, 1, 3, PLENTY);
    let swap = |expected, new| Action::CompareSwap {
        offset: 8,
        expected,
        new,
    };
    let add = |by| Action::FetchAdd { offset: 8, by };
    assert_eq!(c.run(1, Some(1), &swap(0, 5)), Answer::Int(0));
    assert_eq!(c.run(1, Some(2), &swap(0, 9)), Answer::Int(5), "not done");
    assert_eq!(c.run(1, Some(3), &add(10)), Answer::Int(5));
    assert_eq!(c.run(1, Some(4), &add(u64::MAX)), Answer::Int(15), "wraps");
    for _ in 0..3 {
        assert_eq!(c.run(1, Some(3), &add(10)), Answer::Int(5), "a retry");
        assert_eq!(c.run(1, Some(2), &swap(14, 9)), Answer::Int(5), "a retry");
    }
    assert_eq!(&c.read(1, 8, 8)[..], 14u64.to_le_bytes());
}

#[test]
fn bad_requests_get_one_clear_error_and_change_nothing() {
    let mut c = Cluster::new(2, 1, 3, PLENTY);
    let end = REGION_BUCKET_BYTES_MAX;
    let bad = [
        Action::Read {
            image: 0,
            offset: 0,
            len: 0,
        },
        write(0, b""),
        Action::Read {
            image: 0,
            offset: end - 1,
            len: 2,
        },
        Action::Read {
            image: 0,
            offset: u64::MAX,
            len: 8,
        },
        write(CHUNK_BYTES - 1, b"ab"),
        Action::FetchAdd { offset: 4, by: 1 },
        Action::CompareSwap {
            offset: end,
            expected: 0,
            new: 1,
        },
    ];
    for action in bad {
        let answer = c.run(0, Some(1), &action);
        assert_eq!(code(&answer), Some(ErrorCode::Malformed), "{action:?}");
    }
    let elsewhere = c.submit_at(0, 1, None, &write(0, b"x"));
    let answer = c.wait(elsewhere);
    assert_eq!(code(&answer), Some(ErrorCode::NotServing), "{answer:?}");
    let parity = c.submit_at(2, 0, None, &write(0, b"x"));
    let answer = c.wait(parity);
    assert_eq!(code(&answer), Some(ErrorCode::NotServing), "{answer:?}");
    assert_eq!(c.budgets[0].taken(), 0);
}

/// Row B10's kin: what a member has no memory for changes nothing anywhere, and what is there goes on.
#[test]
fn a_full_pool_refuses_new_chunks_and_serves_the_old() {
    for (m, k) in [(1, 1), (2, 1)] {
        let mut c = Cluster::new(m, k, usize::from(m + k), 3);
        let chunks = 3 * EXTENT_BYTES as u64 / CHUNK_BYTES - 1;
        for chunk in 0..chunks {
            c.write(0, chunk * CHUNK_BYTES, &bytes(chunk, 100));
        }
        let next = write(chunks * CHUNK_BYTES, b"x");
        let answer = c.run(0, Some(7), &next);
        assert_eq!(code(&answer), Some(ErrorCode::OutOfMemory), "{answer:?}");
        let lacks = |c: &mut Cluster| {
            let now = c.now;
            c.bucket().lacked_extents(now) > 0
        };
        assert!(lacks(&mut c), "status says so");
        c.write(0, 50, b"an old chunk");
        c.write(0, (chunks - 1) * CHUNK_BYTES + 5000, b"another");
        assert_eq!(c.read(0, chunks * CHUNK_BYTES, 1)[..], [0]);
        c.budgets.iter().for_each(|b| b.set_limit(8));
        let again = c.run(0, Some(7), &next);
        assert_eq!(
            code(&again),
            Some(ErrorCode::OutOfMemory),
            "it was refused for good"
        );
        c.ticks(100);
        c.check();
        c.check_code();
        c.ticks(1000);
        assert!(!lacks(&mut c), "not of late");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Read(u8, u64, u32),
    Write(u8, u64, u32),
    Swap(u8, u64, bool),
    Add(u8, u64, u64),
    Ticks(u8),
    /// The node in this member slot is lost; the spare one takes its place.
    Lose(u8),
}

/// A few chunks, far apart; near their edges, where things go wrong, and anywhere.
fn range() -> impl Strategy<Value = (u64, u32)> {
    let chunk = prop_oneof![0..3u64, 1020..1024u64];
    let within = prop_oneof![
        0..CHUNK_BYTES,
        (0..16u64, 0..60u64).prop_map(|(page, d)| (page * 4096 + d).saturating_sub(30)),
    ];
    let len = prop_oneof![1..100u32, 4000..4200u32, Just(CHUNK_BYTES as u32)];
    (chunk, within, len).prop_map(|(chunk, within, len)| {
        let left = CHUNK_BYTES - within;
        (chunk * CHUNK_BYTES + within, len.min(left as u32))
    })
}

fn word() -> impl Strategy<Value = u64> {
    (prop_oneof![0..2u64, Just(1023)], 0..20u64).prop_map(|(c, w)| c * CHUNK_BYTES + w * 8)
}

fn step(m: u8, width: u8) -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..m, range()).prop_map(|(s, (o, l))| Step::Read(s, o, l)),
        8 => (0..m, range()).prop_map(|(s, (o, l))| Step::Write(s, o, l)),
        2 => (0..m, word(), any::<bool>()).prop_map(|(s, o, hit)| Step::Swap(s, o, hit)),
        2 => (0..m, word(), any::<u64>()).prop_map(|(s, o, by)| Step::Add(s, o, by)),
        1 => (1..4u8).prop_map(Step::Ticks),
        1 => (0..width).prop_map(Step::Lose),
    ]
}

/// Plain bytes, sparse.
#[derive(Default)]
struct Model(BTreeMap<(u8, u64), u8>);

impl Model {
    fn read(&self, slot: u8, offset: u64, len: u64) -> Vec<u8> {
        let byte = |at| self.0.get(&(slot, at)).copied().unwrap_or(0);
        (offset..offset + len).map(byte).collect()
    }

    fn write(&mut self, slot: u8, offset: u64, bytes: &[u8]) {
        self.0
            .extend((offset..).zip(bytes).map(|(at, b)| ((slot, at), *b)));
    }

    fn word(&self, slot: u8, offset: u64) -> u64 {
        let bytes = self.read(slot, offset, 8);
        u64::from_le_bytes(bytes[..].try_into().expect("eight"))
    }
}

struct Play {
    cluster: Cluster,
    model: Model,
    seats: Vec<usize>,
    number: u64,
}

impl Play {
    fn play(&mut self, step: &Step) {
        self.number += 1;
        let (number, c) = (Some(self.number), &mut self.cluster);
        match *step {
            Step::Read(slot, offset, len) => {
                let got = c.read(slot, offset, len);
                assert!(got == self.model.read(slot, offset, len.into()), "{step:?}");
            }
            Step::Write(slot, offset, len) => {
                let new = bytes(self.number, len as usize);
                assert_eq!(c.run(slot, number, &write(offset, &new)), Answer::Ok);
                self.model.write(slot, offset, &new);
            }
            Step::Swap(slot, offset, hit) => {
                let old = self.model.word(slot, offset);
                let expected = if hit { old } else { old ^ 1 };
                let new = self.number;
                let action = Action::CompareSwap {
                    offset,
                    expected,
                    new,
                };
                assert_eq!(c.run(slot, number, &action), Answer::Int(old as i64));
                if hit {
                    self.model.write(slot, offset, &new.to_le_bytes());
                }
            }
            Step::Add(slot, offset, by) => {
                let old = self.model.word(slot, offset);
                let answer = c.run(slot, number, &Action::FetchAdd { offset, by });
                assert_eq!(answer, Answer::Int(old as i64));
                let new = old.wrapping_add(by).to_le_bytes();
                self.model.write(slot, offset, &new);
            }
            Step::Ticks(count) => c.ticks(count.into()),
            Step::Lose(slot) => self.lose(usize::from(slot)),
        }
        self.cluster.check();
    }

    /// Its node comes back later with a new life's empty memory: here, simply, as the next spare one.
    fn lose(&mut self, slot: usize) {
        let c = &mut self.cluster;
        c.settle();
        let spare = (0..c.buckets.len())
            .find(|n| !self.seats.contains(n))
            .expect("one to spare");
        let lost = std::mem::replace(&mut self.seats[slot], spare);
        c.cut_off = vec![lost];
        if c.group.m == 1 && slot == 0 {
            // A copy is promoted, and the spare one becomes a copy.
            self.seats.swap(0, 1);
        }
        c.change(&self.seats.clone());
        c.open();
        c.cut_off.clear();
    }
}

fn agrees(m: u8, k: u8, steps: &[Step]) {
    let width = usize::from(m + k);
    let mut play = Play {
        cluster: Cluster::new(m, k, width + 2, PLENTY),
        model: Model::default(),
        seats: (0..width).collect(),
        number: 0,
    };
    steps.iter().for_each(|step| play.play(step));
    play.cluster.settle();
    play.cluster.check_code();
    for slot in 0..m {
        for chunk in [0, 1, 2, 1020, 1021, 1022, 1023] {
            let offset = chunk * CHUNK_BYTES;
            let got = play.cluster.read(slot, offset, CHUNK_BYTES as u32);
            assert!(
                got == play.model.read(slot, offset, CHUNK_BYTES),
                "chunk {chunk}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Rows H1, H2, H5: whoever is lost, the bytes are those of a plain array.
    #[test]
    fn h1_two_and_one_are_what_plain_bytes_would_be(
        steps in prop::collection::vec(step(2, 3), 1..60),
    ) {
        agrees(2, 1, &steps);
    }

    #[test]
    fn copies_are_what_plain_bytes_would_be(
        steps in prop::collection::vec(step(1, 3), 1..60),
    ) {
        agrees(1, 2, &steps);
    }
}
