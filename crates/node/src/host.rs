//! The host: all buckets of this node, and what drives them.
//!
//! A [`Cell`] stands for each group of the map, whether or not this node has a bucket of it, and with m > 1 one
//! more for the second member that the node may hold beside it; [`Routes`] is the table from pool and hash slot to cell, replaced whole with each map that changes it, so that
//! whoever routes by it takes no lock that another takes for long. Events come from other nodes'
//! messages, from the clock ([`Host::tick`]), from the map ([`Host::follow`]) and from the directory's
//! leader ([`Host::heard`]); what the machines want done leaves through `peers` and `calls`.

mod calls;
mod cell;
mod disk_keeper;
pub(crate) mod figures;
mod lane;
mod leases;
mod own;
mod put_off;
mod recovered;
pub(crate) mod saver;
pub(crate) mod services;
mod slab;
#[cfg(test)]
pub(crate) mod testing;
mod ticker;
mod waiter;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use staves_directory::Life;
use staves_group::{Durability, Event, Member};
use staves_model::mutant::{Mutant, planted};
use staves_model::{
    ClientId, ClusterMap, DiskId, Epoch, Group, GroupId, HashSlot, Medium, MemberId, MemberSlot,
    NodeId, NodeState, Pool, PoolId, Refusal, ServiceId, Stretch, StretchState, Time,
};
use staves_net::{InFlight, Peers};
use staves_service::{AnyBucket, BucketEffects};
use staves_store::{Arena, Budget, EXTENT_BYTES};
use staves_wire::ErrorCode;
use staves_wire::group::{GroupEnvelope, GroupMessage};
use staves_wire::memory::Action;
use staves_wire::service::{Answer, NumberedOp, PoolRef, ServiceRequest};
use tokio::sync::Notify;

pub(crate) use self::calls::Calls;
pub(crate) use self::cell::{Cell, CellState};
use self::lane::Lane;
use self::own::OwnMail;
use self::put_off::PutOff;
use self::recovered::{NewMember, member_on_disk};
use self::services::{HostedService, ServiceOptions};
pub(crate) use self::waiter::Waiter;
use crate::clock::Clock;
use crate::disk::NodeDisk;
use crate::disks::Disks;
use crate::forward::NodeRouter;
use crate::log::Sequencers;

/// A bucket that holds nothing and is listed nowhere is given up after this; what it kept of a former
/// life, for the case that it is asked back, goes with it.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// All buckets of this node.
pub(crate) struct Host {
    pub(crate) life: Life,
    pub(crate) clock: Clock,
    pub(crate) peers: Peers,
    pub(crate) calls: Arc<Calls>,
    /// Messages of a member here to the other one of its group.
    own: OwnMail,
    /// Cells that are flushed at the end of the turn.
    put_off: PutOff<Arc<Cell>>,
    options: Options,
    services: Vec<HostedService>,
    arena: Arc<Arena>,
    routes: RwLock<Arc<Routes>>,
    /// Raised with each new table.
    version: AtomicU64,
    router: OnceLock<NodeRouter>,
    /// The sequencers of logs that run here.
    pub(crate) logs: Arc<Sequencers>,
    /// Buckets whose next step has work at once.
    busy: Mutex<BTreeSet<GroupId>>,
    busy_wake: Notify,
    /// Cells that do not rest: each tick is for these. By themselves, so that none is missed that the routes of a tick do not
    /// know yet.
    active: Mutex<Vec<Arc<Cell>>>,
    /// Asks the lease asker not to wait for its turn.
    lease_wake: Notify,
    /// The time, by our clock at the asking, of the last answer of a directory leader that a majority confirmed.
    heard: AtomicU64,
    /// Pages that lately came in to buckets that are being filled, per second.
    fill_rate: AtomicU64,
    /// Lanes of one life are clients by these ids.
    lane_clients: u64,
    /// Microseconds since 1970 at our clock's zero, for their numbers.
    lanes_began: u64,
    steps: AtomicU64,
    /// The disks of the node.
    disks: Arc<Disks>,
}

