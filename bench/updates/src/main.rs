//! Figures 5 and 6 of the paper on reliability groups: how long a client waits until 1 to 500 updates
//! are safe at one data and two parity buckets, each a process of its own, under several protocols, and
//! under the loss of messages (rows H4 and H9).
//!
//! ```text
//! cargo run --release -p staves-bench-updates                    # figure 5, 512 bytes
//! cargo run --release -p staves-bench-updates -- --bytes 64
//! cargo run --release -p staves-bench-updates -- --figure 6
//! ```
//!
//! The baselines (one-phase commit, two-phase commit) exist here only. All modes share connections, frames,
//! arithmetic and client; "logged" is the machine of `staves-group` itself.

mod bucket;
mod client;
mod data;
mod link;
mod logged;
mod parity;

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use serde_json::json;

use crate::bucket::K;
use crate::client::Client;
use crate::data::Mode;

/// Lost messages of the data bucket, percent, and the runs of figure 6.
const LOSSES: [u32; 6] = [0, 5, 10, 30, 50, 70];
const COUNTS: [usize; 7] = [1, 10, 50, 100, 200, 300, 500];

#[derive(Parser)]
struct Args {
    /// 5: protocols; 6: the same with lost messages.
    #[arg(long, default_value_t = 5)]
    figure: u32,
    /// Bytes of an update.
    #[arg(long, default_value_t = 512)]
    bytes: usize,
    /// Runs of each point; the median counts.
    #[arg(long, default_value_t = 21)]
    runs: usize,
    /// Only these modes; a list.
    #[arg(long, value_delimiter = ',')]
    modes: Vec<String>,
    /// JSON on stdout.
    #[arg(long)]
    json: bool,
    /// The role of a process of the group (the bench starts these itself).
    #[arg(long, hide = true)]
    role: Option<String>,
    #[arg(long, hide = true, default_value = "one-phase")]
    mode: String,
    #[arg(long, hide = true, default_value_t = 0)]
    parity: usize,
    #[arg(long, hide = true, default_value = "")]
    data: String,
    #[arg(long, hide = true, default_value_t = 0.0)]
    loss: f64,
}

/// A mode's name, what it is, and how many updates its client has under way.
const MODES: [(&str, &str, usize); 6] = [
    ("one-phase", "1PC, one at a time", 1),
    ("serial-two-phase", "2PC, one parity after the other", 1),
    ("parallel-two-phase", "2PC, all at once", 1),
    ("applied", "watermark A: applied, reported every 10", 30),
    ("logged", "Staves: logged, each answered", 32),
    (
        "immediate",
        "watermark B: only the last answered",
        usize::MAX,
    ),
];

fn mode(name: &str) -> anyhow::Result<Mode> {
    let watermark = |last_only| Mode::Watermark {
        every: 10,
        last_only,
    };
    Ok(match name {
        "one-phase" => Mode::OnePhase,
        "serial-two-phase" => Mode::SerialTwoPhase,
        "parallel-two-phase" => Mode::ParallelTwoPhase,
        "applied" => watermark(false),
        "immediate" => watermark(true),
        "logged" => Mode::Logged,
        other => anyhow::bail!("no mode is called '{other}'"),
    })
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.role.as_deref() {
        Some("data") => {
            link::wake_in_time()?;
            let listener = TcpListener::bind("127.0.0.1:0")?;
            println!("{}", listener.local_addr()?);
            data::run(mode(&args.mode)?, args.loss, listener)
        }
        Some("parity") => {
            link::wake_in_time()?;
            let stream = TcpStream::connect(&args.data)?;
            println!("connected");
            parity::run(mode(&args.mode)?, args.parity, stream)
        }
        Some(other) => anyhow::bail!("no process of a group is a '{other}'"),
        None => report(&args),
    }
}

/// One data and two parity processes; they end with it.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start(mode: &str, loss: f64) -> anyhow::Result<(Processes, Client)> {
    let mut processes = Processes(Vec::new());
    let mut spawn = |args: &[String]| -> anyhow::Result<String> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--mode", mode, "--loss", &loss.to_string()])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a process of the group")?;
        let out = child.stdout.take().context("no stdout")?;
        processes.0.push(child);
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line)?;
        anyhow::ensure!(!line.is_empty(), "a process of the group ended at once");
        Ok(line.trim().to_owned())
    };
    let addr = spawn(&["--role".into(), "data".into()])?;
    for parity in 0..K {
        let told = ["--role", "parity", "--data", &addr, "--parity"].map(str::to_owned);
        spawn(&[&told[..], &[parity.to_string()]].concat())?;
    }
    let client = Client::new(TcpStream::connect(&addr)?)?;
    Ok((processes, client))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn millis(d: Duration) -> f64 {
    (d.as_secs_f64() * 1e6).round() / 1e3
}

