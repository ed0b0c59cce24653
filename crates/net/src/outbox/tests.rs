//! The order in which messages leave.

use super::*;
use bytes::Bytes;
use staves_model::{
    ClientId, DiskId, Epoch, GroupId, HashSlot, Incarnation, Label, MemberId, MemberSlot, NodeId,
    PoolId, Revision, ServiceId, Time,
};
use staves_wire::admin::{
    GroupStateAnswer, GroupSumsAnswer, KeyRangeAnswer, KeySpan, PageSum, StatusAnswer,
};
use staves_wire::directory::{
    Evidence, GetMap, MapAnswer, Propose, Proposed, Raft, RaftAnswer, RaftKind, Report, Sign,
};
use staves_wire::files::{FileBytes, FileId, FilePut};
use staves_wire::group::{Batch, GroupEnvelope, GroupMessage};
use staves_wire::hello::Ping;
use staves_wire::log::LogSaid;
use staves_wire::service::{
    Address, Answer, Body, NumberedOp, PoolRef, ServiceAnswers, ServiceRequest,
};
use staves_wire::{Opcode, Size};
use std::io::Read;
use tokio::net::{TcpListener, TcpStream};

const STALL_MAX: Duration = Duration::from_millis(400);

fn large() -> Message {
    Message::ServiceAnswers(ServiceAnswers {
        revision: Revision(1),
        answers: vec![Answer::Value(Bytes::from(vec![7; 32 << 20]))],
        moved: Vec::new(),
        draw_above: 0,
        needs_bytes: 0,
    })
}

fn request(service: ServiceId, to: Address, payload: Bytes) -> Message {
    let head = Bytes::from_static(b"head");
    let body = Body { head, payload };
    Message::Service(ServiceRequest {
        revision: Revision(1),
        service,
        pool: PoolRef::Id(PoolId(1)),
        client: ClientId(1),
        floor: 1,
        retry: false,
        forwarded: false,
        answer_bytes_max: 0,
        strict: false,
        ops: vec![NumberedOp {
            number: 1,
            to,
            body,
        }],
    })
}

/// A message of this opcode with so many bytes, if it may have more than one frame.
fn large_of(opcode: Opcode, len: usize) -> Option<Message> {
    let bytes = Bytes::from(vec![7; len]);
    Some(match opcode {
        Opcode::Service => {
            let to = Address::Bucket(GroupId(1), MemberSlot(2));
            request(ServiceId(200), to, bytes)
        }
        Opcode::ServiceAnswers => Message::ServiceAnswers(ServiceAnswers {
            revision: Revision(1),
            answers: vec![Answer::Ok, Answer::Value(bytes)],
            moved: Vec::new(),
            draw_above: 0,
            needs_bytes: 0,
        }),
        Opcode::Raft => Message::Raft(Raft {
            kind: RaftKind::Append,
            body: bytes,
        }),
        Opcode::RaftAnswer => Message::RaftAnswer(RaftAnswer { body: bytes }),
        Opcode::Propose => Message::Propose(Propose {
            expected: None,
            change: bytes,
        }),
        Opcode::Proposed => Message::Proposed(Proposed::Applied {
            revision: Revision(1),
            outcome: bytes,
        }),
        Opcode::MapAnswer => Message::MapAnswer(MapAnswer {
            revision: Revision(1),
            map: Some(bytes),
        }),
        Opcode::FileBytes => Message::FileBytes(FileBytes { bytes: Some(bytes) }),
        Opcode::StatusAnswer => Message::StatusAnswer(StatusAnswer { json: bytes }),
        Opcode::GroupStateAnswer => Message::GroupStateAnswer(GroupStateAnswer { json: bytes }),
        _ => return large_list_of(opcode, len),
    })
}

fn large_batch(len: usize) -> Batch {
    let message = GroupMessage::Get {
        page: 1,
        count: 1,
        urgent: false,
        held: vec![Label::default(); len / 16],
    };
    Batch(vec![GroupEnvelope {
        group: GroupId(1),
        epoch: Epoch(1),
        from: MemberId::new(NodeId(1), Incarnation(1)),
        to: DiskId::MEMORY,
        message,
    }])
}

