//! The services of simulated worlds, each with its load and the history of its clients.
//!
//! A row of [`SERVICES`] brings a service into the simulator: its [`Workload`] draws operations, encodes them
//! and judges what clients saw; everything else is the same for all services.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use staves_conformance::cache::KeyLoad;
use staves_conformance::memory::ChunkLoad;
use staves_conformance::{Draw, Workload, counter};
use staves_group::{Member, Options};
use staves_history::{Call, Operation, Verdict, check};
use staves_model::mutant::Mutant;
use staves_model::{HashSlot, Revision, Time};
use staves_service::{AnyBucket, Bucket, Limits, Service};
use staves_wire::ErrorCode;
use staves_wire::service::{Answer, Body};

use crate::event::Place;
use crate::history::in_life;
use crate::scenario::Scenario;

/// Requests that may wait at a bucket for the copies, and as many to begin.
pub const WAITING_MAX: usize = 8;
/// Steps that the search over one object's history makes before it gives up.
const SEARCH_MAX: usize = 200_000;
/// Operations on an object that the next is drawn by.
const RECENT: usize = 8;

/// A service that simulated worlds can run.
pub struct ServiceEntry {
    /// Its name.
    pub name: &'static str,
    /// Its objects are chunks of regions, which grow and are deleted.
    pub has_regions: bool,
    /// True if the world of this scenario runs it.
    pub serves: fn(&Scenario) -> bool,
    /// An empty history.
    pub load: fn() -> Box<dyn Load>,
}

/// Every service that simulated worlds run; the first that serves a scenario is its world's.
pub const SERVICES: [ServiceEntry; 3] = [
    entry::<KeyLoad>("key-value", false, serves_keys),
    entry::<ChunkLoad>("memory", true, serves_memory),
    entry::<counter::Load>("counter", false, serves_counters),
];

const fn entry<W: Workload>(
    name: &'static str,
    has_regions: bool,
    serves: fn(&Scenario) -> bool,
) -> ServiceEntry {
    ServiceEntry {
        name,
        has_regions,
        serves,
        load: || Box::new(Served::<W>::default()),
    }
}

/// The service of a scenario's world; none if clients use the members' registers.
pub fn service_of(s: &Scenario) -> Option<&'static ServiceEntry> {
    SERVICES.iter().find(|service| (service.serves)(s))
}

// Every second seed of each shape with m = 1, each run with a planted bug of the service or of its clients, and none with another
// that needs raw registers to be seen soon.
fn serves_keys(s: &Scenario) -> bool {
    match s.mutant {
        Some(m) if Mutant::SERVICE.contains(&m) || Mutant::TURN.contains(&m) => s.m == 1,
        None | Some(Mutant::ReadUnstable | Mutant::RetryAnsweredBeforeStable) => {
            s.m == 1 && s.seed / 5 % 2 == 1
        }
        Some(_) => false,
    }
}

// Every third seed with m > 1 and some others, and each run with a planted bug of the service.
fn serves_memory(s: &Scenario) -> bool {
    match s.mutant {
        Some(m) => Mutant::MEMORY.contains(&m) || Mutant::REGION.contains(&m),
        None if s.m > 1 => s.seed % 3 == 1,
        None => s.seed / 5 % 8 == 4,
    }
}

fn serves_counters(s: &Scenario) -> bool {
    let seeds = match s.m {
        1 => s.seed / 5 % 8 == 6,
        _ => s.seed % 6 == 2,
    };
    s.mutant.is_none() && seeds
}

/// Bounds of every service's buckets, small enough to be met.
fn limits() -> Limits {
    Limits {
        waiting_max: WAITING_MAX,
        parked_max: WAITING_MAX,
        grant_wait: Duration::from_millis(120),
        refused_for: Duration::from_millis(150),
        ..Limits::default()
    }
}

