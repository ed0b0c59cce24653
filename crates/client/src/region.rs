//! Regions: flat bytes spread over the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use staves_model::{
    Change, ClusterMap, GroupId, Pool, Refusal, Region as Entry, RegionId, Revision, ServiceId,
    Stretch, StretchState, with_unit,
};
use staves_net::NetError;
use staves_wire::directory::{Propose, Proposed};
use staves_wire::memory::Action;
use staves_wire::service::{Address, Answer, PoolRef};
use staves_wire::{ErrorCode, Message};

use crate::client::{Client, senseless, unexpected};
use crate::error::ClientError;
use crate::pieces::{Piece, check_range, pieces, wrong};
use crate::turn::ServiceOp;
use crate::volumes::VolumeKind;

/// One region, to read and to write. Clones are the same region. A handle lives through replaced nodes and
/// growth by itself; it ends with its region.
#[derive(Clone)]
pub struct Region {
    client: Client,
    id: RegionId,
    name: Arc<str>,
    /// The bytes of the load that was begun by this handle or a clone of it.
    load: Arc<Mutex<Option<Range<u64>>>>,
}

/// The state of a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionStat {
    /// Its name.
    pub name: String,
    /// Its pool's name.
    pub pool: String,
    /// The pool's scheme, as `2+1`.
    pub scheme: String,
    /// Its length.
    pub size_bytes: u64,
    /// The length up to which it can grow without further groups.
    pub capacity_bytes: u64,
    /// Its groups, in order.
    pub groups: Vec<GroupId>,
    /// Runs of them whose data buckets hold equally many bytes: their number, and those bytes.
    pub bucket_bytes: Vec<(u32, u64)>,
    /// Those of them that are lost: more of their nodes failed than the scheme bears.
    pub lost: Vec<GroupId>,
    /// It is being loaded: some of its groups have no parity.
    pub loading: bool,
    /// Its groups have all the parity that they are to have: none where it is loaded, otherwise the scheme's,
    /// as far as there are nodes, and all of it complete.
    pub settled: bool,
}

/// The end of the error of a write that was done in part; the text before it names the offset.
pub const GO_ON_THERE: &str = "go on there";

/// The time that a change may take to reach all nodes that are well.
const NEWS_SPREADS: Duration = Duration::from_millis(500);
/// The pause before another node is asked for it.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The pause before a change is proposed again that was decided on an older map.
const CHANGE_AGAIN: Duration = Duration::from_millis(5);

impl Client {
    /// Makes a region in a memory pool. It reads as zeroes, and takes up memory only where it is written.
    pub async fn create_region(
        &self,
        pool: &str,
        name: &str,
        size_bytes: u64,
    ) -> Result<Region, ClientError> {
        self.create_region_with(pool, name, size_bytes, None).await
    }

    /// The same with so many bytes in each data bucket ([`staves_model::is_bucket_bytes`]), not as many as suit its size.
    pub async fn create_region_with(
        &self,
        pool: &str,
        name: &str,
        size_bytes: u64,
        bucket_bytes: Option<u64>,
    ) -> Result<Region, ClientError> {
        self.make(pool, name, (size_bytes, bucket_bytes), None)
            .await?;
        self.region(name).await
    }

    /// Makes a volume of this kind, or a region.
    pub(crate) async fn make(
        &self,
        pool: &str,
        name: &str,
        (size_bytes, bucket_bytes): (u64, Option<u64>),
        kind: Option<VolumeKind>,
    ) -> Result<(), ClientError> {
        let bucket_bytes = match bucket_bytes {
            Some(bytes) => bytes,
            None => self
                .refresh()
                .await?
                .bucket_bytes_to_create(pool, size_bytes),
        };
        let (pool, name) = (pool.to_owned(), name.to_owned());
        let change = match kind {
            Some(VolumeKind::Writeback) => Change::MakeWriteback {
                pool,
                name,
                size_bytes,
                bucket_bytes,
            },
            Some(VolumeKind::Shared) => Change::MakeSharedVolume {
                pool,
                name,
                size_bytes,
                bucket_bytes,
            },
            None | Some(VolumeKind::Durable) => Change::MakeRegion {
                pool,
                name,
                size_bytes,
                bucket_bytes,
                is_volume: kind.is_some(),
            },
        };
        self.propose(&change).await
    }

