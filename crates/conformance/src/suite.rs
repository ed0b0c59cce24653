//! The suite that every service passes: operations of several clients under lost, doubled and reordered
//! messages and changes of members, judged as histories.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use staves_history::{Call, Operation, Verdict, check};
use staves_service::{Bucket, Limits, Refused, Service};
use staves_wire::error::ErrorCode;
use staves_wire::service::Answer;

use crate::{Draw, TestCluster, Workload};

/// Operations under way at once.
const UNDER_WAY_MAX: usize = 12;
/// Epochs of a run, and ticks of each before it is left alone to settle.
const EPOCHS: usize = 4;
const TICKS: usize = 20;
/// Steps of the search for an order of one object's operations.
const SEARCH_MAX: usize = 500_000;
/// Extents of a node.
const EXTENTS: u32 = 64;

/// Of a thousand operations, so many read.
const READS: u64 = 250;
/// Operations on an object that the next is drawn by.
const RECENT: usize = 8;

/// An operation of a client.
#[derive(Clone, Debug)]
pub struct Begun<O> {
    /// The client.
    pub client: u32,
    /// The object.
    pub object: u64,
    /// The operation on it.
    pub operation: O,
    /// Its number, by which it is retried. No other has it.
    pub number: u64,
    /// The time of its call.
    pub called: u64,
}

/// An operation of the history.
#[derive(Clone, Debug)]
pub struct Ended<O> {
    /// The operation.
    pub begun: Begun<O>,
    /// The time of the answer; `None` if it leaves open whether the operation took effect.
    pub returned: Option<u64>,
    /// The answer.
    pub answer: Answer,
}

type AnsweredOp<W> = (
    <W as Workload>::Operation,
    <<W as Workload>::Operation as Operation>::Seen,
);

/// The clients of a workload: the operations that they draw, and the history of the answers. It serves any
/// cluster, pure or real, with the times that it is given.
pub struct Clients<W: Workload> {
    history: Vec<Ended<W::Operation>>,
    /// The last operations on each object that were answered.
    recent: BTreeMap<u64, Vec<AnsweredOp<W>>>,
    drawn: u64,
}

impl<W: Workload> Default for Clients<W> {
    fn default() -> Clients<W> {
        let (history, recent) = (Vec::new(), BTreeMap::new());
        Clients {
            history,
            recent,
            drawn: 0,
        }
    }
}

impl<W: Workload> Clients<W> {
    /// The operations that had an effect or may have had one, in the order of their answers.
    pub fn history(&self) -> &[Ended<W::Operation>] {
        &self.history
    }

    /// The objects of the history.
    pub fn objects(&self) -> BTreeSet<u64> {
        self.history.iter().map(|op| op.begun.object).collect()
    }

    /// Draws a client's next operation on an object.
    pub fn draw(
        &mut self,
        (client, object): (u32, u64),
        called: u64,
        (reads, bytes_max): (u64, u64),
        random: &mut dyn FnMut(u64) -> u64,
    ) -> Begun<W::Operation> {
        let recent = self.recent.get(&object);
        let operation = W::draw(&mut Draw {
            object,
            number: self.drawn + 1,
            reads,
            bytes_max,
            recent: recent.map_or(&[], |recent| &recent[..]),
            random,
        });
        self.begin((client, object), called, operation)
    }

    /// A client's next operation reads an object.
    pub fn read(&mut self, (client, object): (u32, u64), called: u64) -> Begun<W::Operation> {
        self.begin((client, object), called, W::read(object))
    }

    /// A client's next operation writes something to an object.
    pub fn write(&mut self, (client, object): (u32, u64), called: u64) -> Begun<W::Operation> {
        let operation = W::write(object, self.drawn + 1);
        self.begin((client, object), called, operation)
    }

    fn begin(
        &mut self,
        (client, object): (u32, u64),
        called: u64,
        operation: W::Operation,
    ) -> Begun<W::Operation> {
        self.drawn += 1;
        Begun {
            client,
            object,
            operation,
            number: self.drawn,
            called,
        }
    }