/// A bucket of any service, as a simulated node holds it.
pub trait SimBucket: AnyBucket {
    /// See [`Bucket::member_mut`].
    fn member_mut(&mut self) -> &mut Member;
    /// See [`Bucket::into_member`].
    fn into_member(self: Box<Self>) -> Member;
    /// See [`Bucket::waiting`].
    fn waiting(&self) -> usize;
    /// See [`Bucket::parked`].
    fn parked(&self) -> usize;
    /// See [`Bucket::check`].
    fn check(&self) -> Result<(), String>;
}

impl<S: Service> SimBucket for Bucket<S> {
    fn member_mut(&mut self) -> &mut Member {
        Bucket::member_mut(self)
    }

    fn into_member(self: Box<Self>) -> Member {
        Bucket::into_member(*self)
    }

    fn waiting(&self) -> usize {
        Bucket::waiting(self)
    }

    fn parked(&self) -> usize {
        Bucket::parked(self)
    }

    fn check(&self) -> Result<(), String> {
        Bucket::check(self)
    }
}

/// A node's part in the group.
pub enum Seat {
    /// A member whose registers clients write directly.
    Raw(Box<Member>),
    /// A member with a service around it.
    Served(Box<dyn SimBucket>),
}

impl Seat {
    /// The service's bucket, if there is one.
    pub fn bucket(&self) -> Option<&dyn SimBucket> {
        match self {
            Seat::Raw(_) => None,
            Seat::Served(bucket) => Some(&**bucket),
        }
    }
}

impl Deref for Seat {
    type Target = Member;

    fn deref(&self) -> &Member {
        match self {
            Seat::Raw(member) => member,
            Seat::Served(bucket) => bucket.member(),
        }
    }
}

impl DerefMut for Seat {
    fn deref_mut(&mut self) -> &mut Member {
        match self {
            Seat::Raw(member) => member,
            Seat::Served(bucket) => bucket.member_mut(),
        }
    }
}

/// A request at a bucket that has no answer yet.
pub(crate) struct OpenRequest {
    pub(crate) route: Vec<Place>,
    pub(crate) attempt: u32,
    /// Of the map that it was sent by.
    pub(crate) revision: Revision,
    pub(crate) operation: usize,
    /// On the node's clock.
    pub(crate) deadline: Time,
}

/// An object: the index of its region, 0 where there are none, and its number there.
pub type ObjectId = (usize, u64);

/// A service's load in one world, and the history of its clients: [`Served`] of any [`Workload`].
pub trait Load: Any {
    /// A bucket around a member.
    fn bucket(&self, member: Member) -> Box<dyn SimBucket>;
    /// See [`Workload::options`].
    fn options(&self, base: Options) -> Options;
    /// See [`Workload::DELTA_BYTES_MAX`].
    fn delta_bytes_max(&self) -> usize;
    /// See [`Workload::REPORTS_LOSS`].
    fn reports_loss(&self) -> bool;
    /// Picks one of the service's objects, or one of a region's chunks.
    fn pick(&self, chunks: Option<u64>, random: &mut dyn FnMut(u64) -> u64) -> u64;
    /// Draws an operation that begins now; its index in the history.
    fn begin(
        &mut self,
        object: ObjectId,
        number_and_reads: (u64, u64),
        now: u64,
        random: &mut dyn FnMut(u64) -> u64,
    ) -> usize;
    /// A read of everything in an object that begins now.
    fn begin_read(&mut self, object: ObjectId, now: u64) -> usize;
    /// The number of operations so far.
    fn operations(&self) -> usize;
    /// The object of an operation.
    fn object(&self, operation: usize) -> ObjectId;
    /// The objects that operations were begun on.
    fn objects(&self) -> Vec<ObjectId>;
    /// True if the operation changes nothing.
    fn is_read(&self, operation: usize) -> bool;
    /// The writes whose values the answer to a read shows, as far as values tell.
    fn shown(&self, operation: usize, answer: &Answer) -> Vec<usize>;
    /// True if the operation has its answer.
    fn is_answered(&self, operation: usize) -> bool;
    /// The service's form of an operation on the object with this number in its data bucket, and the object's hash slot.
    fn encode(&self, operation: usize, number: u64) -> (Option<HashSlot>, Body);
    /// Takes an answer; a name for what happened.
    ///
    /// # Errors
    /// No operation is answered so.
    fn answered(
        &mut self,
        operation: usize,
        now_and_life: (u64, usize),
        answer: &Answer,
    ) -> Result<&'static str, String>;
    /// Judges the history, life by life: one order of each object's operations explains all answers (I8, I9). The objects
    /// that were too tangled to be decided are counted.
    fn judge(&self, spans: &[(usize, u64, u64)]) -> (Vec<String>, usize);
}

