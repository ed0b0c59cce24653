//! Locks in logs, on real nodes: leases, tokens, trims, and the death of the sequencer's node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use staves_client::{AppendMode, Client, LogLock, LogRetention};
use staves_model::Medium;
use staves_testkit::wait_until;

use crate::log_queue::kill_sequencer;
use crate::logs::{client_of, cluster};

const TAG: u64 = 1;
/// Longer than any wait of a test.
const LONG: Duration = Duration::from_secs(60);

async fn lock(client: &Client, lease: u64) -> LogLock {
    let lease = Duration::from_secs(lease);
    let lock = LogLock::open(client, None, "l", TAG, lease).await;
    lock.expect("the lock opens")
}

async fn made(client: &Client) {
    let made = client.create_log(None, "l", AppendMode::Bind).await;
    made.expect("the log is made");
}

#[test]
fn a_lock_is_held_by_one_and_goes_to_another_when_it_is_given_back_or_its_lease_is_over() {
    let cluster = cluster(3, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    runtime.block_on(async {
        made(&client).await;
        let (mut a, mut b) = (lock(&client, 3600).await, lock(&client, 3600).await);
        let of_a = a.lock(LONG).await.expect("an answer").expect("a grant");
        assert_eq!(a.held(), Some(of_a));
        assert_eq!(b.lock(Duration::ZERO).await.expect("an answer"), None);
        assert!(!b.unlock().await.expect("an answer"), "it has no lock");
        let renewed = a.renew().await.expect("an answer").expect("its lock");
        assert_eq!(renewed.token, of_a.token);
        assert!(renewed.lease_end > of_a.lease_end);
        assert!(a.unlock().await.expect("an answer"));
        let of_b = b.lock(LONG).await.expect("an answer").expect("a grant");
        assert!(of_b.token > of_a.token, "{of_b:?}, {of_a:?}");
        assert_eq!(a.renew().await.expect("an answer"), None);
        assert!(b.unlock().await.expect("an answer"));
        // One that says nothing any more, for a second.
        let mut silent = lock(&client, 1).await;
        let grant = silent.lock(LONG).await.expect("an answer");
        let grant = grant.expect("a grant");
        let next = a.lock(LONG).await.expect("an answer").expect("a grant");
        assert!(Instant::now() >= grant.lease_end, "its lease lasted");
        assert!(next.token > grant.token);
        assert_eq!(silent.renew().await.expect("an answer"), None);
        assert_eq!(silent.held(), None);
    });
}

#[test]
fn a_lock_outlives_the_trims_of_its_log() {
    let cluster = cluster(3, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    runtime.block_on(async {
        made(&client).await;
        let log = client.open_log(None, "l").await.expect("opened");
        let text = [Bytes::from_static(b"another")];
        log.append(&text).await.expect("appended");
        let mut a = lock(&client, 3600).await;
        let grant = a.lock(LONG).await.expect("an answer").expect("a grant");
        let keep = LogRetention {
            records: Some(1),
            ..LogRetention::default()
        };
        let set = client.set_log_retention(None, "l", keep).await;
        set.expect("set");
        let began = Instant::now();
        loop {
            log.append(&text).await.expect("appended");
            let trim = client.log_stat(None, "l").await.expect("the log").trim;
            assert!(trim <= grant.token, "the grant is trimmed");
            if trim == grant.token {
                break;
            }
            assert!(began.elapsed() < LONG, "trimmed up to {trim}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let mut b = lock(&client, 3600).await;
        assert_eq!(b.lock(Duration::ZERO).await.expect("an answer"), None);
        // A trim by hand asks no cursor: who comes new then takes the lock for held, as long as a lease.
        log.trim(grant.token + 1).await.expect("trimmed");
        let mut c = lock(&client, 1).await;
        let began = Instant::now();
        let next = c.lock(LONG).await.expect("an answer").expect("a grant");
        assert!(began.elapsed() >= Duration::from_secs(1));
        assert!(next.token > grant.token);
    });
}

/// A time that a client held the lock, with its token.
type LockHold = (Instant, Instant, u64);

async fn contend(client: Client, stop: Arc<AtomicBool>, done: Arc<AtomicUsize>) -> Vec<LockHold> {
    let mut lock = lock(&client, 2).await;
    let mut holds = Vec::new();
    for n in 0_usize.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let Ok(Some(mut grant)) = lock.lock(Duration::from_secs(1)).await else {
            continue;
        };
        let from = Instant::now();
        tokio::time::sleep(Duration::from_millis(3)).await;
        if n % 3 == 1
            && let Ok(Some(renewed)) = lock.renew().await
        {
            assert_eq!(renewed.token, grant.token);
            grant = renewed;
        }
        if n % 24 == 23 {
            // As if it had died: its lease lasts, and it does not come back under this name.
            holds.push((from, grant.lease_end.max(from), grant.token));
            lock = self::lock(&client, 2).await;
            continue;
        }
        let until = Instant::now().min(grant.lease_end).max(from);
        holds.push((from, until, grant.token));
        let _may_fail = lock.unlock().await;
        done.fetch_add(1, Ordering::AcqRel);
    }
    holds
}

#[test]
fn no_two_hold_a_lock_at_once_and_tokens_rise_when_the_node_of_the_sequencer_dies() {
    let mut cluster = cluster(4, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    runtime.block_on(made(&client));
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicUsize::new(0));
    let contender = |_| runtime.spawn(contend(client.clone(), stop.clone(), done.clone()));
    let contenders: Vec<_> = (0..3).map(contender).collect();
    let so_far = || done.load(Ordering::Acquire);
    wait_until("the lock goes round", || so_far() > 30);
    kill_sequencer(&mut cluster, (&client, &runtime), "l");
    let before = so_far();
    wait_until("it goes on", || so_far() > before + 30);
    stop.store(true, Ordering::Release);
    let mut holds = Vec::new();
    for task in contenders {
        holds.extend(runtime.block_on(task).expect("a client ends"));
    }
    holds.sort();
    for pair in holds.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two hold the lock: {pair:?}");
        assert!(pair[0].2 <= pair[1].2, "a token falls: {pair:?}");
    }
}