    /// A region by name. One that was made just now is not known to all nodes yet: several are asked before
    /// it counts as not there.
    pub async fn region(&self, name: &str) -> Result<Region, ClientError> {
        let known = |map: &ClusterMap| map.region_named(name).map(|(_, region)| region.clone());
        let asked_until = Instant::now() + NEWS_SPREADS;
        // Never by the map at hand: the one of that name that it knows may have been deleted.
        let mut map = self.refresh().await?;
        loop {
            if let Some(region) = known(&map) {
                if region.volume.is_some() {
                    let refusal = Refusal::IsVolume { name: name.into() };
                    return Err(ClientError::of(ErrorCode::Refused, refusal.to_string()));
                }
                return Ok(Region {
                    client: self.clone(),
                    id: region.id,
                    name: name.into(),
                    load: Arc::default(),
                });
            }
            if Instant::now() >= asked_until {
                break;
            }
            self.router().transport().ask_another();
            tokio::time::sleep(LOOK_AGAIN).await;
            // If no other answers, the word of the first is all there is.
            match self.refresh().await {
                Ok(newest) => map = newest,
                Err(_) => break,
            }
        }
        let name = name.to_owned();
        Err(ClientError::NoSuchRegion { name })
    }

    /// All regions, by pool and in the order in which they were made.
    pub async fn regions(&self) -> Result<Vec<RegionStat>, ClientError> {
        let map = self.refresh().await?;
        let in_pool = |pool: &Pool| {
            let regions = pool.regions().iter().filter(|r| r.volume.is_none());
            let stats = regions.map(|region| stat(&map, pool, region));
            stats.collect::<Vec<_>>()
        };
        Ok(map.pools.values().flat_map(in_pool).collect())
    }

    /// Makes a change of the cluster's map, through any node. The map of this client has it then.
    pub async fn propose(&self, change: &Change) -> Result<(), ClientError> {
        let made = self.propose_on(None, change).await?;
        made.map_err(|(_, text)| ClientError::of(ErrorCode::Refused, text))
    }

    /// The same, if the map is still this one. `Err` within: refused by a map of that revision, and why.
    pub async fn propose_on(
        &self,
        expected: Option<Revision>,
        change: &Change,
    ) -> Result<Result<(), (Revision, String)>, ClientError> {
        self.propose_by(expected, change, self.deadline()).await
    }