/// An operation of the history.
struct HistoryEntry<O: Operation> {
    object: ObjectId,
    operation: O,
    called: u64,
    /// The time of the answer; `None` if it never came, or leaves open whether the operation took effect.
    returned: Option<u64>,
    seen: Option<O::Seen>,
    /// The life of the group that answered.
    life: usize,
    /// It was refused for lack of memory, so it certainly did not take effect.
    refused: bool,
}

impl<O: Operation> HistoryEntry<O> {
    // In the eyes of one life of the group, if the operation reached it.
    fn in_life(&self, span: (usize, u64, u64)) -> Option<Call<O>> {
        if self.refused && self.life <= span.0 {
            return None;
        }
        let (called, returned) = in_life(span, (self.called, self.returned, self.life))?;
        let (operation, seen) = (self.operation.clone(), self.seen.clone());
        Some(Call::new(operation, called, returned, seen))
    }
}

/// The load of one service in one world.
pub struct Served<W: Workload> {
    history: Vec<HistoryEntry<W::Operation>>,
    recent: BTreeMap<ObjectId, Vec<AnsweredOp<W>>>,
}

type AnsweredOp<W> = (
    <W as Workload>::Operation,
    <<W as Workload>::Operation as Operation>::Seen,
);

impl<W: Workload> Default for Served<W> {
    fn default() -> Served<W> {
        Served {
            history: Vec::new(),
            recent: BTreeMap::new(),
        }
    }
}

impl<W: Workload> Served<W> {
    /// Puts an operation that begins now into the history; its index.
    pub fn push(&mut self, object: ObjectId, operation: W::Operation, now: u64) -> usize {
        self.history.push(HistoryEntry {
            object,
            operation,
            called: now,
            returned: None,
            seen: None,
            life: 0,
            refused: false,
        });
        self.history.len() - 1
    }

    // Of one object, in one life of the group.
    fn judge_object(&self, object: ObjectId, span: (usize, u64, u64)) -> Result<Verdict, String> {
        let of_object = || self.history.iter().filter(|record| record.object == object);
        let answered = of_object().filter(|record| record.life == span.0);
        let answered = answered
            .filter_map(|record| Some((record.operation.clone(), record.seen.clone()?)))
            .collect::<Vec<_>>();
        W::judge(object.1, &answered)?;
        let calls: Vec<_> = of_object().filter_map(|r| r.in_life(span)).collect();
        Ok(check(&calls, SEARCH_MAX))
    }
}

impl<W: Workload> Load for Served<W> {
    fn bucket(&self, member: Member) -> Box<dyn SimBucket> {
        Box::new(W::bucket(limits(), member))
    }

    fn options(&self, base: Options) -> Options {
        W::options(base)
    }

    fn delta_bytes_max(&self) -> usize {
        W::DELTA_BYTES_MAX
    }

    fn reports_loss(&self) -> bool {
        W::REPORTS_LOSS
    }

    fn pick(&self, chunks: Option<u64>, random: &mut dyn FnMut(u64) -> u64) -> u64 {
        W::pick(chunks.unwrap_or(W::OBJECTS), random)
    }

    fn begin(
        &mut self,
        object: ObjectId,
        (number, reads): (u64, u64),
        now: u64,
        random: &mut dyn FnMut(u64) -> u64,
    ) -> usize {
        let recent = self.recent.get(&object);
        let operation = W::draw(&mut Draw {
            object: object.1,
            number,
            reads,
            bytes_max: u64::MAX,
            recent: recent.map_or(&[], |recent| &recent[..]),
            random,
        });
        self.push(object, operation, now)
    }