/// A bucket, and the disk that it keeps its bytes on, if it does.
type PlacedBucket = (Box<dyn AnyBucket>, Option<Arc<NodeDisk>>);

/// The options of buckets.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) services: ServiceOptions,
    pub(crate) group: staves_group::Options,
    /// The pool that the RESP door serves.
    pub(crate) pool: String,
    /// The interval of ticks.
    pub(crate) tick: Duration,
    /// The time that a request without a deadline may take.
    pub(crate) request: Duration,
    /// The memory for requests and answers of clients.
    pub(crate) in_flight: Arc<InFlight>,
}

/// The cells of requests, by one map.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    pub(crate) map: Arc<ClusterMap>,
    /// The pool that the RESP door serves, once it exists.
    pub(crate) door: Option<PoolId>,
    /// Pools change seldom and groups often: the tables of the map before are kept where they fit.
    pub(crate) pools: Arc<BTreeMap<PoolId, PoolRoutes>>,
    cells: Arc<BTreeMap<GroupId, Places>>,
    /// Stretches of regions that hold nothing or are being loaded, by their first groups.
    unwritten: Arc<BTreeMap<GroupId, Stretch>>,
    /// Bytes of pages that the disks took then: budgets of pools rest on it.
    disk_bytes: u64,
}

/// One group's cells on this node.
#[derive(Clone, Debug)]
struct Places {
    home: Arc<Cell>,
    /// Of the second member, with m > 1.
    second: Option<Arc<Cell>>,
}

/// One pool's cells, by bucket.
#[derive(Debug)]
pub(crate) struct PoolRoutes {
    pub(crate) id: PoolId,
    pub(crate) cells: Vec<Arc<Cell>>,
    /// Those of second members, with m > 1.
    pub(crate) seconds: Vec<Arc<Cell>>,
    pub(crate) budget: Arc<Budget>,
    copies_min: Arc<AtomicU8>,
}

impl PoolRoutes {
    /// The bucket of a hash slot, as `Pool::bucket_of` has it.
    #[inline]
    pub(crate) fn bucket_of(&self, slot: HashSlot) -> u32 {
        (u32::from(slot.0) * self.cells.len() as u32) / u32::from(staves_model::HASH_SLOTS)
    }
}

impl Routes {
    /// The cell of a group for the member on a disk of the node.
    pub(crate) fn cell(&self, group: GroupId, disk: DiskId) -> Option<&Arc<Cell>> {
        let places = self.cells.get(&group)?;
        match disk {
            DiskId::MEMORY => Some(&places.home),
            DiskId::SECOND => places.second.as_ref(),
            _ => None,
        }
    }

    /// A group's cells: none if it is not known, and two with m > 1.
    pub(crate) fn cells_of(&self, group: GroupId) -> impl Iterator<Item = &Arc<Cell>> {
        let places = self.cells.get(&group).into_iter();
        places.flat_map(Places::all)
    }

    /// The state of the stretch of a region that a group belongs to; of other groups `Written`.
    pub(crate) fn stretch_state(&self, group: GroupId) -> StretchState {
        let before = self.unwritten.range(..=group).next_back();
        let stretch = before.filter(|(_, stretch)| stretch.contains(group));
        stretch.map_or(StretchState::Written, |(_, stretch)| stretch.state)
    }

    /// The refusal of a write to a stretch of a region that has no parity, by the map: nobody may write where nothing was
    /// written before it is marked, nor others where somebody loads.
    pub(crate) fn refuse_write(
        &self,
        request: &ServiceRequest,
        group: GroupId,
        op: &NumberedOp,
    ) -> Option<Answer> {
        let state = self.stretch_state(group);
        if state == StretchState::Written {
            return None;
        }
        let action = Action::from_body(&op.body).ok()?;
        let is_load = matches!(action, Action::Load { .. }) || planted(Mutant::LoadOpenToAll);
        if !action.is_write() || (state == StretchState::Loading && is_load) {
            return None;
        }
        if state == StretchState::Loading && request.revision <= self.map.revision {
            let region = self.map.region_of(group).map(|region| &region.name);
            let name = region.cloned().unwrap_or_default();
            let refusal = Refusal::RegionIsLoaded { name };
            return Some(Answer::error(ErrorCode::Refused, refusal.to_string()));
        }
        let text = "it was not done: by this node's map that part of the region holds nothing or is being loaded, so it has \
                    to be marked as written first";
        Some(Answer::error(ErrorCode::NotServing, text))
    }

