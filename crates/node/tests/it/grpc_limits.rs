//! Volumes by gRPC where something is wrong, or runs out: calls, bytes, memory, places for clients.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Frame;
use staves_grpc::{READ_BYTES_MAX, SETTLED, WRITE_BYTES_MAX, v1};
use staves_testkit::cluster::{Parse, TestCluster};
use staves_testkit::wait_until;
use tokio::runtime::Runtime;
use tonic::Code;
use tonic::codegen::{Service, tokio_stream};
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

use crate::grpc_volumes::{AT_ONCE, channel, client_of, cluster, door, stub};
use crate::memory::{POOL, make_pool, pattern};
use crate::volumes::{MIB, create};

#[test]
fn b1_wrong_reads_are_refused_with_the_reason() {
    let (cluster, client, runtime) = cluster(1, "1+0");
    create(&cluster, &client, "v", 10 * MIB);
    let create = client.create_region(POOL, "r", MIB);
    cluster.nodes[0].runtime().block_on(create).expect("made");
    runtime.block_on(async {
        let mut stub = stub(&cluster, 0).await;
        let long = "x".repeat(3000);
        for (volume, offset, length, code, part) in [
            ("w", 0, 1, Code::NotFound, "no volume 'w'"),
            ("r", 0, 1, Code::NotFound, "no volume 'r'"),
            ("", 0, 1, Code::NotFound, "no volume ''"),
            (&long[..], 0, 1, Code::NotFound, "no volume 'xxx"),
            (
                "v",
                10 * MIB - 4095,
                4096,
                Code::InvalidArgument,
                "do not lie within",
            ),
            (
                "v",
                u64::MAX,
                4096,
                Code::InvalidArgument,
                "do not lie within",
            ),
            (
                "v",
                0,
                READ_BYTES_MAX as u32 + 1,
                Code::InvalidArgument,
                "split it",
            ),
            ("v", 0, u32::MAX, Code::InvalidArgument, "split it"),
        ] {
            let read = v1::ReadRequest {
                volume: volume.into(),
                offset,
                length,
            };
            let refused = stub.read(read).await.expect_err("refused");
            assert_eq!(
                refused.code(),
                code,
                "{volume:.9} {offset} {length}: {refused}"
            );
            assert!(refused.message().contains(part), "{refused}");
            assert!(refused.message().len() < 400, "{refused}");
            assert!(refused.metadata().contains_key(SETTLED), "{refused}");
        }
    });
}

#[test]
fn b1_wrong_writes_are_refused_and_their_session_goes_on() {
    let (cluster, client, runtime) = cluster(1, "1+0");
    create(&cluster, &client, "v", 10 * MIB);
    runtime.block_on(async {
        let mut stub = stub(&cluster, 0).await;
        let attach = v1::AttachRequest {
            volume: "v".into(),
            ..v1::AttachRequest::default()
        };
        let attached = stub.attach(attach).await.expect("attached").into_inner();
        let write = |offset, data: usize| v1::WriteRequest {
            volume: "v".into(),
            session: attached.session,
            offset,
            data: pattern(1, data),
        };
        for (offset, len, part) in [
            (10 * MIB - 1, 2, "do not lie within"),
            (u64::MAX - 1, 4, "do not lie within"),
            (0, WRITE_BYTES_MAX + 1, "split it"),
            (0, WRITE_BYTES_MAX + (1 << 20), "split it"),
        ] {
            let refused = stub.write(write(offset, len)).await.expect_err("refused");
            assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
            assert!(refused.message().contains(part), "{refused}");
        }
        let zero = v1::ZeroRequest {
            volume: "v".into(),
            session: attached.session,
            offset: 4096,
            length: u64::MAX,
        };
        let refused = stub.zero(zero).await.expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        // None of this ended the session, and the largest call is taken.
        stub.write(write(17, WRITE_BYTES_MAX))
            .await
            .expect("written");
        let reader = client_of(&cluster, &[0]);
        let read = reader.read("v", 17, WRITE_BYTES_MAX).await;
        assert!(read.expect("read") == pattern(1, WRITE_BYTES_MAX));
    });
}

#[test]
fn b1_a_full_pool_is_resource_exhausted_and_keeps_what_it_has() {
    let (cluster, client, runtime) = cluster(2, "1+1");
    create(&cluster, &client, "v", 60 * MIB);
    runtime.block_on(async {
        let volume = client_of(&cluster, &[0]).attach("v", AT_ONCE).await;
        let volume = volume.expect("attached");
        let mut written = 0;
        let full = loop {
            match volume.write(written, pattern(written, MIB as usize)).await {
                Ok(()) => written += MIB,
                Err(full) => break full,
            }
            assert!(written < 60 * MIB, "24 MiB of each node took all");
        };
        assert_eq!(full.code(), Some(Code::ResourceExhausted), "{full}");
        let read = volume.read(0, MIB as usize).await.expect("read");
        assert!(read == pattern(0, MIB as usize));
        let again = volume.write(0, pattern(7, 4096)).await;
        again.expect("what has its place already, in the same session");
        volume.discard(2 * MIB, 8 * MIB).await.expect("discarded");
    });
}

