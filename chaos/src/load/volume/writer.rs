//! The one writer of a volume.

use std::sync::atomic::Ordering;
use std::time::Duration;

use staves_testkit::load::Random;

use super::history::{BlockWrite, content};
use super::session::{Unanswered, WriteSession};
use super::{PAUSE, REST, RUN, Shared, VolumeLoad, offset};

/// Of so many operations of the writer one is a take-over.
const TAKE_OVERS: u64 = 30;

/// A session of the writer's.
struct OwnSession {
    session: WriteSession,
    number: u64,
    /// A write in it was answered.
    is_answered: bool,
    /// A write in it was not.
    is_lost: bool,
}

/// A volume's one writer.
pub(super) struct VolumeWriter<'a> {
    shared: &'a Shared,
    volume: &'a VolumeLoad,
    random: Random,
    session: Option<OwnSession>,
    /// The one that was taken over last: its connection stays open for a while.
    former: Option<OwnSession>,
}

impl<'a> VolumeWriter<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        volume: &'a VolumeLoad,
        random: Random,
    ) -> VolumeWriter<'a> {
        VolumeWriter {
            shared,
            volume,
            random,
            session: None,
            former: None,
        }
    }

    pub(super) async fn write_all(mut self) {
        while !self.shared.stopped() {
            let rest = match self.session.take() {
                None => self.reconnect().await,
                Some(session) if self.wants_take_over(&session) => self.take_over(session).await,
                // Its connection ends with it.
                Some(session) if session.is_lost => PAUSE,
                Some(session) => self.write_once(session).await,
            };
            tokio::time::sleep(rest).await;
        }
    }

    /// A session that waits for an answer is often taken over while it waits.
    fn wants_take_over(&mut self, session: &OwnSession) -> bool {
        let asked = &self.volume.take_over;
        let one_of = if session.is_lost { 2 } else { TAKE_OVERS };
        session.is_answered
            && (asked.swap(false, Ordering::Relaxed) || self.random.below(one_of) == 0)
    }

    fn next_session(&self, session: WriteSession) -> OwnSession {
        let number = self.volume.sessions.fetch_add(1, Ordering::Relaxed) as u64;
        OwnSession {
            session,
            number,
            is_answered: false,
            is_lost: false,
        }
    }

    async fn reconnect(&mut self) -> Duration {
        let session = WriteSession::begin((self.shared, self.volume), &mut self.random).await;
        self.session = session.map(|session| self.next_session(session));
        if self.session.is_some() { REST } else { PAUSE }
    }

    async fn write_once(&mut self, mut session: OwnSession) -> Duration {
        let place = (
            self.random.below(self.volume.runs()),
            1 + self.random.below(RUN),
        );
        match self.write(&mut session, place).await {
            Ok(()) | Err(Unanswered::Late) => {}
            Err(Unanswered::Over) => session.is_lost = true,
            Err(Unanswered::Wrong(why)) => {
                let text = format!("a write to the volume was refused: {why}");
                self.shared.complain(text);
                return PAUSE;
            }
        }
        self.session = Some(session);
        REST
    }

    async fn write(
        &self,
        own: &mut OwnSession,
        (run, blocks): (u64, u64),
    ) -> Result<(), Unanswered> {
        let volume = self.volume;
        let writes = volume.begin(run, blocks, own.number, self.shared.now());
        let done = own.session.write(offset(run), bytes_of(&writes)).await;
        if let (Ok(()), Some(write)) = (&done, writes.first()) {
            volume.answered(write.number, self.shared.now());
            own.is_answered = true;
        }
        done
    }

    /// A second client takes the volume over, with a write of the first one's under way; and once its own first write is answered, the first
    /// one writes on. All of that is to one place.
    async fn take_over(&mut self, mut old: OwnSession) -> Duration {
        let volume = self.volume;
        let run = self.random.below(self.volume.runs());
        if !old.is_lost && self.random.below(2) == 0 {
            let writes = volume.begin(run, RUN, old.number, self.shared.now());
            old.session.send(offset(run), &bytes_of(&writes));
        }
        let Some(new) = WriteSession::take_over((self.shared, self.volume), &mut self.random).await
        else {
            return PAUSE;
        };
        let mut new = self.next_session(new);
        match self.write(&mut new, (run, RUN)).await {
            Ok(()) => {}
            Err(Unanswered::Wrong(why)) => {
                let text = format!("who took the volume over cannot write: {why}");
                self.shared.complain(text);
                return PAUSE;
            }
            Err(_) => return PAUSE,
        }
        volume.taken_over.fetch_add(1, Ordering::Relaxed);
        self.session = Some(new);
        // None must be answered as done; any refusal will do.
        for _ in 0..2 {
            old.is_lost = old.is_lost || self.write(&mut old, (run, RUN)).await.is_err();
        }
        // What it had sent may come late.
        self.former.replace(old);
        REST
    }
}

pub(super) fn bytes_of(writes: &[BlockWrite]) -> Vec<u8> {
    let each = writes
        .iter()
        .map(|write| content(write.block, write.number));
    each.collect::<Vec<_>>().concat()
}
