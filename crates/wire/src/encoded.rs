//! Answers that are encoded as they are given: a value goes from where it lies into the frame, and nowhere in between.

use bytes::{BufMut, BytesMut};
use staves_model::Revision;

use crate::codec::{Wire, put_len};
use crate::frame::{self, Envelope, HEADER_BYTES};
use crate::message::Opcode;
use crate::service::{Answer, VALUE_TAG};

/// Room for the fields behind the answers.
const FIELDS_BYTES: usize = 64;

/// The one frame of a `service-answers` message with nothing in it beside answers.
#[derive(Debug)]
pub struct EncodedAnswers {
    frame: BytesMut,
    count: u32,
}

impl EncodedAnswers {
    /// Of none yet, with room for so many bytes.
    pub fn with_capacity(bytes: usize) -> EncodedAnswers {
        let mut frame = BytesMut::with_capacity(HEADER_BYTES + bytes + FIELDS_BYTES);
        frame.put_bytes(0, HEADER_BYTES + size_of::<u32>());
        EncodedAnswers { frame, count: 0 }
    }

    /// Its bytes so far.
    pub fn bytes(&self) -> usize {
        self.frame.len()
    }

    /// The answers so far.
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// The next answer, which is no value.
    pub fn put(&mut self, answer: &Answer) {
        answer.put(&mut self.frame);
        self.count += 1;
    }

    /// The next answer, a value.
    pub fn put_value(&mut self, value: &[u8]) {
        self.frame.put_u8(VALUE_TAG);
        put_len(value.len(), &mut self.frame);
        self.frame.put_slice(value);
        self.count += 1;
    }

    /// The whole frame.
    pub fn into_frame(self, envelope: Envelope, revision: Revision) -> BytesMut {
        let EncodedAnswers { mut frame, count } = self;
        let (no_group_moved, draw_above, needs_bytes) = (0u32, 0u64, 0u32);
        no_group_moved.put(&mut frame);
        draw_above.put(&mut frame);
        needs_bytes.put(&mut frame);
        frame[HEADER_BYTES..][..size_of::<u32>()].copy_from_slice(&count.to_le_bytes());
        frame::seal(envelope, (Opcode::ServiceAnswers, revision.0), &mut frame);
        frame
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::Message;
    use crate::service::ServiceAnswers;

    #[test]
    fn the_frame_is_that_of_the_message() {
        let value = |len: usize| Answer::Value(Bytes::from(vec![7; len]));
        let all = [
            value(0),
            Answer::Nil,
            value(70_000),
            Answer::Int(-3),
            Answer::Ok,
            value(1),
        ];
        let envelope = Envelope {
            request: 77,
            answer: true,
            deadline_ms: 0,
        };
        for count in 0..=all.len() {
            let answers = &all[..count];
            let mut encoded = EncodedAnswers::with_capacity(100);
            for answer in answers {
                match answer {
                    Answer::Value(value) => encoded.put_value(value),
                    answer => encoded.put(answer),
                }
            }
            assert_eq!(encoded.count(), count);
            let message = Message::ServiceAnswers(ServiceAnswers {
                revision: Revision(9),
                answers: answers.to_vec(),
                moved: Vec::new(),
                draw_above: 0,
                needs_bytes: 0,
            });
            let mut whole = BytesMut::new();
            frame::encode(envelope, &message, &mut whole);
            assert_eq!(encoded.into_frame(envelope, Revision(9)), whole);
        }
    }
}
