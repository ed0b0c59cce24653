//! Tests of the items of a queue: leases, the order of records, bounds, and beginnings in the middle of the stream.

use std::collections::BTreeMap;

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

const LEASE_MS: u32 = 10_000;
const ITEM: Position = 5;
const A: ConsumerId = [1; 16];
const B: ConsumerId = [2; 16];

fn push(deliveries_max: u32) -> QueueRecord {
    QueueRecord::Push {
        deliveries_max,
        item: Bytes::new(),
    }
}

fn change(step: QueueStep, at_ms: u64, consumer: ConsumerId, claims: &[(u64, u64)]) -> QueueRecord {
    let claim = |(item, token): &(u64, u64)| ItemClaim {
        item: *item,
        token: *token,
    };
    QueueRecord::Change(QueueChange {
        step,
        at_ms,
        for_ms: LEASE_MS,
        consumer,
        claims: claims.iter().map(claim).collect(),
    })
}

fn one(deliveries_max: u32) -> QueueItems {
    let mut items = QueueItems::new(100);
    items.apply(ITEM, &push(deliveries_max));
    items
}

#[test]
fn of_two_takes_the_first_in_the_log_gets_the_item_until_its_lease_is_over() {
    let mut items = one(9);
    let take = |at, consumer| change(QueueStep::Take, at, consumer, &[(ITEM, 0)]);
    assert_eq!(items.apply(10, &take(1_000, A)), [true]);
    assert_eq!(items.apply(11, &take(1_000, B)), [false]);
    let over = 1_000 + u64::from(LEASE_MS) + SKEW_MS;
    assert_eq!(items.apply(12, &take(over - 1, B)), [false]);
    let renew = change(QueueStep::Renew, 6_000, A, &[(ITEM, 10)]);
    assert_eq!(items.apply(13, &renew), [true]);
    assert_eq!(items.apply(14, &take(over, B)), [false], "it was renewed");
    let over = over + 5_000;
    assert_eq!(items.apply(15, &take(over, B)), [true]);
    let state = items.get(ITEM).expect("it is not acknowledged");
    assert_eq!(state.deliveries, 2);
    for step in [
        QueueStep::Acknowledge,
        QueueStep::Renew,
        QueueStep::GiveBack,
    ] {
        let late = change(step, over, A, &[(ITEM, 10)]);
        assert_eq!(items.apply(16, &late), [false], "{step:?}");
    }
    let end = change(QueueStep::Acknowledge, over, B, &[(ITEM, 15)]);
    assert_eq!(items.apply(17, &end), [true]);
    assert_eq!(items.apply(18, &end), [false], "it is gone");
    assert_eq!(items.oldest(), None);
}

#[test]
fn an_item_that_is_given_back_waits_and_one_nobody_else_took_can_be_acknowledged_late() {
    let mut items = one(9);
    let take = |at, consumer| change(QueueStep::Take, at, consumer, &[(ITEM, 0)]);
    items.apply(10, &take(1_000, A));
    let back = change(QueueStep::GiveBack, 2_000, A, &[(ITEM, 10)]);
    assert_eq!(items.apply(11, &back), [true]);
    let late = change(QueueStep::Acknowledge, 2_000, A, &[(ITEM, 10)]);
    assert_eq!(items.apply(12, &late), [false], "it was given back");
    let pause = u64::from(LEASE_MS);
    assert_eq!(items.apply(13, &take(1_999 + pause, B)), [false]);
    assert_eq!(items.apply(14, &take(2_000 + pause, B)), [true]);
    let late = change(QueueStep::Acknowledge, 1 << 40, B, &[(ITEM, 14)]);
    assert_eq!(items.apply(15, &late), [true]);
}

#[test]
fn an_item_is_dead_after_its_last_delivery_until_it_is_discarded_or_revived() {
    let mut items = one(2);
    let take = |at| change(QueueStep::Take, at, A, &[(ITEM, 0)]);
    let dead = |step, at| change(step, at, B, &[(ITEM, 0)]);
    items.apply(10, &take(0));
    assert_eq!(items.apply(11, &take(100_000)), [true]);
    let held = dead(QueueStep::Discard, 100_000);
    assert_eq!(items.apply(12, &held), [false], "its lease lasts");
    assert_eq!(items.apply(13, &take(200_000)), [false], "it is dead");
    assert!(items.get(ITEM).is_some_and(|item| item.is_dead(200_000)));
    let revive = dead(QueueStep::Revive, 200_000);
    assert_eq!(items.apply(14, &revive), [true]);
    let late = change(QueueStep::Acknowledge, 200_000, A, &[(ITEM, 11)]);
    assert_eq!(items.apply(15, &late), [false]);
    assert_eq!(items.apply(16, &revive), [false], "it is not dead");
    for at in [200_000, 300_000] {
        assert_eq!(items.apply(at, &take(at)), [true], "{at}");
    }
    let discard = dead(QueueStep::Discard, 400_000);
    assert_eq!(items.apply(300_001, &discard), [true]);
    assert_eq!(items.oldest(), None);
}

#[test]
fn an_item_that_was_left_out_is_the_oldest_when_all_others_have_ended() {
    let mut items = QueueItems::new(1);
    items.apply(5, &push(9));
    items.apply(6, &push(9));
    items.apply(7, &change(QueueStep::Take, 0, A, &[(5, 0)]));
    assert_eq!(items.oldest(), Some(5));
    items.apply(8, &change(QueueStep::Acknowledge, 0, A, &[(5, 7)]));
    assert_eq!(items.oldest(), Some(6));
}