    /// All cells.
    pub(crate) fn cells(&self) -> impl Iterator<Item = &Arc<Cell>> {
        self.cells.values().flat_map(Places::all)
    }

    /// A service's pool by id or name.
    pub(crate) fn pool(&self, service: ServiceId, pool: &PoolRef) -> Option<&PoolRoutes> {
        let id = match pool {
            PoolRef::Id(id) => *id,
            PoolRef::Name(name) => self.map.pool_named(name)?.id,
        };
        let kind = &self.map.pools.get(&id)?.kind;
        self.pools
            .get(&id)
            .filter(|_| kind.service() == Some(service))
    }
}

impl Places {
    fn all(&self) -> impl Iterator<Item = &Arc<Cell>> {
        std::iter::once(&self.home).chain(&self.second)
    }
}

impl Host {
    pub(crate) fn new(
        life: Life,
        clock: Clock,
        arena: Arc<Arena>,
        peers: Peers,
        options: Options,
        services: Vec<HostedService>,
        disks: Arc<Disks>,
    ) -> Host {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let since_1970 = since_1970.map_or(0, |d| d.as_micros() as u64);
        Host {
            steps: AtomicU64::new(0),
            lanes_began: since_1970.saturating_sub(clock.now().0 / 1000),
            life,
            clock,
            peers,
            calls: Arc::default(),
            own: OwnMail::default(),
            put_off: PutOff::default(),
            logs: Sequencers::new(life, options.services.log_asks.clone()),
            options,
            services,
            arena,
            routes: RwLock::default(),
            version: AtomicU64::new(0),
            router: OnceLock::new(),
            busy: Mutex::default(),
            busy_wake: Notify::new(),
            active: Mutex::default(),
            lease_wake: Notify::new(),
            heard: AtomicU64::new(0),
            fill_rate: AtomicU64::new(0),
            lane_clients: rand::random(),
            disks,
        }
    }

    /// The table of now.
    pub(crate) fn routes(&self) -> Arc<Routes> {
        self.routes.read().clone()
    }

    /// The table's version: as long as it is the same, so is the table.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The options it was made with.
    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The entry of a service in the node's table.
    pub(crate) fn service(&self, id: ServiceId) -> Option<&HostedService> {
        self.services.iter().find(|hosted| hosted.id == id)
    }

    /// The disks of the node.
    pub(crate) fn disks(&self) -> &Arc<Disks> {
        &self.disks
    }

    /// The memory that all pools' pages come from.
    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// The router that passes requests on to other nodes. Set once, right after the host was made.
    pub(crate) fn set_router(&self, router: NodeRouter) {
        let fresh = self.router.set(router).is_ok();
        debug_assert!(fresh, "the router is set once");
    }

    /// The router that passes requests on to other nodes.
    pub(crate) fn router(&self) -> &NodeRouter {
        self.router
            .get()
            .expect("the router is set before any door opens")
    }

    /// Takes in a map: links, budgets, cells, and what it says to each bucket. Called by one task only.
    pub(crate) fn follow(&self, map: Arc<ClusterMap>) {
        let old = self.routes();
        self.follow_nodes(&map);
        let new = Arc::new(self.routes_by(&old, map.clone()));
        self.bring_back(&old, &new);
        *self.routes.write() = new.clone();
        self.version.fetch_add(1, Ordering::Release);
        self.router().set_map(map.clone());

        let now = self.clock.now();
        for group in map.groups.values() {
            let before = old.map.groups.get(&group.id);
            if before.is_some_and(|before| before.revision == group.revision) {
                continue;
            }
            for cell in new.cells_of(group.id) {
                self.tell_group(cell, now, group, &new);
            }
        }
        let gone = old.cells().filter(|c| new.cell(c.group, c.disk).is_none());
        for cell in gone {
            cell.clear();
            self.end_on_disk(cell);
        }
        self.peers.flush();
        self.lease_wake.notify_one();
    }

