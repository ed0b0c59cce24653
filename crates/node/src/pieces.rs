//! Answers that leave in small pieces, and the watch over clients that do not take theirs.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use staves_net::InFlightPart;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// The time that a client may take nothing of an answer.
pub(crate) const TAKE_MAX: Duration = Duration::from_secs(30);
/// Bytes of an answer that leave at a time.
const PIECE_BYTES: usize = 16 << 10;

/// A body whose data leaves in small pieces: hyper asks for the next when there is room for it, and has no more in memory.
pub(crate) struct PiecedBody<B> {
    inner: B,
    rest: Bytes,
    /// Bytes that have left. One number for each piece of an answer, whose length is bounded.
    sent: mpsc::UnboundedSender<usize>,
}

impl<B> PiecedBody<B> {
    pub(crate) fn new(inner: B, sent: mpsc::UnboundedSender<usize>) -> PiecedBody<B> {
        PiecedBody {
            inner,
            rest: Bytes::new(),
            sent,
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for PiecedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                end => return Poll::Ready(end),
            }
        }
        let len = PIECE_BYTES.min(self.rest.len());
        let piece = self.rest.split_to(len);
        let _ = self.sent.send(len);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, rest) = (self.inner.size_hint(), self.rest.len() as u64);
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(hint.lower().saturating_add(rest));
        hint
    }
}

/// Waits until so many bytes of an answer have left, or its body is gone. False if its client does not take them.
pub(crate) async fn is_taken(
    part: &mut InFlightPart,
    progress: &mut mpsc::UnboundedReceiver<usize>,
    bytes: usize,
) -> bool {
    is_taken_within(TAKE_MAX, part, progress, bytes).await
}

async fn is_taken_within(
    time: Duration,
    part: &mut InFlightPart,
    progress: &mut mpsc::UnboundedReceiver<usize>,
    bytes: usize,
) -> bool {
    let mut left = bytes;
    while left > 0 {
        tokio::select! {
            moved = timeout(time, progress.recv()) => match moved {
                Ok(Some(bytes)) => {
                    part.moved(bytes);
                    left = left.saturating_sub(bytes);
                }
                Ok(None) => return true,
                Err(_) => return false,
            },
            () = part.stuck() => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use staves_net::InFlight;

    use super::*;

    const SHORT: Duration = Duration::from_millis(200);
    const LONG: Duration = Duration::from_secs(60);
    const MIB: usize = 1 << 20;

    #[tokio::test]
    async fn an_answer_that_is_not_taken_for_long_is_given_up() {
        let mut part = InFlightPart::of_request(InFlight::new(4 * MIB));
        let (sent, mut progress) = mpsc::unbounded_channel();
        sent.send(3).expect("it is listened to");
        sent.send(4).expect("it is listened to");
        assert!(is_taken_within(SHORT, &mut part, &mut progress, 7).await);
        sent.send(3).expect("it is listened to");
        let taken = is_taken_within(SHORT, &mut part, &mut progress, 7);
        assert!(!timeout(LONG, taken).await.expect("it ends"));
        drop(sent);
        assert!(is_taken_within(SHORT, &mut part, &mut progress, 7).await);
    }

    #[tokio::test]
    async fn an_answer_that_is_taken_slowly_makes_way_for_others() {
        let memory = InFlight::new(4 * MIB);
        let mut part = InFlightPart::of_request(memory.clone());
        part.set(4 * MIB);
        let (sent, mut progress) = mpsc::unbounded_channel();
        let drip = tokio::spawn(async move {
            while sent.send(1).is_ok() {
                tokio::time::sleep(SHORT).await;
            }
        });
        let mut other = InFlightPart::of_request(memory.clone());
        let waiter = tokio::spawn(async move {
            while !other.try_set_in_turn(2 * MIB) {
                memory.room().await;
            }
        });
        let taken = is_taken_within(LONG, &mut part, &mut progress, 4 * MIB);
        assert!(!timeout(LONG, taken).await.expect("it ends"));
        drop((part, progress));
        waiter.await.expect("it finds room");
        drip.await.expect("it ends with the answer");
    }
}
