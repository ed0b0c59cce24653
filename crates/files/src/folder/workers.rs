//! The threads that ask a folder. A file system may hold its callers for as long as it likes (a file server that is gone,
//! hard mounted: for ever), and no thread can be taken back from it. So each folder has a few threads of its own, no other
//! thread asks it, and a caller waits at most [`SILENCE`] after the last sign of life.
//!
//! **Silence.** When a call is given up and the folder has answered no call at all since it began, the folder is *silent*:
//! the next callers fail at once. The first answer ends the silence, be it to a call that is still held or to a probe of
//! the folder itself; a probe starts at once, and then at each call, at most every [`SILENCE`].
//!
//! **Bounds.** A name that holds a thread is not asked for again (`folder/in_flight.rs`). There are [`THREADS_MAX`] threads, and
//! beyond them as many as are held by calls that were given up, up to [`HELD_MAX`]: names that hold their callers must not keep others waiting.
//! [`WAITING_MAX`] calls wait for a thread. Idle threads end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::entry::SourceError;

/// The longest time without a sign of life from a call.
pub const SILENCE: Duration = Duration::from_secs(5);
/// A read may take longer, by its bytes: many at a time on a slow line.
const SLOWEST_BYTES_PER_SECOND: u64 = 64 << 10;
/// The most threads of one folder with a caller that waits.
const THREADS_MAX: usize = 32;
/// The most threads of one folder whose callers gave up.
const HELD_MAX: usize = 128;
/// Calls that wait for a thread.
const WAITING_MAX: usize = 1024;
/// The time that an idle thread stays.
const IDLE: Duration = Duration::from_secs(10);

/// The threads of one folder. Clones are the same ones.
#[derive(Clone)]
pub struct Workers {
    inner: Arc<Inner>,
}

struct Inner {
    place: String,
    /// The probe of a silent folder.
    look: Box<dyn Fn() + Send + Sync>,
    patience: Duration,
    began: Instant,
    /// The time of the folder's last answer, in milliseconds since the field below.
    answered_ms: AtomicU64,
    state: Mutex<State>,
    come: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Box<dyn FnOnce() + Send>>,
    threads: usize,
    idle: usize,
    /// Threads in calls whose callers gave up.
    held: usize,
    /// Since when nothing does, and when it was looked last.
    silent: Option<Silent>,
}

impl State {
    /// Threads but for those whose callers gave up.
    fn of_use(&self) -> usize {
        self.threads - self.held.min(HELD_MAX)
    }
}

#[derive(Clone, Copy)]
struct Silent {
    since: Instant,
    looked: Option<Instant>,
}

/// The signs of life of a call.
pub struct Signs {
    inner: Arc<Inner>,
    /// The last sign, or when it began, in milliseconds as in [`Inner::answered_ms`]; [`WAITS`] if it has not.
    last_ms: AtomicU64,
    stage: AtomicU8,
}

const WAITS: u64 = u64::MAX;

/// The stages of a call. They change under the lock of [`State`] where threads that are held are counted.
mod stage {
    pub const ASKED: u8 = 0;
    pub const BEGUN: u8 = 1;
    pub const ENDED: u8 = 2;
    /// Nobody waits for it, and it had not begun: it never will.
    pub const DROPPED: u8 = 3;
    /// Nobody waits for it, and a thread is at it.
    pub const HELD: u8 = 4;
}

impl Signs {
    /// It goes on.
    pub fn give(&self) {
        let now = self.inner.now_ms();
        self.last_ms.store(now, Ordering::Relaxed);
        self.inner.answered_ms.store(now, Ordering::Relaxed);
    }
}

impl Signs {
    /// Begins the call; false if its caller is gone.
    fn begin(&self) -> bool {
        self.last_ms.store(self.inner.now_ms(), Ordering::Relaxed);
        let (asked, begun) = (stage::ASKED, stage::BEGUN);
        let _state = self.inner.state.lock();
        let begins =
            self.stage
                .compare_exchange(asked, begun, Ordering::Relaxed, Ordering::Relaxed);
        begins.is_ok()
    }
}

