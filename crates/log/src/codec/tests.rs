//! Every message survives its encoding, and bytes that are none are refused without a panic.

use std::sync::Arc;

use proptest::prelude::*;
use staves_model::{GroupId, Incarnation, NodeId};
use staves_wire::service::Body;

use super::*;
use crate::message::*;
use crate::retention::LogRetention;
use crate::types::*;

fn id(seq: u32) -> AppendId {
    let session = SessionId {
        term: Term(3),
        count: 7,
    };
    AppendId { session, seq }
}

fn condition() -> AppendCondition {
    AppendCondition {
        tag: Some(4),
        tail: 80,
    }
}

fn term() -> TermStart {
    TermStart {
        term: Term(5),
        start: 80,
        sequencer: SequencerId {
            node: NodeId(2),
            incarnation: Incarnation(9),
        },
    }
}

fn binding() -> Binding {
    let link = TagLink {
        tag: 4,
        back: vec![1, 2, 3],
    };
    Binding {
        position: 81,
        count: 2,
        id: Some(id(1)),
        links: vec![link],
    }
}

fn log_record() -> Box<LogRecord> {
    let projection = Projection::default().grown(0, &[GroupId(1), GroupId(4)]);
    let view = LogView {
        log: LogId(9),
        options: LogOptions::default(),
        term: Term(4),
        sequencer: Some(term().sequencer),
        start: 60,
        projection: Arc::new(projection),
        trim: 3,
    };
    let lead = Leadership {
        term: Term(5),
        sequencer: term().sequencer,
        added: vec![GroupId(6)],
    };
    Box::new(LogRecord {
        name: "orders".into(),
        view,
        lead: Some(lead),
        cursors: [("reader".to_owned(), 7)].into(),
        retention: LogRetention {
            records: Some(100),
            ..LogRetention::default()
        },
    })
}

fn unit_ops() -> Vec<UnitOp> {
    let data = Records {
        lens: vec![2, 3],
        bytes: Bytes::from_static(b"abcde"),
    };
    let low = 1;
    let runs = vec![PageRun {
        count: 4,
        entry: PageEntry::Unit(GroupId(1)),
    }];
    let park = ParkedAppend {
        id: id(1),
        low,
        count: 2,
        tags: vec![4],
        condition: Some(condition()),
        sequencer: term().sequencer,
        data: data.clone(),
    };
    vec![
        UnitOp::Park(park),
        UnitOp::Write {
            term: term(),
            binding: binding(),
            low,
            data,
        },
        UnitOp::Read {
            position: 4,
            term: Term(5),
            start: 1,
            word: Some((term(), binding())),
        },
        UnitOp::Seal {
            term: Term(5),
            options: LogOptions::of(AppendMode::Corfu),
        },
        UnitOp::Sealed {
            term: Term(5),
            floor: 9,
            cursor: SealCursor::Claims(7),
        },
        UnitOp::WritePage {
            term: Term(5),
            page: 2,
            runs,
        },
        UnitOp::Prefix {
            term: Term(5),
            position: 9,
            floor: id(1).session,
        },
        UnitOp::Forget,
    ]
}

fn unit_answers() -> Vec<UnitAnswer> {
    let head = RecordHead {
        id: id(2),
        index: 1,
        count: 2,
        links: binding().links,
    };
    let items = vec![
        SealedItem::Low {
            session: id(1).session,
            low: 1,
        },
        SealedItem::Tag {
            tag: 3,
            positions: vec![1],
        },
        SealedItem::Claim {
            position: 8,
            count: 9,
        },
    ];
    vec![
        UnitAnswer::Slot {
            position: 3,
            slot: SlotAnswer::Data {
                head,
                data: Bytes::from_static(b"record"),
            },
            stale: Some(Term(6)),
        },
        UnitAnswer::SealedItems {
            term: Term(5),
            cursor: SealCursor::START,
            items,
            next: Some(SealCursor::Tags(4)),
        },
        UnitAnswer::Busy { id: None },
        UnitAnswer::SessionOver { id: id(1) },
        UnitAnswer::Done,
    ]
}

fn requests() -> Vec<BucketRequest> {
    let log = LogId(77);
    let unit = unit_ops().into_iter();
    let unit = unit.map(|op| BucketRequest::Unit(UnitRequest { log, op }));
    let lead = RecordRequest::Lead {
        name: "orders".into(),
        log,
        from_term: Term(4),
        sequencer: term().sequencer,
        added: vec![GroupId(8)],
    };
    let list = RecordRequest::List {
        after: String::new(),
        limit: 10,
    };
    unit.chain([lead, list].map(BucketRequest::Record))
        .collect()
}

fn encoded(reply: &UnitReply) -> BytesMut {
    let mut out = BytesMut::new();
    reply.head(&mut out);
    if let UnitAnswer::Slot {
        slot: SlotAnswer::Data { data, .. },
        ..
    } = &reply.answer
    {
        out.extend_from_slice(data);
    }
    out
}