#[test]
fn b1_strangers_at_the_grpc_door_are_bounded() {
    let cluster = TestCluster::start_with(1, |_, config| {
        config.grpc = Some("127.0.0.1:0".parse().expect("an address"));
        config.clients_max = 5;
    });
    let open = || {
        let socket = TcpStream::connect(door(&cluster, 0)).expect("it listens");
        let patience = Some(Duration::from_secs(20));
        socket.set_read_timeout(patience).expect("set");
        socket
    };
    // HTTP/2 begins with settings of the server: a place was found.
    let is_served = |socket: &mut TcpStream| {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        let sent = socket.write_all(preface);
        sent.is_ok() && socket.read(&mut [0; 9]).is_ok_and(|count| count > 0)
    };
    let mut idle: Vec<TcpStream> = (0..5).map(|_| open()).collect();
    assert!(idle.iter_mut().all(is_served));
    assert!(!is_served(&mut open()), "beyond the bound");
    idle.truncate(2);
    wait_until("there are places again", || is_served(&mut open()));
    drop(idle);
    // Bytes of no protocol, of another, and frames that make no sense after a good beginning.
    let http1 = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
    let mut wrong_frame = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    wrong_frame.extend([0xff; 64]);
    for bytes in [vec![0xff; 4000], http1, wrong_frame] {
        let mut rude = open();
        let _ = rude.write_all(&bytes);
        let mut rest = Vec::new();
        let ended = rude.read_to_end(&mut rest);
        assert!(ended.is_ok() || rest.len() < 4096, "{ended:?}");
    }
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let list = client_of(&cluster, &[0]).list().await;
        assert!(list.expect("it serves on").is_empty());
    });
    let rejected = cluster.nodes[0].metric("staves_grpc_connections_rejected_total");
    assert!(rejected >= 1);
}

/// A body that begins, and then does not go on.
struct Stalled(Option<bytes::Bytes>);

impl hyper::body::Body for Stalled {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<bytes::Bytes>, Self::Error>>> {
        match self.0.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None => Poll::Pending,
        }
    }
}

async fn call(
    channel: &mut Channel,
    method: &str,
    body: tonic::body::Body,
) -> Result<hyper::Response<tonic::body::Body>, tonic::transport::Error> {
    let request = hyper::Request::post(format!("/staves.volumes.v1.Volumes/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
        .expect("a request");
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await?;
    channel.call(request).await
}

#[test]
fn b1_calls_that_do_not_move_are_counted_and_make_way_for_others() {
    let cluster = TestCluster::start_with(1, |_, config| {
        config.grpc = Some("127.0.0.1:0".parse().expect("an address"));
        config.in_flight_bytes_max = "32MiB".parse_size();
    });
    make_pool(&cluster, POOL, "1+0", 24 << 20);
    create(&cluster, &cluster.native_client(), "v", 10 * MIB);
    let runtime = Runtime::new().expect("a runtime");
    let in_flight = || cluster.nodes[0].metric("staves_in_flight_bytes");
    runtime.block_on(async {
        // Writes of 4 MiB whose bytes do not come: there is memory for four of them.
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let mut channel = channel(door(&cluster, 0)).await;
            waiting.spawn(async move {
                let begun = bytes::Bytes::from_static(&[0, 0, 0x40, 0, 0, 1, 2, 3]);
                let body = tonic::body::Body::new(Stalled(Some(begun)));
                call(&mut channel, "Write", body).await
            });
        }
        wait_until("they take memory", || in_flight() >= 24 << 20);
        assert!(in_flight() <= 40 << 20, "{}", in_flight());
        let reader = client_of(&cluster, &[0]);
        let read = reader.read("v", 5, 4096).await.expect("small ones go on");
        assert_eq!(&read[..], vec![0; 4096]);
        // Those that hold what others wait for are refused.
        let first = waiting.join_next().await.expect("one").expect("no panic");
        let status = first.expect("an answer").headers()["grpc-status"].clone();
        assert_eq!(status, (Code::Unavailable as i32).to_string().as_str());
    });
    drop(runtime);
    wait_until("nothing is held", || in_flight() < MIB);
}

#[test]
fn b1_an_answer_is_counted_until_its_client_has_taken_it() {
    let (cluster, client, runtime) = cluster(1, "1+0");
    create(&cluster, &client, "v", 10 * MIB);
    let in_flight = || cluster.nodes[0].metric("staves_in_flight_bytes");
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{}", door(&cluster, 0)));
        let endpoint = endpoint.expect("an address");
        let endpoint = endpoint.initial_stream_window_size(64 << 10);
        let mut channel = endpoint.connect().await.expect("it connects");
        let read = v1::ReadRequest {
            volume: "v".into(),
            offset: 0,
            length: READ_BYTES_MAX as u32,
        };
        let mut message = vec![0, 0, 0, 0, prost_len(&read)];
        message.extend(prost::Message::encode_to_vec(&read));
        let body = || tonic::body::Body::new(axum::body::Body::from(message.clone()));
        let mut answers = Vec::new();
        for _ in 0..3 {
            let answer = call(&mut channel, "Read", body()).await;
            answers.push(answer.expect("an answer begins"));
        }
        // A window of 64 KiB has left of each.
        std::thread::sleep(Duration::from_millis(300));
        assert!(in_flight() >= 6 * MIB, "{}", in_flight());
        drop(answers);
        wait_until("nothing is held", || in_flight() < MIB);
    });
}