/// A thread is at a call, until this is dropped, however that comes.
struct CallGuard<'a>(&'a Signs);

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.inner.state.lock();
        if self.0.stage.swap(stage::ENDED, Ordering::Relaxed) == stage::HELD {
            state.held -= 1;
        }
    }
}

/// A call that is waited for. Dropped, it is given up: what has not begun then never will.
struct Awaited {
    signs: Arc<Signs>,
    asked_ms: u64,
    patience: Duration,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let stage = &self.signs.stage;
        if stage.load(Ordering::Relaxed) == stage::ENDED {
            return;
        }
        let inner = &self.signs.inner;
        let mut state = inner.state.lock();
        let left = match stage.load(Ordering::Relaxed) {
            stage::BEGUN => stage::HELD,
            stage::ASKED => stage::DROPPED,
            _ => return,
        };
        stage.store(left, Ordering::Relaxed);
        if left == stage::HELD {
            state.held += 1;
            inner.go_on(&mut state);
        }
    }
}

impl Workers {
    /// No thread yet. `look` is done now and then while the folder is silent, and may be held like any call.
    pub fn new(place: &str, look: impl Fn() + Send + Sync + 'static) -> Workers {
        Workers::with_patience(place, look, SILENCE)
    }

    fn with_patience(
        place: &str,
        look: impl Fn() + Send + Sync + 'static,
        patience: Duration,
    ) -> Workers {
        Workers {
            inner: Arc::new(Inner {
                place: place.to_owned(),
                look: Box::new(look),
                patience,
                began: Instant::now(),
                answered_ms: AtomicU64::new(0),
                state: Mutex::default(),
                come: Condvar::new(),
            }),
        }
    }

    /// True if the folder answers nothing at all.
    pub fn is_silent(&self) -> bool {
        self.inner.state.lock().silent.is_some()
    }

    /// The last sign of life of a folder that answers nothing at all.
    pub fn silent_since(&self) -> Option<Instant> {
        self.inner.state.lock().silent.map(|silent| silent.since)
    }

    /// Has something done, and blocks this thread until it is, or is given up.
    pub fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Signs) -> Result<T, SourceError> + Send + 'static,
    ) -> Result<T, SourceError> {
        let (done, come) = sync_channel(1);
        let awaited = self.ask(0, work, move |result| drop(done.send(result)))?;
        loop {
            match come.recv_timeout(self.time_left(&awaited)) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Timeout) => self.give_up_if_late(&awaited)?,
                Err(RecvTimeoutError::Disconnected) => return Err(self.broken()),
            }
        }
    }

    /// Has something done that moves so many bytes, and waits until it is, or is given up. A runtime's clock must run.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&Signs) -> Result<T, SourceError> + Send + 'static,
    ) -> Result<T, SourceError> {
        let (done, mut come) = oneshot::channel();
        let awaited = self.ask(bytes, work, move |result| drop(done.send(result)))?;
        loop {
            match tokio::time::timeout(self.time_left(&awaited), &mut come).await {
                Ok(Ok(result)) => return result,
                Ok(Err(_)) => return Err(self.broken()),
                Err(_) => self.give_up_if_late(&awaited)?,
            }
        }
    }

    fn ask<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&Signs) -> Result<T, SourceError> + Send + 'static,
        tell: impl FnOnce(Result<T, SourceError>) + Send + 'static,
    ) -> Result<Awaited, SourceError> {
        let asked_ms = self.inner.now_ms();
        let signs = Arc::new(Signs {
            inner: self.inner.clone(),
            last_ms: AtomicU64::new(WAITS),
            stage: AtomicU8::new(stage::ASKED),
        });
        let its = signs.clone();
        let job = move || {
            if !its.begin() {
                return;
            }
            let at = CallGuard(&its);
            let result = work(&its);
            its.inner.answered();
            drop(at);
            tell(result);
        };
        self.inner.put(Box::new(job))?;
        let slow = Duration::from_millis(bytes as u64 * 1000 / SLOWEST_BYTES_PER_SECOND);
        Ok(Awaited {
            signs,
            asked_ms,
            patience: self.inner.patience + slow,
        })
    }

    fn time_left(&self, awaited: &Awaited) -> Duration {
        let silence = self.inner.last_sign(awaited).elapsed();
        awaited.patience.saturating_sub(silence)
    }

    fn give_up_if_late(&self, awaited: &Awaited) -> Result<(), SourceError> {
        let since = self.inner.last_sign(awaited);
        match since.elapsed() < awaited.patience {
            true => Ok(()),
            false => Err(self.inner.late(since)),
        }
    }

    fn broken(&self) -> SourceError {
        SourceError::Unreachable {
            place: self.inner.place.clone(),
            reason: "the thread that asked it has failed: this is a fault of Staves, see the log"
                .into(),
        }
    }
}

