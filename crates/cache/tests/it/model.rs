//! Random operations against a plain map.

use std::collections::BTreeMap;

use proptest::prelude::*;
use staves_cache::{Kv, Options};
use staves_service::Refused;
use staves_wire::cache::{Condition, Op};
use staves_wire::error::ErrorCode;
use staves_wire::service::Answer;

use crate::cluster::{Cluster, bytes, small_options};

#[derive(Clone, Debug)]
enum Step {
    Get(u8),
    Set(u8, usize, Condition, bool),
    Del(u8),
    Exists(u8),
    SetNumber(u8, i64),
    IncrBy(u8, i64),
    Append(u8, usize),
    StrLen(u8),
    GetDel(u8),
    Ticks(u8),
}

fn length(longest: usize) -> impl Strategy<Value = usize> {
    prop_oneof![
        6 => 0..200usize,
        3 => 200..4000usize,
        // Around the length at which values are cut, and the lengths at which chunks fill.
        2 => 8100..8200usize,
        2 => 8200..longest,
        1 => (2..5usize, 0..40usize).prop_map(|(n, d)| n * 6000 + d - 20),
    ]
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        4 => Just(Condition::Always),
        1 => Just(Condition::IfAbsent),
        1 => Just(Condition::IfPresent)
    ]
}

