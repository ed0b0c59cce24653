//! The kernel's block devices of NBD, by generic netlink: the few messages that a device takes.
//!
//! A message is a head (16 bytes), the head of generic netlink (4 bytes), and attributes: length, type, value, padded to 4 bytes; all in
//! the machine's byte order. The kernel takes over a socket on which an export was chosen, and gives it up when it ends or another one
//! takes its place: what had no answer is sent again by that one.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{bind, recv, sendto, socket_with};

/// The family that names the others, its call, and the attributes of its answer.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// The reply to a request: an error number, 0 for none.
const MSG_ERROR: u16 = 2;
/// Flags of a request: it is one, and it wants a reply.
const REQUEST: u16 = 1;
const WANTS_REPLY: u16 = 4;
/// Calls of the family `nbd`.
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;
/// Their attributes.
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONNECTION_TIMEOUT: u16 = 8;
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;
/// Of an attribute's type: it has attributes in it.
const NESTED: u16 = 1 << 15;
const HEAD_BYTES: usize = 16;
const GENERIC_HEAD_BYTES: usize = 4;
/// Room for one reply: those of `nbd` take some 30 bytes, that of the family's name some 500.
const MESSAGE_BYTES: usize = 8192;
/// Longest time for the kernel to reply.
const REPLY_MAX: Duration = Duration::from_secs(30);
/// Bytes of a sector: what images of disks have their tables in.
const SECTOR_BYTES: u64 = 512;

/// The state that a device begins with.
pub(super) struct NewDevice {
    /// Its number; `None` for one that is free.
    pub(super) number: Option<u32>,
    /// Its length in bytes.
    pub(super) size_bytes: u64,
    /// The server's flags of the export.
    pub(super) flags: u16,
    /// The time for which requests wait for another socket once theirs has ended; in whole seconds.
    pub(super) patience: Duration,
}

/// The kernel's part of NBD.
pub(super) struct NbdKernel {
    socket: OwnedFd,
    family: u16,
}

/// A message from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KernelMessage<'a> {
    /// The end of the reply: an error number, 0 for none.
    Done(i32),
    /// The attributes of a reply.
    Attributes(&'a [u8]),
}

impl NbdKernel {
    /// Opens it.
    ///
    /// # Errors
    /// The kernel has no nbd.
    pub(super) fn open() -> anyhow::Result<NbdKernel> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(GENERIC),
        )
        .context("cannot open a socket of the kernel's netlink")?;
        bind(&socket, &SocketAddrNetlink::new(0, 0)).context("cannot bind a netlink socket")?;
        set_socket_timeout(&socket, Timeout::Recv, Some(REPLY_MAX))
            .context("cannot limit the wait for the kernel")?;
        let mut kernel = NbdKernel { socket, family: 0 };
        let name = attribute(FAMILY_NAME, b"nbd\0");
        let id = kernel.call((CONTROL, GET_FAMILY), &name, FAMILY_ID);
        let id = id.context("the kernel has no nbd, or one from before version 4.12 ('modprobe nbd' loads it, where there is such a module)")?;
        let id = id.and_then(|value| Some(u16::from_ne_bytes(value.get(..2)?.try_into().ok()?)));
        kernel.family = id.context("the kernel does not say how its nbd is called")?;
        Ok(kernel)
    }

    /// Makes a device of a socket on which an export was chosen, and returns its number.
    ///
    /// # Errors
    /// The kernel's: the device is in use, or this process may not.
    pub(super) fn connect(
        &self,
        device: &NewDevice,
        socket: BorrowedFd<'_>,
    ) -> anyhow::Result<u32> {
        let number = device.number.map(|n| attribute(INDEX, &n.to_ne_bytes()));
        let wait = device.patience.as_secs();
        let attributes = [
            number.unwrap_or_default(),
            attribute(SIZE_BYTES, &device.size_bytes.to_ne_bytes()),
            attribute(BLOCK_SIZE_BYTES, &SECTOR_BYTES.to_ne_bytes()),
            attribute(SERVER_FLAGS, &u64::from(device.flags).to_ne_bytes()),
            attribute(DEAD_CONNECTION_TIMEOUT, &wait.to_ne_bytes()),
            sockets(socket),
        ];
        let made = self.call((self.family, CONNECT), &attributes.concat(), INDEX);
        let made = made.context("the kernel makes no device")?;
        let number =
            made.and_then(|value| Some(u32::from_ne_bytes(value.get(..4)?.try_into().ok()?)));
        number
            .or(device.number)
            .context("the kernel does not say which device it has made")
    }

    /// Gives a device another socket in the place of one that has ended.
    ///
    /// # Errors
    /// The kernel's: the device is gone, or its socket has not ended.
    pub(super) fn reconnect(&self, number: u32, socket: BorrowedFd<'_>) -> anyhow::Result<()> {
        let attributes = [attribute(INDEX, &number.to_ne_bytes()), sockets(socket)];
        let done = self.call((self.family, RECONFIGURE), &attributes.concat(), INDEX);
        done.map(drop).context("the kernel takes no other socket")
    }

    /// Ends a device's connection: what has no answer fails.
    ///
    /// # Errors
    /// The kernel's: this process may not.
    pub(super) fn disconnect(&self, number: u32) -> anyhow::Result<()> {
        let index = attribute(INDEX, &number.to_ne_bytes());
        let done = self.call((self.family, DISCONNECT), &index, INDEX);
        done.map(drop).context("the kernel does not let go of it")
    }

    /// Calls the kernel, and returns one attribute of its reply.
    fn call(
        &self,
        (family, command): (u16, u8),
        attributes: &[u8],
        wanted: u16,
    ) -> anyhow::Result<Option<Vec<u8>>> {
        let bytes = message(family, command, attributes);
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.socket, &bytes, SendFlags::empty(), &kernel)?;
        let mut room = vec![0; MESSAGE_BYTES];
        let mut found = None;
        loop {
            let (len, _) = recv(&self.socket, &mut room[..], RecvFlags::empty())?;
            match room.get(..len).and_then(parse) {
                Some(KernelMessage::Done(0)) => return Ok(found),
                Some(KernelMessage::Done(error)) => bail!(Errno::from_raw_os_error(error)),
                Some(KernelMessage::Attributes(all)) => {
                    found = found.or(value_of(all, wanted).map(<[u8]>::to_vec));
                }
                None => bail!("a reply of the kernel that cannot be read"),
            }
        }
    }
}