#[test]
fn items_that_are_trimmed_are_forgotten_and_their_changes_mean_nothing() {
    let mut items = QueueItems::new(2);
    for position in [5, 6, 7] {
        items.apply(position, &push(9));
    }
    items.forget_below(6);
    assert_eq!(items.oldest(), Some(6));
    let take = change(QueueStep::Take, 0, A, &[(5, 0), (6, 0)]);
    assert_eq!(items.apply(8, &take), [false, true]);
    items.forget_below(9);
    assert_eq!(items.oldest(), Some(9), "one was left out");
    let from = items.to_fetch().map(|(from, _)| from);
    assert_eq!(from, Some(9));
}

/// Records of a random queue: each consumer claims what it may, and much that it may not.
fn random_records(rng: &mut SmallRng, count: u64) -> BTreeMap<Position, QueueRecord> {
    let mut records = BTreeMap::new();
    let mut items = QueueItems::new(usize::MAX);
    let (mut at, mut position) = (0, 0);
    for _ in 0..count {
        position += rng.random_range(1..3);
        at += rng.random_range(0..3_000);
        let live: Vec<(u64, u64)> = items
            .iter()
            .map(|(item, state)| (item, state.holder.map_or(0, |held| held.token)))
            .collect();
        let record = if live.is_empty() || rng.random_bool(0.3) {
            push(rng.random_range(1..4))
        } else {
            let chosen = |_| {
                let (item, token) = live[rng.random_range(0..live.len())];
                (item, token - u64::from(rng.random_bool(0.1)).min(token))
            };
            let claims: Vec<(u64, u64)> = (0..3).map(chosen).collect();
            let steps = [
                QueueStep::Take,
                QueueStep::Acknowledge,
                QueueStep::Take,
                QueueStep::GiveBack,
                QueueStep::Renew,
                QueueStep::Discard,
                QueueStep::Revive,
                QueueStep::Acknowledge,
            ];
            let step = steps[rng.random_range(0..steps.len())];
            let consumer = [A, B][rng.random_range(0..2)];
            change(step, at, consumer, &claims)
        };
        items.apply(position, &record);
        records.insert(position, record);
    }
    records
}

#[test]
fn who_begins_at_the_oldest_item_comes_to_the_same_items() {
    for seed in 0..100 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let records = random_records(&mut rng, 120);
        let mut all = QueueItems::new(usize::MAX);
        let mut later: Vec<QueueItems> = Vec::new();
        for (position, record) in &records {
            all.apply(*position, record);
            for items in &mut later {
                items.apply(*position, record);
            }
            if position % 7 == 0 {
                let mut new = QueueItems::new(usize::MAX);
                let from = all.oldest().unwrap_or(position + 1);
                for (position, record) in records.range(from..position + 1) {
                    new.apply(*position, record);
                }
                later.push(new);
            }
        }
        assert!(later.iter().all(|items| *items == all), "seed {seed}");
    }
}

#[test]
fn items_that_were_left_out_are_there_with_all_that_was_done_to_them() {
    let mut fetched = 0;
    for seed in 0..100 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let records = random_records(&mut rng, 200);
        let (mut all, mut few) = (QueueItems::new(usize::MAX), QueueItems::new(8));
        for (position, record) in &records {
            all.apply(*position, record);
            few.apply(*position, record);
            while let Some((from, mut later)) = few.to_fetch() {
                for (position, record) in records.range(from..=*position) {
                    later.apply(*position, record);
                }
                few.fetched(later);
                fetched += 1;
            }
            let known: Vec<_> = few.iter().collect();
            let expected: Vec<_> = all.iter().take(known.len()).collect();
            assert_eq!(known, expected, "seed {seed}, position {position}");
            assert_eq!(all.oldest(), few.oldest(), "seed {seed}");
            assert!(known.len() >= 4.min(all.iter().count()), "seed {seed}");
        }
    }
    assert!(fetched > 50, "{fetched}");
}

#[test]
fn no_two_consumers_hold_an_item_at_once_whose_clocks_differ_by_less_than_a_second() {
    for seed in 0..100 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut items = one(u32::MAX);
        let skews = [0, rng.random_range(0..SKEW_MS)];
        // The holder, and the true time at which it itself takes its lease to be over.
        let mut holds: Option<(usize, Position, u64)> = None;
        let mut time = 1_000_000_u64;
        for position in 10..200 {
            time += rng.random_range(0..4_000);
            let who = rng.random_range(0..2_usize);
            let clock = time + skews[who];
            let own = holds.filter(|held| held.0 == who && time < held.2);
            let step = match own {
                Some(_) if rng.random_bool(0.5) => QueueStep::Renew,
                _ => QueueStep::Take,
            };
            let token = own.map_or(0, |held| held.1);
            let record = change(step, clock, [A, B][who], &[(ITEM, token)]);
            if items.apply(position, &record) == [true] {
                let others = holds.filter(|held| held.0 != who && time < held.2);
                assert_eq!(others, None, "seed {seed}, position {position}");
                let token = if step == QueueStep::Take {
                    position
                } else {
                    token
                };
                holds = Some((who, token, time + u64::from(LEASE_MS)));
            }
        }
    }
}
