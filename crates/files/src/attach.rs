//! The hand-over of a node's memory to a mount on its machine: the node listens on a socket that only this
//! machine has, and passes the descriptor of a pool's blocks, opened for reading only, to processes of its own user or of root.
//! Nobody owns such a name, so the mount looks as well whose process it is that listens: another user's would give it bytes of his own.
//!
//! The conversation: the mount sends the pool's number (`u32`, little-endian); the node answers one byte, 1 with the
//! descriptor or 0 without; from then on the mount sends entries that it read from (`u32`s), so that they are not evicted as
//! unread. Either side may close at any time.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
};
use staves_model::{ClusterId, Incarnation, NodeId, PoolId};

/// The bound on each message, for either side.
const PATIENCE: Duration = Duration::from_millis(500);

/// The socket's name for one life of a node: a name of this machine (of its network namespace), no file.
fn name(cluster: ClusterId, node: NodeId, incarnation: Incarnation) -> String {
    format!("staves-files-{:016x}-{node}-{incarnation}", cluster.0)
}

/// True if the process at the other end is of this one's user, or of root.
fn trusted(stream: &UnixStream) -> io::Result<()> {
    let who = rustix::net::sockopt::socket_peercred(stream)?;
    if who.uid == rustix::process::geteuid() || who.uid.is_root() {
        return Ok(());
    }
    let text = format!(
        "the other process is of user {}: neither this one's nor root",
        who.uid.as_raw()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// The node's side: opens the door.
pub fn listen(
    cluster: ClusterId,
    node: NodeId,
    incarnation: Incarnation,
) -> io::Result<UnixListener> {
    let name = SocketAddr::from_abstract_name(name(cluster, node, incarnation))?;
    let listener = UnixListener::bind_addr(&name)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The node's side: whom a stream belongs to may have the memory, and which pool it wants. Waits for the word, but
/// not long.
pub fn asked(stream: &mut UnixStream) -> io::Result<PoolId> {
    trusted(stream)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut pool = [0; 4];
    stream.read_exact(&mut pool)?;
    Ok(PoolId(u32::from_le_bytes(pool)))
}

/// The node's side: gives the memory, or answers that there is none.
pub fn give(stream: &UnixStream, memory: Option<OwnedFd>) -> io::Result<()> {
    let Some(memory) = memory else {
        return (&*stream).write_all(&[0]);
    };
    let fds = [memory.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = control.push(SendAncillaryMessage::ScmRights(&fds));
    debug_assert!(fits, "the space is for one descriptor");
    rustix::net::sendmsg(
        stream,
        &[IoSlice::new(&[1])],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Connects, or not, at once: where nobody listens, or nobody opens, there is no memory to be had.
fn knock(name: &str) -> io::Result<Option<UnixStream>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    ) {
        Ok(()) => {}
        Err(Errno::CONNREFUSED | Errno::AGAIN) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(Some(stream))
}

/// The mount's side: the memory of a pool, if that life of that node is on this machine and gives it. The stream is for
/// what was read.
pub fn attach(
    cluster: ClusterId,
    node: NodeId,
    incarnation: Incarnation,
    pool: PoolId,
) -> io::Result<Option<(OwnedFd, UnixStream)>> {
    let Some(mut stream) = knock(&name(cluster, node, incarnation))? else {
        return Ok(None);
    };
    trusted(&stream)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&pool.0.to_le_bytes())?;
    let mut word = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let mut words = [IoSliceMut::new(&mut word)];
    let got = rustix::net::recvmsg(&stream, &mut words, &mut control, flags)?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    stream.set_nonblocking(true)?;
    Ok(match (got.bytes, word) {
        (1, [1]) => descriptor.map(|memory| (memory, stream)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::process::Stdio;

    use staves_testkit::tools;

    use super::*;

    fn lives(incarnation: u64) -> (ClusterId, NodeId, Incarnation) {
        (
            ClusterId(u64::from(std::process::id())),
            NodeId(7),
            Incarnation(incarnation),
        )
    }

    #[test]
    fn memory_is_passed_on_to_who_asks_and_absence_is_no_error() {
        let (cluster, node, life) = lives(1);
        assert!(
            attach(cluster, node, life, PoolId(3)).unwrap().is_none(),
            "nobody listens"
        );
        let listener = listen(cluster, node, life).unwrap();
        listener.set_nonblocking(false).unwrap();
        let served = std::thread::spawn(move || {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                let pool = asked(&mut stream).unwrap();
                let file = tempfile::tempfile().unwrap();
                file.write_all_at(b"blocks", 0).unwrap();
                give(&stream, (pool == PoolId(3)).then(|| file.into())).unwrap();
            }
        });
        let (memory, _stream) = attach(cluster, node, life, PoolId(3)).unwrap().unwrap();
        let mut bytes = [0; 6];
        File::from(memory).read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"blocks");
        assert!(
            attach(cluster, node, life, PoolId(4)).unwrap().is_none(),
            "no such pool"
        );
        served.join().unwrap();
    }

    #[test]
    fn who_says_nothing_is_not_waited_for_for_ever() {
        let (cluster, node, life) = lives(2);
        let listener = listen(cluster, node, life).unwrap();
        let _silent = knock(&name(cluster, node, life)).unwrap().unwrap();
        listener.set_nonblocking(false).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        assert!(asked(&mut stream).is_err());
    }

    /// A node that does not open its door delays nobody: a mount looks at it once a second.
    #[test]
    fn a_full_door_is_none() {
        let (cluster, node, life) = lives(3);
        let address = SocketAddrUnix::new_abstract_name(name(cluster, node, life).as_bytes());
        let flags = SocketFlags::CLOEXEC;
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        rustix::net::bind(&listener, &address.unwrap()).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let waiting: Vec<UnixStream> = (0..10)
            .map_while(|_| knock(&name(cluster, node, life)).unwrap())
            .collect();
        assert!((1..10).contains(&waiting.len()), "{}", waiting.len());
        assert!(attach(cluster, node, life, PoolId(3)).unwrap().is_none());
    }

    /// Another user may take the name of a node that is elsewhere: what he gives is not taken.
    #[test]
    fn a_stranger_who_listens_is_not_believed() {
        if !rustix::process::geteuid().is_root() {
            return tools::skip("only root can be another user");
        }
        let (cluster, node, life) = lives(4);
        let stranger = "import socket,sys,os; os.setuid(65534); s=socket.socket(socket.AF_UNIX); \
            s.bind('\\0'+sys.argv[1]); s.listen(5); print(flush=True); sys.stdin.read()";
        let mut python = std::process::Command::new("python3");
        let python = python.args(["-c", stranger, &name(cluster, node, life)]);
        let python = python.stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut process) = python.spawn() else {
            return tools::missing("there is no python3");
        };
        let said = process.stdout.as_mut().unwrap().read_exact(&mut [0]);
        let refused = attach(cluster, node, life, PoolId(3));
        drop(process.stdin.take());
        process.wait().unwrap();
        said.unwrap();
        let error = refused.expect_err("a stranger");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
    }
}
