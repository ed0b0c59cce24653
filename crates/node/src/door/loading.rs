//! Clients that come before the node has joined its cluster.
//!
//! A door that took connections and said nothing would leave every client hanging for as long as the join
//! takes. Here each command is answered at once, PING included, with the word that Redis has for a server
//! that starts: clients know LOADING as "ask again, or ask another". The connection stays: once the node has
//! joined, what comes on it is done.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::Phase;
use crate::entry::Entry;
use staves_resp::{Limits, LoadingConnection, Transaction};

/// Longest time that a client may take to read them.
const WRITE: Duration = Duration::from_secs(5);
/// Most bytes of a command that has not come whole, and of one turn of reading: no command is done here, and nothing of this counts in the
/// memory for requests.
const HALF_COMMAND_MAX: usize = 16 << 10;
const READ_BYTES: usize = 4 << 10;

/// Answers until the node has joined: what is left is the beginning of a command that has not come whole.
/// `None` if the connection ends here. A transaction that began here ends where its connection goes on.
pub(super) async fn wait(
    socket: &mut TcpStream,
    entry: &Entry,
    limits: Limits,
    phase: &mut watch::Receiver<Phase>,
) -> io::Result<Option<(BytesMut, Transaction)>> {
    let mut loading = LoadingConnection::new(limits, &entry.not_yet());
    loop {
        let all_answered = loading.answer();
        let written = socket.write_all_buf(&mut loading.output);
        match tokio::time::timeout(WRITE, written).await {
            Ok(written) => written?,
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        }
        if loading.closing {
            return Ok(None);
        }
        if !all_answered {
            continue;
        }
        if loading.input.len() > HALF_COMMAND_MAX {
            loading.refuse();
            continue;
        }
        tokio::select! {
            biased;
            joined = phase.wait_for(|p| *p > Phase::Joining) => {
                // The sender is gone if the node could not start.
                return Ok(joined.is_ok().then_some((loading.input, loading.transaction)));
            }
            came = socket.readable() => came?,
        }
        loading.input.reserve(READ_BYTES);
        match socket.try_read_buf(&mut loading.input) {
            Ok(count) => loading.closing = count == 0,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
