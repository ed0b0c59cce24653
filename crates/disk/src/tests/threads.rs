//! The thread of a journal: who waits is woken, whatever becomes of the disk, of the thread and of those who are told.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{BLOCK, made, opened};
use crate::faulty::FaultyDevice;
use crate::{Committer, Device, JournalError};

const PATIENCE: Duration = Duration::from_secs(30);

/// A device that a test looks at from outside.
#[derive(Clone)]
struct Handle {
    device: Arc<FaultyDevice>,
    sync_takes: Duration,
    panics: bool,
}

impl Device for Handle {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.device.read(at, into)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(!self.panics, "as it is meant to");
        self.device.write(at, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        std::thread::sleep(self.sync_takes);
        self.device.sync()
    }
}

fn handle(seed: u64) -> Handle {
    Handle {
        device: Arc::new(made(seed)),
        sync_takes: Duration::ZERO,
        panics: false,
    }
}

type Told = Arc<Mutex<Vec<Result<u64, String>>>>;

/// A committer on a device, and what it tells.
fn start(handle: &Handle) -> (Committer, Told) {
    let (journal, _) = opened(&*handle.device).expect("it opens");
    let told = Told::default();
    let hears = told.clone();
    let hears = move |said: Result<u64, &str>| hears.lock().push(said.map_err(str::to_owned));
    let committer = Committer::start(journal, Box::new(handle.clone()), hears);
    (committer.expect("a thread"), told)
}

fn eventually(mut is: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "it never was");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn many_that_wait_share_a_sync() {
    let mut handle = handle(1);
    handle.sync_takes = Duration::from_millis(5);
    let (committer, told) = start(&handle);
    std::thread::scope(|scope| {
        for writer in 0..8u8 {
            let committer = &committer;
            scope.spawn(move || {
                for _ in 0..20 {
                    let number = committer.append(&[writer; 5]).expect("there is room");
                    assert!(committer.wait(number, PATIENCE).expect("well"));
                    committer.let_go(number);
                }
            });
        }
    });
    assert_eq!(
        (committer.synced(), committer.look(|j| j.last())),
        (160, 160)
    );
    committer.close().expect("well");
    let told = told.lock();
    assert_eq!(told.last(), Some(&Ok(160)));
    assert!(told.len() < 160, "{} syncs for 160 records", told.len());
}

#[test]
fn a_failure_reaches_all_who_wait_and_is_said_once() {
    let handle = handle(2);
    let (committer, told) = start(&handle);
    handle.device.fail_syncs(true);
    let number = committer.append(b"one").expect("room");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| match committer.wait(number, PATIENCE) {
                Err(JournalError::Failed(why)) => assert_eq!(why, "the sync failed"),
                other => panic!("{other:?}"),
            });
        }
    });
    let refused = committer.append(b"two").expect_err("it has failed");
    let text = "the journal has failed and takes nothing more: the sync failed";
    assert_eq!(refused.to_string(), text);
    assert_eq!(committer.close().expect_err("failed").to_string(), text);
    assert_eq!(*told.lock(), [Err("the sync failed".to_owned())]);
}

#[test]
fn what_was_appended_is_committed_at_the_end() {
    for close in [true, false] {
        let handle = handle(3);
        let (committer, _) = start(&handle);
        for _ in 0..10 {
            committer.append(b"record").expect("room");
        }
        match close {
            true => committer.close().expect("well"),
            false => drop(committer),
        }
        handle.device.lose_power();
        let (journal, _) = opened(&*handle.device).expect("it opens");
        assert_eq!(journal.last(), 10);
    }
}

#[test]
fn room_that_was_let_go_comes_back_by_itself_where_it_lacked() {
    let (committer, _) = start(&handle(4));
    let full = loop {
        match committer.append(&[1; 4_000]) {
            Ok(number) => assert!(committer.wait(number, PATIENCE).expect("well")),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, JournalError::Full { .. }), "{full}");
    committer
        .append_reserved(b"all there is")
        .expect("reserved");
    committer.let_go(committer.synced() + 1);
    eventually(|| committer.append(&[1; 4_000]).is_ok());

    let (committer, _) = start(&handle(5));
    let number = committer.append(b"one").expect("room");
    assert!(committer.wait(number, PATIENCE).expect("well"));
    let room = committer.look(|journal| journal.room());
    committer.let_go(2);
    committer.want_room();
    eventually(|| committer.look(|journal| journal.room()) == room + BLOCK);
}

/// Regression: the thread ended without a word, and all waited for ever.
#[test]
fn a_panic_in_the_thread_is_a_failure() {
    let mut handle = handle(6);
    handle.panics = true;
    let (committer, told) = start(&handle);
    let number = committer.append(b"one").expect("room");
    let failed = committer.wait(number, PATIENCE);
    assert!(matches!(failed, Err(JournalError::Failed(_))), "{failed:?}");
    committer.append(b"two").expect_err("it has failed");
    committer.close().expect_err("it has failed");
    assert_eq!(*told.lock(), [Err("its thread panicked".to_owned())]);

    let (journal, _) = opened(&*handle.device).expect("it opens");
    handle.panics = false;
    let told = |said: Result<u64, &str>| assert!(said.is_err(), "as it is meant to");
    let committer = Committer::start(journal, Box::new(handle), told).expect("a thread");
    let number = committer.append(b"one").expect("room");
    assert!(committer.wait(number, PATIENCE).expect("it is durable"));
    eventually(|| committer.look(|journal| journal.failed().is_some()));
    committer.wait(number + 1, PATIENCE).expect_err("it failed");
}

/// Regression: a thread that was dropped by itself waited for itself.
#[test]
fn the_last_owner_may_go_away_on_the_thread() {
    let handle = handle(7);
    let (journal, _) = opened(&*handle.device).expect("it opens");
    let owner = Arc::new(Mutex::new(None::<Committer>));
    let held = owner.clone();
    let told = move |_: Result<u64, &str>| {
        if let Some(committer) = held.lock().take() {
            committer.append(b"two").expect("room");
            committer.close().expect("well so far");
        }
    };
    let committer = Committer::start(journal, Box::new(handle.clone()), told);
    let mut owned = owner.lock();
    let committer = owned.insert(committer.expect("a thread"));
    committer.append(b"one").expect("room");
    drop(owned);
    // The thread has the only other handle.
    eventually(|| Arc::strong_count(&handle.device) == 1);
    let (journal, records) = opened(&*handle.device).expect("it opens");
    assert_eq!((journal.last(), &records[&2][..]), (2, &b"two"[..]));
}

/// Regression: a time beyond all times was a panic.
#[test]
fn any_time_to_wait_will_do() {
    let (committer, _) = start(&handle(8));
    let number = committer.append(b"one").expect("room");
    assert!(committer.wait(number, Duration::MAX).expect("well"));
    let short = committer.wait(number + 1, Duration::from_millis(1));
    assert!(!short.expect("well"));
}
