//! Requests and answers over a connection, and how it ends.

use std::time::{Duration, Instant};

use bytes::Bytes;
use staves_net::{Connection, Identity, NetError, Options};
use staves_wire::directory::{Propose, Sign};
use staves_wire::frame::Limits;
use staves_wire::{ErrorCode, Message};
use tokio::net::TcpListener;

use crate::common::*;

#[test]
fn x1_requests_are_pipelined_and_answers_come_out_of_order() {
    block_on(async {
        let (_server, script, addr) = server(Options::default()).await;
        let connection = client(&addr, Options::default()).await;
        let mut early = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let connection = connection.clone();
            early.spawn(async move { connection.call(&ask(KEEP), within(5000)).await });
        }
        wait_until_async("the requests arrive", || {
            script.kept.lock().unwrap().len() == 50
        })
        .await;
        // Later requests overtake those that wait.
        for n in [10, 20, 30] {
            let answer = connection
                .call(&ask(n), within(5000))
                .await
                .expect("answered");
            assert_eq!(answer, status(n as usize));
        }
        let answer = connection
            .call(&ask(RELEASE), within(5000))
            .await
            .expect("answered");
        assert_eq!(answer, status(3));
        while let Some(answer) = early.join_next().await {
            assert_eq!(answer.expect("no panic").expect("answered"), status(1));
        }
    });
}

