//! One client of the native protocol, as applications link it: `--pipeline` callers share it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use staves_client::{Client, ClientError, ClientOptions};
use staves_net::Secret;
use staves_wire::cache::{Condition, OwnedOp};
use staves_wire::service::Answer;

use super::dialect::key_name;
use super::pace::Alarm;
use super::tally::RequestKind;
use super::work::{Common, PendingRequest, RequestLane};

/// Longest sleep until it is looked whether the run was cut short.
const LOOK: Duration = Duration::from_millis(100);

/// A client that has found its cluster.
pub async fn connect(
    addresses: &[String],
    pool: &str,
    secret: &Option<Secret>,
    deadline: Duration,
) -> Result<Client, ClientError> {
    let mut options = ClientOptions {
        pool: pool.to_owned(),
        secret: secret.clone(),
        deadline,
        // There may be no other node to turn to: a slow one is waited for.
        map_try_max: deadline,
        ..ClientOptions::default()
    };
    options.connection.connect_timeout = deadline;
    let client = Client::connect(addresses, options).await?;
    client.check_pool()?;
    Ok(client)
}

/// Asks and counts until the window has ended: one of the client's callers.
pub async fn call(common: Common, client: Client, lane: Rc<RefCell<RequestLane>>) {
    let mut alarm = Alarm::default();
    loop {
        let now = Instant::now();
        let end = common.window.end();
        // Nobody else may find it borrowed while this caller waits.
        let (request, due) = {
            let mut next = lane.borrow_mut();
            if next.over(now, end) {
                return;
            }
            let due = next.pace.due();
            let request = next.next(now, end).map(|(asked, keys)| {
                let op = |key: &u64| op(asked.kind, *key, &common.job.value);
                (asked, keys.iter().map(op).collect())
            });
            (request, due)
        };
        match (request, due) {
            (Some((asked, ops)), _) => execute(&common, &client, &asked, ops).await,
            (None, Some(due)) => {
                if let Err(error) = alarm.wait_until(due.min(now + LOOK)).await {
                    let mut tally = common.tally.borrow_mut();
                    return tally.failed(&format!("timer: {error}"));
                }
            }
            (None, None) => return,
        }
    }
}

fn op(kind: RequestKind, key: u64, value: &Bytes) -> OwnedOp {
    let key = Bytes::copy_from_slice(&key_name(key));
    match kind {
        RequestKind::Read => OwnedOp::Get { key },
        RequestKind::Delete => OwnedOp::Del { key },
        RequestKind::Write => OwnedOp::Set {
            key,
            value: value.clone(),
            condition: Condition::Always,
            get_old: false,
        },
    }
}

async fn execute(common: &Common, client: &Client, asked: &PendingRequest, ops: Vec<OwnedOp>) {
    let answers = match client.execute(ops).await {
        Ok(answers) => answers,
        Err(error) => return common.lost(asked.since, &format!("{}: {error}", error.code())),
    };
    let now = Instant::now();
    match judge(asked, &answers, common.job.value.len()) {
        Ok(misses) => common.answered(asked, misses, now),
        Err(text) => common.refused(asked.since, &text),
    }
}

/// Counts the keys without a value, or describes the first wrong answer.
fn judge(asked: &PendingRequest, answers: &[Answer], value_bytes: usize) -> Result<u64, String> {
    if answers.len() as u64 != asked.keys {
        return Err(format!(
            "protocol: {} answers to {} operations",
            answers.len(),
            asked.keys
        ));
    }
    let mut misses = 0;
    for answer in answers {
        match (asked.kind, answer) {
            (RequestKind::Write, Answer::Ok) | (RequestKind::Delete, Answer::Int(_)) => {}
            (RequestKind::Read, Answer::Nil) => misses += 1,
            (RequestKind::Read, Answer::Value(value)) if value.len() == value_bytes => {}
            (RequestKind::Read, Answer::Value(value)) => {
                let length = value.len();
                return Err(format!(
                    "length: a value has {length} bytes, not {value_bytes}"
                ));
            }
            (_, Answer::Error(code, text)) => return Err(format!("{code}: {text}")),
            (_, other) => {
                return Err(format!(
                    "protocol: {other:?} is no answer to what was asked"
                ));
            }
        }
    }
    Ok(misses)
}

#[cfg(test)]
mod tests {
    use staves_wire::ErrorCode;

    use super::*;

    #[test]
    fn answers_are_judged() {
        let now = Instant::now();
        let asked = |kind, keys| PendingRequest {
            kind,
            keys,
            since: now,
            sent: now,
        };
        let value = |text: &'static str| Answer::Value(Bytes::from_static(text.as_bytes()));
        let read = asked(RequestKind::Read, 2);
        assert_eq!(judge(&read, &[value("abc"), Answer::Nil], 3), Ok(1));
        assert_eq!(
            judge(&asked(RequestKind::Write, 1), &[Answer::Ok], 3),
            Ok(0)
        );
        assert_eq!(
            judge(&asked(RequestKind::Delete, 1), &[Answer::Int(0)], 3),
            Ok(0)
        );
        let refused = Answer::error(ErrorCode::Busy, "later");
        for (answers, said) in [
            (vec![value("abc")], "1 answers"),
            (vec![value("abc"), value("abcd")], "4 bytes"),
            (vec![value("abc"), Answer::Ok], "no answer"),
            (vec![refused, value("abc")], "later"),
        ] {
            let error = judge(&read, &answers, 3).expect_err(said);
            assert!(error.contains(said), "{error}");
        }
    }
}
