//! Snapshots and clones of volumes that are written to meanwhile, with real nodes.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use staves_testkit::SetAtEnd;
use staves_testkit::nbd::NbdClient;

use super::volumes::{make, start};
use super::{Cluster, PATIENCE};

const CHUNK: u64 = 64 << 10;
/// Two chunks, which lie in two buckets.
const PLACES: [u64; 2] = [0, CHUNK];

fn connect(port: u16, export: &str) -> NbdClient {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let until = Instant::now() + PATIENCE;
    loop {
        match NbdClient::connect(address, export) {
            Ok(client) => return client,
            // A node that has not heard of it yet.
            Err(error) if Instant::now() > until => panic!("{export}: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn number(client: &mut NbdClient, offset: u64) -> u64 {
    let bytes = client.read(offset, 8).expect("read");
    u64::from_le_bytes(bytes.try_into().expect("eight"))
}

fn done(cluster: &Cluster, through: usize, args: &[&str]) -> String {
    let ran = cluster.run(through, args);
    assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    ran.stdout
}

/// Writes each number to the two places of a volume and then to another volume, until it is told to stop; the last number, and the
/// longest write.
fn write_in_order(clients: &mut [NbdClient; 2], stop: &AtomicBool) -> (u64, Duration) {
    let [first, second] = clients;
    let (mut last, mut longest) = (0, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        last += 1;
        let bytes = u64::to_le_bytes(last);
        let mut write = |client: &mut NbdClient, offset| {
            let began = Instant::now();
            client.write(offset, &bytes).expect("the client goes on");
            longest = longest.max(began.elapsed());
        };
        write(first, PLACES[0]);
        write(first, PLACES[1]);
        write(second, PLACES[0]);
    }
    (last, longest)
}

/// All volumes and snapshots that are listed.
fn listed(cluster: &Cluster, through: usize) -> Vec<String> {
    let said = done(cluster, through, &["volume", "list", "-o", "json"]);
    let rows: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let rows = rows.as_array().into_iter().flatten();
    rows.filter_map(|row| row["volume"].as_str().map(str::to_owned))
        .collect()
}

#[test]
fn snapshots_of_two_volumes_are_of_one_instant_while_a_client_writes_and_a_node_dies() {
    let (mut cluster, ports) = start(4);
    make(&cluster, "1+2", "256MiB");
    done(
        &cluster,
        0,
        &["volume", "create", "other", "--size", "128MiB"],
    );
    // The node with the lowest number makes the copies: it dies.
    let mut clients = [connect(ports[1], "disk"), connect(ports[2], "other")];
    let stop = AtomicBool::new(false);
    let mut names = Vec::new();
    std::thread::scope(|scope| {
        let stopping = SetAtEnd(&stop);
        let writer = scope.spawn(|| write_in_order(&mut clients, &stop));
        let until = Instant::now() + PATIENCE;
        for round in 0.. {
            std::thread::sleep(Duration::from_millis(150));
            if round == 6 {
                cluster.end(0, "-KILL");
            }
            let pair = ["disk", "other"].map(|of| format!("{of}@s{round}"));
            let said = cluster.run(3, &["volume", "snapshot", &pair[0], &pair[1]]);
            match said.code {
                Some(0) => names.push(format!("s{round}")),
                // While a node is replaced.
                _ => assert!(round >= 6 && Instant::now() < until, "{}", said.stderr),
            }
            if round >= 10 && names.len() >= 9 {
                break;
            }
        }
        drop(stopping);
        let (last, longest) = writer.join().expect("it ends when it is told to");
        println!(
            "{last} rounds, {} snapshots, longest write {longest:?}",
            names.len()
        );
        assert!(last > 30, "{last} rounds");
    });
    let mut seen = Vec::new();
    for name in &names {
        let mut disk = connect(ports[3], &format!("disk@{name}"));
        let mut other = connect(ports[3], &format!("other@{name}"));
        assert!(disk.is_read_only(), "{name}");
        let numbers = [
            number(&mut disk, PLACES[0]),
            number(&mut disk, PLACES[1]),
            number(&mut other, PLACES[0]),
        ];
        let [a, b, c] = numbers;
        assert!(a >= b && b >= c && a <= c + 1, "{name}: {numbers:?}");
        seen.push(a);
    }
    assert!(
        seen.is_sorted() && seen[0] < seen[seen.len() - 1],
        "{seen:?}"
    );
}

/// Copies that make no sense are refused with the reason, and change nothing.
fn wrong_copies_are_refused(cluster: &Cluster) {
    for (args, what) in [
        (&["volume", "snapshot", "disk"][..], "names no snapshot"),
        (&["volume", "snapshot", "disk@monday"], "exists already"),
        (&["volume", "snapshot", "disk@monday@x"], "only letters"),
        (&["volume", "snapshot", "nobody@x"], "there is no volume"),
        (&["volume", "clone", "nobody", "x"], "there is no volume"),
        (&["volume", "clone", "disk", "copy"], "exists already"),
        (&["volume", "clone", "disk", "a@b"], "only letters"),
        (
            &["volume", "grow", "disk@monday", "--size", "1GiB"],
            "is a snapshot",
        ),
    ] {
        let ran = cluster.run(0, args);
        assert_ne!(ran.code, Some(0), "{args:?}");
        assert!(ran.stderr.contains(what), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn a_clone_goes_its_own_way_and_outlives_what_it_was_copied_from() {
    let (cluster, ports) = start(3);
    make(&cluster, "2+1", "256MiB");
    let pattern =
        |seed: u8| -> Vec<u8> { (0..3 * CHUNK).map(|i| (i % 251) as u8 ^ seed).collect() };
    let mut disk = connect(ports[0], "disk");
    disk.write(CHUNK / 2, &pattern(1)).expect("written");
    done(&cluster, 1, &["volume", "snapshot", "disk@monday"]);
    let shown = done(&cluster, 2, &["volume", "show", "disk@monday"]);
    assert!(shown.contains("nothing: a snapshot stays"), "{shown}");
    disk.write(CHUNK / 2 + 100, b"changed")
        .expect("the session goes on");
    disk.trim(2 * CHUNK, CHUNK as u32).expect("trimmed");
    done(&cluster, 2, &["volume", "clone", "disk@monday", "copy"]);
    done(&cluster, 2, &["volume", "clone", "disk", "live"]);
    let mut copy = connect(ports[1], "copy");
    copy.write(CHUNK / 2 + 5, b"own way").expect("written");
    let read = |client: &mut NbdClient| client.read(CHUNK / 2, 3 * CHUNK as usize).expect("read");
    let mut changed = pattern(1);
    changed[100..107].copy_from_slice(b"changed");
    let holed = 2 * CHUNK - CHUNK / 2;
    changed[holed as usize..(holed + CHUNK) as usize].fill(0);
    let mut own = pattern(1);
    own[5..12].copy_from_slice(b"own way");
    let mut monday = connect(ports[2], "disk@monday");
    assert!(monday.write(0, b"x").is_err(), "a snapshot stays as it is");
    assert!(
        read(&mut disk) == changed && read(&mut copy) == own && read(&mut monday) == pattern(1)
    );
    let shown = done(&cluster, 0, &["volume", "show", "copy"]);
    assert!(shown.contains("clone of disk@monday, 20"), "{shown}");
    wrong_copies_are_refused(&cluster);
    assert_eq!(listed(&cluster, 0), ["disk", "disk@monday", "copy", "live"]);
    drop((disk, monday));
    let deleted = |name: &str| {
        let until = Instant::now() + PATIENCE;
        loop {
            let ran = cluster.run(0, &["volume", "delete", name, "--yes"]);
            match ran.code {
                Some(0) => return,
                // Its door has not heard yet that the client has gone.
                _ => assert!(Instant::now() < until, "{}", ran.stderr),
            }
        }
    };
    deleted("disk");
    deleted("disk@monday");
    staves_testkit::wait_until("they are gone", || listed(&cluster, 0) == ["copy", "live"]);
    assert!(read(&mut copy) == own, "it has all that it had");
    copy.write(CHUNK, b"still").expect("written");
    assert!(read(&mut connect(ports[0], "live")) == changed);
    let checked = done(&cluster, 0, &["volume", "check", "live"]);
    assert!(checked.contains("clean"), "{checked}");
    drop(copy);
    deleted("live");
    deleted("copy");
    staves_testkit::wait_until("all is gone", || listed(&cluster, 0).is_empty());
}

#[test]
fn an_export_and_its_changes_make_the_same_volume_elsewhere() {
    let (cluster, grpc, nbd) = super::grpc::start(3, "1+1");
    let mut disk = connect(nbd[0], "disk");
    let pattern: Vec<u8> = (0..5 * CHUNK).map(|i| (i % 249) as u8 + 1).collect();
    disk.write(CHUNK / 3, &pattern).expect("written");
    disk.write(30 << 20, &pattern[..100]).expect("written");
    done(&cluster, 0, &["volume", "snapshot", "disk@one"]);
    disk.trim(CHUNK, CHUNK as u32).expect("trimmed");
    disk.write(20 << 20, &pattern[..70_000]).expect("written");
    disk.write(3 * CHUNK + 9, b"changed").expect("written");
    done(&cluster, 1, &["volume", "snapshot", "disk@two"]);
    disk.write(0, b"later").expect("written");
    let folder = cluster.folder.path().to_owned();
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (one, two) = (path("one"), path("two"));
    done(&cluster, 2, &["volume", "export", "disk@one", &one]);
    let said = done(
        &cluster,
        2,
        &["volume", "export", "disk@two", &two, "--since", "disk@one"],
    );
    // Four pieces have changed, one of which is zeroes; that of 70,000 bytes touches two.
    let copied = 3 * CHUNK;
    assert!(
        said.contains(&format!("{},{:03} bytes", copied / 1000, copied % 1000)),
        "{said}"
    );
    let there = cluster.run(2, &["volume", "export", "disk@one", &one]);
    assert!(
        there.code != Some(0) && there.stderr.contains("exists"),
        "{}",
        there.stderr
    );
    done(
        &cluster,
        0,
        &["volume", "create", "again", "--size", "48MiB"],
    );
    let mut dirty = connect(nbd[1], "again");
    dirty.write(10 << 20, b"of before").expect("written");
    drop(dirty);
    let door = format!("127.0.0.1:{}", grpc[1]);
    let import = |file: &str| cluster.run(0, &["volume", "import", file, "again", "--grpc", &door]);
    // The door before may not have heard yet that its client has gone.
    staves_testkit::wait_until("it is imported", || import(&one).code == Some(0));
    let all = |name: &str| connect(nbd[2], name).read(0, 32 << 20).expect("read");
    assert!(
        all("again") == all("disk@one"),
        "what was there before is gone"
    );
    let imported = import(&two);
    assert_eq!(imported.code, Some(0), "{}", imported.stderr);
    assert!(all("again") == all("disk@two"));
    wrong_transfers_are_refused(&cluster, &path("cut"), (&one, &two), &door);
}

/// A file that is damaged or cut off, or does not fit, is refused with the reason.
fn wrong_transfers_are_refused(cluster: &Cluster, cut: &str, (one, two): (&str, &str), door: &str) {
    let bytes = std::fs::read(two).expect("a file");
    std::fs::write(cut, &bytes[..bytes.len() - 1]).expect("a file");
    let short = ["volume", "create", "short", "--size", "1MiB"];
    done(cluster, 0, &short);
    for (args, what) in [
        (
            ["volume", "import", cut, "again", "--grpc", door],
            "it is cut off",
        ),
        (
            ["volume", "import", one, "short", "--grpc", door],
            "let it grow first",
        ),
        (
            ["volume", "import", door, "again", "--grpc", door],
            "cannot open",
        ),
        (
            ["volume", "import", one, "nobody", "--grpc", door],
            "there is no volume",
        ),
        (
            ["volume", "export", "disk@two", "-", "--since", "again"],
            "nothing in common",
        ),
        (
            ["volume", "export", "disk@two", "-", "--since", "disk@x"],
            "there is no volume",
        ),
    ] {
        let ran = cluster.run(0, &args);
        assert_ne!(ran.code, Some(0), "{args:?}");
        assert!(ran.stderr.contains(what), "{args:?}: {}", ran.stderr);
    }
}

/// Regression: a part of a volume that was first written to while it was copied took writes that the copy was to come before.
#[test]
fn a_volume_that_grows_while_it_is_copied_is_copied_as_it_was_at_one_instant() {
    let (cluster, grpc, nbd) = super::grpc::start(3, "1+1");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _within = runtime.enter();
    let program = super::grpc::client(&[grpc[2]]);
    let volume = runtime.block_on(program.attach("disk", super::grpc::PATIENT));
    let volume = volume.expect("attached");
    let (stop, last_part) = (AtomicBool::new(false), AtomicU64::new(1));
    let handle = runtime.handle();
    const PART: u64 = 64 << 20;
    std::thread::scope(|scope| {
        let stopping = SetAtEnd(&stop);
        let writer = scope.spawn(|| {
            let mut last = 0;
            while !stop.load(Ordering::Relaxed) {
                last += 1;
                let part = last_part.load(Ordering::Acquire);
                for offset in [0, (part - 1) * PART + CHUNK] {
                    let write = volume.write(offset, u64::to_le_bytes(last).to_vec());
                    handle.block_on(write).expect("the session goes on");
                }
            }
            last
        });
        for part in 2..8 {
            let cluster = &cluster;
            let snapshots = scope.spawn(move || {
                let snapshot = |name: &str| done(cluster, 1, &["volume", "snapshot", name]);
                (0..3).for_each(|at| drop(snapshot(&format!("disk@s{part}-{at}"))));
            });
            let size = format!("{}MiB", part * 64);
            done(cluster, 0, &["volume", "grow", "disk", "--size", &size]);
            last_part.store(part, Ordering::Release);
            snapshots.join().expect("they are made");
        }
        drop(stopping);
        let last = writer.join().expect("it ends when it is told to");
        assert!(last > 20, "{last} rounds");
    });
    for part in 2..8 {
        for name in (0..3).map(|at| format!("disk@s{part}-{at}")) {
            let mut snapshot = connect(nbd[0], &name);
            let first = number(&mut snapshot, 0);
            let parts = (0..part).map(|part| part * PART + CHUNK);
            let parts = parts.filter_map(|at| {
                let bytes = snapshot.read(at, 8).ok()?;
                Some(u64::from_le_bytes(bytes.try_into().ok()?))
            });
            let second = parts.max().expect("the first part");
            assert!(
                first == second || first == second + 1,
                "{name}: {first}, {second}"
            );
        }
    }
}
