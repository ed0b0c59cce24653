//! Clients that ask for what costs a node hundreds of times what a GET does, without a pause.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;

const CLIENTS: usize = 20;
const ASKED_AT_ONCE: usize = 2000;
const LONG: Duration = Duration::from_secs(8);

impl Cluster {
    /// The number of times that the cluster took a node for dead.
    fn deaths(&self) -> usize {
        let log = |i| std::fs::read_to_string(self.folder.path().join(format!("{i}.log")));
        let logs = (0..self.nodes.len()).filter_map(|i| log(i).ok());
        logs.map(|log| log.matches("a node is dead").count()).sum()
    }
}

/// Pipelines a command, thousands of times in one write, and takes the answers as they come.
fn flood(resp: u16, command: &str, until: &AtomicBool, taken: &AtomicU64) {
    let Ok(mut socket) = TcpStream::connect(("127.0.0.1", resp)) else {
        return;
    };
    let mut reading = socket.try_clone().expect("a socket");
    let many = format!("{command}\r\n").repeat(ASKED_AT_ONCE);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            while let Ok(count) = reading.read(&mut bytes)
                && count > 0
            {
                taken.fetch_add(count as u64, Ordering::Relaxed);
            }
        });
        let wait = Some(Duration::from_millis(200));
        socket.set_write_timeout(wait).expect("a socket");
        let mut left = &many.as_bytes()[..0];
        while !until.load(Ordering::Relaxed) {
            left = if left.is_empty() {
                many.as_bytes()
            } else {
                left
            };
            match socket.write(left) {
                Ok(count) => left = &left[count..],
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => break,
            }
        }
        let _ = socket.shutdown(Shutdown::Both);
    });
}

/// Regression: ten clients that pipelined INFO kept the threads of a node busy for seconds at a time; three nodes were declared
/// dead in turn.
#[test]
fn costly_commands_take_time_from_those_who_ask_for_them() {
    let cluster = Cluster::start(3);
    for command in ["INFO", "CLUSTER NODES", "DBSIZE"] {
        let (until, taken) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for i in 0..CLIENTS {
                let (node, until, taken) = (&cluster.nodes[i % 3], &until, &taken);
                scope.spawn(move || flood(node.resp, command, until, taken));
            }
            let begun = Instant::now();
            let mut client = floods::Client::at(&cluster.nodes[0]);
            while begun.elapsed() < LONG {
                client.say(b"SET k v\r\nGET k\r\n");
                assert_eq!(client.line(), "+OK");
                assert_eq!((client.line(), client.line()), ("$1".into(), "v".into()));
            }
            until.store(true, Ordering::Relaxed);
        });
        assert_eq!(cluster.deaths(), 0, "{command}: nodes were taken for dead");
        assert!(taken.load(Ordering::Relaxed) > 0, "{command} is answered");
    }
}