fn report(args: &Args) -> anyhow::Result<()> {
    anyhow::ensure!(
        (1..=4096).contains(&args.bytes) && args.runs > 0,
        "--bytes is 1 to 4096, --runs at least 1"
    );
    for name in &args.modes {
        mode(name)?;
    }
    let rows = match args.figure {
        5 => figure_5(args)?,
        6 => figure_6(args)?,
        other => anyhow::bail!("--figure is 5 or 6, not {other}"),
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    }
    Ok(())
}

/// The modes that are asked for.
fn chosen(args: &Args) -> impl Iterator<Item = (&'static str, &'static str, usize)> {
    let asked = |name: &str| args.modes.is_empty() || args.modes.iter().any(|m| m == name);
    MODES.into_iter().filter(move |m| asked(m.0))
}

fn figure_5(args: &Args) -> anyhow::Result<serde_json::Value> {
    let mut groups = Vec::new();
    for (name, what, window) in chosen(args) {
        let (processes, client) = start(name, 0.0)?;
        groups.push((processes, client, name, what, window));
    }
    let ping = median(groups[0].1.pings(200)?);
    say(
        args,
        format!(
            "{} bytes an update, 2 parity buckets, median of {} runs; PING p50 {} ms",
            args.bytes,
            args.runs,
            millis(ping)
        ),
    );
    let mut points = Vec::new();
    // Side by side: a round goes through all modes, so that what disturbs one disturbs all.
    for count in COUNTS {
        let mut times = vec![Vec::new(); groups.len()];
        for round in 0..=args.runs {
            for (at, (_, client, .., window)) in groups.iter_mut().enumerate() {
                let time = client.updates(count, args.bytes, *window)?;
                if round > 0 {
                    times[at].push(time);
                }
            }
        }
        for ((.., name, what, _), times) in groups.iter().zip(times) {
            let ms = millis(median(times));
            say(args, format!("{count:>4} updates  {ms:>9.3} ms  {what}"));
            points.push(json!({"mode": name, "updates": count, "ms": ms}));
        }
    }
    let at = |mode: &str| {
        let last = points.iter().rfind(|p| p["mode"] == mode);
        last.and_then(|p| p["ms"].as_f64()).unwrap_or(f64::NAN)
    };
    let one_a = at("one-phase") / at("applied");
    let logged_a = at("logged") / at("applied");
    say(
        args,
        format!(
            "at {} updates: 1PC / A = {one_a:.2}, logged / A = {logged_a:.2}",
            COUNTS[COUNTS.len() - 1]
        ),
    );
    Ok(json!({
        "figure": 5, "bytes": args.bytes, "runs": args.runs, "ping_p50_ms": millis(ping),
        "points": points, "one_phase_to_applied": one_a, "logged_to_applied": logged_a,
    }))
}

fn figure_6(args: &Args) -> anyhow::Result<serde_json::Value> {
    let (mut points, mut whole) = (Vec::new(), std::collections::BTreeMap::new());
    say(
        args,
        format!(
            "{} bytes an update, messages of the data bucket lost at random, median of {} runs of 500",
            args.bytes, args.runs
        ),
    );
    for (name, what, window) in chosen(args).filter(|m| ["applied", "logged"].contains(&m.0)) {
        let mut groups = Vec::new();
        for loss in LOSSES {
            groups.push((loss, start(name, f64::from(loss) / 100.0)?));
        }
        let mut times = vec![Vec::new(); groups.len()];
        for round in 0..=args.runs {
            for (at, (_, (_, client))) in groups.iter_mut().enumerate() {
                let time = client.updates(500, args.bytes, window)?;
                if round > 0 {
                    times[at].push(time);
                }
            }
        }
        for ((loss, _), times) in groups.iter().zip(times) {
            let ms = millis(median(times));
            let base = *whole.entry(name).or_insert(ms);
            let ratio = ms / base;
            say(
                args,
                format!("{loss:>3} % lost  {ms:>9.3} ms  {ratio:>5.2}x  {what}"),
            );
            points.push(json!({"mode": name, "lost_percent": loss, "ms": ms, "ratio": ratio}));
        }
    }
    Ok(json!({"figure": 6, "bytes": args.bytes, "runs": args.runs, "points": points}))
}

fn say(args: &Args, line: String) {
    if args.json {
        eprintln!("{line}");
    } else {
        println!("{line}");
    }
}
