//! Nodes that hold a coded region are killed at random times while it is read and written: any k of the m+k,
//! and then one more than that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use staves_client::{Client, ClientError, ClientOptions, Region};
use staves_model::{ClusterMap, Group, MemberSlot};
use staves_testkit::wait_until;
use staves_wire::ErrorCode;
use tokio::runtime::Runtime;

use super::{Cluster, PATIENCE};

const PAGE_BYTES: u64 = 4096;
const CHUNK_BYTES: u64 = 64 << 10;
/// Pages of each worker, one in each chunk from the region's start on: so all data buckets have some.
const PAGES: u64 = 48;
const WORKERS: u64 = 2;
/// Words that are counted up lie beyond all pages; what is written once and stays, beyond those.
const COUNTERS: u64 = PAGES * CHUNK_BYTES;
const STILL: u64 = COUNTERS + CHUNK_BYTES;
const STILL_BYTES: u64 = 12 << 20;

fn client(doors: &[String], deadline: Duration) -> (Runtime, Client) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let options = ClientOptions {
        deadline,
        ..ClientOptions::default()
    };
    let client = runtime.block_on(Client::connect(doors, options));
    (runtime, client.expect("the cluster is there"))
}

/// The bytes of a page's version; no two versions or pages look alike.
fn version(page: u64, version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; PAGE_BYTES as usize];
    }
    let mut word = (version << 20 | page).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let words = (0..PAGE_BYTES / 8).flat_map(|_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    });
    words.collect()
}

/// Readers and writers of one region, each of its own pages, until they are stopped.
struct Workers {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Vec<u64>>>,
}

impl Workers {
    fn start(doors: &[String], region: &str, seed: u64) -> Workers {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let work = |worker| {
            let (doors, region) = (doors.to_vec(), region.to_owned());
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
            std::thread::spawn(move || {
                let rng = SmallRng::seed_from_u64(seed * WORKERS + worker);
                work(&doors, &region, worker, rng, &stop, &done)
            })
        };
        let threads = (0..WORKERS).map(work).collect();
        Workers {
            stop,
            done,
            threads,
        }
    }