fn step(keys: u8, longest: usize) -> impl Strategy<Value = Step> {
    let key = move || 0..keys;
    let number = || prop_oneof![-100..100i64, Just(i64::MAX), Just(i64::MIN)];
    prop_oneof![
        4 => key().prop_map(Step::Get),
        10 => (key(), length(longest), condition(), any::<bool>()).prop_map(|(k, l, c, g)| Step::Set(k, l, c, g)),
        3 => key().prop_map(Step::Del),
        1 => key().prop_map(Step::Exists),
        1 => (key(), number()).prop_map(|(k, n)| Step::SetNumber(k, n)),
        3 => (key(), number()).prop_map(|(k, n)| Step::IncrBy(k, n)),
        3 => (key(), length(longest)).prop_map(|(k, l)| Step::Append(k, l)),
        1 => key().prop_map(Step::StrLen),
        2 => key().prop_map(Step::GetDel),
        1 => (1..4u8).prop_map(Step::Ticks),
    ]
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn value(v: Option<&Vec<u8>>) -> Answer {
    v.map_or(Answer::Nil, |v| Answer::Value(v.clone().into()))
}

/// The plain map's answer; `Err` for an error, by code.
fn expect(model: &mut Model, op: &Op<'_>, max: usize) -> Result<Answer, ErrorCode> {
    let key = op.key().to_vec();
    let old = model.get(&key).cloned();
    let int = |n: usize| Answer::Int(n as i64);
    Ok(match *op {
        Op::Get { .. } => value(old.as_ref()),
        Op::Exists { .. } => int(usize::from(old.is_some())),
        Op::StrLen { .. } => int(old.map_or(0, |v| v.len())),
        Op::Del { .. } => int(usize::from(model.remove(&key).is_some())),
        Op::GetDel { .. } => value(model.remove(&key).as_ref()),
        Op::Set {
            value: new,
            condition,
            get_old,
            ..
        } => {
            let holds = match condition {
                Condition::Always => true,
                Condition::IfAbsent => old.is_none(),
                Condition::IfPresent => old.is_some(),
            };
            if holds {
                model.insert(key, new.to_vec());
            }
            match (get_old, holds) {
                (true, _) => value(old.as_ref()),
                (false, true) => Answer::Ok,
                (false, false) => Answer::Nil,
            }
        }
        Op::IncrBy { by, .. } => {
            let text = old.map_or("0".into(), |v| String::from_utf8_lossy(&v).into_owned());
            let number: i64 = text.parse().map_err(|_| ErrorCode::NotAnInteger)?;
            if number.to_string() != text {
                return Err(ErrorCode::NotAnInteger);
            }
            let sum = number.checked_add(by).ok_or(ErrorCode::Overflow)?;
            model.insert(key, sum.to_string().into_bytes());
            Answer::Int(sum)
        }
        Op::Append { value: more, .. } => {
            let mut whole = old.unwrap_or_default();
            whole.extend_from_slice(more);
            if whole.len() > max {
                return Err(ErrorCode::TooLarge);
            }
            let len = whole.len();
            model.insert(key, whole);
            int(len)
        }
    })
}

/// Runs one step on both; after an `OOM` the model keeps what it had.
fn both(cluster: &mut Cluster, model: &mut Model, step: &Step, seed: u64, max: usize) -> bool {
    let name = |k: &u8| format!("key-{k}{}", "x".repeat(usize::from(*k) * 9 % 50)).into_bytes();
    let (key, extra) = match step {
        Step::Ticks(n) => {
            cluster.ticks(usize::from(*n));
            return false;
        }
        Step::Set(k, len, ..) | Step::Append(k, len) => (name(k), bytes(seed, *len)),
        Step::SetNumber(k, n) => (name(k), n.to_string().into_bytes()),
        Step::Get(k)
        | Step::Del(k)
        | Step::Exists(k)
        | Step::IncrBy(k, _)
        | Step::StrLen(k)
        | Step::GetDel(k) => (name(k), Vec::new()),
    };
    let (key, extra) = (&key[..], &extra[..]);
    let op = match *step {
        Step::Get(_) => Op::Get { key },
        Step::Set(_, _, condition, get_old) => Op::Set {
            key,
            value: extra,
            condition,
            get_old,
        },
        Step::SetNumber(..) => Op::Set {
            key,
            value: extra,
            condition: Condition::Always,
            get_old: false,
        },
        Step::Del(_) => Op::Del { key },
        Step::Exists(_) => Op::Exists { key },
        Step::IncrBy(_, by) => Op::IncrBy { key, by },
        Step::Append(..) => Op::Append { key, value: extra },
        Step::StrLen(_) => Op::StrLen { key },
        Step::GetDel(_) => Op::GetDel { key },
        Step::Ticks(_) => unreachable!("handled above"),
    };
    let before = model.clone();
    let expected = expect(model, &op, max);
    match (cluster.run(Some(seed), &op), expected) {
        (Ok(Answer::Error(ErrorCode::OutOfMemory, text)), _) => {
            assert!(text.starts_with("OOM "));
            *model = before;
            return true;
        }
        (Ok(Answer::Error(code, text)), Err(expected)) => {
            assert_eq!(code, expected, "{text}");
            assert!(text.starts_with("ERR "));
        }
        (Ok(answer), Ok(expected)) => assert_eq!(answer, expected, "{step:?}"),
        (answer, expected) => panic!("{step:?} is answered {answer:?} and not {expected:?}"),
    }
    false
}

fn compare(cluster: &mut Cluster, model: &Model) {
    cluster.check();
    assert_eq!(cluster.cache().keys(), model.len() as u64);
    let bytes: usize = model.iter().map(|(k, v)| k.len() + v.len()).sum();
    assert_eq!(cluster.cache().bytes(), bytes as u64);
    for (key, value) in model {
        assert_eq!(cluster.get(key).as_ref(), Some(value));
    }
    // Reopened by a scan, it would be the same bucket.
    let scan = Kv::scan(cluster.bucket().member().pages().unwrap());
    assert_eq!(
        (scan.count(), scan.payload()),
        (model.len() as u64, bytes as u64)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_lone_bucket_is_a_map(steps in prop::collection::vec(step(24, 40_000), 1..400)) {
        let mut cluster = Cluster::new(0, 64, small_options());
        let mut model = Model::new();
        for (n, step) in steps.iter().enumerate() {
            both(&mut cluster, &mut model, step, n as u64 + 1, 4 << 20);
            cluster.check();
        }
        compare(&mut cluster, &model);
    }

    /// Three extents for everything: compaction all the time, and often no memory at all.
    #[test]
    fn a_bucket_without_room_is_a_map_that_says_so(
        steps in prop::collection::vec(step(200, 9_000), 200..1200),
    ) {
        let mut cluster = Cluster::new(0, 3, small_options());
        let mut model = Model::new();
        for (n, step) in steps.iter().enumerate() {
            both(&mut cluster, &mut model, step, n as u64 + 1, 4 << 20);
            if n % 16 == 0 {
                cluster.check();
            }
        }
        compare(&mut cluster, &model);
    }

    /// With copies, one of which takes over in the middle.
    #[test]
    fn a_replicated_bucket_is_a_map_and_so_is_its_successor(
        steps in prop::collection::vec(step(24, 30_000), 1..150),
        more in prop::collection::vec(step(24, 30_000), 1..150),
    ) {
        let mut cluster = Cluster::new(2, 32, small_options());
        let mut model = Model::new();
        for (n, step) in steps.iter().enumerate() {
            both(&mut cluster, &mut model, step, n as u64 + 1, 4 << 20);
            cluster.check();
        }
        cluster.cut_off.push(0);
        cluster.change(&[1, 2]);
        cluster.settle();
        compare(&mut cluster, &model);
        for (n, step) in more.iter().enumerate() {
            both(&mut cluster, &mut model, step, n as u64 + 10_000, 4 << 20);
            cluster.check();
        }
        compare(&mut cluster, &model);
    }
}

#[test]
fn limits_are_refused_and_nothing_else_changes() {
    let options = Options {
        value_bytes_max: 1000,
        ..small_options()
    };
    let mut cluster = Cluster::new(0, 8, options);
    let too_large = |answer: Result<Answer, Refused>| {
        let Ok(Answer::Error(ErrorCode::TooLarge, text)) = answer else {
            panic!("{answer:?}")
        };
        // Redis's word comes with Redis's protocol.
        assert!(!text.starts_with("ERR "), "{text}");
    };
    too_large(cluster.set(b"k", &[0; 1001]));
    too_large(cluster.set(&[b'k'; (64 << 10) + 1], b"v"));
    assert_eq!(cluster.set(&[b'k'; 64 << 10], b"v"), Ok(Answer::Ok));
    assert_eq!(cluster.set(b"k", &[0; 1000]), Ok(Answer::Ok));
    too_large(cluster.run(
        None,
        &Op::Append {
            key: b"k",
            value: b"x",
        },
    ));
    assert_eq!(cluster.get(b"k"), Some(vec![0; 1000]));
    assert_eq!(cluster.cache().keys(), 2);
}