    /// The same, by another deadline.
    pub async fn propose_by(
        &self,
        expected: Option<Revision>,
        change: &Change,
        deadline: Instant,
    ) -> Result<Result<(), (Revision, String)>, ClientError> {
        let change = postcard::to_allocvec(change).map_err(|error| {
            let text = format!("the change does not encode: {error}");
            ClientError::of(ErrorCode::Internal, text)
        })?;
        let request = Message::Propose(Propose {
            expected,
            change: change.into(),
        });
        loop {
            let mut first = None;
            for address in self.router().transport().addresses_in_turn(&self.map()) {
                match self.ask_at(&address, &request, deadline).await {
                    Ok(Message::Proposed(Proposed::Applied { revision, .. })) => {
                        return self.follow(revision, deadline).await.map(Ok);
                    }
                    Ok(Message::Proposed(Proposed::Refused { revision, reason })) => {
                        return Ok(Err((revision, reason)));
                    }
                    Ok(Message::Proposed(Proposed::NotLeader { .. })) => {
                        let text = "the node that was asked does not lead the directory";
                        first.get_or_insert(ClientError::of(ErrorCode::NotLeader, text));
                    }
                    Ok(other) => return Err(senseless("propose", other.opcode().word())),
                    // Somebody else was quicker: no other node knows better.
                    Err(NetError::Refused { packet, .. }) if packet.code == ErrorCode::NotFound => {
                        return Err(not_found(packet.text));
                    }
                    // Another node may do it, if this one certainly did not.
                    Err(error) if error.nothing_done() => {
                        first.get_or_insert(error.into());
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            let why = first.unwrap_or(ClientError::NoAddress);
            if why.code() != ErrorCode::NotLeader || Instant::now() + LOOK_AGAIN >= deadline {
                return Err(why);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Until the map at hand is at least this new.
    async fn follow(&self, revision: Revision, deadline: Instant) -> Result<(), ClientError> {
        while self.refresh().await?.revision < revision {
            if Instant::now() >= deadline {
                let text = "the change was made; no node that has it was found in time";
                return Err(ClientError::of(ErrorCode::Deadline, text));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

fn not_found(text: String) -> ClientError {
    ClientError::of(ErrorCode::NotFound, text)
}

pub(crate) fn stat(map: &ClusterMap, pool: &Pool, region: &Entry) -> RegionStat {
    RegionStat {
        name: region.name.clone(),
        pool: pool.name.clone(),
        scheme: pool.scheme.to_string(),
        size_bytes: region.size_bytes,
        capacity_bytes: region.capacity_bytes(pool.scheme.m),
        groups: region.groups().collect(),
        bucket_bytes: bucket_bytes(region),
        lost: lost(map, region).collect(),
        loading: region.is_loading(),
        settled: region.groups().all(|id| settled(map, pool, id)),
    }
}

fn bucket_bytes(region: &Entry) -> Vec<(u32, u64)> {
    let mut all: Vec<(u32, u64)> = Vec::new();
    for stretch in &region.stretches {
        match all
            .last_mut()
            .filter(|(_, bytes)| *bytes == stretch.bucket_bytes)
        {
            Some((count, _)) => *count += stretch.count,
            None => all.push((stretch.count, stretch.bucket_bytes)),
        }
    }
    all
}

fn lost<'a>(map: &'a ClusterMap, region: &'a Entry) -> impl Iterator<Item = GroupId> + 'a {
    let is_lost = |id: &GroupId| map.groups.get(id).is_some_and(|group| group.lost);
    region.groups().filter(is_lost)
}

/// Returns true if a group has the parity that it is to have.
fn settled(map: &ClusterMap, pool: &Pool, id: GroupId) -> bool {
    let Some(group) = map.groups.get(&id).filter(|group| group.open) else {
        return false;
    };
    let homes = map.nodes.values().filter(|node| !node.draining).count();
    let complete = group.listed().filter(|(_, member)| member.complete).count();
    match pool.is_loading(id) {
        true => group.listed().count() <= usize::from(group.m),
        false => complete >= pool.scheme.width().min(homes),
    }
}

impl Region {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its state, by the newest map.
    pub async fn stat(&self) -> Result<RegionStat, ClientError> {
        let map = self.client.refresh().await?;
        let (pool, region) = map.region(self.id).ok_or_else(|| self.deleted())?;
        Ok(stat(&map, pool, region))
    }

    /// Lets it end at `size_bytes`. Nothing moves, and whoever uses it goes on.
    pub async fn grow(&self, size_bytes: u64) -> Result<(), ClientError> {
        let map = self.client.refresh().await?;
        let extend = Change::ExtendRegion {
            name: self.name.to_string(),
            size_bytes,
            bucket_bytes: map.bucket_bytes_to_grow(&self.name, size_bytes),
        };
        self.change(&extend).await
    }

    /// Makes a change of this region, and of no other that has its name by now.
    async fn change(&self, change: &Change) -> Result<(), ClientError> {
        let deadline = self.client.deadline();
        loop {
            let map = self.client.refresh().await?;
            let named = map.region_named(&self.name);
            if named.is_none_or(|(_, region)| region.id != self.id) {
                return Err(self.deleted());
            }
            let made = self.client.propose_on(Some(map.revision), change).await?;
            match made {
                Ok(()) => return Ok(()),
                // The map has moved on, in whatever: look again who has the name.
                Err((newer, _)) if newer > map.revision && Instant::now() < deadline => {
                    tokio::time::sleep(CHANGE_AGAIN).await;
                }
                Err((_, text)) => return Err(ClientError::of(ErrorCode::Refused, text)),
            }
        }
    }

    /// Begins a load of `len` bytes from `offset` on, and returns the ranges of them that this handle may write without
    /// parity now (row H11): in stretches that held nothing, or of which it overwrites every byte. What is written
    /// there by `write` is neither logged nor sent to other nodes, and what a node holds of it is lost with the node; all
    /// other writes there are refused. All other bytes keep their parity, and are written as ever. `protect` ends it.
    pub async fn load(&self, offset: u64, len: u64) -> Result<Vec<Range<u64>>, ClientError> {
        let load = offset..offset.saturating_add(len);
        let begun = |of: &Self| {
            let map = of.client.map();
            let (pool, region) = map.region(of.id).ok_or_else(|| of.deleted())?;
            check_range(region, offset, len)?;
            let loadable = region.loadable(pool.scheme.m, load.clone());
            Ok::<_, ClientError>(loadable.collect::<Vec<_>>())
        };
        self.client.refresh().await?;
        let is_begun = |s: &(Range<u64>, Stretch)| s.1.state == StretchState::Loading;
        if !begun(self)?.iter().all(is_begun) {
            let (name, load) = (self.name.to_string(), Some(load.clone()));
            self.change(&Change::LoadRegion { name, load }).await?;
        }
        let mut bare = begun(self)?;
        bare.retain(is_begun);
        let groups: Vec<GroupId> = bare.iter().flat_map(|(_, s)| s.groups()).collect();
        let late = "the parity of what is overwritten was not given up in time; ask again, or see 'staves group list'";
        self.until_settled(late, |_| groups.clone()).await?;
        if !bare.is_empty() {
            let mut of = self.load.lock();
            let all = of.clone().unwrap_or(load.clone());
            *of = Some(all.start.min(load.start)..all.end.max(load.end));
        }
        let cut = |b: Range<u64>| b.start.max(load.start)..b.end.min(load.end);
        Ok(bare.into_iter().map(|(bytes, _)| cut(bytes)).collect())
    }

    /// Ends all loads of the region, and returns once its parity is made of the data, in one pass.
    pub async fn protect(&self) -> Result<(), ClientError> {
        let (name, load) = (self.name.to_string(), None);
        self.change(&Change::LoadRegion { name, load }).await?;
        *self.load.lock() = None;
        let late = "its parity is still being made; 'staves group list' shows how far it is";
        self.until_settled(late, |region| region.groups().collect())
            .await
    }

    /// Until these groups have the parity that they are to have; `late` says what is in the way by the deadline.
    async fn until_settled(
        &self,
        late: &str,
        groups: impl Fn(&Entry) -> Vec<GroupId>,
    ) -> Result<(), ClientError> {
        let deadline = self.client.deadline();
        loop {
            let map = self.client.refresh().await?;
            let (pool, region) = map.region(self.id).ok_or_else(|| self.deleted())?;
            let groups = groups(region);
            self.not_lost(&map, &groups)?;
            if groups.iter().all(|id| settled(&map, pool, *id)) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let text = format!("region '{}': {late}", self.name);
                return Err(ClientError::of(ErrorCode::Deadline, text));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Parity of a group that is lost is never made.
    fn not_lost(&self, map: &ClusterMap, groups: &[GroupId]) -> Result<(), ClientError> {
        let is_lost = |id: &&GroupId| map.groups.get(id).is_some_and(|group| group.lost);
        let Some(group) = groups.iter().find(is_lost) else {
            return Ok(());
        };
        let name = &self.name;
        let text = format!(
            "region '{name}' cannot be protected: group {group} is lost, because more of its nodes failed than its scheme \
             bears; if a node was only cut off, bring it back; else 'staves memory delete {name}', make it anew and fill it"
        );
        Err(ClientError::of(ErrorCode::Lost, text))
    }

    /// Deletes it, with all that it holds. Whoever still uses it gets an error that says so.
    pub async fn delete(self) -> Result<(), ClientError> {
        let name = self.name.to_string();
        self.change(&Change::DeleteRegion { name }).await
    }

    /// The bytes from `offset` on. What was acknowledged before this was called is seen. Each page is read
    /// at one moment, pages that lie in different chunks perhaps at different ones.
    pub async fn read(&self, offset: u64, len: u64) -> Result<Bytes, ClientError> {
        let mut all = self.read_many(&[(offset, len)]).await?;
        Ok(all.pop().unwrap_or_default())
    }

    /// Several ranges at once, which may overlap; in their order.
    pub async fn read_many(&self, ranges: &[(u64, u64)]) -> Result<Vec<Bytes>, ClientError> {
        let pieces = self.pieces(ranges).await?;
        let read = |piece: &Piece| Action::Read {
            image: 0,
            offset: piece.offset,
            len: piece.len as u32,
        };
        let answers = self.execute(&pieces, pieces.iter().map(read)).await?;
        let mut answers = answers.into_iter().zip(&pieces);
        let mut all = Vec::with_capacity(ranges.len());
        for (_, len) in ranges {
            all.push(join(&mut answers, *len)?);
        }
        Ok(all)
    }

    /// Puts bytes at `offset`. Once this returns, they are safe. Each page is written at one moment; a write
    /// over several pages is not one moment, and a reader may see some of it before the rest. An error may leave open
    /// whether it was done, and where it names a part of it, the rest may have been done all the same.
    pub async fn write(&self, offset: u64, bytes: impl Into<Bytes>) -> Result<(), ClientError> {
        self.write_many(vec![(offset, bytes.into())]).await
    }

    /// Several writes at once, which must not overlap: they may take effect in any order.
    pub async fn write_many(&self, writes: Vec<(u64, Bytes)>) -> Result<(), ClientError> {
        let ranges: Vec<_> = writes.iter().map(|(o, b)| (*o, b.len() as u64)).collect();
        check_apart(&ranges)?;
        let pieces = self.pieces(&ranges).await?;
        let load = self.load.lock().clone();
        let mut sources = writes.into_iter().map(|(_, bytes)| bytes);
        let mut source = Bytes::new();
        let actions: Vec<Action> = pieces
            .iter()
            .map(|piece| {
                if source.is_empty() {
                    source = sources.next().unwrap_or_default();
                }
                let (offset, bytes) = (piece.offset, source.split_to(piece.len));
                match is_within(load.as_ref(), piece) {
                    true => Action::Load { offset, bytes },
                    false => Action::Write { offset, bytes },
                }
            })
            .collect();
        let answers = self.execute(&pieces, actions.into_iter()).await?;
        done(&answers)
    }

    /// Makes bytes zeroes. Whole chunks of 64 KiB give their memory back. As a write, it is no one moment.
    pub async fn zero(&self, offset: u64, len: u64) -> Result<(), ClientError> {
        let pieces = self.pieces(&[(offset, len)]).await?;
        let zero = |piece: &Piece| Action::Zero {
            image: 0,
            session: 0,
            offset: piece.offset,
            len: piece.len as u32,
        };
        let answers = self.execute(&pieces, pieces.iter().map(zero)).await?;
        done(&answers)
    }

    /// Puts `new` into the word at `offset`, a multiple of 8, if it is `expected`; in either case gives what
    /// was there. Words are little-endian.
    pub async fn compare_and_swap(
        &self,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, ClientError> {
        self.word(offset, |offset| Action::CompareSwap {
            offset,
            expected,
            new,
        })
        .await
    }

    /// Adds to the word at `offset`, a multiple of 8, wrapping around past 64 bits; gives what was there.
    pub async fn fetch_add(&self, offset: u64, by: u64) -> Result<u64, ClientError> {
        self.word(offset, |offset| Action::FetchAdd { offset, by })
            .await
    }

    async fn word(
        &self,
        offset: u64,
        action: impl FnOnce(u64) -> Action,
    ) -> Result<u64, ClientError> {
        if !offset.is_multiple_of(8) {
            let text =
                format!("a word begins at a multiple of 8 bytes, and offset {offset} is none");
            return Err(wrong(text));
        }
        let pieces = self.pieces(&[(offset, 8)]).await?;
        let action = action(pieces[0].offset);
        match self.execute(&pieces, [action].into_iter()).await?.pop() {
            Some(Answer::Int(old)) => Ok(old as u64),
            other => Err(unexpected("a word", &other.unwrap_or(Answer::Nil))),
        }
    }

    /// The pieces of these ranges, in order: by the map at hand, or a newer one if that is too small.
    async fn pieces(&self, ranges: &[(u64, u64)]) -> Result<Vec<Piece>, ClientError> {
        match self.pieces_by(&self.client.map(), ranges) {
            Ok(pieces) => Ok(pieces),
            Err(_) => {
                let map = self.client.refresh().await?;
                self.pieces_by(&map, ranges)
            }
        }
    }

    fn pieces_by(
        &self,
        map: &ClusterMap,
        ranges: &[(u64, u64)],
    ) -> Result<Vec<Piece>, ClientError> {
        let (pool, region) = map.region(self.id).ok_or_else(|| self.deleted())?;
        pieces(pool, region, ranges)
    }

    /// Answers to the pieces' operations, none of them an error.
    async fn execute(
        &self,
        pieces: &[Piece],
        actions: impl Iterator<Item = Action>,
    ) -> Result<Vec<Answer>, ClientError> {
        let mut heads = BytesMut::with_capacity(32 * pieces.len());
        let ops = pieces.iter().zip(actions).map(|(piece, action)| {
            let is_write = action.is_write();
            ServiceOp {
                to: piece.to,
                body: action.into_body(&mut heads),
                is_write,
                answer_bytes: if is_write { 0 } else { piece.len },
            }
        });
        let ops: Vec<ServiceOp> = ops.collect();
        let writes = ops.iter().any(|op| op.is_write);
        if writes {
            self.admit(pieces).await?;
        }
        let Some(pool) = pieces.first().map(|piece| PoolRef::Id(piece.pool)) else {
            return Ok(Vec::new());
        };
        let deadline = self.client.deadline();
        let router = self.client.router();
        let answers = router
            .execute(ServiceId::MEMORY, &pool, ops, deadline)
            .await
            .map_err(|error| match error.code() {
                ErrorCode::NotFound => self.deleted(),
                _ => error,
            })?;
        let errors = || {
            answers.iter().filter_map(|answer| match answer {
                Answer::Error(code, text) => Some((*code, text)),
                _ => None,
            })
        };
        // One whose outcome is not known first: the whole is then not known either.
        let first = errors()
            .find(|(code, _)| !code.nothing_done())
            .or(errors().next());
        match first {
            None => Ok(answers),
            Some((ErrorCode::NotFound, _)) => Err(self.deleted()),
            Some((code, text)) => {
                let is_error = |answer: &Answer| matches!(answer, Answer::Error(..));
                let first = answers.iter().position(is_error).unwrap_or(0);
                let text = match code {
                    ErrorCode::Lost => &format!("region '{}': {text}", self.name),
                    _ => text,
                };
                let text = match (writes, answers.len() - errors().count()) {
                    (false, _) => text.clone(),
                    (true, 0) if code.nothing_done() => format!("{text}; nothing was written"),
                    (true, 0) => text.clone(),
                    (true, done) => format!(
                        "{text}; {done} of {} parts of the request were written, all before offset {} among them: {GO_ON_THERE}",
                        pieces.len(),
                        with_unit(pieces[first].at)
                    ),
                };
                Err(ClientError::of(code, text))
            }
        }
    }

    /// Before a write: stretches that nobody has written to are marked as written, and those that are loaded are left to
    /// whoever loads them.
    async fn admit(&self, pieces: &[Piece]) -> Result<(), ClientError> {
        for offset in self.unadmitted(pieces) {
            // A load may have begun or ended since: the directory knows, and refuses while one goes on.
            let (region, offsets) = (self.id, offset..offset + 1);
            let mark = Change::WriteRegion { region, offsets };
            if let Err(error) = self.client.propose(&mark).await {
                let map = self.client.refresh().await?;
                return Err(match map.region(self.id) {
                    Some(_) => error,
                    None => self.deleted(),
                });
            }
        }
        Ok(())
    }

    /// An offset of a write in each stretch to which it may not go yet, by the map at hand.
    fn unadmitted(&self, pieces: &[Piece]) -> Vec<u64> {
        let map = self.client.map();
        let Some((_, region)) = map.region(self.id) else {
            return Vec::new();
        };
        let is_written = |s: &Stretch| s.state == StretchState::Written;
        if region.stretches.iter().all(is_written) {
            return Vec::new();
        }
        let load = self.load.lock().clone();
        let mut offsets = BTreeMap::new();
        for piece in pieces {
            let Address::Bucket(group, _) = piece.to else {
                continue;
            };
            let stretch = region.stretches.iter().find(|s| s.contains(group));
            match stretch.map(|stretch| (stretch.first, stretch.state)) {
                Some((_, StretchState::Loading)) if is_within(load.as_ref(), piece) => {}
                Some((first, StretchState::Loading | StretchState::Empty)) => {
                    offsets.insert(first, piece.at);
                }
                _ => {}
            }
        }
        offsets.into_values().collect()
    }

    fn deleted(&self) -> ClientError {
        not_found(format!("region '{}' was deleted", self.name))
    }
}

/// True if all bytes of a piece belong to what the handle loads.
fn is_within(load: Option<&Range<u64>>, piece: &Piece) -> bool {
    let end = piece.at + piece.len as u64;
    load.is_some_and(|load| load.start <= piece.at && end <= load.end)
}

/// The next answers, put together to so many bytes.
fn join<'a>(
    answers: &mut impl Iterator<Item = (Answer, &'a Piece)>,
    len: u64,
) -> Result<Bytes, ClientError> {
    let mut whole = BytesMut::new();
    loop {
        let part = match answers.next() {
            Some((Answer::Value(part), piece)) if part.len() == piece.len => part,
            other => {
                let answer = other.map_or(Answer::Nil, |(answer, _)| answer);
                return Err(unexpected("read", &answer));
            }
        };
        if part.len() as u64 == len {
            return Ok(part);
        }
        if whole.is_empty() {
            whole.reserve(len as usize);
        }
        whole.extend_from_slice(&part);
        if whole.len() as u64 == len {
            return Ok(whole.freeze());
        }
    }
}

fn done(answers: &[Answer]) -> Result<(), ClientError> {
    answers.iter().try_for_each(|answer| match answer {
        Answer::Ok => Ok(()),
        other => Err(unexpected("write", other)),
    })
}

fn check_apart(ranges: &[(u64, u64)]) -> Result<(), ClientError> {
    let sorted: BTreeSet<(u64, u64)> = ranges.iter().copied().collect();
    if sorted.len() < ranges.len() {
        return Err(wrong(
            "two writes of one request are to the same bytes: make two requests",
        ));
    }
    let pairs = sorted.iter().zip(sorted.iter().skip(1));
    for ((first, len), (second, _)) in pairs {
        if first.saturating_add(*len) > *second {
            let (first, second) = (with_unit(*first), with_unit(*second));
            return Err(wrong(format!(
                "the writes at offsets {first} and {second} of one request overlap: make two requests"
            )));
        }
    }
    Ok(())
}