    /// Until they have done something more: they go on.
    fn go_on(&self) {
        let (before, until) = (self.done.load(Ordering::SeqCst), Instant::now() + PATIENCE);
        while self.done.load(Ordering::SeqCst) < before + 4 * WORKERS {
            let failed = self.threads.iter().any(JoinHandle::is_finished);
            assert!(!failed, "a worker failed, and said why");
            assert!(Instant::now() < until, "nothing was read or written");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The last version of each worker's pages, and how often each added to its counter.
    fn stop(self) -> Vec<Vec<u64>> {
        self.stop.store(true, Ordering::SeqCst);
        let ended = self.threads.into_iter().map(JoinHandle::join);
        ended.map(|last| last.expect("a worker")).collect()
    }
}

fn offset(worker: u64, page: u64) -> u64 {
    page * CHUNK_BYTES + worker * PAGE_BYTES
}

/// The answer, by a deadline that is long. A loaded machine may take a node for dead that is not; until that
/// one is heard again, its group may be told to be lost.
fn answered<T, F>(runtime: &Runtime, ask: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, ClientError>>,
{
    let until = Instant::now() + PATIENCE;
    loop {
        match runtime.block_on(ask()) {
            Ok(answer) => return answer,
            Err(error) if error.code() == ErrorCode::Lost && Instant::now() < until => {
                eprintln!("not answered for now: {error}");
                std::thread::sleep(Duration::from_millis(200));
            }
            Err(error) => panic!("not answered by the deadline: {error}"),
        }
    }
}

fn add(runtime: &Runtime, region: &Region, worker: u64, known: &mut u64) {
    let at = COUNTERS + worker * 8;
    match runtime.block_on(region.fetch_add(at, 1)) {
        Ok(old) => {
            assert_eq!(old, *known, "each took effect once");
            *known += 1;
        }
        // Whether it was done is not known then.
        Err(error) if error.code() == ErrorCode::Lost => {
            let count = answered(runtime, || region.fetch_add(at, 0));
            assert!(
                (*known..=*known + 1).contains(&count),
                "{count} after {known}"
            );
            *known = count;
        }
        Err(error) => panic!("not added by the deadline: {error}"),
    }
}

/// Every answer must come by the deadline, which is long, and every byte that is read must be the last one
/// acknowledged.
fn work(
    doors: &[String],
    region: &str,
    worker: u64,
    mut rng: SmallRng,
    stop: &AtomicBool,
    done: &AtomicU64,
) -> Vec<u64> {
    let (runtime, client) = client(doors, PATIENCE);
    let region = runtime.block_on(client.region(region)).expect("a region");
    let mut last = vec![0; PAGES as usize + 1];
    while !stop.load(Ordering::SeqCst) {
        let page = rng.random_range(0..=PAGES);
        let known = &mut last[page as usize];
        if page == PAGES {
            add(&runtime, &region, worker, known);
        } else if rng.random_bool(0.5) {
            let (at, bytes) = (offset(worker, page), version(page, *known + 1));
            // Nobody else writes there: again is the same as once.
            answered(&runtime, || region.write(at, bytes.clone()));
            *known += 1;
        } else {
            let read = answered(&runtime, || region.read(offset(worker, page), PAGE_BYTES));
            assert!(read == version(page, *known), "page {page} at {known}");
        }
        done.fetch_add(1, Ordering::SeqCst);
        // The machine has better things to do than to ask as fast as it can: to find the dead.
        std::thread::sleep(Duration::from_millis(2));
    }
    last
}

fn check(runtime: &Runtime, region: &Region, last: &[Vec<u64>]) {
    for (worker, last) in (0..).zip(last) {
        let (counted, pages) = last.split_last().expect("a counter");
        for (page, known) in (0..).zip(pages) {
            let read = region.read(offset(worker, page), PAGE_BYTES);
            let read = runtime.block_on(read).expect("read");
            assert!(read == version(page, *known), "page {page} at {known}");
        }
        let count = region.fetch_add(COUNTERS + worker * 8, 0);
        assert_eq!(runtime.block_on(count).expect("read"), *counted);
    }
}

fn still(seed: u64) -> Vec<u8> {
    let pages = 0..STILL_BYTES / PAGE_BYTES;
    pages.flat_map(|page| version(page, seed + 1)).collect()
}

/// The one group of a region.
fn group_of<'a>(map: &'a ClusterMap, region: &str) -> &'a Group {
    let (_, region) = map.region_named(region).expect("it was made");
    let id = region.groups().next().expect("a group");
    &map.groups[&id]
}

fn is_whole(map: &ClusterMap, group: &Group) -> bool {
    let whole = |x: &staves_model::Member| x.complete && map.runs(x.id) && !group.is_doubled(x);
    group.open && group.members.iter().all(|x| x.as_ref().is_some_and(whole))
}

/// True if its scheme bears that all of these die now: enough others have all their pages.
fn bears(map: &ClusterMap, group: &Group, victims: &[String]) -> bool {
    let stays = |x: &staves_model::Member| {
        let address = &map.node_of(x).expect("a member is a node").native;
        x.complete && map.runs(x.id) && !victims.contains(address)
    };
    let left = group.listed().filter(|(_, x)| stays(x)).count();
    group.open && left >= usize::from(group.m)
}

/// All choices of k of so many nodes, in a fixed order.
fn choices(nodes: usize, k: u32) -> Vec<Vec<usize>> {
    let sets = (0..1u32 << nodes).filter(|set| set.count_ones() == k);
    let members = |set: u32| (0..nodes).filter(|at| set >> at & 1 == 1).collect();
    sets.map(members).collect()
}

impl Cluster {
    fn doors(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.native.clone()).collect()
    }

    fn make_pool(&self, scheme: &str, memory: &str) {
        let ran = self.run(
            0,
            &[
                "pool", "create", "memory", "--kind", "memory", "--scheme", scheme, "--memory",
                memory,
            ],
        );
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }

    fn make_region(&self, name: &str) {
        let made = self.run(0, &["memory", "create", name, "--size", "32MiB"]);
        assert_eq!(made.code, Some(0), "{}", made.stderr);
    }
}

const ROUNDS: usize = 3;

