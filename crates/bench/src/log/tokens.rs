//! Tokens a second of a log's sequencer, beside a bare counter behind the same network stack; row L6.
//!
//! Tokens are taken in bursts, for a sequencer bears so many positions that nobody has written. Between two bursts they become junk. The counter is a
//! server of this program, on a thread of its own: it adds one and answers. Both are asked by the same connection type, with as many requests under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use serde::Serialize;
use staves_client::{Client, log_calls};
use staves_log::{
    AppendId, LogRecord, RecordReply, SequencerAnswer, SequencerId, SequencerOp, SequencerReply,
    SequencerRequest, SessionId, UnitId,
};
use staves_model::{ClusterId, PoolId};
use staves_net::{Connection, Handler, Identity, Options, PeerInfo, Reply, Server, Who};
use staves_wire::group::GroupEnvelope;
use staves_wire::log::{LogAppoint, LogAsk, LogSaid};
use staves_wire::{ErrorCode, Message};
use tokio::task::JoinSet;

use super::{LogBench, LogMode};
use staves_cli_common::cluster::Cluster;
use staves_cli_common::failure::failed;
use staves_cli_common::options::GlobalOptions;
use staves_cli_common::output::{self, number};
use staves_cli_common::running::runtime;

/// Tokens of a burst, below what a sequencer leaves undecided.
const BURST: u32 = 3000;
/// Requests under way where `--depth` says no other number.
const DEPTH: u32 = 64;
/// Bursts where `--rounds` says no other number, of which the median counts.
const ROUNDS: u32 = 5;
/// The time in which the tokens of a burst become junk.
const SETTLE: Duration = Duration::from_millis(1500);
/// The bound on the question for the log's record.
const ASKING: Duration = Duration::from_secs(5);

/// The measurements.
#[derive(Serialize, Debug)]
struct TokenReport {
    /// Requests under way.
    depth: u32,
    rounds: u32,
    burst: u32,
    tokens_per_second: f64,
    counter_per_second: f64,
    /// Tokens for each step of the counter.
    share: f64,
    /// Requests that the sequencer had no room for, of all bursts.
    busy: u64,
}

impl TokenReport {
    fn table(&self) -> String {
        let rate = |rate: f64| number(rate.round() as u64);
        format!(
            "{} tokens/s of a sequencer, {} steps/s of a bare counter: {:.2} of it ({} requests under way; {} times busy)",
            rate(self.tokens_per_second),
            rate(self.counter_per_second),
            self.share,
            self.depth,
            self.busy
        )
    }
}

/// A counter that answers each request with its next number.
#[derive(Default)]
struct Counter(AtomicU64);

impl Handler for Counter {
    fn group(&self, _peer: &PeerInfo, _batch: Vec<GroupEnvelope>) {}

    fn request(&self, _peer: &PeerInfo, request: Message, reply: Reply) {
        let Message::LogAsk(_) = request else {
            return reply.error(ErrorCode::Refused, "this is a counter");
        };
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        let body = Bytes::copy_from_slice(&number.to_be_bytes());
        reply.send(&Message::LogSaid(LogSaid { body }));
    }
}

/// The requests of a sequencer's client.
struct TokenClient {
    connection: Arc<Connection>,
    pool: PoolId,
    record: LogRecord,
    sequencer: SequencerId,
    unit: UnitId,
    session: SessionId,
    next: u32,
    deadline: Duration,
}

pub fn run(global: &GlobalOptions, bench: &LogBench) -> anyhow::Result<()> {
    let session = Cluster::open(global)?;
    let name = format!("bench-{:08x}-tokens", rand::random::<u32>());
    let pool = bench.pool.as_deref();
    let stat = session.wait(
        session
            .client
            .create_log(pool, &name, LogMode::Corfu.into()),
    )?;
    let pool = stat.pool.as_str();
    let outcome = measure(global, bench, &session, (pool, &name));
    session.begin_again();
    let deleted = session.wait(session.client.delete_log(Some(pool), &name));
    let report = outcome?;
    output::answer(global.output, &report, TokenReport::table)?;
    deleted.with_context(|| format!("log '{name}' is left behind"))
}

