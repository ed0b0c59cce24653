//! The threads that load the servers: all connect, all begin at once, each counts for itself.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use anyhow::Context;
use staves_client::Client;
use tokio::net::TcpStream;
use tokio::task::{JoinSet, LocalSet};

use super::dialect::Dialect;
use super::pace::Window;
use super::tally::Tally;
use super::work::{PhaseJob, RequestLane, ThreadState};
use super::{native, stream};
use staves_cli_common::failure::Failure;
use staves_net::Secret;
use staves_wire::ErrorCode;

/// The servers to load.
#[derive(Clone, Debug)]
pub enum Target {
    /// Each connection goes to one of these, in turn.
    Stream {
        dialect: Dialect,
        addresses: Vec<String>,
    },
    /// Each connection is a client of the cluster.
    Native {
        addresses: Vec<String>,
        pool: String,
        secret: Option<Secret>,
    },
}

/// Threads that are connected and wait for the word to go.
pub struct Workers {
    threads: Vec<(Sender<Arc<Window>>, JoinHandle<Tally>)>,
    /// Operations answered so far.
    pub answered: Arc<AtomicU64>,
}

impl Workers {
    /// Starts them; returns once all are connected, or with the first reason why one is not.
    pub fn connect(target: &Target, job: &Arc<PhaseJob>, threads: u32) -> anyhow::Result<Workers> {
        let connections = job.plan.connections;
        let answered = Arc::new(AtomicU64::new(0));
        let (ready, all_ready) = channel();
        let mut workers = Vec::new();
        for thread in 0..threads {
            let part = |thread: u32| {
                (u64::from(connections) * u64::from(thread) / u64::from(threads)) as u32
            };
            let worker = Worker {
                target: target.clone(),
                job: job.clone(),
                lanes: part(thread)..part(thread + 1),
                answered: answered.clone(),
            };
            let (go, wait) = channel();
            let ready = ready.clone();
            let builder = std::thread::Builder::new().name(format!("load-{thread}"));
            let handle = builder
                .spawn(move || worker.run(&ready, &wait))
                .context("cannot start a thread")?;
            workers.push((go, handle));
        }
        // Each thread says one word, and each connection has its deadline: this ends.
        for outcome in all_ready.iter().take(threads as usize) {
            outcome?;
        }
        Ok(Workers {
            threads: workers,
            answered,
        })
    }

    /// The word to go.
    pub fn go(&self, window: &Arc<Window>) {
        for (go, _) in &self.threads {
            // A thread that is gone shows when it is joined.
            let _ = go.send(window.clone());
        }
    }

    pub fn are_done(&self) -> bool {
        self.threads.iter().all(|(_, thread)| thread.is_finished())
    }

    /// Waits for the threads and adds up their tallies.
    pub fn join(self) -> anyhow::Result<Tally> {
        let mut all = Tally::default();
        for (go, thread) in self.threads {
            drop(go);
            let tally = thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread of the load broke off"))?;
            all.merge(tally);
        }
        Ok(all)
    }
}

struct Worker {
    target: Target,
    job: Arc<PhaseJob>,
    lanes: Range<u32>,
    answered: Arc<AtomicU64>,
}

/// A connection before its task begins.
enum Connected {
    Stream(String, TcpStream),
    Native(Box<Client>),
}

impl Worker {
    fn run(self, ready: &Sender<anyhow::Result<()>>, go: &Receiver<Arc<Window>>) -> Tally {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = ready.send(Err(error.into()));
                return Tally::default();
            }
        };
        let local = LocalSet::new();
        let links = match local.block_on(&runtime, self.connect()) {
            Ok(links) => links,
            Err(failure) => {
                let _ = ready.send(Err(failure.into()));
                return Tally::default();
            }
        };
        let _ = ready.send(Ok(()));
        let Ok(window) = go.recv() else {
            // Another thread could not connect: nothing will be measured.
            return Tally::default();
        };
        let shared = Rc::new(ThreadState {
            job: self.job.clone(),
            window,
            tally: RefCell::default(),
            answered: self.answered.clone(),
        });
        local.block_on(&runtime, self.drive(&shared, links));
        shared.tally.take()
    }

    async fn connect(&self) -> Result<Vec<Connected>, Failure> {
        let deadline = self.job.deadline;
        let mut links = Vec::with_capacity(self.lanes.len());
        for lane in self.lanes.clone() {
            links.push(match &self.target {
                Target::Stream { addresses, .. } => {
                    let address = &addresses[lane as usize % addresses.len()];
                    let socket = stream::connect(address, deadline).await;
                    Connected::Stream(
                        address.clone(),
                        socket.map_err(|text| Failure::Wire(ErrorCode::Unreachable, text))?,
                    )
                }
                Target::Native {
                    addresses,
                    pool,
                    secret,
                } => {
                    let client = native::connect(addresses, pool, secret, deadline).await;
                    let client = client.map_err(|error| match error.code() {
                        ErrorCode::NotFound => Failure::NotFound(error.to_string()),
                        code => Failure::Wire(code, error.to_string()),
                    })?;
                    Connected::Native(Box::new(client))
                }
            });
        }
        Ok(links)
    }

    async fn drive(&self, shared: &Rc<ThreadState>, links: Vec<Connected>) {
        let mut tasks = JoinSet::new();
        let mut shared_lanes = Vec::new();
        for (index, link) in self.lanes.clone().zip(links) {
            let lane = RequestLane::new(&self.job, index, &shared.window);
            match (link, &self.target) {
                (Connected::Stream(address, socket), Target::Stream { dialect, .. }) => {
                    let stream = stream::Stream::new(shared.clone(), *dialect, address, lane);
                    tasks.spawn_local(stream.run(socket));
                }
                (Connected::Native(client), _) => {
                    let lane = Rc::new(RefCell::new(lane));
                    for _ in 0..self.job.plan.pipeline {
                        let (shared, client) = (shared.clone(), Client::clone(&client));
                        tasks.spawn_local(native::call(shared, client, lane.clone()));
                    }
                    shared_lanes.push(lane);
                }
                (Connected::Stream(..), Target::Native { .. }) => {
                    unreachable!("links are made for their target")
                }
            }
        }
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                shared
                    .tally
                    .borrow_mut()
                    .failed(&format!("internal: {error}"));
            }
        }
        let window = &shared.window;
        for lane in shared_lanes {
            let unsent = lane.borrow().pace.unsent(window.start, window.end());
            shared.tally.borrow_mut().unsent += unsent;
        }
    }
}