    /// Adds an operation with its answer to the history, unless it certainly had no effect. A read without an
    /// answer has none. True if it was added.
    ///
    /// # Errors
    /// No such operation is ever answered so; then it is in the history without an answer.
    pub fn ended(
        &mut self,
        begun: Begun<W::Operation>,
        now: u64,
        answer: Answer,
    ) -> Result<bool, String> {
        let operation = &begun.operation;
        let seen = W::seen(operation, &answer);
        let mut judged = Ok(true);
        let returned = match &answer {
            _ if seen.is_some() => Some(now),
            Answer::Error(code, _) if code.nothing_done() || operation.is_read() => {
                return Ok(false);
            }
            Answer::Error(..) => None,
            other => {
                let text: String = format!("{other:?}").chars().take(200).collect();
                judged = Err(format!("{operation:?} is answered {text}"));
                None
            }
        };
        if let Some(seen) = seen {
            let recent = self.recent.entry(begun.object).or_default();
            if recent.len() == RECENT {
                recent.remove(0);
            }
            recent.push((operation.clone(), seen));
        }
        self.history.push(Ended {
            begun,
            returned,
            answer,
        });
        judged
    }

    /// One order of an object's operations, the last of them a read of all, explains all answers (I8, I9).
    ///
    /// # Errors
    /// There is no such order, or it was not found.
    pub fn judge(&self, object: u64) -> Result<(), String> {
        let of_object = self.history.iter().filter(|op| op.begun.object == object);
        let (mut calls, mut answered) = (Vec::new(), Vec::new());
        for Ended {
            begun,
            returned,
            answer,
        } in of_object
        {
            let (operation, seen) = (begun.operation.clone(), W::seen(&begun.operation, answer));
            answered.extend(seen.clone().map(|seen| (operation.clone(), seen)));
            calls.push(Call::new(operation, begun.called, *returned, seen));
        }
        W::judge(object, &answered).map_err(|why| format!("object {object}: {why}"))?;
        match check(&calls, SEARCH_MAX) {
            Verdict::Fine => Ok(()),
            Verdict::Undecided => Err(format!("object {object} is too tangled")),
            Verdict::Bad(why) => Err(format!("object {object}: {why}")),
        }
    }
}

struct Run<W: Workload> {
    cluster: TestCluster<W::Service>,
    clients: Clients<W>,
    /// Counts operations and replies, so that no two happen at once.
    clock: u64,
    /// Operations without a reply, with their tokens.
    under_way: Vec<(Begun<W::Operation>, u64)>,
}

/// Runs the suite from so many seeds.
///
/// # Panics
/// The service does not hold its promises; the text names the scheme and the seed.
pub fn conforms<W: Workload>(seeds: u64) {
    for (m, k) in W::SCHEMES {
        for seed in 1..=seeds {
            let nodes = usize::from(m + k) + 2;
            let options = W::options(staves_group::Options {
                log_bytes_max: 300 << 10,
                fetch_pages: 5,
                fetch_window: 2,
                ..staves_group::Options::default()
            });
            let limits = Limits {
                grant_wait: Duration::from_millis(60),
                ..Limits::default()
            };
            let cluster = TestCluster::new((*m, *k), nodes, EXTENTS, options, |member| {
                W::bucket(limits.clone(), member)
            });
            let mut run = Run::<W> {
                cluster,
                clients: Clients::default(),
                clock: 0,
                under_way: Vec::new(),
            };
            let what = format!("{m}+{k} seed {seed}");
            run.under_weather(seed, &what);
            run.at_rest(&what);
        }
    }
}

impl<W: Workload> Run<W> {
    fn under_weather(&mut self, seed: u64, what: &str) {
        self.cluster.weather = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let width = self.cluster.group.members.len();
        let mut seats: Vec<usize> = (0..width).collect();
        for _ in 0..EPOCHS {
            for _ in 0..TICKS {
                for _ in 0..self.cluster.random(6) {
                    self.begin();
                }
                self.cluster.tick();
                self.collect(what);
                self.cluster.check();
            }
            self.cluster.settle();
            self.collect(what);
            self.change(&mut seats);
        }
    }

    fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn begin(&mut self) {
        if self.under_way.len() >= UNDER_WAY_MAX {
            return;
        }
        let (now, cluster) = (self.now(), &mut self.cluster);
        let mut random = |n| cluster.random(n);
        let object = random(W::OBJECTS);
        let mix = (READS, u64::MAX);
        let begun = self.clients.draw((0, object), now, mix, &mut random);
        let token = self.submit(&begun);
        self.under_way.push((begun, token));
    }

