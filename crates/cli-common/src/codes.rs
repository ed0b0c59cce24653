//! The codes that errors end with.
//!
//! There are three kinds: those that nodes send ([`ErrorCode`], stable on the wire), those of the
//! program itself ([`Own`]), and the words that only clients of Redis's protocol meet ([`Redis`]).

use staves_resp::error_word;
use staves_wire::ErrorCode;

/// The code of an error, with a stable word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// A node said so.
    Wire(ErrorCode),
    /// The program says so.
    Own(Own),
    /// A RESP door says so, by this word alone.
    Redis(Redis),
}

macro_rules! words {
    ($(#[$about:meta])* $kind:ident: $($(#[$doc:meta])* $name:ident = $word:literal;)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $kind {
            $($(#[$doc])* $name,)*
        }

        impl $kind {
            /// All of them.
            pub const ALL: &'static [$kind] = &[$($kind::$name,)*];

            /// The stable word.
            pub fn word(self) -> &'static str {
                match self {
                    $($kind::$name => $word,)*
                }
            }
        }
    };
}

words! {
    /// Words of Redis's protocol that stand for no code of the wire: how a door answers its clients.
    Redis:
    /// The node has not joined.
    Loading = "LOADING";
    /// Another node serves the key.
    Moved = "MOVED";
    /// Keys of several nodes.
    CrossSlot = "CROSSSLOT";
    /// HELLO.
    NoProto = "NOPROTO";
}

words! {
    /// The program's own codes: of starting a node, and of the command line.
    Own:
    /// Anything without a code of its own.
    Failed = "failed";
    /// The command line.
    Usage = "usage";
    /// By Ctrl-C.
    Interrupted = "interrupted";
    /// `status --check`.
    Degraded = "degraded";
    /// `status --check`.
    Critical = "critical";
    /// `cache put --if-absent`.
    ConditionNotMet = "condition-not-met";
    /// The request would never end, or do harm.
    NeedsForce = "needs-force";
    /// `pool delete`.
    NotConfirmed = "not-confirmed";
    /// File, variable or flag.
    BadConfiguration = "bad-configuration";
    /// A door's address.
    PortInUse = "port-in-use";
    /// A door's address.
    CannotBind = "cannot-bind";
    /// Memory for pages.
    NoMemory = "no-memory";
    /// `--join`.
    NoClusterToJoin = "no-cluster-to-join";
    /// The data folder.
    FolderInUse = "folder-in-use";
    /// The data folder.
    FolderUnusable = "folder-unusable";
    /// The data folder.
    FolderNewer = "folder-newer";
    /// The data folder.
    OtherCluster = "other-cluster";
    /// The data folder.
    NodeRemoved = "node-removed";
    /// The data folder.
    IdentityTaken = "identity-taken";
    /// The advertised address.
    AddressTaken = "address-taken";
    /// The node's directory.
    DirectoryStopped = "directory-stopped";
}

impl Code {
    /// All codes: those of the wire by number, then the program's own, then Redis's words.
    pub fn all() -> impl Iterator<Item = Code> {
        let wire = ErrorCode::ALL.iter().copied().map(Code::Wire);
        let own = Own::ALL.iter().copied().map(Code::Own);
        wire.chain(own)
            .chain(Redis::ALL.iter().copied().map(Code::Redis))
    }

    /// The stable word.
    pub fn word(self) -> &'static str {
        match self {
            Code::Wire(code) => code.word(),
            Code::Own(code) => code.word(),
            Code::Redis(code) => code.word(),
        }
    }

    /// The number on the wire, if it has one.
    pub fn number(self) -> Option<u16> {
        match self {
            Code::Wire(code) => Some(code as u16),
            Code::Own(_) | Code::Redis(_) => None,
        }
    }

    /// The first word of the error on the RESP door, if it is met there.
    pub fn resp(self) -> Option<&'static str> {
        match self {
            Code::Wire(code) => Some(error_word(code)),
            Code::Redis(code) => Some(code.word()),
            Code::Own(_) => None,
        }
    }

    /// The exit code of a command that fails with it. No command fails with a word of Redis.
    pub fn exit_code(self) -> Option<u8> {
        match self {
            Code::Wire(_) | Code::Own(_) => Some(exit_code(self)),
            Code::Redis(_) => None,
        }
    }
}

/// The exit code that goes with a code.
pub fn exit_code(code: Code) -> u8 {
    match code {
        Code::Own(Own::Usage) => 2,
        Code::Wire(ErrorCode::NotFound) => 3,
        // Nobody answered for it.
        Code::Wire(
            ErrorCode::Deadline
            | ErrorCode::Unreachable
            | ErrorCode::NoQuorum
            | ErrorCode::NotLeader
            | ErrorCode::NotServing
            | ErrorCode::Busy
            | ErrorCode::LogFull
            | ErrorCode::Stopping,
        ) => 4,
        Code::Own(Own::Degraded) => 5,
        Code::Own(Own::Critical) => 6,
        // As shells say it of what SIGINT ended.
        Code::Own(Own::Interrupted) => 130,
        Code::Wire(_) | Code::Own(_) | Code::Redis(_) => 1,
    }
}