    /// Members that the disks have come back before any of them can be reached: what the others of one group have reserved meanwhile must not take the room of
    /// another one's pages.
    fn bring_back(&self, old: &Routes, new: &Routes) {
        let now = self.clock.now();
        for group in new.map.groups.values() {
            let before = old.map.groups.get(&group.id);
            let is_known = before.is_some_and(|before| before.revision == group.revision);
            if is_known || self.disks.home(group.id).is_none() {
                continue;
            }
            let cells = new.cells_of(group.id);
            cells
                .filter(|cell| group.seats(self.life.node, cell.disk))
                .for_each(|cell| self.found(cell, new, now));
        }
    }

    /// Links go to every other node that is up.
    fn follow_nodes(&self, map: &ClusterMap) {
        let me = self.life.node;
        let up = |node: &&staves_model::Node| node.state == NodeState::Up && node.id != me;
        for node in map.nodes.values().filter(up) {
            self.peers.set_addr(node.id, &node.native);
        }
        for known in self.peers.nodes() {
            if map.nodes.get(&known).filter(up).is_none() {
                self.peers.remove(known);
            }
        }
    }

    fn routes_by(&self, old: &Routes, map: Arc<ClusterMap>) -> Routes {
        let disk_bytes = self.disks.page_bytes();
        let same_pools =
            old.map.pools == map.pools && old.map.volumes.copies_min == map.volumes.copies_min;
        if same_pools && old.disk_bytes == disk_bytes {
            let (pools, cells) = (old.pools.clone(), old.cells.clone());
            let unwritten = old.unwritten.clone();
            return Routes {
                door: old.door,
                map,
                pools,
                cells,
                unwritten,
                disk_bytes,
            };
        }
        let each = map
            .pools
            .values()
            .map(|p| (p.id, self.pool_routes(old, p, &map)));
        let pools: BTreeMap<PoolId, PoolRoutes> = each.collect();
        let places = |pool: &PoolRoutes| {
            let of = |(at, home): (usize, &Arc<Cell>)| {
                let (home, second) = (home.clone(), pool.seconds.get(at).cloned());
                (home.group, Places { home, second })
            };
            pool.cells.iter().enumerate().map(of).collect::<Vec<_>>()
        };
        let cells = pools.values().flat_map(places).collect();
        let regions = map.pools.values().flat_map(Pool::regions);
        let stretches = regions.flat_map(|region| &region.stretches);
        let unwritten = stretches.filter(|stretch| stretch.state != StretchState::Written);
        let unwritten = unwritten.map(|stretch| (stretch.first, *stretch)).collect();
        Routes {
            door: map
                .pool_named(&self.options.pool)
                .filter(|pool| pool.kind.service() == Some(ServiceId::CACHE))
                .map(|pool| pool.id),
            pools: Arc::new(pools),
            cells: Arc::new(cells),
            unwritten: Arc::new(unwritten),
            disk_bytes,
            map,
        }
    }

    /// Extents that the disks have for all pools on them. Pools share these by use, as those in memory share the node's: each disk's arena has no more
    /// than the disk has places for, so that a page that was written always has its place.
    fn disk_extents(&self) -> u32 {
        let extents = self.disks.page_bytes() / EXTENT_BYTES as u64;
        u32::try_from(extents).unwrap_or(u32::MAX)
    }

