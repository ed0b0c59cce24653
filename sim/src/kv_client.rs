//! What clients of a key-value world ask for. Keys 0 to 2 hold text: key 0 is mostly set, key 1 mostly
//! set if absent and deleted, key 2 mostly appended to. Keys 3 and 4 count; key 4 is never deleted, so
//! its numbers never repeat.

use staves_wire::error::ErrorCode;
use staves_wire::group::RequestId;
use staves_wire::service::Answer;

use crate::event::{KvRequest, Packet, client_id};
use crate::kv::{KEYS, KvOperation};
use crate::kv_history::{
    Act, Call, Content, Seen, Text, Verdict, call_of, check, is_large, seen_of,
};
use crate::world::World;

/// Calls that the search over one key's history makes before it gives up.
const SEARCH_MAX: usize = 200_000;

impl World {
    /// Operations that clients began.
    pub fn operations(&self) -> usize {
        let keys = self.kv.as_ref().map_or(0, |kv| kv.history.len());
        let memory = self.memory.as_ref().map_or(0, |m| m.history.len());
        self.history.len() + keys + memory
    }

    pub(crate) fn begin_kv(&mut self, c: usize) -> bool {
        let key = self.rng.below(KEYS as u64) as usize;
        let client = &mut self.clients[c];
        client.number += 1;
        let id = (c as u64 + 1) << 40 | client.number;
        let act = self.pick_act(key, id);
        let Some(kv) = &mut self.kv else {
            return false;
        };
        let client = &mut self.clients[c];
        client.attempts = 0;
        client.under_way = Some(kv.history.len());
        kv.history.push(KvOperation::new(key, act, self.now));
        true
    }

    fn pick_act(&mut self, key: usize, id: u64) -> Act {
        let reads_mostly = self.profile.think <= 10;
        if self.rng.chance(if reads_mostly { 800 } else { 300 }) {
            return Act::Get;
        }
        let len = match self.rng.below(100) {
            0..40 => 20 + self.rng.below(40),
            40..75 => 15_000 + self.rng.below(20_000),
            _ => 41_000 + self.rng.below(60_000),
        };
        let text = Text {
            id,
            len: len as usize,
        };
        let short = Text { id, len: 20 };
        match (key, self.rng.below(100)) {
            (0, 0..90) | (1, 0..20) | (2, 0..15) => Act::Set(text),
            (0, 90..95) => Act::SetIfAbsent(text),
            (0, _) => Act::Del,
            (1, 20..60) => Act::SetIfAbsent(text),
            (1, 60..80) => Act::Del,
            (1, _) => Act::GetDel,
            (2, 15..80) => Act::Append(short),
            (2, 80..90) => Act::GetDel,
            (2, _) => Act::Del,
            (3, 0..80) => Act::Incr(1 + (id % 3) as i64),
            (3, 80..90) => Act::GetDel,
            (3, _) => Act::Del,
            _ => Act::Incr(1),
        }
    }

    pub(crate) fn ask_kv(&mut self, c: usize) {
        let place = self.first_client() + c;
        let client = &mut self.clients[c];
        client.attempts += 1;
        let Some(operation) = client.under_way else {
            return;
        };
        let data = client
            .map
            .as_ref()
            .and_then(|g| g.last_open.members.first().copied().flatten());
        let request = KvRequest {
            client: place,
            id: RequestId {
                client: client_id(place),
                number: client.number,
                floor: client.number,
            },
            attempt: client.attempts - 1,
            operation,
        };
        if let Some(node) = data.and_then(|x| self.entry_of(x.id)) {
            self.send(place, node, Packet::KvRequest(request));
        }
    }

    pub(crate) fn deliver_kv_answer(
        &mut self,
        c: usize,
        number: u64,
        life: usize,
        answer: &Answer,
    ) {
        if number != self.clients[c].number {
            return;
        }
        let Some(i) = self.clients[c].under_way.take() else {
            return;
        };
        let now = self.now;
        let Some(operation) = self.kv.as_mut().and_then(|kv| kv.history.get_mut(i)) else {
            return;
        };
        operation.life = life;
        match answer {
            Answer::Error(ErrorCode::OutOfMemory, _) => {
                operation.refused = true;
                self.cover.count("key-value: refused for lack of memory");
            }
            // It may have taken effect, or not.
            Answer::Error(ErrorCode::Forgotten, _) => self.cover.count("key-value: forgotten"),
            // It took effect; with what answer nobody says any more.
            Answer::Error(ErrorCode::AnswerGone, _) => self.cover.count("key-value: answer gone"),
            answer => {
                operation.returned = Some(now);
                operation.seen = seen_of(answer);
                let (act, seen) = (operation.act, operation.seen);
                if seen.is_none() {
                    return self.violation(format!("{act:?} was answered with {answer:?}"));
                }
                self.count_answer(act, seen);
            }
        }
    }

    fn count_answer(&mut self, act: Act, seen: Option<Seen>) {
        match (act, seen) {
            (Act::Set(t) | Act::SetIfAbsent(t), Some(Seen::Ok)) if t.is_large() => {
                self.cover.count("key-value: large value written");
            }
            (Act::Get | Act::GetDel, Some(Seen::Value(c))) if is_large(&c) => {
                self.cover.count("key-value: large value read");
            }
            (Act::SetIfAbsent(_), Some(Seen::Nil)) => {
                self.cover.count("key-value: condition did not hold");
            }
            (Act::Incr(_), _) => self.cover.count("key-value: counted"),
            (Act::Append(_), _) => self.cover.count("key-value: appended"),
            _ => {}
        }
    }

    /// Whether one order of each key's operations explains what all clients saw (I8, I9).
    pub(crate) fn check_kv_history(&mut self) {
        let spans = self.spans();
        let Some(kv) = self.kv.as_mut() else {
            return;
        };
        let mut bad = Vec::new();
        for span in spans {
            for key in 0..KEYS {
                let calls: Vec<Call> = kv
                    .history
                    .iter()
                    .filter(|o| o.key == key)
                    .filter_map(|o| o.in_life(span))
                    .map(|o| call_of(&o))
                    .collect();
                match check(&calls, SEARCH_MAX) {
                    Verdict::Fine => {}
                    Verdict::Undecided => kv.undecided += 1,
                    Verdict::Bad(what) => {
                        bad.push(format!("I8/I9 life {} key {key}: {what}", span.0));
                    }
                }
            }
            let mut numbers: Vec<_> = kv
                .history
                .iter()
                .filter(|o| o.key == KEYS - 1 && matches!(o.act, Act::Incr(_)))
                .filter(|o| o.life == span.0)
                .filter_map(|o| o.seen)
                .collect();
            let answers = numbers.len();
            numbers.sort_unstable();
            numbers.dedup();
            if numbers.len() < answers {
                bad.push(format!("I9 key {}: a number was given twice", KEYS - 1));
            }
        }
        for what in bad {
            self.violation(what);
        }
    }
}

/// The name of a key.
pub(crate) fn name(key: usize) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

/// The number of a name.
pub(crate) fn number(name: &[u8]) -> Option<usize> {
    (0..KEYS).find(|k| self::name(*k) == name)
}

/// A read that is known to be right, for the end of a history.
pub(crate) fn last_read(key: usize, value: Option<&[u8]>, now: u64, life: usize) -> KvOperation {
    KvOperation {
        returned: Some(now + 1),
        life,
        seen: Some(value.map_or(Seen::Nil, |v| Seen::Value(Content::of(v)))),
        ..KvOperation::new(key, Act::Get, now)
    }
}
