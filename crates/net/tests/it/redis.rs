//! Clients of Redis's protocol at the native port.

use std::time::Duration;

use staves_net::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::*;

/// Regression: a client of Redis's protocol waited until its hello was late, and then got bytes that it does not know.
#[test]
fn a_client_of_redis_is_refused_at_once_and_in_its_words() {
    block_on(async {
        let options = Options {
            connect_timeout: Duration::from_secs(600),
            ..Options::default()
        };
        let (server, _, addr) = server(options).await;
        let commands: [&[u8]; 3] = [b"*1\r\n$4\r\nPING\r\n", b"PING\r\n", b"*3\r\n$3"];
        for command in commands {
            let mut socket = TcpStream::connect(&addr).await.expect("it listens");
            socket.write_all(command).await.expect("it takes bytes");
            let mut answer = String::new();
            let read = socket.read_to_string(&mut answer).await;
            read.expect("one line, and the end");
            assert!(
                answer.starts_with("-ERR ") && answer.ends_with("\r\n"),
                "{answer:?}"
            );
            assert!(answer.contains("native protocol") && answer.contains("--resp"));
            assert_eq!(answer.lines().count(), 1, "{answer:?}");
        }
        assert_eq!(server.refused().protocol.total(), 3);
    });
}