    fn submit(&mut self, begun: &Begun<W::Operation>) -> u64 {
        let slot = (begun.object % u64::from(self.cluster.group.m)) as u8;
        let request = (!begun.operation.is_read()).then_some(begun.number);
        let body = W::body(begun.object, &begun.operation);
        let submit =
            |op: <W::Service as Service>::Op<'_>| self.cluster.submit_to(slot, request, op);
        W::Service::with_body(&body, submit).expect("the service knows its own bodies")
    }

    fn collect(&mut self, what: &str) {
        for (begun, token) in std::mem::take(&mut self.under_way) {
            let Some(reply) = self.cluster.answers.remove(&token) else {
                self.under_way.push((begun, token));
                continue;
            };
            let answer = match reply {
                Ok(answer) => answer,
                Err(_) if begun.operation.is_read() => continue,
                // It is retried under the same number until there is an answer.
                Err(_) => {
                    let token = self.submit(&begun);
                    self.under_way.push((begun, token));
                    continue;
                }
            };
            if let Answer::Error(code, _) = &answer
                && !matches!(code, ErrorCode::OutOfMemory | ErrorCode::Forgotten)
            {
                panic!("{what}: {:?} is answered {answer:?}", begun.operation);
            }
            self.ended(begun, answer, what);
        }
    }

    /// True if it is part of the history.
    fn ended(&mut self, begun: Begun<W::Operation>, answer: Answer, what: &str) -> bool {
        let now = self.now();
        let ended = self.clients.ended(begun, now, answer);
        ended.unwrap_or_else(|why| panic!("{what}: {why}"))
    }

    /// One of the members is replaced by a spare node: in its slot where m > 1, behind the others where it
    /// was the data bucket of copies.
    fn change(&mut self, seats: &mut [usize]) {
        let cluster = &mut self.cluster;
        if seats.len() == usize::from(cluster.group.m) {
            return;
        }
        let spare = (0..cluster.buckets.len()).find(|node| !seats.contains(node));
        let slot = cluster.random(seats.len() as u64) as usize;
        seats[slot] = spare.unwrap_or(seats[slot]);
        if cluster.group.m == 1 && slot == 0 {
            seats.swap(0, 1);
        }
        cluster.change(seats);
    }

    fn at_rest(&mut self, what: &str) {
        self.cluster.weather = 0;
        self.cluster.settle();
        for _ in 0..200 {
            self.cluster.tick();
            self.collect(what);
        }
        let left = self.under_way.len();
        assert_eq!(left, 0, "{what}: operations that never end");
        let answered = self.clients.history().len();
        assert!(answered > 30, "{what}: only {answered} operations");
        self.cluster.check();
        self.cluster.check_code();
        self.judge(what);
        self.retry(what);
        self.wait_for_the_deadline(what);
        let waiting: usize = self.cluster.buckets.iter().map(Bucket::waiting).sum();
        assert_eq!(waiting, 0, "{what}: waits that never end");
    }

    fn judge(&mut self, what: &str) {
        for object in 0..W::OBJECTS {
            let now = self.now();
            let read = self.clients.read((0, object), now);
            let token = self.submit(&read);
            let reply = self.cluster.wait_for(token);
            let read = matches!(&reply, Ok(answer) if self.ended(read, answer.clone(), what));
            assert!(read, "{what}: object {object} is answered {reply:?}");
            let judged = self.clients.judge(object);
            judged.unwrap_or_else(|why| panic!("{what}: {why}"));
        }
    }

    /// A retry that comes late has the first answer (I9).
    fn retry(&mut self, what: &str) {
        let mut newest = self.clients.history().iter().rev();
        let write = newest.find(|op| !op.begun.operation.is_read());
        let Ended { begun, answer, .. } = write.expect("a write was answered").clone();
        let token = self.submit(&begun);
        let again = self.cluster.wait_for(token);
        assert_eq!(again, Ok(answer), "{what}: a retry of {begun:?}");
    }

    /// A write whose parity is unreachable ends with its deadline.
    fn wait_for_the_deadline(&mut self, what: &str) {
        if self.cluster.group.members.len() == usize::from(self.cluster.group.m) {
            return;
        }
        let data = self.cluster.node_of(0);
        let others = (0..self.cluster.buckets.len()).filter(|node| *node != data);
        self.cluster.cut_off = others.collect();
        let now = self.now();
        let write = self.clients.write((0, 0), now);
        let token = self.submit(&write);
        let reply = self.cluster.wait_for(token);
        assert_eq!(reply, Err(Refused::Deadline), "{what}: {write:?}");
    }
}