/// The same for those that carry a list, or more than one thing.
fn large_list_of(opcode: Opcode, len: usize) -> Option<Message> {
    let bytes = Bytes::from(vec![7; len]);
    let many = |bytes_each: usize| 0..len / bytes_each;
    let (node, incarnation) = (NodeId(1), Incarnation(1));
    Some(match opcode {
        Opcode::Group => Message::Group(large_batch(len)),
        Opcode::Report => Message::Report(Report {
            from: node,
            incarnation,
            seen: many(8)
                .map(|_| Evidence {
                    node,
                    incarnation,
                    sign: Sign::Alive,
                })
                .collect(),
        }),
        Opcode::LogSaid => Message::LogSaid(LogSaid { body: bytes }),
        Opcode::FilePut => Message::FilePut(FilePut {
            pool: PoolId(1),
            file: FileId { high: 0, low: 1 },
            size: 1,
            from: 0,
            bytes,
            forwarded: false,
        }),
        Opcode::KeyRangeAnswer => Message::KeyRangeAnswer(KeyRangeAnswer {
            node,
            incarnation,
            spans: many(8)
                .map(|_| KeySpan {
                    pool: PoolId(1),
                    first: HashSlot(1),
                    last: HashSlot(1),
                    data: true,
                })
                .collect(),
        }),
        Opcode::GroupSumsAnswer => Message::GroupSumsAnswer(GroupSumsAnswer {
            slot: MemberSlot(1),
            epoch: Epoch(1),
            end: 1,
            sums: vec![PageSum {
                page: 1,
                labels: Vec::new(),
                sum: bytes,
            }],
        }),
        _ => return None,
    })
}

/// Regression: large writes of regions, and later blocks of files, maps and snapshots of the directory, waited among the small
/// messages, and held them up.
#[test]
fn large_messages_of_every_kind_wait_apart() {
    for opcode in Opcode::ALL {
        let word = opcode.word();
        let Some(message) = large_of(*opcode, BULK_BYTES + 1) else {
            assert_eq!(opcode.size(), Size::Frame, "{word} may be large");
            continue;
        };
        let outbox = Outbox::new(1 << 30, None, None);
        let ping = Message::Ping(Ping { clock: Time(1) });
        let put = |message| outbox.put(Envelope::default(), message, usize::MAX);
        assert_eq!((put(&message), put(&ping)), (Ok(()), Ok(())), "{word}");
        let frames = outbox.frames.lock();
        let waiting = (frames.bulk.len(), frames.chunks.len());
        assert_eq!(waiting, (1, 1), "{word}");
        let header = frames.chunks[0].bytes.first_chunk().map(Header::decode);
        let first = header.expect("a frame").expect("a header").opcode;
        assert_eq!(first, Opcode::Ping as u8, "the small one passes {word}");
    }
}

/// Large messages take turns with small ones: a megabyte at a time, and the short end of a message with the frame before.
#[test]
fn so_many_large_messages_leave_at_a_time() {
    let outbox = Outbox::new(1 << 30, None, None);
    let part = large_of(Opcode::FileBytes, 300 << 10).expect("it may be large");
    for _ in 0..5 {
        assert_eq!(outbox.put(Envelope::default(), &part, usize::MAX), Ok(()));
    }
    let mut taken = VecDeque::new();
    outbox.take(&mut taken);
    assert_eq!(taken.len(), 3);
    outbox.take(&mut taken);
    assert_eq!(taken.len(), 5);
    let block = large_of(Opcode::FileBytes, frame::FRAME_BODY_MAX).expect("it may be large");
    assert_eq!(outbox.put(Envelope::default(), &block, usize::MAX), Ok(()));
    outbox.take(&mut taken);
    assert_eq!(taken.len(), 7);
    assert!(outbox.nothing_waits());
}

async fn pair() -> (OwnedWriteHalf, std::net::TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("its address");
    let (ours, theirs) = tokio::join!(TcpStream::connect(addr), listener.accept());
    let theirs = theirs.expect("it comes").0.into_std().expect("a socket");
    theirs.set_nonblocking(true).expect("it may");
    let (_, writing) = ours.expect("it is taken").into_split();
    (writing, theirs)
}

/// Regression: of an answer of many frames only what had not left yet was counted, while the memory of all of it was held.
#[test]
fn a_large_message_counts_until_its_last_frame_is_written() {
    let outbox = Outbox::new(usize::MAX, None, None);
    let message = large_of(Opcode::FileBytes, 3 * frame::FRAME_BODY_MAX).expect("it may be large");
    let put = outbox.put(Envelope::default(), &message, usize::MAX);
    assert_eq!(put, Ok(()));
    let all = outbox.queued_bytes();
    assert!(all > 3 * frame::FRAME_BODY_MAX);
    while !outbox.nothing_waits() {
        assert_eq!(outbox.queued_bytes(), all);
        let mut pieces = VecDeque::new();
        outbox.take(&mut pieces);
        pieces.into_iter().for_each(|piece| outbox.written(piece));
    }
    assert!(outbox.is_empty());
}

