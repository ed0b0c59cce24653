//! Places, their order, and what they weigh.

use super::*;
use bytes::Buf;

fn written(output: &mut Output) -> String {
    let bytes = output.copy_to_bytes(output.remaining());
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn answers_leave_in_the_order_of_the_commands() {
    let (mut places, mut output) = (ReplyQueue::default(), Output::new());
    places.tail(&mut output).ok();
    assert_eq!(places.next(), 0);
    places.push_one(Join::Plain, Protocol::Resp2, Time(5), PartialReply::Away);
    places.tail(&mut output).integer(2);
    let parts = vec![PartialReply::Answered(Answer::Int(1)), PartialReply::Away];
    places.push_many(Join::Sum, Protocol::Resp2, Time(5), parts);
    places.tail(&mut output).integer(4);
    places.release(&mut output);
    assert_eq!(written(&mut output), "+OK\r\n");
    assert!(places.held_bytes() > 0);

    places.settle(1, 1, Answer::Int(2));
    places.release(&mut output);
    assert_eq!(written(&mut output), "", "the first still waits");
    places.settle(0, 0, Answer::Int(1));
    places.settle(0, 0, Answer::Int(9));
    places.release(&mut output);
    assert_eq!(written(&mut output), ":1\r\n:2\r\n:3\r\n:4\r\n");
    assert_eq!((places.len(), places.next()), (0, 2));
    places.settle(0, 0, Answer::Nil);
}

/// Regression: what was asked by commands that waited, and answers behind an earlier one, counted as nothing: a client whose writes
/// waited for slow copies took a thousand times its values' size.
#[test]
fn what_waits_weighs_what_was_asked_and_answered_until_it_leaves() {
    let (mut places, mut output) = (ReplyQueue::default(), Output::new());
    places.charge_bytes(7);
    assert_eq!(places.charged_bytes(), 0, "nothing waits");
    for bytes in [1000, 50] {
        places.push_one(Join::Plain, Protocol::Resp2, Time(5), PartialReply::Away);
        places.charge_bytes(bytes);
    }
    places.settle(1, 0, Answer::Value(vec![0; 300].into()));
    places.settle(1, 0, Answer::Value(vec![0; 300].into()));
    places.release(&mut output);
    assert_eq!(places.charged_bytes(), 1350);
    places.settle(0, 0, Answer::Ok);
    places.release(&mut output);
    assert_eq!((places.charged_bytes(), places.len()), (0, 0));
}

/// Regression: all values of a command waited for the last one, so that a node which forwards held them all.
#[test]
fn large_values_of_one_command_leave_as_they_come() {
    let (mut places, mut output) = (ReplyQueue::default(), Output::new());
    let away = || (0..4).map(|_| PartialReply::Away).collect();
    let value = || Answer::Value(vec![b'v'; WHOLE_BYTES_MAX].into());
    places.push_many(Join::Each, Protocol::Resp2, Time(5), away());
    places.charge_bytes(20);
    places.push_many(Join::Each, Protocol::Resp2, Time(5), away());
    places.settle(0, 1, value());
    places.release(&mut output);
    assert!(output.is_empty(), "the first is missing");
    places.settle(0, 0, Answer::Nil);
    places.release(&mut output);
    assert_eq!(places.charged_bytes(), 20, "it has left");
    let begun = written(&mut output);
    assert!(
        begun.starts_with("*4\r\n$-1\r\n$1048576\r\nvvv"),
        "{}",
        &begun[..40]
    );
    let failed = Answer::error(staves_wire::ErrorCode::Busy, "later");
    places.settle(0, 2, failed.clone());
    places.settle(0, 3, Answer::Value("d".into()));
    // One that failed before anything of it left is its error.
    places.settle(1, 0, failed);
    places.settle(1, 1, value());
    places.release(&mut output);
    assert_eq!(written(&mut output), "-TRYAGAIN later\r\n$1\r\nd\r\n");
    places.settle(1, 2, Answer::Nil);
    places.settle(1, 3, Answer::Nil);
    places.release(&mut output);
    assert_eq!(written(&mut output), "-TRYAGAIN later\r\n");
    assert_eq!((places.charged_bytes(), places.len()), (0, 0));
}

/// Regression: what a node had itself of many values counted as nothing while the others were fetched.
#[test]
fn values_that_are_there_when_a_command_begins_to_wait_are_charged() {
    let (mut places, mut output) = (ReplyQueue::default(), Output::new());
    let here = || PartialReply::Answered(Answer::Value(vec![0; 500].into()));
    let parts = vec![here(), PartialReply::Away, here()];
    places.push_many(Join::Each, Protocol::Resp2, Time(5), parts);
    places.charge_bytes(20);
    assert_eq!(places.charged_bytes(), 1020);
    places.settle(0, 1, Answer::Nil);
    places.release(&mut output);
    assert_eq!((places.charged_bytes(), places.len()), (0, 0));
}

#[test]
fn what_waits_can_be_asked_elsewhere_once() {
    let mut places = ReplyQueue::default();
    let op = OwnedOp::Get { key: "k".into() };
    places.push_one(
        Join::Plain,
        Protocol::Resp2,
        Time(5),
        PartialReply::Waits(op.clone()),
    );
    assert_eq!(places.send_away(0, 0), Some((op, Time(5))));
    assert_eq!(places.send_away(0, 0), None);
    assert_eq!(places.send_away(7, 0), None);
}
