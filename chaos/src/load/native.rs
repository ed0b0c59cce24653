//! Clients through the native client (`staves-client`), which routes and retries by itself.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use staves_client::{Client, ClientError, ClientOptions, ErrorCode};
use staves_history::Record;
use staves_history::record::{Answered, Asked};
use staves_wire::cache::{Condition, OwnedOp};
use staves_wire::service::Answer;

use super::{PATIENCE, PAUSE, REST, Shared};

/// A service, as these clients use it.
pub trait NativeService: Sized {
    /// Opens it.
    fn open(client: Client, shared: &Arc<Shared>) -> impl Future<Output = anyhow::Result<Self>>;
    /// Executes a request.
    fn execute(&self, record: &Record) -> impl Future<Output = Result<Answered, ClientError>>;
}

/// A client of a service, with a runtime of its own. It knows all nodes, and goes around.
pub struct Handle<D> {
    runtime: tokio::runtime::Runtime,
    door: D,
    shared: Arc<Shared>,
    process: u32,
}

impl<D: NativeService> Handle<D> {
    /// Connects.
    pub fn open(shared: &Arc<Shared>, process: u32) -> anyhow::Result<Handle<D>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let door = runtime.block_on(async {
            let nodes = shared.native_doors();
            let client = Client::connect(&nodes, ClientOptions::default()).await;
            D::open(client.context("cannot connect")?, shared).await
        })?;
        Ok(Handle {
            runtime,
            door,
            shared: shared.clone(),
            process,
        })
    }

    /// Starts one on its own thread, in the caller's namespace, with the operations that `draw` makes.
    pub fn start(
        shared: &Arc<Shared>,
        process: u32,
        seed: u64,
        mut draw: impl FnMut(&mut SmallRng, u64) -> Option<(String, Asked)> + Send + 'static,
    ) -> JoinHandle<()> {
        let shared = shared.clone();
        let mut rng = SmallRng::seed_from_u64(seed ^ u64::from(process) << 32);
        std::thread::spawn(move || {
            let handle = match Handle::<D>::open(&shared, process) {
                Ok(handle) => handle,
                Err(error) => return shared.complain(format!("client {process}: {error:#}")),
            };
            let mut drawn = 0;
            while !shared.stopped() {
                drawn += 1;
                let Some((key, asked)) = draw(&mut rng, drawn) else {
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                };
                let done = handle.ask(&key, asked).is_some();
                std::thread::sleep(if done { REST } else { PAUSE });
            }
        })
    }

    /// Asks, and records what is known of it; the answer, if there was one.
    pub fn ask(&self, key: &str, asked: Asked) -> Option<Answered> {
        let mut record = self.shared.begin(self.process, key, asked);
        let began = Instant::now();
        let done = self
            .runtime
            .block_on(async { tokio::time::timeout(PATIENCE, self.door.execute(&record)).await });
        match done {
            Ok(Ok(answer)) => {
                record.returned = Some(self.shared.now());
                record.answer = Some(answer.clone());
                self.shared.record(record);
                return Some(answer);
            }
            Ok(Err(error)) if error.code().nothing_done() => self.shared.refuse(),
            Ok(Err(_)) if record.asked == Asked::Get => {}
            Ok(Err(_)) => self.shared.record(record),
            // Its own deadline is 5 s; what is beyond that and a margin is a hang.
            Err(_) => {
                self.shared.complain(format!(
                    "the native client gave no answer for {:?}: {record:?}",
                    began.elapsed()
                ));
                self.shared.record(record);
            }
        }
        None
    }
}

/// The cache, as a client of it.
pub struct CacheClient(Client);

impl NativeService for CacheClient {
    async fn open(client: Client, _shared: &Arc<Shared>) -> anyhow::Result<CacheClient> {
        Ok(CacheClient(client))
    }

    async fn execute(&self, record: &Record) -> Result<Answered, ClientError> {
        match self.0.execute(vec![operation(record)]).await?.pop() {
            Some(Answer::Nil) => Ok(Answered::Nil),
            Some(Answer::Ok) => Ok(Answered::Ok),
            Some(Answer::Int(n)) => Ok(Answered::Int(n)),
            Some(Answer::Value(v)) => Ok(Answered::Value(String::from_utf8_lossy(&v).into_owned())),
            Some(Answer::Error(code, text)) => Err(ClientError::Operation { code, text }),
            None => {
                let (code, text) = (ErrorCode::Internal, "no answer at all".to_owned());
                Err(ClientError::Operation { code, text })
            }
        }
    }
}

fn operation(record: &Record) -> OwnedOp {
    let key = record.key.clone().into_bytes().into();
    let set = |key, value: &String, condition| OwnedOp::Set {
        key,
        value: value.clone().into_bytes().into(),
        condition,
        get_old: false,
    };
    match &record.asked {
        Asked::Get => OwnedOp::Get { key },
        Asked::Set { value } => set(key, value, Condition::Always),
        Asked::SetNx { value } => set(key, value, Condition::IfAbsent),
        Asked::Del => OwnedOp::Del { key },
        Asked::Incr { by } => OwnedOp::IncrBy { key, by: *by },
        Asked::Append { value } => OwnedOp::Append {
            key,
            value: value.clone().into_bytes().into(),
        },
        Asked::GetDel => OwnedOp::GetDel { key },
    }
}