/// A request whose deadline passed before its first byte was written is not sent, small or large. One that is sent carries what is
/// left of its deadline, and a message that was begun is ended. The test writes by itself, so that nothing leaves while it waits.
#[tokio::test]
async fn requests_that_waited_too_long_to_be_sent_are_not_sent() {
    const WAITED: Duration = Duration::from_millis(60);
    let (socket, mut theirs) = pair().await;
    let outbox = Outbox::new(1 << 30, None, None);
    let put = |request, deadline_ms, message: &Message| {
        let envelope = Envelope {
            request,
            answer: false,
            deadline_ms,
        };
        assert_eq!(outbox.put(envelope, message, usize::MAX), Ok(()));
    };
    let ask = Message::GetMap(GetMap {
        known: Revision(1),
        wait_ms: 1,
    });
    put(1, 20_000, &large());
    let mut taken = VecDeque::new();
    outbox.take(&mut taken);
    assert_eq!(taken.len(), 1, "a frame of the large one");
    outbox.writing.lock().rest = taken;
    put(21, 50, &ask);
    put(22, 10_000, &ask);
    put(23, 50, &large());
    put(24, 20_000, &ask);
    tokio::time::sleep(WAITED).await;
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 1 << 20]);
    while !outbox.is_empty() {
        socket.writable().await.expect("it is open");
        outbox.write_now(&socket);
        while let Ok(read @ 1..) = theirs.read(&mut buffer) {
            bytes.extend_from_slice(&buffer[..read]);
        }
    }
    theirs.set_nonblocking(false).expect("it may");
    drop(socket);
    theirs.read_to_end(&mut bytes).expect("to the end");
    let (mut left, mut large_ended) = (Vec::new(), false);
    let mut rest = &bytes[..];
    while let Some(header) = rest.first_chunk().map(Header::decode) {
        let header = header.expect("a header");
        rest = &rest[HEADER_BYTES + header.body_len as usize..];
        match header.request {
            1 => large_ended = header.flags & frame::FLAG_MORE == 0,
            request => left.push((request, header.deadline_ms)),
        }
    }
    assert!(large_ended && rest.is_empty());
    let waited = WAITED.as_millis() as u32;
    assert!(
        matches!(left[..], [(22, a), (24, b)] if a <= 10_000 - waited && b <= 20_000 - waited),
        "{left:?}"
    );
}

/// Regression: the writer counted only what it wrote itself. A connection that was emptied by those
/// who write at once, as fast as the other side took it, was cut as stalled.
#[tokio::test]
async fn what_others_write_at_once_is_progress_too() {
    let (socket, mut theirs) = pair().await;
    let socket = Arc::new(socket);
    let outbox = Arc::new(Outbox::new(1 << 30, None, None));
    let envelope = Envelope {
        request: 1,
        answer: true,
        deadline_ms: 0,
    };
    for _ in 0..3 {
        let put = outbox.put(envelope, &large(), usize::MAX);
        assert_eq!(put, Ok(()));
    }
    let writer = {
        let (outbox, socket) = (outbox.clone(), socket.clone());
        tokio::spawn(async move { outbox.run(&socket, STALL_MAX).await })
    };
    let mut buffer = vec![0; 256 << 10];
    let begun = Instant::now();
    while begun.elapsed() < 4 * STALL_MAX {
        // One thread, on which this comes before the writer: that finds the room used up.
        let read = theirs.read(&mut buffer);
        assert!(read.is_ok() || !outbox.is_empty(), "{read:?}");
        (0..8).for_each(|_| outbox.write_now(&socket));
        std::thread::sleep(Duration::from_millis(5));
        tokio::task::yield_now().await;
        if writer.is_finished() {
            let error = writer.await.expect("no panic");
            panic!("cut after {:?}: {error}", begun.elapsed());
        }
    }
    assert!(
        !outbox.is_empty(),
        "there was something to write all the time"
    );
    // And now nobody takes anything.
    let error = writer.await.expect("no panic");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}