fn measure(
    global: &GlobalOptions,
    bench: &LogBench,
    session: &Cluster,
    (pool, name): (&str, &str),
) -> anyhow::Result<TokenReport> {
    let given = bench.depth.first().copied().filter(|depth| *depth > 1);
    let depth = given.unwrap_or(DEPTH);
    let rounds = match bench.rounds {
        0 | 1 => ROUNDS,
        given => given,
    };
    let secret = global.secret()?;
    let opening = opened(&session.client, (pool, name));
    let (pool_id, record) = session.runtime.block_on(opening)?;
    let map = session.client.map();
    let sequencer = record.view.sequencer.context("the log has no sequencer")?;
    let node = map.nodes.get(&sequencer.node);
    let address = node.context("the sequencer's node is gone")?.native.clone();
    let identity = Identity::client(ClusterId::default()).with_secret(secret);
    let options = Options::default();
    let connecting = Connection::open(&address, &identity, &options);
    let connection = session.runtime.block_on(connecting)?;
    let unit = *record.view.projection.last().first().context("no units")?;
    let mut client = TokenClient {
        connection: Arc::new(connection),
        pool: pool_id,
        record,
        sequencer,
        unit,
        session: SessionId::default(),
        next: 0,
        deadline: session.deadline,
    };
    session.runtime.block_on(client.open_session())?;
    let counter = CounterThread::start()?;
    let identity = Identity::client(ClusterId::default());
    let connecting = Connection::open(&counter.address, &identity, &options);
    let to_counter = Arc::new(session.runtime.block_on(connecting)?);
    let (mut tokens, mut steps, mut busy) = (Vec::new(), Vec::new(), 0);
    for _ in 0..rounds {
        let burst = session.runtime.block_on(client.burst(depth))?;
        tokens.push(burst.0);
        busy += burst.1;
        let ask = client.ask();
        let counting = count(to_counter.clone(), ask, depth, client.deadline);
        steps.push(session.runtime.block_on(counting)?);
        std::thread::sleep(SETTLE);
    }
    let (tokens_per_second, counter_per_second) = (median(tokens), median(steps));
    Ok(TokenReport {
        depth,
        rounds,
        burst: BURST,
        tokens_per_second,
        counter_per_second,
        share: tokens_per_second / counter_per_second.max(f64::MIN_POSITIVE),
        busy,
    })
}

/// The record of a log, which an append has given a sequencer.
async fn opened(
    client: &Client,
    (pool, name): (&str, &str),
) -> anyhow::Result<(PoolId, LogRecord)> {
    let log = client.open_log(Some(pool), name).await.map_err(failed)?;
    let first = [Bytes::from_static(b"first")];
    log.append(&first).await.map_err(failed)?;
    let stat = client.log_stat(Some(pool), name).await.map_err(failed)?;
    let map = client.map();
    let pool = map.pool_named(pool).context("the pool is gone")?.id;
    let sequencer = stat.sequencer.context("the log has no sequencer")?;
    let node = map.nodes.values().find(|node| node.name == sequencer);
    let node = node.context("the sequencer's node is gone")?.id;
    let appoint = Message::LogAppoint(LogAppoint {
        pool,
        name: name.to_owned(),
        take: false,
        above: 0,
    });
    let deadline = Instant::now() + ASKING;
    let said = client.ask(node, appoint, deadline).await.map_err(failed)?;
    let Message::LogSaid(said) = said else {
        bail!("the sequencer's node gave another answer");
    };
    match RecordReply::decode(said.body)? {
        RecordReply::Record(record) => Ok((pool, *record)),
        other => bail!("the log's home answered with {other:?}"),
    }
}

impl TokenClient {
    /// The next request for a token.
    fn ask(&mut self) -> Message {
        let (session, seq) = (self.session, self.next);
        self.next += 1;
        let op = SequencerOp::Seq {
            id: AppendId { session, seq },
            count: 1,
            tags: Vec::new(),
            unit: self.unit,
            // Nobody awaits what came before: it need not be remembered.
            low: seq.saturating_sub(BURST),
            lost: None,
            condition: None,
        };
        self.message(op)
    }

    /// A session for the tokens.
    async fn open_session(&mut self) -> anyhow::Result<()> {
        let ask = self.message(SequencerOp::OpenSession { nonce: 1 });
        let until = Instant::now() + self.deadline;
        let Message::LogSaid(said) = self.connection.call(&ask, until).await? else {
            bail!("the sequencer's node gave another answer");
        };
        match SequencerReply::decode(said.body)?.answer {
            SequencerAnswer::SessionOpened { session, .. } => self.session = session,
            other => bail!("the sequencer opened no session: {other:?}"),
        }
        Ok(())
    }

    fn message(&self, op: SequencerOp) -> Message {
        let request = SequencerRequest {
            log: self.record.view.log,
            op,
        };
        Message::LogAsk(LogAsk {
            pool: self.pool,
            node: self.sequencer.node,
            incarnation: self.sequencer.incarnation,
            body: log_calls::encoded(|out| request.encode(out)),
        })
    }