/// Three rounds, each of which kills another choice of k of the m+k nodes of a group, one after the other at random
/// moments, and starts them again with nothing in their memory. So many nodes are to `spare`: with none, those that are
/// left hold what was lost beside what they hold, and everything is read before any comes back. A round begins as soon as
/// the scheme bears it, whether or not all is rebuilt from the round before. Seeds 0 to 4 make all 15 choices of 4+2 between
/// them, seeds 0 and 1 all 6 of 2+2: `STAVES_SEED` says which.
fn any_k_die(scheme: &str, m: usize, k: u32, spare: usize) {
    let seed = std::env::var("STAVES_SEED").map_or(0, |seed| seed.parse().expect("a number"));
    let mut rng = SmallRng::seed_from_u64(seed);
    let members = m + k as usize;
    let mut cluster = Cluster::start(members + spare);
    cluster.make_pool(scheme, "64MiB");
    cluster.make_region("r");
    let doors = cluster.doors();
    let (runtime, client) = client(&doors, PATIENCE);
    let region = runtime.block_on(client.region("r")).expect("a region");
    wait_until("its group is open", || {
        let map = runtime.block_on(client.refresh()).expect("a map");
        is_whole(&map, group_of(&map, "r"))
    });
    let kept = runtime.block_on(region.write(STILL, still(seed)));
    kept.expect("written");
    let workers = Workers::start(&doors, "r", seed);
    workers.go_on();
    let choices = choices(members, k);
    for round in 0..ROUNDS {
        let mut slots = choices[(seed as usize * ROUNDS + round) % choices.len()].clone();
        if rng.random_bool(0.5) {
            slots.reverse();
        }
        std::thread::sleep(Duration::from_millis(rng.random_range(0..1000)));
        let mut victims = Vec::new();
        wait_until(
            "all nodes are up, and the scheme bears the next losses",
            || {
                let map = runtime.block_on(client.refresh()).expect("a map");
                let group = group_of(&map, "r");
                let node = |slot: &usize| {
                    let member = group.member(MemberSlot(*slot as u8))?;
                    Some(map.node_of(member)?.native.clone())
                };
                victims = slots.iter().filter_map(node).collect();
                let up = |address: &String| {
                    let found = map.nodes.values().find(|node| node.native == *address);
                    found.is_some_and(|node| map.is_up(node.id, node.incarnation))
                };
                let all = victims.len() == slots.len() && doors.iter().all(up);
                all && bears(&map, group, &victims)
            },
        );
        eprintln!("seed {seed}, round {round}: members {slots:?} die, on {victims:?}");
        let at = |address: &String| doors.iter().position(|door| door == address);
        let mut victims: Vec<usize> = victims.iter().filter_map(at).collect();
        // Two members may be on one node until all is rebuilt from the round before.
        victims.dedup();
        for at in &victims {
            cluster.end(*at, "-KILL");
            std::thread::sleep(Duration::from_millis(rng.random_range(0..1500)));
        }
        if spare == 0 {
            workers.go_on();
            let read = answered(&runtime, || region.read(STILL, STILL_BYTES));
            assert!(read == still(seed), "round {round}: while they are dead");
            eprintln!("seed {seed}, round {round}: all is read while they are dead");
        }
        for at in victims {
            cluster.up(at);
            std::thread::sleep(Duration::from_millis(rng.random_range(0..500)));
        }
        workers.go_on();
    }
    wait_until("all is rebuilt", || {
        let map = runtime.block_on(client.refresh()).expect("a map");
        is_whole(&map, group_of(&map, "r"))
    });
    let last = workers.stop();
    check(&runtime, &region, &last);
    let read = runtime.block_on(region.read(STILL, STILL_BYTES));
    assert!(read.expect("read") == still(seed), "what was only kept");
    let found = cluster.scrubbed();
    assert_eq!(found["differences"], 0, "{found}");
    assert!(found["pages_checked"].as_u64() > Some(0), "{found}");
}

/// Rows H1, H2, H3, H5, H6 and H7 with real processes.
#[test]
fn h5_h6_h7_any_two_of_four_and_two_die_at_random_times() {
    any_k_die("4+2", 4, 2, 1);
}

/// The same with exactly as many nodes as the scheme has members: none is there to take what is lost, and none comes
/// back before all was read.
#[test]
fn h5_h6_h7_any_two_of_exactly_six_nodes_die_and_all_is_answered_by_the_others() {
    any_k_die("4+2", 4, 2, 0);
}

