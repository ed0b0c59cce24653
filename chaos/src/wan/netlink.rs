//! The kernel's packet queue (NFQUEUE): the few messages of its netlink protocol that a delay needs.
//!
//! A message is a head (16 bytes), the head of netfilter (4 bytes), and attributes: length, type, value, padded to 4 bytes. Heads are in the
//! machine's byte order, what the attributes say in the network's. Of a packet only its number is asked for, never its bytes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{bind, recv, sendto, socket_with, sockopt};

/// The subsystem of packet queues, and its messages.
const QUEUE: u16 = 3 << 8;
const MSG_PACKET: u16 = QUEUE;
const MSG_VERDICT: u16 = QUEUE | 1;
const MSG_CONFIG: u16 = QUEUE | 2;
const MSG_VERDICT_BATCH: u16 = QUEUE | 3;
/// The reply to a request: an error number, 0 for none.
const MSG_ERROR: u16 = 2;
/// Flags of a request: it is one, and it wants a reply.
const REQUEST: u16 = 1;
const WANTS_REPLY: u16 = 4;
/// Attributes of a configuration, of a packet and of a verdict.
const CFG_COMMAND: u16 = 1;
const CFG_PARAMS: u16 = 2;
const CFG_QUEUE_MAXLEN: u16 = 3;
const CFG_MASK: u16 = 4;
const CFG_FLAGS: u16 = 5;
const PACKET_HEAD: u16 = 1;
const VERDICT_HEAD: u16 = 2;
/// The command that takes a queue.
const BIND: u8 = 1;
/// Only what is known of a packet comes here, and not its bytes.
const COPY_META: u8 = 1;
/// Packets that the network card would cut into pieces stay whole: fewer messages.
const FLAG_WHOLE: u32 = 1 << 2;
const DROP: u32 = 0;
const ACCEPT: u32 = 1;
const HEAD_BYTES: usize = 16;
const QUEUE_HEAD_BYTES: usize = 4;
/// Room for the messages of packets, in the kernel.
const RECEIVE_BYTES: usize = 16 << 20;
/// Room for one message: what is known of a packet takes some 100 bytes.
const MESSAGE_BYTES: usize = 4096;

/// A message from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueMessage {
    /// A packet waits for its verdict.
    Packet(u32),
    /// The reply to a request: an error number, 0 for none.
    Reply(i32),
    /// Anything else.
    Other,
}

/// The result of a read from a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueEvent {
    /// A packet waits for its verdict.
    Packet(u32),
    /// No message is there.
    Nothing,
    /// The kernel had no room for messages: it dropped packets.
    Lost,
}

/// A queue of the network namespace in which it was opened.
#[derive(Debug)]
pub struct PacketQueue {
    socket: OwnedFd,
    number: u16,
}

impl PacketQueue {
    /// Opens a queue in this thread's network namespace. The kernel keeps `packets_max` packets that wait for their verdict.
    ///
    /// # Errors
    /// The kernel has no packet queues, another process has this one, or this process may not.
    pub fn open(number: u16, packets_max: u32) -> anyhow::Result<PacketQueue> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(NETFILTER),
        )
        .context(
            "cannot open a socket of netfilter (it needs a kernel with CONFIG_NETFILTER_NETLINK)",
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, 0)).context("cannot bind a netlink socket")?;
        sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BYTES)
            .context("cannot have room for packets' messages (it needs root)")?;
        let queue = PacketQueue { socket, number };
        queue
            .configure(&attribute(CFG_COMMAND, &[BIND, 0, 0, 0]))
            .context("cannot take the packet queue (it needs root, and a kernel with CONFIG_NETFILTER_NETLINK_QUEUE)")?;
        let flags = FLAG_WHOLE.to_be_bytes();
        let more = [
            attribute(CFG_PARAMS, &[0, 0, 0, 0, COPY_META]),
            attribute(CFG_QUEUE_MAXLEN, &packets_max.to_be_bytes()),
            attribute(CFG_FLAGS, &flags),
            attribute(CFG_MASK, &flags),
        ];
        queue
            .configure(&more.concat())
            .context("cannot set the packet queue up")?;
        Ok(queue)
    }

    /// The next message, if one is there.
    ///
    /// # Errors
    /// The socket fails.
    pub fn receive(&self) -> anyhow::Result<QueueEvent> {
        let mut room = [0; MESSAGE_BYTES];
        loop {
            let len = match recv(&self.socket, &mut room[..], RecvFlags::DONTWAIT) {
                Ok((len, _)) => len,
                Err(Errno::AGAIN) => return Ok(QueueEvent::Nothing),
                Err(Errno::NOBUFS) => return Ok(QueueEvent::Lost),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error).context("cannot read from the packet queue"),
            };
            if let Some(QueueMessage::Packet(packet)) = room.get(..len).and_then(parse) {
                return Ok(QueueEvent::Packet(packet));
            }
        }
    }

    /// Lets this packet and all before it go on, in one message.
    ///
    /// # Errors
    /// The socket fails.
    pub fn accept_up_to(&self, packet: u32) -> anyhow::Result<()> {
        self.verdict(MSG_VERDICT_BATCH, ACCEPT, packet)
    }

    /// Drops this packet.
    ///
    /// # Errors
    /// The socket fails.
    pub fn drop_packet(&self, packet: u32) -> anyhow::Result<()> {
        self.verdict(MSG_VERDICT, DROP, packet)
    }

    fn verdict(&self, kind: u16, verdict: u32, packet: u32) -> anyhow::Result<()> {
        let head = [verdict.to_be_bytes(), packet.to_be_bytes()].concat();
        let body = attribute(VERDICT_HEAD, &head);
        self.send(kind, REQUEST, &body)
            .context("cannot send a verdict")
    }

    fn send(&self, kind: u16, flags: u16, attributes: &[u8]) -> anyhow::Result<()> {
        let bytes = message(kind, flags, self.number, attributes);
        sendto(
            &self.socket,
            &bytes,
            SendFlags::empty(),
            &SocketAddrNetlink::new(0, 0),
        )?;
        Ok(())
    }

    /// Sends a request and waits for its reply. Packets that come meanwhile stay with the kernel until the queue is closed.
    fn configure(&self, attributes: &[u8]) -> anyhow::Result<()> {
        self.send(MSG_CONFIG, REQUEST | WANTS_REPLY, attributes)?;
        let mut room = [0; MESSAGE_BYTES];
        loop {
            let (len, _) = recv(&self.socket, &mut room[..], RecvFlags::empty())?;
            match room.get(..len).and_then(parse) {
                Some(QueueMessage::Reply(0)) => return Ok(()),
                Some(QueueMessage::Reply(error)) => bail!(Errno::from_raw_os_error(error)),
                _ => {}
            }
        }
    }
}

