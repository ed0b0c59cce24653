//! The suite that every service passes: operations of several clients under lost, doubled and reordered
//! messages and changes of members, judged as histories.

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

/// One operation of a client.
#[derive(Debug)]
pub struct Begun<O> {
    /// The object.
    pub object: u64,
    /// The operation on it.
    pub operation: O,
    /// Its number, by which it is retried, and the time of its call.
    pub number: u64,
}

/// The clients of a workload: the operations that they draw, and the history of the answers. It serves any
/// cluster, pure or real.
pub struct Clients<W: Workload> {
    histories: Vec<Vec<Call<W::Operation>>>,
    /// Counts operations and replies, so that no two happen at once.
    clock: u64,
    answered: u64,
}

impl<W: Workload> Default for Clients<W> {
    fn default() -> Clients<W> {
        Clients {
            histories: (0..W::OBJECTS).map(|_| Vec::new()).collect(),
            clock: 0,
            answered: 0,
        }
    }
}

impl<W: Workload> Clients<W> {
    /// Operations whose effect is known.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Draws the next operation, on any object.
    pub fn draw(&mut self, random: &mut dyn FnMut(u64) -> u64) -> Begun<W::Operation> {
        let object = random(W::OBJECTS);
        self.clock += 1;
        let operation = W::draw(&mut Draw {
            object,
            number: self.clock,
            reads: READS,
            recent: &[],
            random,
        });
        self.begun(object, operation)
    }

    /// The next operation reads an object.
    pub fn read(&mut self, object: u64) -> Begun<W::Operation> {
        self.clock += 1;
        self.begun(object, W::read(object))
    }

    fn begun(&self, object: u64, operation: W::Operation) -> Begun<W::Operation> {
        let number = self.clock;
        Begun {
            object,
            operation,
            number,
        }
    }

    /// Adds an operation with its answer to the history, unless it certainly had no effect. A read without an
    /// answer has none.
    ///
    /// # Panics
    /// No such operation is ever answered so.
    pub fn ended(&mut self, begun: &Begun<W::Operation>, answer: &Answer) {
        self.clock += 1;
        let operation = &begun.operation;
        let seen = W::seen(operation, answer);
        let returned = match answer {
            _ if seen.is_some() => Some(self.clock),
            Answer::Error(code, _) if code.nothing_done() || operation.is_read() => return,
            Answer::Error(..) => None,
            other => panic!("{operation:?} is answered {other:?}"),
        };
        self.answered += 1;
        let call = Call::new(operation.clone(), begun.number, returned, seen);
        self.histories[begun.object as usize].push(call);
    }

    /// One order of an object's operations, the last of them a read of all, explains all answers (I8, I9).
    ///
    /// # Errors
    /// There is no such order, or it was not found.
    pub fn judge(&self, object: u64) -> Result<(), String> {
        match check(&self.histories[object as usize], SEARCH_MAX) {
            Verdict::Fine => Ok(()),
            Verdict::Undecided => Err(format!("object {object} is too tangled")),
            Verdict::Bad(why) => Err(format!("object {object}: {why}")),
        }
    }
}

struct Run<W: Workload> {
    cluster: TestCluster<W::Service>,
    clients: Clients<W>,
    /// Operations without a reply, with their tokens.
    under_way: Vec<(Begun<W::Operation>, u64)>,
    /// The newest write that was answered.
    last_write: Option<(Begun<W::Operation>, Answer)>,
}

/// Runs the suite from so many seeds.
///
/// # Panics
/// The service does not hold its promises; the text names the scheme and the seed.
pub fn conforms<W: Workload>(seeds: u64) {
    for (m, k) in W::SCHEMES {
        for seed in 1..=seeds {
            let nodes = usize::from(m + k) + 2;
            let options = staves_group::Options {
                log_bytes_max: 300 << 10,
                fetch_pages: 5,
                fetch_window: 2,
                ..staves_group::Options::default()
            };
            let cluster = TestCluster::new((*m, *k), nodes, EXTENTS, options, |member| {
                W::bucket(Limits::default(), member)
            });
            let mut run = Run::<W> {
                cluster,
                clients: Clients::default(),
                under_way: Vec::new(),
                last_write: None,
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

    fn begin(&mut self) {
        if self.under_way.len() >= UNDER_WAY_MAX {
            return;
        }
        let cluster = &mut self.cluster;
        let begun = self.clients.draw(&mut |n| cluster.random(n));
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
            let before = self.clients.answered();
            self.clients.ended(&begun, &answer);
            if !begun.operation.is_read() && self.clients.answered() > before {
                self.last_write = Some((begun, answer));
            }
        }
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
        let answered = self.clients.answered();
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
            let read = self.clients.read(object);
            let token = self.submit(&read);
            let before = self.clients.answered();
            let reply = self.cluster.wait_for(token);
            if let Ok(answer) = &reply {
                self.clients.ended(&read, answer);
            }
            let read = self.clients.answered() > before;
            assert!(read, "{what}: object {object} is answered {reply:?}");
            let judged = self.clients.judge(object);
            judged.unwrap_or_else(|why| panic!("{what}: {why}"));
        }
    }

    /// A retry that comes late has the first answer (I9).
    fn retry(&mut self, what: &str) {
        let Some((write, answer)) = self.last_write.take() else {
            panic!("{what}: no write")
        };
        let token = self.submit(&write);
        let again = self.cluster.wait_for(token);
        assert_eq!(
            again,
            Ok(answer),
            "{what}: a retry of {:?}",
            write.operation
        );
    }

    /// A write whose parity is unreachable ends with its deadline.
    fn wait_for_the_deadline(&mut self, what: &str) {
        if self.cluster.group.members.len() == usize::from(self.cluster.group.m) {
            return;
        }
        let data = self.cluster.node_of(0);
        let others = (0..self.cluster.buckets.len()).filter(|node| *node != data);
        self.cluster.cut_off = others.collect();
        let number = self.clients.read(0).number;
        let write = (0..1000)
            .map(|n| {
                W::draw(&mut Draw {
                    object: 0,
                    number,
                    reads: 0,
                    recent: &[],
                    random: &mut |below| n % below.max(1),
                })
            })
            .find(|operation| !operation.is_read());
        let Some(write) = write else {
            panic!("{what}: no write is ever drawn")
        };
        let write = self.clients.begun(0, write);
        let token = self.submit(&write);
        let reply = self.cluster.wait_for(token);
        assert_eq!(reply, Err(Refused::Deadline), "{what}: {write:?}");
    }
}