    /// Takes the tokens of a burst; tokens a second, and how often there was no room.
    async fn burst(&mut self, depth: u32) -> anyhow::Result<(f64, u64)> {
        let (mut tokens, mut busy) = (0_u64, 0);
        let mut under_way = JoinSet::new();
        let begun = Instant::now();
        for at in 0..BURST + depth {
            if at < BURST {
                let (connection, ask) = (self.connection.clone(), self.ask());
                let until = Instant::now() + self.deadline;
                under_way.spawn(async move { connection.call(&ask, until).await });
                if at < depth {
                    continue;
                }
            }
            let Some(done) = under_way.join_next().await else {
                break;
            };
            let Message::LogSaid(said) = done.context("a request broke off")?? else {
                bail!("the sequencer's node gave another answer");
            };
            match SequencerReply::decode(said.body)?.answer {
                SequencerAnswer::Token { .. } => tokens += 1,
                SequencerAnswer::Busy { .. } => busy += 1,
                other => bail!("the sequencer gave no token: {other:?}"),
            }
        }
        Ok((tokens as f64 / begun.elapsed().as_secs_f64(), busy))
    }
}

/// Asks the counter as often; steps a second.
async fn count(
    connection: Arc<Connection>,
    ask: Message,
    depth: u32,
    deadline: Duration,
) -> anyhow::Result<f64> {
    let mut under_way = JoinSet::new();
    let begun = Instant::now();
    for at in 0..BURST + depth {
        if at < BURST {
            let (connection, ask) = (connection.clone(), ask.clone());
            let until = Instant::now() + deadline;
            under_way.spawn(async move { connection.call(&ask, until).await });
            if at < depth {
                continue;
            }
        }
        let Some(done) = under_way.join_next().await else {
            break;
        };
        done.context("a request broke off")??;
    }
    Ok(f64::from(BURST) / begun.elapsed().as_secs_f64())
}

/// The counter's thread. It ends with the process.
struct CounterThread {
    address: String,
}

impl CounterThread {
    fn start() -> anyhow::Result<CounterThread> {
        let (started, is_started) = std::sync::mpsc::channel();
        let serve = move || {
            let run = async {
                let identity = Identity::node(Who::default());
                let options = Options::default();
                let binding = Server::bind("127.0.0.1:0", identity, options, Counter::default());
                let server = binding.await?;
                let _ = started.send(server.local_addr().to_string());
                // It serves until the process ends.
                std::future::pending::<()>().await;
                anyhow::Ok(())
            };
            runtime()?.block_on(run)
        };
        let thread = std::thread::Builder::new()
            .name("counter".into())
            .spawn(serve)
            .context("cannot start a thread")?;
        match is_started.recv() {
            Ok(address) => Ok(CounterThread { address }),
            Err(_) => match thread.join() {
                Ok(Err(error)) => Err(error.context("the counter cannot begin")),
                Ok(Ok(())) | Err(_) => bail!("the counter ended at once"),
            },
        }
    }
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row L6: the counter answers as often as it is asked.
    #[test]
    fn l6_a_counter_is_asked_over_the_network_stack() {
        let counter = CounterThread::start().expect("it starts");
        let runtime = runtime().expect("a runtime");
        let rate = runtime.block_on(async {
            let identity = Identity::client(ClusterId::default());
            let options = Options::default();
            let connection = Connection::open(&counter.address, &identity, &options);
            let connection = Arc::new(connection.await.expect("it connects"));
            let ask = Message::LogAsk(LogAsk {
                pool: PoolId(1),
                node: staves_model::NodeId(1),
                incarnation: Default::default(),
                body: Bytes::new(),
            });
            let deadline = Duration::from_secs(30);
            let first = connection.call(&ask, Instant::now() + deadline).await;
            let Ok(Message::LogSaid(said)) = first else {
                panic!("{first:?}");
            };
            assert_eq!(&said.body[..], 0_u64.to_be_bytes());
            let rate = count(connection.clone(), ask.clone(), 64, deadline).await;
            let last = connection.call(&ask, Instant::now() + deadline).await;
            let Ok(Message::LogSaid(said)) = last else {
                panic!("{last:?}");
            };
            assert_eq!(&said.body[..], u64::from(BURST + 1).to_be_bytes());
            rate.expect("it is counted")
        });
        assert!(rate > 1.0, "{rate}");
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
