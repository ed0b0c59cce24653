//! The place of TLS on a connection.

/// The server's policy. It is the same for all exports, and for the whole of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TlsPolicy {
    /// `STARTTLS` is refused (the specification's NOTLS).
    #[default]
    Off,
    /// A client may start TLS, or go on without it (SELECTIVETLS without an export that needs it).
    Offered,
    /// Before TLS nothing is done but `STARTTLS` and `ABORT` (FORCEDTLS).
    Required,
}

/// The state of TLS on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TlsPhase {
    /// It has not begun.
    Plain(TlsPolicy),
    /// All options come within it.
    Secured,
}

impl Default for TlsPhase {
    fn default() -> TlsPhase {
        TlsPhase::Plain(TlsPolicy::Off)
    }
}