impl Inner {
    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn at(&self, ms: u64) -> Instant {
        self.began + Duration::from_millis(ms)
    }

    /// The last sign of life: of the call itself, or, if it has not begun, of those before it.
    fn last_sign(&self, awaited: &Awaited) -> Instant {
        let last = awaited.signs.last_ms.load(Ordering::Relaxed);
        let any = || self.answered_ms.load(Ordering::Relaxed);
        self.at(match last {
            WAITS => any().max(awaited.asked_ms),
            last => last,
        })
    }

    /// A call is given up.
    fn late(self: &Arc<Self>, since: Instant) -> SourceError {
        let mut state = self.state.lock();
        let answered = self.at(self.answered_ms.load(Ordering::Relaxed));
        if answered <= since && state.silent.is_none() {
            let silent = Silent {
                since,
                looked: None,
            };
            state.silent = Some(silent);
            let (place, threads) = (&self.place, state.threads);
            tracing::warn!(%place, threads, "a folder does not answer: who wants something of it is told so at once until it does");
            self.look_again(&mut state, silent);
        }
        self.silent(since)
    }

    fn silent(&self, since: Instant) -> SourceError {
        let secs = since.elapsed().as_secs();
        SourceError::Unreachable {
            place: self.place.clone(),
            reason: format!(
                "it has not answered for {secs} s: see whether the file server, or the disk, that it is on is well"
            ),
        }
    }

    fn answered(self: &Arc<Self>) {
        self.answered_ms.store(self.now_ms(), Ordering::Relaxed);
        let mut state = self.state.lock();
        if let Some(silent) = state.silent.take() {
            let (place, secs) = (&self.place, silent.since.elapsed().as_secs());
            tracing::warn!(%place, secs, "a folder answers again");
            self.go_on(&mut state);
        }
    }

    /// The place of a thread that is held is another's, unless nothing at all comes from the folder.
    fn go_on(self: &Arc<Self>, state: &mut MutexGuard<'_, State>) {
        if state.silent.is_none()
            && let Err(error) = self.wake(state)
        {
            tracing::debug!(%error, "nobody takes the place of a thread that is held");
        }
    }

    /// Hands a job to a thread, now or when one is free.
    fn put(self: &Arc<Self>, job: Box<dyn FnOnce() + Send>) -> Result<(), SourceError> {
        let mut state = self.state.lock();
        if let Some(silent) = state.silent {
            self.look_again(&mut state, silent);
            return Err(self.silent(silent.since));
        }
        if state.waiting.len() >= WAITING_MAX {
            return Err(SourceError::Unreachable {
                place: self.place.clone(),
                reason: format!("{WAITING_MAX} others wait for it already: try again"),
            });
        }
        state.waiting.push_back(job);
        self.wake(&mut state)
    }

    /// A probe without a caller. A held call ends the silence when it comes back; but it may have been lost.
    fn look_again(self: &Arc<Self>, state: &mut MutexGuard<'_, State>, silent: Silent) {
        let is_time = |looked: Instant| looked.elapsed() >= self.patience;
        let is_full = state.of_use() - state.idle >= THREADS_MAX;
        if !silent.looked.is_none_or(is_time) || is_full {
            return;
        }
        let looked = Some(Instant::now());
        state.silent = Some(Silent { looked, ..silent });
        let me = self.clone();
        state.waiting.push_back(Box::new(move || {
            (me.look)();
            me.answered();
        }));
        if let Err(error) = self.wake(state) {
            tracing::debug!(%error, "not looked at");
        }
    }