    fn pool_routes(&self, old: &Routes, pool: &Pool, map: &ClusterMap) -> PoolRoutes {
        let extents = pool.node_budget_bytes / EXTENT_BYTES as u64;
        let extents = u32::try_from(extents).unwrap_or(u32::MAX);
        let extents = match pool.medium {
            Medium::Ram => extents,
            Medium::Disk => extents.min(self.disk_extents()),
        };
        let budget = match old.pools.get(&pool.id) {
            Some(known) => {
                known.budget.set_limit(extents);
                known.budget.clone()
            }
            None => Arc::new(Budget::new(extents)),
        };
        let copies_min = match old.pools.get(&pool.id) {
            Some(known) => known.copies_min.clone(),
            None => Arc::default(),
        };
        copies_min.store(map.copies_min(pool.id), Ordering::Relaxed);
        let cells = |disk| {
            let cell = move |id: &GroupId| {
                let fresh = || Arc::new(Cell::new(*id, disk, self.lane(*id, disk)));
                old.cell(*id, disk).cloned().unwrap_or_else(fresh)
            };
            pool.groups.iter().map(cell)
        };
        let may_have_two = pool.scheme.m > 1;
        PoolRoutes {
            id: pool.id,
            cells: cells(DiskId::MEMORY).collect(),
            seconds: cells(DiskId::SECOND).filter(|_| may_have_two).collect(),
            budget,
            copies_min,
        }
    }

    fn lane(&self, group: GroupId, disk: DiskId) -> Lane {
        let apart = u64::from(group.0) | u64::from(disk.0) << 32;
        let client = self.lane_clients.wrapping_add(apart);
        Lane::new(ClientId(client.max(1)), self.lanes_began)
    }

    /// The directory's entry of a group has changed.
    fn tell_group(&self, cell: &Arc<Cell>, now: Time, group: &Group, routes: &Routes) {
        if group.seats(self.life.node, cell.disk) {
            self.found(cell, routes, now);
        }
        if !routes.map.volumes.writeback.is_empty()
            && let Some(bucket) = &mut cell.lock().bucket
        {
            // Before it hears of an epoch that was committed with them.
            bucket.set_sessions_over(routes.map.sessions_over(group.id));
        }
        cell.step(self, now, Event::Map(Arc::new(group.clone())));
    }

    /// The identity of a cell's member.
    fn id_of(&self, cell: &Cell) -> MemberId {
        MemberId {
            node: self.life.node,
            disk: cell.disk,
            incarnation: self.life.incarnation,
        }
    }

    /// The map gives a cell's bucket this data slot, of which the bucket may not know yet.
    pub(crate) fn is_to_answer(
        &self,
        routes: &Routes,
        cell: &Cell,
        slot: MemberSlot,
        state: &CellState,
    ) -> bool {
        let group = routes.map.groups.get(&cell.group);
        let member = group.and_then(|group| group.member(slot));
        let id = self.id_of(cell);
        member.is_some_and(|member| member.id == id) && state.bucket.is_some()
    }

    /// Makes the cell's bucket, unless it has one.
    fn found(&self, cell: &Cell, routes: &Routes, now: Time) {
        let mut state = cell.lock();
        if state.bucket.is_some() {
            return;
        }
        if let Some((bucket, disk)) = self.bucket(cell.group, self.id_of(cell), routes, now) {
            (state.bucket, state.disk) = (Some(bucket), disk);
        }
    }

    /// An empty bucket for a group of a pool.
    fn bucket(
        &self,
        group: GroupId,
        me: MemberId,
        routes: &Routes,
        now: Time,
    ) -> Option<PlacedBucket> {
        let known = routes.map.groups.get(&group)?;
        let pool = routes.map.pools.get(&known.pool)?;
        // What it would be filled from may be on the disk alone that a former member left, and a new one there would be in its place.
        let has_sources = routes.map.complete_sources_up(known) >= usize::from(known.m);
        if !has_sources && self.disks.left(group).is_some() {
            return None;
        }
        let service = self.service(pool.kind.service()?)?;
        let of_pool = routes.pools.get(&pool.id)?;
        let budget = of_pool.budget.clone();
        let mut options = self.options.group.clone();
        options.copies_min = of_pool.copies_min.clone();
        options.quiet_after = pool
            .may_start_empty
            .then_some(staves_model::planner::START_EMPTY_AFTER);
        let (member, disk) = match pool.medium {
            Medium::Ram => {
                let arena = self.arena.clone();
                (Member::new(options, group, me, arena, budget), None)
            }
            Medium::Disk => {
                options.journal = staves_store::Journal::Disk;
                if routes.map.is_writeback(group) {
                    options.durability = Durability::Writeback;
                }
                let disk = self.disks.place(group)?;
                options.disk_room = disk.room();
                options.kept_on = Some(disk.kept_on(group));
                let new = NewMember {
                    group,
                    me,
                    budget: &budget,
                    now,
                };
                let member = member_on_disk(&disk, options, new)?;
                (member, Some(disk))
            }
        };
        let mut bucket = (service.bucket)(&self.options.services, member);
        bucket.set_sessions_over(routes.map.sessions_over(group));
        let clock = Time(self.heard.load(Ordering::Relaxed));
        let epoch = Epoch(0);
        let mut nothing = BucketEffects::default();
        bucket.step(now, Event::Heard { epoch, clock }, &mut nothing);
        Some((bucket, disk))
    }