impl AsFd for PacketQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = 4 + value.len();
    let mut bytes = Vec::with_capacity(len.next_multiple_of(4));
    bytes.extend((len as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(len.next_multiple_of(4), 0);
    bytes
}

fn message(kind: u16, flags: u16, queue: u16, attributes: &[u8]) -> Vec<u8> {
    let len = HEAD_BYTES + QUEUE_HEAD_BYTES + attributes.len();
    let mut bytes = Vec::with_capacity(len);
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]); // no number of the message, no sender
    bytes.extend([0, 0]); // any family, version 0
    bytes.extend(queue.to_be_bytes());
    bytes.extend(attributes);
    bytes
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The first message of these bytes; the kernel sends a packet's alone. `None` if they are none.
pub fn parse(bytes: &[u8]) -> Option<QueueMessage> {
    let len = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let body = bytes.get(HEAD_BYTES..len)?;
    match u16_at(bytes, 4)? {
        MSG_ERROR => {
            let error = i32::from_ne_bytes(body.get(..4)?.try_into().ok()?);
            Some(QueueMessage::Reply(error.saturating_neg()))
        }
        MSG_PACKET => packet_of(body.get(QUEUE_HEAD_BYTES..)?).map(QueueMessage::Packet),
        _ => Some(QueueMessage::Other),
    }
}

fn packet_of(mut attributes: &[u8]) -> Option<u32> {
    loop {
        let len = usize::from(u16_at(attributes, 0)?);
        let value = attributes.get(4..len)?;
        if u16_at(attributes, 2)? == PACKET_HEAD {
            return Some(u32::from_be_bytes(value.get(..4)?.try_into().ok()?));
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(number: u32) -> Vec<u8> {
        let head = [&number.to_be_bytes()[..], &[8, 0, 1]].concat();
        let attributes = [attribute(9, &[1; 5]), attribute(PACKET_HEAD, &head)].concat();
        message(MSG_PACKET, 0, 3, &attributes)
    }

    #[test]
    fn the_number_of_a_packet_is_found_behind_other_attributes() {
        assert_eq!(parse(&packet(77)), Some(QueueMessage::Packet(77)));
        assert_eq!(
            parse(&packet(u32::MAX)),
            Some(QueueMessage::Packet(u32::MAX))
        );
    }

    #[test]
    fn a_reply_tells_its_error() {
        let mut reply = message(MSG_ERROR, 0, 0, &[0; 16]);
        reply[16..20].copy_from_slice(&(-1_i32).to_ne_bytes());
        assert_eq!(parse(&reply), Some(QueueMessage::Reply(1)));
    }

    #[test]
    fn bytes_that_are_cut_short_or_altered_are_no_packet_and_no_panic() {
        let whole = packet(77);
        for len in 0..whole.len() {
            assert_eq!(parse(&whole[..len]), None, "{len}");
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut other = whole.clone();
                other[at] = byte;
                let _ = parse(&other);
            }
        }
    }

    #[test]
    fn a_verdict_is_laid_out_as_the_kernel_reads_it() {
        let head = [ACCEPT.to_be_bytes(), 5_u32.to_be_bytes()].concat();
        let bytes = message(
            MSG_VERDICT_BATCH,
            REQUEST,
            2,
            &attribute(VERDICT_HEAD, &head),
        );
        let mut expected = Vec::new();
        expected.extend(32_u32.to_ne_bytes());
        expected.extend([0x0303_u16.to_ne_bytes(), 1_u16.to_ne_bytes()].concat());
        expected.extend([0; 8]);
        expected.extend([0, 0, 0, 2]);
        expected.extend([12_u16.to_ne_bytes(), 2_u16.to_ne_bytes()].concat());
        expected.extend([0, 0, 0, 1, 0, 0, 0, 5]);
        assert_eq!(bytes, expected);
    }
}