/// Row H7, and GROUP's last line but one: more nodes of a group die than its scheme bears. That group alone is
/// lost, and everybody is told what happened, what is gone and what to do; no byte is guessed.
#[test]
fn h7_one_more_than_the_scheme_bears_is_lost_and_nothing_else() {
    let mut cluster = Cluster::start(5);
    cluster.make_pool("2+1", "64MiB");
    let doors = cluster.doors();
    let (runtime, client) = client(&doors, PATIENCE);
    let (gone, stays, victims) = two_groups_apart(&cluster, &runtime, &client);
    let write = async {
        let region = client.region(&gone).await?;
        region.write(0, version(7, 1)).await?;
        Ok::<Region, ClientError>(region)
    };
    let lost = runtime.block_on(write).expect("written");
    let workers = Workers::start(&doors, &stays, 1);
    workers.go_on();
    for address in &victims {
        let at = doors.iter().position(|door| door == address);
        cluster.end(at.expect("one of ours"), "-KILL");
    }
    let asked = doors.iter().position(|door| !victims.contains(door));
    let asked = asked.expect("two of five died");
    let id = |map: &ClusterMap| group_of(map, &gone).id;
    wait_until("the group is marked as lost", || {
        let map = runtime.block_on(client.refresh()).expect("a map");
        group_of(&map, &gone).lost
    });
    // Readers and writers of what was lost, of both data buckets: one of them may still run.
    for chunk in [0, 1] {
        let read = runtime.block_on(lost.read(chunk * CHUNK_BYTES, PAGE_BYTES));
        let written = runtime.block_on(lost.write(chunk * CHUNK_BYTES, version(7, 2)));
        for (answer, what) in [(read.map(drop), "read"), (written, "write")] {
            match answer {
                Err(error) => {
                    assert_eq!(error.code(), ErrorCode::Lost, "{what}: {error}");
                    assert!(error.to_string().contains("is lost"), "{what}: {error}");
                    assert!(error.to_string().contains(&gone), "{what}: {error}");
                }
                // Its data bucket lives, and has all that was written there; nobody writes to it any more.
                Ok(()) => assert_eq!(what, "read"),
            }
        }
    }
    workers.go_on();
    check(
        &runtime,
        &region_of(&runtime, &client, &stays),
        &workers.stop(),
    );
    told_of_the_loss(&cluster, asked, &gone, &id(&client.map()).to_string());
    let deleted = cluster.run(asked, &["memory", "delete", &gone, "--yes"]);
    assert_eq!(deleted.code, Some(0), "{}", deleted.stderr);
    cluster.wait_for("nothing is lost any more", asked, |status| {
        status["pools"]
            .as_array()
            .is_some_and(|pools| pools.iter().all(|pool| pool["lost"] == 0))
    });
    let made = cluster.run(asked, &["memory", "create", &gone, "--size", "1MiB"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
}

fn region_of(runtime: &Runtime, client: &Client, name: &str) -> Region {
    runtime.block_on(client.region(name)).expect("a region")
}

/// Makes regions until two have groups so far apart that two nodes of the one group hold at most one member of the
/// other, and no voter is missed: the names of both, and those nodes.
fn two_groups_apart(
    cluster: &Cluster,
    runtime: &Runtime,
    client: &Client,
) -> (String, String, Vec<String>) {
    for count in 0..12 {
        let name = format!("r{count}");
        cluster.make_region(&name);
        wait_until("its group is whole", || {
            let map = runtime.block_on(client.refresh()).expect("a map");
            is_whole(&map, group_of(&map, &name))
        });
        let map = client.map();
        let nodes = |region: &str| {
            let members = group_of(&map, region).listed();
            members.map(|(_, x)| x.id.node).collect::<Vec<_>>()
        };
        for other in (0..count).map(|other| format!("r{other}")) {
            let (gone, stays) = (nodes(&name), nodes(&other));
            let Some(apart) = gone.iter().find(|node| !stays.contains(node)) else {
                continue;
            };
            let second = gone.iter().find(|node| *node != apart);
            let victims = [Some(apart), second].into_iter().flatten();
            let addresses = victims.map(|node| map.nodes[node].native.clone());
            return (name, other, addresses.collect());
        }
    }
    panic!("twelve groups on the same three of five nodes");
}

fn told_of_the_loss(cluster: &Cluster, asked: usize, region: &str, group: &str) {
    let read = [
        "memory", "read", region, "--offset", "30MiB", "--length", "1B",
    ];
    let written = cluster.pipe(asked, &["memory", "write", region], b"new");
    let text = String::from_utf8_lossy(&written.stderr).into_owned();
    assert_eq!(written.status.code(), Some(1), "{text}");
    assert!(
        text.contains("is lost") && text.contains("(lost)"),
        "{text}"
    );
    assert!(text.contains(region), "it names the region: {text}");
    let ran = cluster.run(asked, &read);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("is lost"),
        "{}",
        ran.stderr
    );
    let status = cluster.run(asked, &["status"]).stdout;
    let says = format!("region '{region}'");
    assert!(
        status.contains("Critical") && status.contains(&says),
        "{status}"
    );
    assert!(status.contains("delete"), "what to do: {status}");
    let shown = cluster.run(asked, &["group", "show", group]).stdout;
    assert!(shown.contains("lost") && shown.contains(region), "{shown}");
    assert!(shown.contains("memory delete"), "what to do: {shown}");
    let members = shown.lines().filter(|line| line.contains(" down "));
    let complete = members.filter(|line| line.contains(" yes "));
    assert_eq!(complete.count(), 0, "who is down is not complete: {shown}");
    let gone = format!("group {group} is lost");
    let shown = cluster.run(asked, &["memory", "show", region]).stdout;
    assert!(shown.contains(&gone), "{shown}");
    // It is a change, which needs a leader of the directory.
    wait_until("it cannot be protected", || {
        let ran = cluster.run(asked, &["memory", "protect", region]);
        assert_ne!(ran.code, Some(0), "{}", ran.stdout);
        ran.code == Some(1) && ran.stderr.contains(&gone)
    });
    let explained = cluster.run(asked, &["explain", "lost"]).stdout;
    assert!(explained.contains("memory delete"), "{explained}");
}
