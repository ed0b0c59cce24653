//! The order of operations that change their way, and the numbers that a connection gives up as it ends.

use super::*;
use staves_model::ClientId;
use staves_wire::cache::OwnedOp;

/// Regression: of MSET k 1 k 2, which came while the bucket did, the first was done after the second.
#[test]
fn operations_of_a_command_keep_their_order_while_their_bucket_comes() {
    let mut left = Left::default();
    let away = || Tried::<u8>::Elsewhere(3);
    assert_eq!(left.try_unless_gone(Some(3), away), Tried::Elsewhere(3));
    let comes = Tried::<u8>::Given;
    assert_eq!(
        left.try_unless_gone(Some(3), || comes(3)),
        Tried::Elsewhere(3)
    );
    assert_eq!(left.try_unless_gone(Some(4), || comes(4)), Tried::Given(4));
}

#[test]
fn a_connection_has_no_place_beyond_the_bound_but_its_first() {
    let in_flight = staves_net::InFlight::bounded(1, 2);
    let (mut one, other) = (
        WaitingPart::new(in_flight.clone()),
        WaitingPart::new(in_flight),
    );
    one.set(2);
    assert!(one.is_full(2), "a third of one has none");
    assert!(!other.is_full(0), "and the other's first has");
}

/// A connection ends while one interrupted write lies in its completions and another waits to set out.
#[test]
fn a_connection_that_ends_gives_up_the_numbers_of_its_interrupted_writes() {
    let (mut places, mut remote) = (ReplyQueue::default(), RemoteOps::default());
    let op = || OwnedOp::Append {
        key: "k".into(),
        value: "v".into(),
    };
    for _ in 0..3 {
        places.push_one(
            Join::Plain,
            Protocol::Resp2,
            Time(5),
            PartialReply::Waits(op()),
        );
    }
    let number = |number| RequestId {
        client: ClientId(7),
        number,
        floor: 1,
    };
    let completion = |place, result, request| Completion::Part {
        place,
        part: 0,
        result,
        request,
    };
    let received = vec![
        completion(0, Ok(Answer::Int(1)), None),
        completion(1, Err(Refused::Interrupted), Some(number(12))),
    ];
    for (place, request) in [(2, Some(number(13))), (3, None)] {
        let wanted = RemoteOp::new(4, &op().as_op(), request, Time(5), &mut BytesMut::new());
        remote.push(place, 0, wanted);
    }
    let mut given_up = Vec::new();
    give_up(
        received,
        &mut places,
        &mut remote,
        |_| 3,
        |bucket, request| {
            given_up.push((bucket, request.number));
        },
    );
    assert_eq!(given_up, [(3, 12), (4, 13)]);
}