#[test]
fn many_requests_from_many_tasks_each_get_their_own_answer() {
    block_on(async {
        let (_server, _, addr) = server(Options::default()).await;
        let connection = client(&addr, Options::default()).await;
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..20_u32 {
            let connection = connection.clone();
            tasks.spawn(async move {
                for i in 0..200 {
                    let n = 10 + task * 7 + i;
                    let answer = connection
                        .call(&ask(n), within(10_000))
                        .await
                        .expect("answered");
                    assert_eq!(answer, status(n as usize));
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("every answer was the right one");
        }
    });
}

#[test]
fn a_deadline_names_the_address_and_what_was_waited_for() {
    block_on(async {
        let (_server, script, addr) = server(Options::default()).await;
        let connection = client(&addr, Options::default()).await;
        let error = connection
            .call(&ask(KEEP), within(500))
            .await
            .expect_err("nobody answers");
        let text = error.to_string();
        assert!(
            text.contains(&addr) && text.contains("get-map") && text.contains("ms"),
            "{text}"
        );
        assert!(!error.nothing_done(), "it may have been done");
        // The deadline travelled with the request.
        let reply = script.kept.lock().unwrap().pop().expect("it was kept");
        assert!(reply.deadline().is_some());
        // It counts from when the request was read, which may be a little later.
        while !reply.is_late(Instant::now()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The answer that comes too late harms nothing.
        reply.send(&status(1));
        assert_eq!(
            connection
                .call(&ask(9), within(5000))
                .await
                .expect("answered"),
            status(9)
        );
    });
}

/// A slow operation is no sign that its node is not well: it was asked for a word, and gave one.
#[test]
fn d5_who_answers_late_is_not_silent() {
    block_on(async {
        let (_server, _script, addr) = server(Options::default()).await;
        let relay = Relay::start(addr).await;
        let connection = client(&relay.addr, Options::default()).await;
        let late = connection.call(&ask(KEEP), within(2000)).await;
        let late = late.expect_err("nobody answers");
        assert!(matches!(late, NetError::Deadline { sent: true, .. }));
        assert_eq!(late.sign(), None, "{late:?}");
        relay.freeze();
        let silent = connection.call(&ask(KEEP), within(200)).await;
        let silent = silent.expect_err("not a word comes");
        assert!(
            matches!(silent, NetError::Deadline { waited_ms, .. } if waited_ms >= 200),
            "{silent:?}"
        );
        assert_eq!(silent.sign(), Some(Sign::Silent));
    });
}

/// A caller that gives up on an answer that is on its way asks for it again, and finds the way full of the first.
#[test]
fn a_large_answer_is_waited_for_while_it_comes() {
    block_on(async {
        let (_server, _, addr) = server(Options::default()).await;
        let relay = Relay::start(addr).await;
        let connection = client(&relay.addr, Options::default()).await;
        relay.slow_down(Duration::from_millis(7));
        let started = Instant::now();
        let answer = connection.call(&ask_cache(24 << 20), within(1500)).await;
        assert_eq!(answer.expect("it comes"), status(24 << 20));
        assert!(started.elapsed() > Duration::from_millis(1500), "too fast");
        // One of which no more comes is not.
        let (asking, connection) = (Instant::now(), connection.clone());
        let cut = tokio::spawn(async move {
            let error = connection.call(&ask_cache(24 << 20), within(1500)).await;
            (error.expect_err("half an answer"), asking.elapsed())
        });
        tokio::time::sleep(Duration::from_millis(700)).await;
        relay.freeze();
        let (error, took) = cut.await.expect("no panic");
        assert!(!error.nothing_done(), "{error}");
        assert!(took < Duration::from_secs(30), "{took:?}");
    });
}

#[test]
fn a_reply_dropped_is_an_answer_too() {
    block_on(async {
        let (_server, _, addr) = server(Options::default()).await;
        let connection = client(&addr, Options::default()).await;
        let error = connection
            .call(&ask(DROP), within(5000))
            .await
            .expect_err("dropped");
        assert_eq!(error.code(), ErrorCode::Internal);
        assert!(error.to_string().contains("get-map"), "{error}");
    });
}

#[test]
fn large_messages_go_both_ways_and_larger_ones_are_refused_by_themselves() {
    block_on(async {
        let limits = Limits {
            message_bytes_max: 8 << 20,
            ..Limits::default()
        };
        let options = Options {
            limits,
            ..Options::default()
        };
        let (_server, _, addr) = server(options.clone()).await;
        let connection = client(&addr, options).await;
        let propose = |len| {
            Message::Propose(Propose {
                expected: None,
                change: Bytes::from(vec![1; len]),
            })
        };
        let answer = connection
            .call(&propose(5 << 20), within(10_000))
            .await
            .expect("answered");
        assert_eq!(answer, status(5 << 20));
        // Ours: seen before it leaves.
        let error = connection
            .call(&propose(9 << 20), within(5000))
            .await
            .expect_err("too large");
        assert!(
            matches!(error, NetError::TooLarge { .. }) && error.nothing_done(),
            "{error}"
        );
        // Theirs: refused as it comes.
        let error = connection
            .call(&ask(9 << 20), within(5000))
            .await
            .expect_err("too large");
        assert_eq!(error.code(), ErrorCode::AnswerGone, "{error}");
        assert!(!error.nothing_done(), "{error}");
        assert_eq!(
            connection
                .call(&ask(9), within(5000))
                .await
                .expect("answered"),
            status(9)
        );
    });
}

#[test]
fn a_refused_connection_says_so_at_once() {
    block_on(async {
        let free = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = free.local_addr().expect("its address").to_string();
        drop(free);
        let identity = Identity::client(CLUSTER);
        let error = Connection::open(&addr, &identity, &Options::default()).await;
        let error = error.err().expect("nobody listens");
        assert_eq!(error.sign(), Some(Sign::Refused));
        assert!(error.to_string().contains(&addr), "{error}");
    });
}

#[test]
fn another_cluster_is_refused_with_its_name() {
    block_on(async {
        let (_server, _, addr) = server(Options::default()).await;
        let stranger = Identity::client(staves_model::ClusterId(0xC2));
        let error = Connection::open(&addr, &stranger, &Options::default()).await;
        let error = error.err().expect("another cluster");
        assert_eq!(error.code(), ErrorCode::WrongCluster);
        assert!(error.to_string().contains("00000000000000c1"), "{error}");
    });
}

#[test]
fn a_half_open_peer_is_given_up_after_the_silence_that_is_allowed() {
    block_on(async {
        // Accepts, and never says a word.
        let mute = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = mute.local_addr().expect("its address").to_string();
        let hold = tokio::spawn(async move {
            let mut all = Vec::new();
            while let Ok((socket, _)) = mute.accept().await {
                all.push(socket);
            }
        });
        let options = Options {
            connect_timeout: Duration::from_millis(100),
            ..Options::default()
        };
        let error = Connection::open(&addr, &Identity::client(CLUSTER), &options).await;
        let error = error.err().expect("no welcome");
        assert!(matches!(error.sign(), Some(Sign::Silent)), "{error:?}");
        hold.abort();

        // Welcomes, then goes silent: the connection ends, though nobody asks anything.
        let (server, _, addr) = server(Options::default()).await;
        let relay = Relay::start(addr).await;
        let options = Options {
            silence_max: Duration::from_secs(2),
            ..Options::default()
        };
        let connection = client(&relay.addr, options).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(connection.over().is_none(), "pings keep an idle connection");
        relay.freeze();
        let waiting = connection
            .call(&ask(KEEP), within(60_000))
            .await
            .expect_err("silent");
        assert_eq!(waiting.sign(), Some(Sign::Silent));
        assert!(
            waiting.to_string().contains("silent for 2000 ms"),
            "{waiting}"
        );
        assert!(connection.over().is_some());
        drop(server);
    });
}

#[test]
fn a_killed_connection_tells_everyone_who_waits() {
    block_on(async {
        let (server, script, addr) = server(Options::default()).await;
        let connection = client(&addr, Options::default()).await;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let connection = connection.clone();
            tasks.spawn(async move { connection.call(&ask(KEEP), within(20_000)).await });
        }
        wait_until_async("the requests arrive", || {
            script.kept.lock().unwrap().len() == 10
        })
        .await;
        drop(server);
        while let Some(answer) = tasks.join_next().await {
            let error = answer.expect("no panic").expect_err("it broke");
            assert_eq!(error.sign(), Some(Sign::Failed), "{error:?}");
            assert!(!error.nothing_done());
        }
        let error = connection
            .call(&ask(9), within(1000))
            .await
            .expect_err("it is over");
        assert!(matches!(error, NetError::Closed { .. }), "{error}");
    });
}

#[test]
fn a_client_keeps_to_the_number_of_requests_that_the_server_takes() {
    block_on(async {
        let options = Options {
            in_flight_max: 4,
            ..Options::default()
        };
        let (_server, script, addr) = server(options).await;
        let connection = client(&addr, Options::default()).await;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let connection = connection.clone();
            tasks.spawn(async move { connection.call(&ask(KEEP), within(20_000)).await });
        }
        wait_until_async("the requests arrive", || {
            script.kept.lock().unwrap().len() == 4
        })
        .await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(script.seen.lock().unwrap().len(), 4, "no fifth was begun");
        for _ in 0..10 {
            wait_until_async("the requests arrive", || {
                !script.kept.lock().unwrap().is_empty()
            })
            .await;
            let reply = script.kept.lock().unwrap().pop().expect("one");
            reply.send(&status(1));
        }
        while let Some(answer) = tasks.join_next().await {
            assert_eq!(answer.expect("no panic").expect("answered"), status(1));
        }
    });
}

#[test]
fn a_server_in_good_order_answers_what_it_has_and_takes_no_more() {
    block_on(async {
        let (server, script, addr) = server(Options::default()).await;
        let connection = client(&addr, Options::default()).await;
        let asked = {
            let connection = connection.clone();
            tokio::spawn(async move { connection.call(&ask(KEEP), within(10_000)).await })
        };
        wait_until_async("the requests arrive", || {
            script.kept.lock().unwrap().len() == 1
        })
        .await;
        let stopping = tokio::spawn(server.stop(Duration::from_secs(5)));
        tokio::time::sleep(Duration::from_millis(50)).await;
        let reply = script.kept.lock().unwrap().pop().expect("kept");
        reply.send(&status(1));
        assert_eq!(asked.await.expect("no panic").expect("answered"), status(1));
        stopping.await.expect("it stopped");
        let identity = Identity::client(CLUSTER);
        assert!(
            Connection::open(&addr, &identity, &Options::default())
                .await
                .is_err()
        );
    });
}
