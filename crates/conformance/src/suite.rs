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

struct UnderWay<O> {
    object: u64,
    operation: O,
    number: u64,
    called: u64,
    token: u64,
}

struct Run<W: Workload> {
    cluster: TestCluster<W::Service>,
    under_way: Vec<UnderWay<W::Operation>>,
    histories: Vec<Vec<Call<W::Operation>>>,
    /// Counts operations and replies, so that no two happen at once.
    clock: u64,
    answered: u64,
    /// The newest write that was answered.
    last_write: Option<(UnderWay<W::Operation>, Answer)>,
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
                under_way: Vec::new(),
                histories: (0..W::OBJECTS).map(|_| Vec::new()).collect(),
                clock: 0,
                answered: 0,
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
        self.clock += 1;
        let (number, cluster) = (self.clock, &mut self.cluster);
        let object = cluster.random(W::OBJECTS);
        let operation = W::draw(&mut Draw {
            object,
            number,
            reads: READS,
            recent: &[],
            random: &mut |n| cluster.random(n),
        });
        let called = self.clock;
        let token = self.submit(object, &operation, number);
        self.under_way.push(UnderWay {
            object,
            operation,
            number,
            called,
            token,
        });
    }

    fn submit(&mut self, object: u64, operation: &W::Operation, number: u64) -> u64 {
        let slot = (object % u64::from(self.cluster.group.m)) as u8;
        let request = (!operation.is_read()).then_some(number);
        let body = W::body(object, operation);
        let submit =
            |op: <W::Service as Service>::Op<'_>| self.cluster.submit_to(slot, request, op);
        W::Service::with_body(&body, submit).expect("the service knows its own bodies")
    }

    fn collect(&mut self, what: &str) {
        for mut one in std::mem::take(&mut self.under_way) {
            let Some(reply) = self.cluster.answers.remove(&one.token) else {
                self.under_way.push(one);
                continue;
            };
            self.clock += 1;
            let answer = match reply {
                Ok(answer) => answer,
                Err(_) if one.operation.is_read() => continue,
                // It is retried under the same number until there is an answer.
                Err(_) => {
                    one.token = self.submit(one.object, &one.operation, one.number);
                    self.under_way.push(one);
                    continue;
                }
            };
            let seen = W::seen(&one.operation, &answer);
            let returned = match &answer {
                Answer::Error(ErrorCode::OutOfMemory, _) => continue,
                Answer::Error(ErrorCode::Forgotten, _) => None,
                _ if seen.is_some() => Some(self.clock),
                other => panic!("{what}: {:?} is answered {other:?}", one.operation),
            };
            self.answered += 1;
            let call = Call::new(one.operation.clone(), one.called, returned, seen);
            self.histories[one.object as usize].push(call);
            if !one.operation.is_read() {
                self.last_write = Some((one, answer));
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
        let answered = self.answered;
        assert!(answered > 30, "{what}: only {answered} operations");
        self.cluster.check();
        self.cluster.check_code();
        self.judge(what);
        self.retry(what);
        self.wait_for_the_deadline(what);
        let waiting: usize = self.cluster.buckets.iter().map(Bucket::waiting).sum();
        assert_eq!(waiting, 0, "{what}: waits that never end");
    }

    /// One order of each object's operations, the last of them a read of all, explains all answers (I8, I9).
    fn judge(&mut self, what: &str) {
        for object in 0..W::OBJECTS {
            let read = W::read(object);
            let token = self.submit(object, &read, 0);
            let reply = self.cluster.wait_for(token);
            let seen = reply
                .as_ref()
                .ok()
                .and_then(|answer| W::seen(&read, answer));
            assert!(seen.is_some(), "{what}: {read:?} is answered {reply:?}");
            let history = &mut self.histories[object as usize];
            let (called, returned) = (self.clock + 1, Some(self.clock + 2));
            history.push(Call::new(read, called, returned, seen));
            match check(history, SEARCH_MAX) {
                Verdict::Fine => {}
                Verdict::Undecided => panic!("{what}: object {object} is too tangled"),
                Verdict::Bad(why) => panic!("{what}: object {object}: {why}"),
            }
        }
    }

    /// A retry that comes late has the first answer (I9).
    fn retry(&mut self, what: &str) {
        let Some((write, answer)) = self.last_write.take() else {
            panic!("{what}: no write")
        };
        let token = self.submit(write.object, &write.operation, write.number);
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
        let number = self.clock + 10;
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
        let token = self.submit(0, &write, number);
        let reply = self.cluster.wait_for(token);
        assert_eq!(reply, Err(Refused::Deadline), "{what}: {write:?}");
    }
}