    /// Makes sure that a thread takes the waiting calls.
    fn wake(self: &Arc<Self>, state: &mut MutexGuard<'_, State>) -> Result<(), SourceError> {
        if state.waiting.len() <= state.idle || state.of_use() >= THREADS_MAX {
            self.come.notify_one();
            return Ok(());
        }
        let me = self.clone();
        let thread = std::thread::Builder::new().name("staves-folder".into());
        match thread.spawn(move || me.serve()) {
            Ok(_) => state.threads += 1,
            Err(_) if state.threads > 0 => {}
            Err(error) => {
                state.waiting.clear();
                return Err(SourceError::Unreachable {
                    place: self.place.clone(),
                    reason: format!("no thread can be started to ask it: {error}"),
                });
            }
        }
        Ok(())
    }

    fn serve(self: Arc<Self>) {
        let _seat = Seat(&self);
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.waiting.pop_front() {
                MutexGuard::unlocked(&mut state, job);
                continue;
            }
            state.idle += 1;
            let waited = self.come.wait_for(&mut state, IDLE);
            state.idle -= 1;
            if waited.timed_out() && state.waiting.is_empty() {
                return;
            }
        }
    }
}

/// A thread counts until it ends, however it does.
struct Seat<'a>(&'a Inner);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.state.lock().threads -= 1;
    }
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Workers({})", self.inner.place)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(2);
    /// A bound that outlasts the delays of a busy machine.
    const BOUND: Duration = Duration::from_secs(60);

    /// A file system that holds its callers until it is let go.
    struct HeldFolder {
        entered: Receiver<()>,
        workers: Workers,
        go: Arc<(Mutex<bool>, Condvar)>,
        enter: SyncSender<()>,
    }

    fn wait(go: &(Mutex<bool>, Condvar)) {
        let mut is_free = go.0.lock();
        while !*is_free {
            go.1.wait(&mut is_free);
        }
    }

    impl HeldFolder {
        fn new() -> HeldFolder {
            HeldFolder::with_patience(PATIENCE)
        }

        fn with_patience(patience: Duration) -> HeldFolder {
            let go = Arc::new((Mutex::new(false), Condvar::new()));
            let looked = go.clone();
            let (enter, entered) = sync_channel(10_000);
            HeldFolder {
                entered,
                workers: Workers::with_patience("/srv/data", move || wait(&looked), patience),
                go,
                enter,
            }
        }

        fn work(&self) -> impl FnOnce(&Signs) -> Result<u32, SourceError> + Send + 'static {
            let (go, enter) = (self.go.clone(), self.enter.clone());
            move |_| {
                enter.send(()).expect("the test lives");
                wait(&go);
                Ok(7)
            }
        }

        fn let_go(&self) {
            *self.go.0.lock() = true;
            self.go.1.notify_all();
        }

        fn entered(&self) -> usize {
            self.entered.try_iter().count()
        }

        fn is_silent(&self) -> bool {
            self.workers.inner.state.lock().silent.is_some()
        }
    }

    impl Drop for HeldFolder {
        fn drop(&mut self) {
            self.let_go();
        }
    }

    fn until(what: &str, mut is: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is() {
            assert!(began.elapsed() < BOUND, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Regression: a file server that was gone held every thread that asked for a name or bytes, for ever.
    #[test]
    fn who_is_held_is_given_up_and_those_after_it_are_told_at_once() {
        let held = HeldFolder::new();
        let began = Instant::now();
        let error = held.workers.call(held.work()).unwrap_err();
        assert!(began.elapsed() >= PATIENCE && began.elapsed() < BOUND);
        let text = error.to_string();
        assert!(matches!(error, SourceError::Unreachable { .. }), "{text}");
        assert!(
            text.contains("/srv/data") && text.contains("not answered for"),
            "{text}"
        );
        assert_eq!(held.entered(), 1);
        for _ in 0..1000 {
            assert!(held.workers.call(held.work()).is_err());
        }
        assert_eq!(held.entered(), 0, "nobody else is held");
        held.let_go();
        until("it answers again", || !held.is_silent());
        assert_eq!(held.workers.call(held.work()).unwrap(), 7);
    }

    #[test]
    fn threads_are_bounded_and_what_was_given_up_is_never_begun() {
        let held = HeldFolder::with_patience(BOUND);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let ask = |_| Box::pin(held.workers.run(0, held.work()));
            let mut asked: Vec<_> = (0..3 * THREADS_MAX).map(ask).collect();
            for one in &mut asked {
                assert!(futures_util::poll!(one).is_pending());
            }
            for _ in 0..THREADS_MAX {
                held.entered.recv_timeout(BOUND).expect("a thread is at it");
            }
            asked.truncate(THREADS_MAX);
            held.let_go();
            let answers = futures_util::future::join_all(asked).await;
            assert!(answers.iter().all(|answer| *answer == Ok(7)));
        });
        assert_eq!(held.workers.call(|_| Ok(8)).unwrap(), 8);
        assert_eq!(held.entered(), 0, "nobody wants the others any more");
        assert!(held.workers.inner.state.lock().threads <= THREADS_MAX);
    }

    /// One file that cannot be read is not all of the folder.
    #[test]
    fn a_folder_that_answers_others_is_not_silent() {
        let held = HeldFolder::new();
        let (workers, work) = (held.workers.clone(), held.work());
        let one = std::thread::spawn(move || workers.call(work));
        until("it is held", || held.entered() == 1);
        until("it is given up", || {
            assert_eq!(held.workers.call(|_| Ok(1)), Ok(1));
            one.is_finished()
        });
        assert!(!held.workers.is_silent());
        assert!(one.join().unwrap().is_err());
        assert_eq!(held.workers.call(|_| Ok(1)), Ok(1));
    }

    /// Regression: names that held their callers took all threads, and the whole folder was silent until they came back.
    #[test]
    fn threads_that_are_held_leave_others_for_the_rest() {
        let held = HeldFolder::new();
        let hold = |many: usize| -> Vec<_> {
            let one = |_| {
                let (workers, work) = (held.workers.clone(), held.work());
                std::thread::spawn(move || workers.call(work))
            };
            (0..many).map(one).collect()
        };
        let first = hold(THREADS_MAX);
        until("all are held", || {
            let state = held.workers.inner.state.lock();
            state.threads == THREADS_MAX && state.idle == 0
        });
        for one in first {
            assert!(one.join().unwrap().is_err());
        }
        // The probe is held, too: it goes on when a call comes back.
        held.workers.inner.state.lock().silent = None;
        assert_eq!(held.workers.call(|_| Ok(1)), Ok(1));
        assert_eq!(held.workers.inner.state.lock().held, THREADS_MAX);
        held.let_go();
        until("all are back", || held.workers.inner.state.lock().held == 0);
        assert_eq!(held.workers.call(|_| Ok(1)), Ok(1));
    }

    #[test]
    fn threads_that_are_held_have_a_bound() {
        let held = HeldFolder::new();
        // Given up at once: the count is of calls that still run.
        for _ in 0..HELD_MAX + 2 * THREADS_MAX {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build();
            let work = held.work();
            runtime.unwrap().block_on(async {
                let call = held.workers.run(0, work);
                let _ = tokio::time::timeout(Duration::from_millis(20), call).await;
            });
        }
        let state = held.workers.inner.state.lock();
        assert!(state.threads <= HELD_MAX + THREADS_MAX, "{}", state.threads);
    }

    #[test]
    fn what_goes_on_is_waited_for_however_long_it_takes() {
        let held = HeldFolder::new();
        let slow = held.workers.call(|signs| {
            for _ in 0..15 {
                std::thread::sleep(PATIENCE / 10);
                signs.give();
            }
            Ok(3)
        });
        assert_eq!(slow, Ok(3));
    }

    #[test]
    fn a_thread_that_fails_is_said_and_counts_no_more() {
        // To report a failure may take long.
        let workers = Workers::with_patience("/srv/data", || (), BOUND);
        let failed = workers.call::<()>(|_| panic!("for the test"));
        let text = failed.unwrap_err().to_string();
        assert!(text.contains("a fault of Staves"), "{text}");
        until("it is gone", || workers.inner.state.lock().threads == 0);
        assert_eq!(workers.call(|_| Ok(1)), Ok(1));
    }
}
