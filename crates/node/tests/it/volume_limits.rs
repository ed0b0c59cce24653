//! Volumes by NBD where something runs out: memory, nodes, places for clients.

use std::time::{Duration, Instant};

use staves_testkit::cluster::TestCluster;
use staves_testkit::nbd::ENOSPC;
use staves_testkit::wait_until;

use crate::memory::pattern;
use crate::volumes::{MIB, cluster, connect, create, nbd};

#[test]
fn a_full_pool_says_enospc_and_trimmed_space_is_there_again() {
    let (cluster, client) = cluster(2, "1+1");
    create(&cluster, &client, "v", 60 * MIB);
    let mut a = connect(&cluster, 0, "v");
    let mut written = 0;
    let full = loop {
        match a.write(written, &pattern(written, MIB as usize)) {
            Ok(()) => written += MIB,
            Err(full) => break full,
        }
        assert!(written < 60 * MIB, "24 MiB of each node took all");
    };
    assert_eq!(full.number(), Some(ENOSPC));
    assert!(written >= 20 * MIB, "{written}");
    assert!(a.read(0, MIB as usize).expect("read") == pattern(0, MIB as usize));
    a.write(0, &pattern(7, 4096))
        .expect("what has its place already");
    a.trim(2 * MIB, 8 * MIB as u32).expect("trimmed");
    assert_eq!(a.read(3 * MIB, 4096).expect("read"), vec![0; 4096]);
    wait_until("there is room", || {
        a.write(50 * MIB, &pattern(9, MIB as usize)).is_ok()
    });
    assert!(a.read(50 * MIB, MIB as usize).expect("read") == pattern(9, MIB as usize));
    assert!(a.read(12 * MIB, MIB as usize).expect("read") == pattern(12 * MIB, MIB as usize));
}

#[test]
fn nodes_die_under_a_volume_and_nothing_is_lost() {
    let (mut cluster, client) = cluster(4, "1+1");
    create(&cluster, &client, "v", 130 * MIB);
    let mut a = connect(&cluster, 0, "v");
    let places: Vec<u64> = (0..60).map(|i| i * 2 * MIB + i * 512).collect();
    for at in &places {
        a.write(*at, &pattern(*at, 5000)).expect("written");
    }
    for (round, node) in [3, 2].into_iter().enumerate() {
        cluster.nodes[node].kill();
        let began = Instant::now();
        for at in &places {
            let half = pattern(*at + 1 + round as u64, 2500);
            a.write(*at, &half).expect("written beside the loss");
        }
        assert!(
            began.elapsed() < Duration::from_secs(25),
            "{:?}",
            began.elapsed()
        );
        for at in &places {
            let read = a.read(*at, 5000).expect("read");
            let (first, rest) = read.split_at(2500);
            assert!(first == pattern(*at + 1 + round as u64, 2500), "{at}");
            assert!(rest == &pattern(*at, 5000)[2500..], "{at}");
        }
        cluster.nodes.remove(node);
        cluster.folders.remove(node);
        if round == 0 {
            // The next one may be a voter, too.
            wait_until("another node votes in its place", || {
                let living: Vec<u64> = cluster.nodes.iter().map(|node| node.id.0).collect();
                let voters = cluster.nodes[0].status().directory.voters;
                voters.len() == 3 && voters.iter().all(|voter| living.contains(voter))
            });
            wait_until("the volume's groups have both members", || {
                let map = cluster.nodes[0].map();
                let (_, region) = map.region_named("v").expect("made");
                let is_whole = |id: staves_model::GroupId| {
                    let group = map.groups.get(&id);
                    let listed = |g: &staves_model::Group| {
                        g.members
                            .iter()
                            .flatten()
                            .filter(|x| x.complete && map.runs(x.id))
                            .count()
                    };
                    group.is_some_and(|g| g.open && listed(g) == 2)
                };
                region.groups().all(is_whole)
            });
        }
    }
}

#[test]
fn strangers_at_the_nbd_door_are_bounded() {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    let cluster = TestCluster::start_with(1, |_, config| {
        config.nbd = Some("127.0.0.1:0".parse().expect("an address"));
        config.clients_max = 5;
    });
    let open = || TcpStream::connect(nbd(&cluster, 0)).expect("it listens");
    let mut idle: Vec<TcpStream> = (0..5).map(|_| open()).collect();
    for socket in &mut idle {
        let mut greeting = [0; 18];
        socket.read_exact(&mut greeting).expect("greeted");
    }
    let mut beyond = open();
    assert_eq!(beyond.read(&mut [0; 18]).expect("closed"), 0);
    idle.truncate(2);
    wait_until("there are places again", || {
        let mut socket = open();
        socket.read(&mut [0; 18]).is_ok_and(|count| count > 0)
    });
    let mut rude = open();
    rude.write_all(&[0xff; 4000]).expect("sent");
    let mut rest = Vec::new();
    let ended = rude.read_to_end(&mut rest);
    assert!(ended.is_ok() || rest.len() <= 18, "{ended:?}");
    assert!(cluster.nodes[0].metric("staves_nbd_connections_rejected_total") >= 1);
}