#[test]
fn every_request_survives_its_encoding() {
    for request in requests() {
        let body = request.clone().into_body(&mut BytesMut::new());
        assert_eq!(BucketRequest::from_body(&body), Ok(request));
        for len in 0..body.head.len() {
            let head = body.head.slice(..len);
            let payload = body.payload.clone();
            assert!(BucketRequest::from_body(&Body { head, payload }).is_err());
        }
    }
}

#[test]
fn every_reply_survives_its_encoding() {
    let log = LogId(77);
    for answer in unit_answers() {
        let reply = UnitReply { log, answer };
        let bytes = encoded(&reply).freeze();
        assert_eq!(UnitReply::decode(bytes), Ok(reply));
    }
    for answer in [
        SequencerAnswer::Token {
            term: term(),
            binding: binding(),
        },
        SequencerAnswer::SessionOpened {
            nonce: 5,
            session: id(1).session,
        },
        SequencerAnswer::SessionOver { id: id(1) },
        SequencerAnswer::Tail {
            tail: 9,
            stream: vec![1, 2],
            trim: 1,
        },
        SequencerAnswer::ConditionFailed { id: id(1), tail: 7 },
        SequencerAnswer::Grown { end: 4 },
        SequencerAnswer::Word {
            term: term(),
            position: 8,
            word: PositionWord::Open {
                unit: GroupId(1),
                binding: binding(),
            },
        },
    ] {
        let (reply, mut out) = (SequencerReply { log, answer }, BytesMut::new());
        reply.encode(&mut out);
        assert_eq!(SequencerReply::decode(out.freeze()), Ok(reply));
    }
    let moved = RecordReply::Refused(RecordRefusal::Moved(log_record()));
    for reply in [RecordReply::Record(log_record()), moved] {
        let mut out = BytesMut::new();
        reply.encode(&mut out);
        assert_eq!(RecordReply::decode(out.freeze()), Ok(reply));
    }
}

#[test]
fn a_list_past_its_bound_is_refused_before_it_is_read() {
    let request = BucketRequest::Unit(UnitRequest {
        log: LogId(1),
        op: UnitOp::Park(ParkedAppend {
            id: id(1),
            low: 0,
            count: 1,
            tags: vec![0; TAGS_MAX + 1],
            condition: None,
            sequencer: term().sequencer,
            data: Records::default(),
        }),
    });
    let body = request.into_body(&mut BytesMut::new());
    let error = BucketRequest::from_body(&body).expect_err("too many tags");
    assert!(matches!(error, DecodeError::TooMany { len: 9, max: 8, .. }));
}

proptest! {
    #[test]
    fn bytes_of_anyone_never_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        at in 0usize..9,
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let body = |head: Vec<u8>| Body {
            head: Bytes::from(head),
            payload: Bytes::from_static(b"abcde"),
        };
        let all = requests();
        let good = all[at % all.len()].clone().into_body(&mut BytesMut::new());
        let mut changed = good.head.to_vec();
        let index = place.index(changed.len());
        changed[index] = byte;
        let _ = BucketRequest::from_body(&body(changed));
        let _ = BucketRequest::from_body(&body(bytes.clone()));
        let _ = UnitReply::decode(Bytes::from(bytes.clone()));
        let _ = SequencerRequest::decode(Bytes::from(bytes.clone()));
        let _ = SequencerReply::decode(Bytes::from(bytes.clone()));
        let _ = RecordReply::decode(Bytes::from(std::mem::take(&mut bytes)));
    }
}

#[test]
fn a_message_to_a_sequencer_holds_so_many_requests_and_no_more() {
    let request = |seq| SequencerRequest {
        log: LogId(4),
        op: SequencerOp::Seq {
            id: id(seq),
            count: 1,
            tags: vec![u64::from(seq)],
            unit: GroupId(3),
            low: 0,
            lost: None,
            condition: None,
        },
    };
    let encoded = |count: usize| {
        let mut out = BytesMut::new();
        (0..count as u32).for_each(|seq| request(seq).encode(&mut out));
        out.freeze()
    };
    for count in [1, 2, ASK_REQUESTS_MAX] {
        let all: Vec<_> = (0..count as u32).map(request).collect();
        assert_eq!(SequencerRequest::decode_several(encoded(count)), Ok(all));
    }
    let error = SequencerRequest::decode_several(encoded(ASK_REQUESTS_MAX + 1));
    let too_many = DecodeError::TooMany {
        what: "requests to a sequencer",
        len: ASK_REQUESTS_MAX + 1,
        max: ASK_REQUESTS_MAX,
    };
    assert_eq!(error, Err(too_many));
    assert!(
        SequencerRequest::decode_several(Bytes::new()).is_err(),
        "none"
    );
    let mut cut = encoded(3);
    cut.truncate(cut.len() - 1);
    assert!(SequencerRequest::decode_several(cut).is_err(), "cut off");
}