    /// Gives up what a disk has of groups that are no more, or whose member is on another one; and, once `is_over`, of those that are served elsewhere. Until then they
    /// may call it in, and it keeps the pages that have not changed; and one that waits for other disks may never see them again.
    pub(crate) fn end_unwanted(&self, disk: &Arc<NodeDisk>, is_over: bool) {
        let map = self.routes().map.clone();
        let (node, life) = (self.life.node, self.life.incarnation);
        if !map.is_up(node, life) {
            return;
        }
        let wanted = |group| {
            let home = self.disks.home(group);
            let is_here = home.is_none_or(|home| Arc::ptr_eq(&home, disk));
            let group = map.groups.get(&group);
            // Nobody else may ever have it again.
            let waits = |g: &staves_model::Group| {
                !g.open || g.lost || map.complete_sources_up(g) < usize::from(g.m)
            };
            let kept =
                |g: &staves_model::Group| (g.seats(node, DiskId::MEMORY) && is_here) || waits(g);
            group.is_some_and(|g| !is_over || kept(g))
        };
        disk.end_unwanted(wanted);
    }

    /// A bucket is given up: what a disk has of it goes.
    fn end_on_disk(&self, cell: &Cell) {
        self.disks.end(cell.group);
    }

    /// Messages of the group protocol have come.
    pub(crate) fn receive(&self, batch: Vec<GroupEnvelope>) {
        self.gets_on();
        let routes = self.routes();
        for envelope in batch {
            self.receive_one(&routes, envelope);
        }
    }

    fn receive_one(&self, routes: &Routes, envelope: GroupEnvelope) {
        let disk = match planted(Mutant::SecondsMailToFirst) {
            true => DiskId::MEMORY,
            false => envelope.to,
        };
        let Some(cell) = routes.cell(envelope.group, disk) else {
            return; // a newer map than ours; the sender says it again
        };
        let now = self.clock.now();
        let founds = matches!(
            envelope.message,
            GroupMessage::Seal { .. } | GroupMessage::Sync { .. }
        );
        if founds
            && let Some(entry) = routes.map.groups.get(&envelope.group)
            && cell.lock().bucket.is_none()
        {
            self.found(cell, routes, now);
            cell.step(self, now, Event::Map(Arc::new(entry.clone())));
        }
        cell.step(self, now, Event::Message(envelope));
    }

    /// Puts off what these cells have to send. False if there are none.
    pub(crate) fn put_off(&self, touched: &mut Vec<Arc<Cell>>) -> bool {
        self.put_off.add(touched)
    }

    /// True if cells wait for the end of a turn.
    pub(crate) fn has_put_off(&self) -> bool {
        !self.put_off.is_empty()
    }

    /// Sends what was put off, whoever did it, and all that waits for other nodes.
    pub(crate) fn end_turn(&self) {
        let touched = self.put_off.take();
        if !touched.is_empty() {
            let now = self.clock.now();
            touched.iter().for_each(|cell| cell.flush(self, now));
        }
        self.peers.flush();
    }

    /// Time has passed.
    #[cfg(test)]
    pub(crate) fn tick(&self) {
        let routes = self.routes();
        let active = self.take_active();
        active.iter().for_each(|cell| self.tick_cell(&routes, cell));
        self.peers.flush();
    }

    /// The cells that do not rest; [`Host::tick_cell`] puts back those that still do not.
    fn take_active(&self) -> Vec<Arc<Cell>> {
        std::mem::take(&mut *self.active.lock())
    }

