//! The processor time that the servers have used.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use staves_node::cpu::CpuTime;

use staves_cli_common::codes::Own;
use staves_cli_common::failure::Failure;
use staves_resp::client::{Reply, Resp};

/// Most lines of an answer to `stats`.
const LINES_MAX: usize = 1000;

/// The source of the servers' processor time.
pub enum ServerCpu {
    /// Processes of this machine.
    Processes(Vec<u32>),
    /// `INFO cpu` of Redis and of Staves.
    Resp {
        addresses: Vec<String>,
        timeout: Duration,
    },
    /// `stats` of memcached.
    Memcached {
        addresses: Vec<String>,
        timeout: Duration,
    },
}

impl ServerCpu {
    /// Those processes, each of which must be there.
    pub fn of_processes(ids: &[u32]) -> Result<ServerCpu, Failure> {
        for id in ids {
            CpuTime::of_process(*id).map_err(|error| {
                Failure::Own(
                    Own::Usage,
                    format!("--server-pid {id}: there is no such process ({error})"),
                )
            })?;
        }
        Ok(ServerCpu::Processes(ids.to_vec()))
    }

    /// Of all of them since they started; `None` if any does not say. Each is asked over a connection of its own,
    /// so that no connection lies idle while a run goes on.
    pub fn read(&self) -> Option<Duration> {
        let sum = |one: &dyn Fn(&String) -> Option<Duration>, all: &[String]| -> Option<Duration> {
            all.iter().map(one).sum()
        };
        match self {
            ServerCpu::Processes(ids) => ids
                .iter()
                .map(|id| CpuTime::of_process(*id).ok().map(|time| time.total()))
                .sum(),
            ServerCpu::Resp { addresses, timeout } => {
                sum(&|address| of_resp(address, *timeout), addresses)
            }
            ServerCpu::Memcached { addresses, timeout } => {
                sum(&|address| of_memcached(address, *timeout), addresses)
            }
        }
    }
}

fn of_resp(address: &str, timeout: Duration) -> Option<Duration> {
    let mut resp = Resp::connect(address, timeout, timeout).ok()?;
    match resp.call(&[b"INFO", b"cpu"]).ok()? {
        Reply::Bulk(text) => seconds(
            &String::from_utf8(text).ok()?,
            &["used_cpu_sys:", "used_cpu_user:"],
        ),
        _ => None,
    }
}

fn of_memcached(address: &str, timeout: Duration) -> Option<Duration> {
    let text = stats(address, timeout).ok()?;
    seconds(&text, &["STAT rusage_user ", "STAT rusage_system "])
}

fn stats(address: &str, timeout: Duration) -> io::Result<String> {
    let address = address.to_socket_addrs()?.next();
    let address = address.ok_or(io::ErrorKind::NotFound)?;
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.write_all(b"stats\r\n")?;
    let lines = BufReader::new(stream).lines().take(LINES_MAX);
    let mut text = String::new();
    for line in lines {
        let line = line?;
        if line == "END" {
            break;
        }
        text.push_str(&line);
        text.push('\n');
    }
    Ok(text)
}

/// The sum of the seconds that stand behind these words, each at the beginning of a line.
fn seconds(text: &str, words: &[&str]) -> Option<Duration> {
    let of = |word: &&str| {
        let mut lines = text.lines();
        let number = lines.find_map(|line| line.strip_prefix(*word))?;
        Duration::try_from_secs_f64(number.trim().parse().ok()?).ok()
    };
    words.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_say_is_added_up() {
        let info = "# CPU\r\nused_cpu_sys:1.500000\r\nused_cpu_user:2.250000\r\nused_cpu_sys_children:9.0\r\n";
        let words = ["used_cpu_sys:", "used_cpu_user:"];
        assert_eq!(seconds(info, &words), Some(Duration::from_millis(3750)));
        let stats = "STAT pid 7\nSTAT rusage_user 0.004000\nSTAT rusage_system 0.010000\n";
        let words = ["STAT rusage_user ", "STAT rusage_system "];
        assert_eq!(seconds(stats, &words), Some(Duration::from_millis(14)));
        for bad in [
            "",
            "STAT rusage_user 1\n",
            "STAT rusage_user 1\nSTAT rusage_system -1\n",
        ] {
            assert_eq!(seconds(bad, &words), None, "{bad:?}");
        }
    }

    #[test]
    fn processes_are_added_up_and_must_be_there() {
        let me = std::process::id();
        let once = ServerCpu::of_processes(&[me]).expect("it runs").read();
        let before = once.expect("it says");
        let twice = ServerCpu::of_processes(&[me, me]).expect("it runs").read();
        assert!(twice.expect("it says") >= before * 2);
        let Err(error) = ServerCpu::of_processes(&[me, u32::MAX]) else {
            panic!("there is no such process");
        };
        assert!(error.to_string().contains("4294967295"), "{error}");
    }
}
