//! Two ways to keep a bucket's machine to one thread at a time: a short lock against an owner thread with
//! batched hand-over: SETs of 512 bytes from two threads, in batches of 16, over 64 buckets without
//! copies. Prints the median of several runs of each.
//!
//! `cargo run --release -p staves-cache --example handover`

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use staves_cache::{Bucket, Cache, Options};
use staves_group::{DirectoryCall, Event, GroupStep, Member};
use staves_model::{
    Epoch, Group, GroupId, Incarnation, LastOpen, MemberId, MemberSlot, NodeId, PoolId, Revision,
    Time, hash_slot,
};
use staves_service::{AnswerRef, BucketEffects, OpHeader};
use staves_store::{Arena, Budget, extents_for};
use staves_wire::cache::{Condition, Op};

const BUCKETS: usize = 64;
const THREADS: usize = 2;
const BATCH: usize = 16;
const BATCHES: usize = 20_000;
const KEYS: usize = 100_000;
const RUNS: usize = 7;
/// Batches that a thread has handed over and not heard of, as a door with many connections would.
const IN_FLIGHT: usize = 4;

/// An open bucket without copies: a fresh epoch, as the directory would commit and open it.
fn bucket(id: u32, arena: &Arc<Arena>, budget: &Arc<Budget>) -> Bucket {
    let (group, me) = (GroupId(id), MemberId::new(NodeId(1), Incarnation(1)));
    let options = staves_group::Options {
        lease: Duration::from_secs(3600),
        ..Default::default()
    };
    let member = Member::new(options, group, me, arena.clone(), budget.clone());
    let mut bucket = Cache::bucket(Options::default(), member);
    let listed = Some(staves_model::Member {
        id: me,
        complete: true,
    });
    let mut entry = Group {
        id: group,
        pool: PoolId(1),
        bucket: id,
        m: 1,
        epoch: Epoch(1),
        open: false,
        coordinator: MemberSlot(0),
        members: vec![listed],
        kept: vec![None],
        fresh: true,
        last_open: LastOpen::default(),
        lost: false,
        revision: Revision(1),
    };
    let now = Time::from_millis(1);
    let mut out = BucketEffects::default();
    bucket.step(now, Event::Map(Arc::new(entry.clone())), &mut out);
    while !out
        .effects
        .directory
        .iter()
        .any(|c| matches!(c, DirectoryCall::Step(GroupStep::Open { .. })))
    {
        let own: Vec<_> = out.effects.sends.drain(..).collect();
        for (_, envelope) in own {
            bucket.step(now, Event::Message(envelope), &mut out);
        }
        bucket.step(now, Event::Tick, &mut out);
    }
    (entry.open, entry.revision) = (true, Revision(2));
    entry.last_open = LastOpen {
        epoch: Epoch(1),
        members: entry.members.clone(),
    };
    bucket.step(now, Event::Map(Arc::new(entry)), &mut out);
    let lease = Event::Lease {
        epoch: Epoch(1),
        incarnation: me.incarnation,
        clock: now,
    };
    bucket.step(now, lease, &mut out);
    assert!(
        bucket.serving(),
        "a fresh epoch without copies opens at once"
    );
    bucket
}

fn buckets() -> Vec<Bucket> {
    let arena = Arena::new(1 << 30).expect("a GiB of address space");
    let budget = Arc::new(Budget::new(extents_for(1 << 30)));
    (0..BUCKETS as u32)
        .map(|id| bucket(id, &arena, &budget))
        .collect()
}

fn key(thread: usize, n: usize) -> String {
    let n = (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) % KEYS as u64;
    format!("key:{thread}:{n:012}")
}

fn bucket_of(key: &[u8]) -> usize {
    usize::from(hash_slot(key).0) * BUCKETS / 16_384
}

fn set(bucket: &mut Bucket, key: &[u8], value: &[u8], out: &mut BucketEffects) {
    let now = Time::from_millis(2);
    let header = OpHeader {
        token: 0,
        slot: MemberSlot(0),
        request: None,
        deadline: Time::from_millis(1000),
    };
    let op = Op::Set {
        key,
        value,
        condition: Condition::Always,
        get_old: false,
    };
    let ok = bucket.submit_with(now, header, op, out, |answer| answer == AnswerRef::Ok);
    assert_eq!(ok, Ok(Some(true)));
}

fn short_lock() -> f64 {
    let buckets: Vec<Mutex<Bucket>> = buckets().into_iter().map(Mutex::new).collect();
    timed(|thread| {
        let mut out = BucketEffects::default();
        for n in 0..BATCHES * BATCH {
            let key = key(thread, n);
            let mut bucket = buckets[bucket_of(key.as_bytes())]
                .lock()
                .expect("no thread panics");
            set(&mut bucket, key.as_bytes(), &[7; 512], &mut out);
        }
    })
}

type Batch = (Vec<(usize, String, Vec<u8>)>, SyncSender<usize>);

fn owner_thread() -> f64 {
    let mut buckets = buckets();
    let (hand_over, batches) = sync_channel::<Batch>(THREADS * IN_FLIGHT);
    let owner = std::thread::spawn(move || {
        let mut out = BucketEffects::default();
        for (batch, answer) in batches {
            for (bucket, key, value) in &batch {
                set(&mut buckets[*bucket], key.as_bytes(), value, &mut out);
            }
            let _ = answer.send(batch.len());
        }
    });
    let per_second = timed(|thread| hand_over_batches(thread, &hand_over));
    drop(hand_over);
    owner.join().expect("the owner does not panic");
    per_second
}

fn hand_over_batches(thread: usize, hand_over: &SyncSender<Batch>) {
    let (answer, answers): (SyncSender<usize>, Receiver<usize>) = sync_channel(IN_FLIGHT);
    for batch in 0..BATCHES {
        if batch >= IN_FLIGHT {
            answers.recv().expect("the owner answers");
        }
        let ops = (0..BATCH).map(|n| {
            let key = key(thread, batch * BATCH + n);
            (bucket_of(key.as_bytes()), key, vec![7; 512])
        });
        hand_over
            .send((ops.collect(), answer.clone()))
            .expect("the owner lives");
    }
    for _ in 0..IN_FLIGHT {
        answers.recv().expect("the owner answers");
    }
}

/// Operations per second of all threads together.
fn timed(work: impl Fn(usize) + Sync) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
    (THREADS * BATCHES * BATCH) as f64 / start.elapsed().as_secs_f64()
}

fn one_thread() -> f64 {
    let mut buckets = buckets();
    let mut out = BucketEffects::default();
    let start = Instant::now();
    for n in 0..BATCHES * BATCH {
        let key = key(0, n);
        set(
            &mut buckets[bucket_of(key.as_bytes())],
            key.as_bytes(),
            &[7; 512],
            &mut out,
        );
    }
    (BATCHES * BATCH) as f64 / start.elapsed().as_secs_f64()
}

fn report(name: &str, run: impl Fn() -> f64) {
    let mut all: Vec<f64> = (0..RUNS).map(|_| run()).collect();
    all.sort_by(f64::total_cmp);
    let (low, median, high) = (all[0], all[RUNS / 2], all[RUNS - 1]);
    println!("{name:<42} {median:>10.0} SET/s   ({low:.0} to {high:.0})");
}

fn main() {
    println!("512-byte SETs over {BUCKETS} buckets, {RUNS} runs each, median (lowest to highest)");
    report("one thread, no lock", one_thread);
    report("two threads, a short lock per bucket", short_lock);
    report("two threads, an owner, batches of 16", owner_thread);
}