fn sockets(socket: BorrowedFd<'_>) -> Vec<u8> {
    let fd = attribute(SOCKET_FD, &socket.as_raw_fd().to_ne_bytes());
    attribute(SOCKETS | NESTED, &attribute(SOCKET_ITEM | NESTED, &fd))
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

fn message(family: u16, command: u8, attributes: &[u8]) -> Vec<u8> {
    let len = HEAD_BYTES + GENERIC_HEAD_BYTES + attributes.len();
    let mut bytes = Vec::with_capacity(len);
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(family.to_ne_bytes());
    bytes.extend((REQUEST | WANTS_REPLY).to_ne_bytes());
    bytes.extend([0; 8]); // no number of the message, no sender
    bytes.extend([command, 1, 0, 0]); // version 1
    bytes.extend(attributes);
    bytes
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The first message of these bytes; the kernel sends each alone. `None` if they are none.
fn parse(bytes: &[u8]) -> Option<KernelMessage<'_>> {
    let len = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let body = bytes.get(HEAD_BYTES..len)?;
    if u16_at(bytes, 4)? != MSG_ERROR {
        return Some(KernelMessage::Attributes(body.get(GENERIC_HEAD_BYTES..)?));
    }
    let error = i32::from_ne_bytes(body.get(..4)?.try_into().ok()?);
    Some(KernelMessage::Done(error.saturating_neg()))
}

fn value_of(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(u16_at(attributes, 0)?);
        let value = attributes.get(4..len)?;
        if u16_at(attributes, 2)? & !NESTED == wanted {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply() -> Vec<u8> {
        let attributes = [
            attribute(FAMILY_NAME, b"nbd\0"),
            attribute(FAMILY_ID, &[29, 0]),
        ];
        message(CONTROL, 1, &attributes.concat())
    }

    #[test]
    fn an_attribute_of_a_reply_is_found_behind_others() {
        let bytes = reply();
        let Some(KernelMessage::Attributes(all)) = parse(&bytes) else {
            panic!("no reply");
        };
        assert_eq!(value_of(all, FAMILY_ID), Some(&[29, 0][..]));
        assert_eq!(value_of(all, 9), None);
    }

    #[test]
    fn the_end_of_a_reply_tells_its_error() {
        let mut bytes = message(MSG_ERROR, 0, &[0; 16]);
        bytes[16..20].copy_from_slice(&(-16_i32).to_ne_bytes());
        assert_eq!(parse(&bytes), Some(KernelMessage::Done(16)));
    }

    #[test]
    fn bytes_that_are_cut_short_or_altered_are_no_reply_and_no_panic() {
        let whole = reply();
        for len in 0..whole.len() {
            assert_eq!(parse(&whole[..len]), None, "{len}");
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut other = whole.clone();
                other[at] = byte;
                if let Some(KernelMessage::Attributes(all)) = parse(&other) {
                    let _ = value_of(all, FAMILY_ID);
                }
            }
        }
    }

    #[test]
    fn a_socket_lies_in_two_nested_attributes() {
        let fd = std::fs::File::open("/dev/null").expect("a file");
        let bytes = sockets(std::os::fd::AsFd::as_fd(&fd));
        let number = fd.as_raw_fd().to_ne_bytes();
        let head = [16, 0, 7, 0x80, 12, 0, 1, 0x80, 8, 0, 1, 0].map(u8::from);
        assert_eq!(bytes, [&head[..], &number].concat());
    }
}
