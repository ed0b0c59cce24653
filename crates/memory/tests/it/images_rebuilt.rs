//! Images of a bucket whose data bucket has just been replaced: pages and memory come back one by one.

use bytes::Bytes;
use staves_model::CHUNK_BYTES;
use staves_wire::memory::Action;
use staves_wire::service::Answer;

use crate::cluster::{Cluster, bytes};

const CHUNK: usize = CHUNK_BYTES as usize;

fn put(image: u32, session: u64, chunk: u64, bytes: &[u8]) -> Action {
    Action::Put {
        image,
        session,
        offset: chunk * CHUNK_BYTES,
        bytes: Bytes::copy_from_slice(bytes),
    }
}

fn ok(c: &mut Cluster, request: u64, action: &Action) {
    assert_eq!(c.run(0, Some(request), action), Answer::Ok, "{action:?}");
}

/// So many chunks of a volume, and a copy of it; both then have some of their own.
fn with_copy((m, k): (u8, u8), chunks: u64) -> Cluster {
    let mut c = Cluster::new(m, k, usize::from(m + k) + 1, 400);
    for chunk in 0..chunks {
        ok(&mut c, 1 + chunk, &put(0, 1, chunk, &bytes(chunk, CHUNK)));
    }
    let copy = Action::Copy {
        of: 0,
        session: 2,
        image: 9,
    };
    ok(&mut c, 1000, &copy);
    ok(
        &mut c,
        1001,
        &Action::Fence {
            image: 9,
            session: 1,
        },
    );
    c
}

/// Deletes an image, message by message.
fn drop_slowly(c: &mut Cluster, image: u32, first_request: u64) {
    for request in first_request.. {
        let token = c.submit(0, Some(request), &Action::Drop { image });
        let answer = loop {
            match c.answered(token) {
                Some(answer) => break answer,
                None if c.deliver_at_most(1) == 0 => c.tick_without_delivery(),
                None => {}
            }
        };
        match answer {
            Answer::Int(0) => return,
            Answer::Int(1) => {}
            other => panic!("a deletion is answered {other:?}"),
        }
    }
}

fn read(c: &mut Cluster, image: u32, chunk: u64) -> Bytes {
    let read = Action::Read {
        image,
        offset: chunk * CHUNK_BYTES,
        len: CHUNK as u32,
    };
    match c.run(0, None, &read) {
        Answer::Value(bytes) => bytes,
        other => panic!("a read is answered {other:?}"),
    }
}

/// The table of an image may lie behind all places that a change is about: all members must have told of memory up to there, too.
#[test]
fn a_table_that_lies_high_is_not_changed_before_all_members_have_memory_for_it() {
    for (scheme, seats) in [((1, 1), &[1, 2][..]), ((2, 1), &[3, 1, 2])] {
        let mut c = with_copy(scheme, 100);
        c.settle();
        c.change(seats);
        let (mut tokens, mut session) = (Vec::new(), 2);
        for _ in 0..400 {
            if c.group.open {
                session += 1;
                let fence = Action::Fence { image: 9, session };
                tokens.push(c.submit(0, Some(2000 + session), &fence));
            }
            if c.deliver_at_most(1) == 0 {
                c.tick_without_delivery();
            }
        }
        for token in tokens {
            assert_eq!(c.wait(token), Answer::Ok);
        }
        ok(&mut c, 1900, &put(9, session, 0, b"own"));
        c.settle();
        c.check();
        c.check_code();
        assert_eq!(&read(&mut c, 9, 0)[..3], b"own");
        assert_eq!(read(&mut c, 0, 0), bytes(0, CHUNK));
    }
}

/// Places that become free are zeroed: their pages must be here for that.
#[test]
fn what_is_deleted_while_its_pages_are_rebuilt_does_not_come_back() {
    let mut c = with_copy((2, 1), 3);
    // The copy has three places of its own, spread among those of the volume.
    for chunk in 0..3 {
        ok(
            &mut c,
            1100 + chunk,
            &put(9, 1, chunk, &bytes(50 + chunk, CHUNK)),
        );
        ok(
            &mut c,
            1200 + chunk,
            &put(0, 2, 100 + chunk, &bytes(70 + chunk, CHUNK)),
        );
    }
    c.settle();
    c.cut_off = vec![0];
    c.no_parts = true;
    c.change(&[3, 1, 2]);
    c.open();
    let (missing, _) = c.buckets[3].member().progress();
    assert!(missing > 50, "{missing} pages are missing");
    c.no_parts = false;
    drop_slowly(&mut c, 9, 2000);
    let (left, _) = c.buckets[3].member().progress();
    println!("{left} of {missing} came after that");
    c.settle();
    c.check();
    c.check_code();
    for chunk in 0..6 {
        ok(&mut c, 3000 + chunk, &put(0, 2, 200 + chunk, b"x"));
        let got = read(&mut c, 0, 200 + chunk);
        assert!(got[1..].iter().all(|b| *b == 0), "chunk {chunk}");
    }
}
