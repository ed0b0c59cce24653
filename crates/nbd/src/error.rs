//! NBD's error numbers, and the reasons that end a connection.

/// An error of a request, as a reply has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NbdError {
    /// The export may not be changed.
    #[error("EPERM")]
    Eperm,
    /// The bytes cannot be read or written now.
    #[error("EIO")]
    Eio,
    /// There is no memory for the request.
    #[error("ENOMEM")]
    Enomem,
    /// The request is wrong.
    #[error("EINVAL")]
    Einval,
    /// There is no space for the write, or it lies beyond the export's end.
    #[error("ENOSPC")]
    Enospc,
    /// The read is longer than a reply may be.
    #[error("EOVERFLOW")]
    Eoverflow,
    /// Zeroes are not written faster than other bytes: only for requests that ask for that.
    #[error("ENOTSUP")]
    Enotsup,
    /// The server is about to stop: the client is to disconnect.
    #[error("ESHUTDOWN")]
    Eshutdown,
}

impl NbdError {
    /// The number on the wire.
    pub fn number(self) -> u32 {
        match self {
            NbdError::Eperm => 1,
            NbdError::Eio => 5,
            NbdError::Enomem => 12,
            NbdError::Einval => 22,
            NbdError::Enospc => 28,
            NbdError::Eoverflow => 75,
            NbdError::Enotsup => 95,
            NbdError::Eshutdown => 108,
        }
    }
}

/// The reason to close a connection: its stream cannot be trusted any more, or NBD has no other way to refuse.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The client's flags have bits that were not offered.
    #[error("the client's flags are {0:#x}, and only 0x3 was offered; is it an NBD client?")]
    ClientFlags(u32),
    /// An option does not begin with its magic number.
    #[error("an option began with {0:#018x} and not with IHAVEOPT; is it an NBD client?")]
    OptionMagic(u64),
    /// Bytes came behind `STARTTLS` before its answer: from wherever they came, TLS does not protect them.
    #[error(
        "{0} bytes came behind STARTTLS before TLS had begun; the client must wait for the answer"
    )]
    BytesBeforeTls(usize),
    /// A client without TLS asked for what has no answer that refuses it.
    #[error("the client has not started TLS, which this server requires; connect with TLS")]
    TlsRequired,
    /// An option has more data than is skipped.
    #[error("the option {option} announced {bytes} bytes, more than are skipped; close the client")]
    OptionTooLarge {
        /// The option's number.
        option: u32,
        /// The announced length of its data.
        bytes: u32,
    },
    /// There were more options than a connection may send.
    #[error("more than {0} options came before an export was chosen; close the client")]
    TooManyOptions(u32),
    /// Options came while the answers to earlier ones were not read.
    #[error("options came before the answers to earlier ones were read; close the client")]
    AnswersUnread,
    /// The export that `EXPORT_NAME` chose cannot be had; that option has no answer for it.
    #[error("the client chose an export by EXPORT_NAME: {0}")]
    ExportName(String),
    /// A request does not begin with its magic number.
    #[error("a request began with {0:#010x} and not with 0x25609513; the stream is out of step")]
    RequestMagic(u32),
    /// A write announced more bytes than the export takes at once.
    #[error(
        "a write announced {bytes} bytes, and the export takes {max} at most; write less at once"
    )]
    PayloadTooLarge {
        /// The announced length.
        bytes: u32,
        /// The export's `block_max`.
        max: u32,
    },
}