    /// Each tick is for this cell, too, until it rests. Called once for each time that it wakes.
    pub(crate) fn look_after(&self, cell: &Arc<Cell>) {
        self.active.lock().push(cell.clone());
    }

    fn tick_cell(&self, routes: &Routes, cell: &Arc<Cell>) {
        self.gets_on();
        let now = self.clock.now();
        cell.step(self, now, Event::Tick);
        let mut state = cell.lock();
        let entry = routes.map.groups.get(&cell.group);
        let listed = entry.is_some_and(|g| g.seats(self.life.node, cell.disk));
        let member = state.bucket.as_ref().map(|bucket| bucket.member());
        let holds = member.is_some_and(|member| member.slot().is_some());
        if listed || holds || state.waiting() > 0 {
            state.idle_since = None;
        } else if now.since(*state.idle_since.get_or_insert(now)) > IDLE_MAX {
            state.idle_since = None;
            // A member on the disk that it has not taken over may be the last one there is.
            if state.bucket.take().is_some() {
                state.disk = None;
                self.end_on_disk(cell);
            }
        }
        if !state.comes_to_rest(listed) {
            self.look_after(cell);
        }
    }

    /// Wakes what rests at these nodes, which have not answered since then.
    fn tell_silent(&self, routes: &Routes, silent: &[(NodeId, Time)]) {
        for (node, since) in silent.iter().copied() {
            for group in routes.map.groups.values() {
                if group.listed().any(|(_, member)| member.id.node == node) {
                    let cells = routes.cells_of(group.id);
                    let event = Event::Silent { node, since };
                    cells.for_each(|cell| cell.step(self, self.clock.now(), event.clone()));
                }
            }
        }
    }

    /// Work was done on one of the ordinary threads.
    fn gets_on(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// The steps of buckets so far, round the clock of `u64`: a node in which they stand still hangs, and one in which they come
    /// slowly is slow.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// For how long no directory leader that a majority confirmed has answered.
    pub(crate) fn silent_for(&self) -> Duration {
        let heard = Time(self.heard.load(Ordering::Relaxed));
        self.clock.now().since(heard)
    }

    /// A directory leader that a majority confirmed answered what we asked at `clock`.
    /// It counts for members of these groups from these epochs on, in ascending order (GROUP rule 13).
    pub(crate) fn heard(&self, clock: Time, groups: &[(GroupId, Epoch)]) {
        self.heard.fetch_max(clock.0, Ordering::Relaxed);
        let now = self.clock.now();
        let routes = self.routes();
        for cell in routes.cells() {
            if let Ok(at) = groups.binary_search_by_key(&cell.group, |(group, _)| *group) {
                let epoch = groups[at].1;
                cell.step(self, now, Event::Heard { epoch, clock });
            }
        }
        self.peers.flush();
    }

    pub(crate) fn wake_busy(&self, group: GroupId) {
        self.busy.lock().insert(group);
        self.busy_wake.notify_one();
    }

    /// Data buckets that are this node's to answer for.
    pub(crate) fn data_buckets(&self) -> usize {
        let serves = |cell: &&Arc<Cell>| cell.lock().answers();
        self.routes().cells().filter(serves).count()
    }
}

/// Runs what drives the buckets, until the tasks are aborted.
pub(crate) fn drivers(
    host: Arc<Host>,
    directory: staves_directory::Directory,
) -> Vec<tokio::task::JoinHandle<()>> {
    vec![
        tokio::spawn(ticker::run(host.clone())),
        tokio::spawn(ticker::run_busy(host.clone())),
        tokio::spawn(bring_own_messages(host.clone())),
        tokio::spawn(leases::run(host.clone(), directory.clone())),
        tokio::spawn(disk_keeper::run(host.clone(), directory.clone())),
        tokio::spawn(calls::run(host.calls.clone(), directory)),
    ]
}

/// Brings messages from one member of this node to another, as they come.
async fn bring_own_messages(host: Arc<Host>) {
    loop {
        let batch = host.own.next_batch().await;
        host.receive(batch);
        host.peers.flush();
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests;