fn prost_len(read: &v1::ReadRequest) -> u8 {
    prost::Message::encoded_len(read) as u8
}

#[test]
fn b1_a_message_that_is_longer_than_it_says_or_shorter_is_refused() {
    let (cluster, _, runtime) = cluster(1, "1+0");
    let send = |body: Vec<u8>| {
        runtime.block_on(async {
            let mut channel = channel(door(&cluster, 0)).await;
            let body = tonic::body::Body::new(axum::body::Body::from(body));
            let answered = call(&mut channel, "Heartbeat", body).await;
            let response = answered.expect("an answer");
            let headers = response.headers();
            headers
                .get("grpc-status")
                .and_then(|code| code.to_str().ok()?.parse::<i32>().ok())
        })
    };
    let fine = send(vec![0; 5]);
    assert!(fine.is_none_or(|code| code == 0), "{fine:?}");
    for (body, code) in [
        (vec![0, 0, 0, 0, 0, 7], Code::InvalidArgument),
        (vec![0, 0, 0, 0, 2, 7], Code::Internal),
        (vec![0, 0xff, 0xff, 0xff, 0xff, 7], Code::InvalidArgument),
        (vec![0, 0, 1, 0, 0, 7], Code::InvalidArgument),
    ] {
        let refused = send(body.clone());
        assert_eq!(refused, Some(code as i32), "{body:?}");
    }
}

#[test]
fn b5_few_checks_are_carried_out_at_a_time() {
    let (cluster, client, runtime) = cluster(2, "1+1");
    create(&cluster, &client, "v", 10 * MIB);
    runtime.block_on(async {
        let volume = client_of(&cluster, &[0]).attach("v", AT_ONCE).await;
        let volume = volume.expect("attached");
        volume.write(0, pattern(1, 4096)).await.expect("placed");
        let mut stub = stub(&cluster, 0).await;
        let check = v1::CheckConsistencyRequest { volume: "v".into() };
        // The other member does not answer for a while.
        cluster.nodes[1].pause(Duration::from_millis(1500));
        let mut begun = Vec::new();
        for _ in 0..4 {
            let stream = stub.check_consistency(check.clone()).await;
            begun.push(stream.expect("begun"));
        }
        let refused = stub.check_consistency(check.clone()).await;
        let refused = refused.map(drop).expect_err("one too many");
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(refused.message().contains("are under way"), "{refused}");
        for stream in begun {
            let mut stream = stream.into_inner();
            while let Ok(Some(_)) = stream.message().await {}
        }
        let mut tries = 0;
        while let Err(refused) = stub.check_consistency(check.clone()).await {
            assert!(tries < 100, "there are places again: {refused}");
            tries += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

#[test]
fn the_grpc_door_says_whether_its_node_serves_and_what() {
    let (cluster, _, runtime) = cluster(1, "1+0");
    runtime.block_on(async {
        let mut health = HealthClient::new(channel(door(&cluster, 0)).await);
        for service in ["", "staves.volumes.v1.Volumes"] {
            let ask = HealthCheckRequest {
                service: service.into(),
            };
            let answer = health.check(ask).await.expect("known").into_inner();
            assert_eq!(answer.status().as_str_name(), "SERVING");
        }
        let other = HealthCheckRequest {
            service: "other".into(),
        };
        let unknown = health.check(other).await.expect_err("unknown");
        assert_eq!(unknown.code(), Code::NotFound);
        let mut reflection = ServerReflectionClient::new(channel(door(&cluster, 0)).await);
        let ask = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let answers = reflection.server_reflection_info(tokio_stream::once(ask));
        let mut answers = answers.await.expect("known").into_inner();
        let answer = answers.message().await.expect("no error").expect("one");
        let listed = format!("{:?}", answer.message_response);
        assert!(listed.contains("staves.volumes.v1.Volumes"), "{listed}");
        assert!(listed.contains("grpc.health.v1.Health"), "{listed}");
    });
}
