//! Signs of life of a server, and the wait for its answers.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::failure::Failure;
use super::{AWAY_WAIT, Remote};
use crate::driver;
use crate::entry::SourceError;
use crate::outage::Outage;

/// The wait for a sign of life where one name has no answer.
const SIGN_WAIT: Duration = Duration::from_secs(3);
/// The interval between two looks whether anything was answered.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The least pause between two questions for a sign of life alone: some servers take money for each.
const PROBE_PAUSE: Duration = Duration::from_secs(30);
/// The name that is asked for as a sign of life: it need not be there.
const ANY_NAME: &str = "MANIFEST";

impl Remote {
    /// Records an answer of the server itself. Where something else answers for its manifest, it may answer for names as well.
    pub(super) fn answered(&self) {
        if !self.names.manifest_is_odd() {
            self.availability.answered();
        }
    }

    /// The server's outage, if that is why there is no clear answer to a question.
    pub(super) fn judge<T>(&self, asked: Instant, answer: &Result<T, Failure>) -> Option<Outage> {
        let failure = answer
            .as_ref()
            .err()
            .filter(|failure| !failure.is_clear())?;
        *self.names.unanswered.lock() = Some(Instant::now());
        let why = self.error("", failure.clone()).to_string();
        Some(self.availability.unanswered_alone(asked, why))
    }

    /// See [`crate::Source::probe`].
    pub async fn probe(self: &Arc<Self>, idle: Duration) {
        let idle = idle.max(PROBE_PAUSE);
        if self.outage().is_none() && self.availability.answered_within(idle) {
            return;
        }
        let (me, asked) = (self.clone(), Instant::now());
        let answer = driver::run(async move { me.sign_of_life().await }).await;
        let answer = answer.unwrap_or_else(|why| Err(Failure::Other(why)));
        self.judge(asked, &answer);
    }

    /// Asks for a sign of life where there was no clear answer: one name may be at fault.
    pub(super) async fn or_a_sign(&self, failure: Option<Failure>) {
        if failure.is_some_and(|failure| !failure.is_clear()) {
            self.gives_a_sign().await;
        }
    }

    /// True if the server answers something shortly. It is noted as an answer.
    pub(super) async fn gives_a_sign(&self) -> bool {
        let sign = tokio::time::timeout(SIGN_WAIT, self.sign_of_life()).await;
        matches!(sign, Ok(Ok(())))
    }

    /// Asks for a name that need not be there: that one file cannot be had is no outage.
    async fn sign_of_life(&self) -> Result<(), Failure> {
        // Whatever answers in its place may well have versions of names.
        if self.names.manifest_is_odd() {
            return self.ask_manifest().await;
        }
        self.ask_name(ANY_NAME).await.map(drop)
    }

    /// The present outage. The server is asked for the caller's name behind him, who need not wait for what is known to be away.
    pub(super) fn outage_asked_again(self: &Arc<Self>, path: &str) -> Option<Outage> {
        let outage = self.outage()?;
        if !self.names.is_away() {
            let (me, asked) = (self.clone(), Instant::now());
            let name = if path.is_empty() { ANY_NAME } else { path }.to_owned();
            let asked_again = driver::spawn(async move {
                let answer = match me.names.manifest_is_odd() {
                    true => me.sign_of_life().await,
                    false => me.ask_name(&name).await.map(drop),
                };
                me.judge(asked, &answer);
            });
            if let Err(why) = asked_again {
                tracing::debug!(%why, "a server that is away is not asked again");
            }
        }
        Some(outage)
    }

    pub(super) fn away(&self, path: &str, outage: &Outage) -> SourceError {
        let secs = outage.since.elapsed().as_secs();
        let reason = format!("the server has not answered for {secs} s: {}", outage.why);
        SourceError::Unreachable {
            place: self.url(path),
            reason,
        }
    }

    /// The answer to a question that may take many of the server, within a time.
    pub(super) fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = Result<T, Failure>> + Send + 'static,
        within: Duration,
    ) -> Result<T, Failure> {
        let me = self.clone();
        let work = async move {
            let answer = work.await;
            let failure = answer.as_ref().err().cloned();
            me.or_a_sign(failure).await;
            answer
        };
        let answer = driver::block(work, within);
        answer.unwrap_or_else(|why| Err(Failure::Other(why)))
    }

    /// Gives up once the server has answered nothing for a while, whoever asked. One answer may take longer: before that, a sign of life
    /// is asked for.
    pub(super) async fn while_it_answers<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let began = Instant::now();
        let silent_for = |time| !self.availability.answered_within(time) && began.elapsed() >= time;
        let silence = async {
            while !silent_for(AWAY_WAIT) {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        let signs = async {
            loop {
                tokio::time::sleep(LOOK_AGAIN).await;
                if silent_for(AWAY_WAIT / 2) {
                    let _ = self.sign_of_life().await; // it is noted as one
                }
            }
        };
        tokio::select! {
            done = work => done,
            () = silence => Err(Failure::Late(AWAY_WAIT)),
            () = signs => unreachable!("it ends with the others"),
        }
    }
}
