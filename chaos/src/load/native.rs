//! The same load through the native client (`staves-client`), which routes and retries by itself.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::Context;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use staves_client::{Client, ClientOptions};
use staves_history::Record;
use staves_history::record::{Answered, Asked};
use staves_wire::cache::{Condition, OwnedOp};
use staves_wire::service::Answer;

use super::{Keys, PATIENCE, PAUSE, REST, Shared};

/// Starts one on its own thread, in the caller's namespace. It knows all doors, and goes around.
pub fn start(
    shared: &Arc<Shared>,
    process: u32,
    seed: u64,
    keys: Keys,
    doors: Vec<String>,
) -> JoinHandle<()> {
    let shared = shared.clone();
    std::thread::spawn(move || {
        if let Err(error) = contend(&shared, process, seed, keys, &doors) {
            shared.complain(format!("the native client: {error:#}"));
        }
    })
}

fn contend(
    shared: &Shared,
    process: u32,
    seed: u64,
    keys: Keys,
    doors: &[String],
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut rng = SmallRng::seed_from_u64(seed ^ u64::from(process) << 32);
    let mut written = 0;
    runtime.block_on(async {
        let client = Client::connect(doors, ClientOptions::default())
            .await
            .context("cannot connect")?;
        while !shared.stopped() {
            let at = keys.any(&mut rng);
            let asked = keys.choose(&mut rng, at, || {
                written += 1;
                format!("p{process}.{written};")
            });
            let done = ask(shared, &client, process, keys.name(at), asked).await;
            tokio::time::sleep(if done { REST } else { PAUSE }).await;
        }
        Ok(())
    })
}

async fn ask(shared: &Shared, client: &Client, process: u32, key: String, asked: Asked) -> bool {
    let mut record = Record {
        process,
        key,
        asked,
        call: shared.now(),
        returned: None,
        answer: None,
    };
    let began = Instant::now();
    let op = operation(&record);
    // Its own deadline is 5 s; what is beyond that and a margin is a hang.
    let Ok(result) = tokio::time::timeout(PATIENCE, client.execute(vec![op])).await else {
        shared.complain(format!(
            "the native client gave no answer for {:?}: {record:?}",
            began.elapsed()
        ));
        shared.record(record);
        return false;
    };
    let answer = match result.map(|mut answers| answers.pop()) {
        Ok(Some(Answer::Error(code, _))) if code.nothing_done() => None,
        Err(error) if error.code().nothing_done() => None,
        Ok(Some(Answer::Nil)) => Some(Answered::Nil),
        Ok(Some(Answer::Ok)) => Some(Answered::Ok),
        Ok(Some(Answer::Int(n))) => Some(Answered::Int(n)),
        Ok(Some(Answer::Value(v))) => {
            Some(Answered::Value(String::from_utf8_lossy(&v).into_owned()))
        }
        Ok(Some(Answer::Error(..)) | None) | Err(_) => {
            if record.asked != Asked::Get {
                shared.record(record);
            }
            return false;
        }
    };
    let done = answer.is_some();
    if done {
        record.returned = Some(shared.now());
        record.answer = answer;
        shared.record(record);
    }
    done
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