    fn begin_read(&mut self, object: ObjectId, now: u64) -> usize {
        self.push(object, W::read(object.1), now)
    }

    fn operations(&self) -> usize {
        self.history.len()
    }

    fn object(&self, operation: usize) -> ObjectId {
        self.history[operation].object
    }

    fn objects(&self) -> Vec<ObjectId> {
        let mut objects: Vec<ObjectId> = self.history.iter().map(|r| r.object).collect();
        objects.sort_unstable();
        objects.dedup();
        objects
    }

    fn is_read(&self, operation: usize) -> bool {
        self.history[operation].operation.is_read()
    }

    fn shown(&self, operation: usize, answer: &Answer) -> Vec<usize> {
        let read = &self.history[operation];
        let Some(seen) = W::seen(&read.operation, answer) else {
            return Vec::new();
        };
        let shows = |(_, write): &(usize, &HistoryEntry<W::Operation>)| {
            write.object == read.object && W::shows(&read.operation, &seen, &write.operation)
        };
        let writes = self.history.iter().enumerate().filter(shows);
        writes.map(|(index, _)| index).collect()
    }

    fn is_answered(&self, operation: usize) -> bool {
        self.history[operation].returned.is_some()
    }

    fn encode(&self, operation: usize, number: u64) -> (Option<HashSlot>, Body) {
        let body = W::body(number, &self.history[operation].operation);
        (W::hash_slot(number), body)
    }

    fn answered(
        &mut self,
        operation: usize,
        (now, life): (u64, usize),
        answer: &Answer,
    ) -> Result<&'static str, String> {
        let record = &mut self.history[operation];
        record.life = life;
        let is_read = record.operation.is_read();
        Ok(match answer {
            Answer::Error(ErrorCode::OutOfMemory, _) if !is_read => {
                record.refused = true;
                "service: refused for lack of memory"
            }
            // It may have taken effect, or not.
            Answer::Error(ErrorCode::Forgotten, _) => "service: forgotten",
            // It took effect; with what answer is not known any more.
            Answer::Error(ErrorCode::AnswerGone, _) => "service: answer gone",
            Answer::Error(ErrorCode::Lost, _) if is_read => "service: a read of a lost group",
            Answer::Error(ErrorCode::Lost, _) => "service: a write to a lost group",
            Answer::Error(ErrorCode::NotFound, _) => "client: the region is gone",
            // The client's own word, at its deadline.
            Answer::Error(ErrorCode::Deadline | ErrorCode::Unreachable, _) => {
                "client: gave up, outcome unknown"
            }
            Answer::Error(code, _) if code.worth_retrying() => {
                record.refused = true;
                "client: gave up, nothing done"
            }
            answer => {
                let Some(seen) = W::seen(&record.operation, answer) else {
                    let text: String = format!("{answer:?}").chars().take(200).collect();
                    let (object, asked) = (record.object, &record.operation);
                    return Err(format!("I8 {object:?}: {asked:?} was answered with {text}"));
                };
                let outcome = W::outcome(&record.operation, &seen);
                let recent = self.recent.entry(record.object).or_default();
                if recent.len() == RECENT {
                    recent.remove(0);
                }
                recent.push((record.operation.clone(), seen.clone()));
                (record.returned, record.seen) = (Some(now), Some(seen));
                outcome
            }
        })
    }

    fn judge(&self, spans: &[(usize, u64, u64)]) -> (Vec<String>, usize) {
        let (mut bad, mut undecided) = (Vec::new(), 0);
        for span in spans {
            for object in self.objects() {
                let bad_text =
                    |why: String| format!("I8/I9 life {} object {object:?}: {why}", span.0);
                match self.judge_object(object, *span) {
                    Ok(Verdict::Fine) => {}
                    Ok(Verdict::Undecided) => undecided += 1,
                    Ok(Verdict::Bad(why)) => bad.push(bad_text(why.to_string())),
                    Err(why) => bad.push(bad_text(why)),
                }
            }
        }
        (bad, undecided)
    }
}
