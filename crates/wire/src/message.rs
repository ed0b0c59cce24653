//! Every message there is, with its opcode, in one table.

use bytes::{Bytes, BytesMut};
use staves_model::Revision;

use crate::admin::{
    DiskChange, GroupMend, GroupStateAnswer, GroupSums, GroupSumsAnswer, GroupTarget,
    KeyRangeAnswer, NodeTarget, StatusAnswer,
};
use crate::cache::{CacheStats, CacheStatsAnswer};
use crate::codec::{DecodeError, Wire, decode_front};
use crate::directory::{GetMap, MapAnswer, Propose, Proposed, Raft, RaftAnswer, Report};
use crate::error::ErrorPacket;
use crate::files::{
    FileAway, FileBytes, FileChanges, FileChangesAnswer, FileCheck, FileChecked, FileFetch,
    FileKeys, FileKeysAnswer, FileLost, FileLostAnswer, FilePut, FileRead, FileUse,
};
use crate::group::Batch;
use crate::hello::{CREDENTIALS_BYTES_MAX, Challenge, Hello, Ping, Pong, Prove, Proven, Welcome};
use crate::log::{LogAppoint, LogAsk, LogSaid};
use crate::service::{Answer, ServiceAnswers, ServiceRequest};

/// The part of a message in a conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Somebody waits for an answer with the same request id.
    Request,
    /// Answers a request.
    Answer,
    /// Nobody waits; the protocol above bears its loss.
    OneWay,
}

/// The size that a message may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// It fits into one frame.
    Frame,
    /// As many frames as the configured limit allows.
    Frames,
}

macro_rules! messages {
    ($($(#[$doc:meta])* $number:literal $name:ident $(($body:ty))? $word:literal $kind:ident $size:ident since $since:literal;)*) => {
        /// A message's one-byte opcode. The numbers are the wire's, for good.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Opcode {
            $($(#[$doc])* $name = $number,)*
        }

        impl Opcode {
            /// All of them, in order of number.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name,)*];

            /// The opcode of a number, if this version knows it.
            pub fn from_number(number: u8) -> Option<Opcode> {
                match number {
                    $($number => Some(Opcode::$name),)*
                    _ => None,
                }
            }

            /// A word for people, logs and metrics.
            pub fn word(self) -> &'static str {
                match self { $(Opcode::$name => $word,)* }
            }

            /// Request, answer or neither.
            pub fn kind(self) -> Kind {
                match self { $(Opcode::$name => Kind::$kind,)* }
            }

            /// One frame or many.
            pub fn size(self) -> Size {
                match self { $(Opcode::$name => Size::$size,)* }
            }

            /// The first version that has it.
            pub fn since(self) -> u8 {
                match self { $(Opcode::$name => $since,)* }
            }
        }

        /// A message.
        #[derive(Clone, PartialEq, Debug)]
        #[allow(clippy::large_enum_variant)] // the large ones are the rare ones; none lies in a list
        pub enum Message {
            $($(#[$doc])* $name $(($body))?,)*
        }

        impl Message {
            /// Its opcode.
            pub fn opcode(&self) -> Opcode {
                match self { $(messages!(@pattern $name $($body)?) => Opcode::$name,)* }
            }

            /// Appends its body.
            pub fn put_body(&self, out: &mut BytesMut) {
                match self { $(messages!(@bind body $name $($body)?) => messages!(@put body out $($body)?),)* }
            }

            fn take_body(opcode: Opcode, body: Bytes) -> Result<Message, DecodeError> {
                match opcode { $(Opcode::$name => messages!(@take body $name $($body)?),)* }
            }
        }
    };
    (@pattern $name:ident $body:ty) => { Message::$name(_) };
    (@pattern $name:ident) => { Message::$name };
    (@bind $var:ident $name:ident $body:ty) => { Message::$name($var) };
    (@bind $var:ident $name:ident) => { Message::$name };
    (@put $var:ident $out:ident $body:ty) => { $var.put($out) };
    (@put $var:ident $out:ident) => { () };
    (@take $var:ident $name:ident $body:ty) => { decode_front($var).map(Message::$name) };
    (@take $var:ident $name:ident) => {{
        let _newer_fields = $var;
        Ok(Message::$name)
    }};
}

messages! {
    // The connection itself.
    /// The connecting side's first message.
    1 Hello(Hello) "hello" Request Frame since 1;
    /// The accepting side's answer.
    2 Welcome(Welcome) "welcome" Answer Frame since 1;
    /// "Are you there?"
    3 Ping(Ping) "ping" Request Frame since 1;
    /// "I am."
    4 Pong(Pong) "pong" Answer Frame since 1;
    /// The request failed; answers any request.
    5 Error(ErrorPacket) "error" Answer Frame since 1;
    /// The request was done and there is nothing more to say.
    6 Done "done" Answer Frame since 1;
    /// The accepting side wants a secret to be proven.
    7 Challenge(Challenge) "challenge" Answer Frame since 5;
    /// The connecting side's proof.
    8 Prove(Prove) "prove" Request Frame since 5;
    /// The accepting side's, and its welcome.
    9 Proven(Proven) "proven" Answer Frame since 5;

    // Groups.
    /// Messages of the group protocol for any number of the receiver's members.
    16 Group(Batch) "group" OneWay Frames since 1;

    // The cache.
    /// Figures of a node's part of a pool.
    34 CacheStats(CacheStats) "cache-stats" Request Frame since 1;
    /// The figures.
    35 CacheStatsAnswer(CacheStatsAnswer) "cache-stats-answer" Answer Frame since 1;

    // Services on groups.
    /// A batch of operations.
    36 Service(ServiceRequest) "service" Request Frames since 4;
    /// Their answers.
    37 ServiceAnswers(ServiceAnswers) "service-answers" Answer Frames since 4;

    // Sequencers of logs.
    /// For the sequencer of a log.
    38 LogAsk(LogAsk) "log-ask" Request Frame since 15;
    /// Its reply, or what became of the appointment.
    39 LogSaid(LogSaid) "log-said" Answer Frames since 15;
    /// See that a log has a sequencer.
    42 LogAppoint(LogAppoint) "log-appoint" Request Frame since 15;

    // The directory.
    /// Between voters.
    48 Raft(Raft) "raft" Request Frames since 1;
    /// Between voters.
    49 RaftAnswer(RaftAnswer) "raft-answer" Answer Frames since 1;
    /// A change, for the leader.
    50 Propose(Propose) "propose" Request Frames since 1;
    /// Its outcome.
    51 Proposed(Proposed) "proposed" Answer Frames since 1;
    /// The map, from any node.
    52 GetMap(GetMap) "get-map" Request Frame since 1;
    /// The map.
    53 MapAnswer(MapAnswer) "map" Answer Frames since 1;
    /// Signs of nodes' life or death. Answered by `Done`.
    59 Report(Report) "report" Request Frames since 1;

    // Files.
    /// Bytes of a file, if they are there.
    64 FileRead(FileRead) "file-read" Request Frame since 3;
    /// These, or that they are not.
    65 FileBytes(FileBytes) "file-bytes" Answer Frames since 3;
    /// The same, fetched from the source if need be.
    66 FileFetch(FileFetch) "file-fetch" Request Frame since 3;
    /// Bytes for a holder to keep. Answered by `Done`.
    67 FilePut(FilePut) "file-put" Request Frames since 3;
    /// The blocks that a node holds of a bucket.
    68 FileKeys(FileKeys) "file-keys" Request Frame since 3;
    /// Some of this.
    69 FileKeysAnswer(FileKeysAnswer) "file-keys-answer" Answer Frame since 3;
    /// Look for damaged blocks.
    70 FileCheck(FileCheck) "file-check" Request Frame since 3;
    /// The blocks that were damaged.
    71 FileChecked(FileChecked) "file-checked" Answer Frame since 3;
    /// A dataset is in use. Answered by `Done`.
    72 FileUse(FileUse) "file-use" Request Frame since 3;
    /// The changes among a node's blocks.
    73 FileChanges(FileChanges) "file-changes" Request Frame since 3;
    /// This.
    74 FileChangesAnswer(FileChangesAnswer) "file-changes-answer" Answer Frame since 3;
    /// The parts that a lost node held of a file.
    75 FileLost(FileLost) "file-lost" Request Frame since 3;
    /// The parts that are missing.
    76 FileLostAnswer(FileLostAnswer) "file-lost-answer" Answer Frame since 3;
    /// A dataset is in use, and its source is away. Answered by `Done`.
    77 FileAway(FileAway) "file-away" Request Frame since 5;

    // People's tools.
    /// The cluster's state.
    80 Status "status" Request Frame since 1;
    /// As JSON.
    81 StatusAnswer(StatusAnswer) "status-answer" Answer Frames since 1;
    /// Move a node's buckets elsewhere. Answered by `Done`.
    82 NodeDrain(NodeTarget) "node-drain" Request Frame since 1;
    /// Let it have buckets again. Answered by `Done`.
    83 NodeResume(NodeTarget) "node-resume" Request Frame since 1;
    /// Stop its process in good order, if the groups that it has can bear it. Answered by `Done`.
    84 NodeStop(NodeTarget) "node-stop" Request Frame since 1;
    /// The keys that it holds (row X5).
    85 KeyRange(NodeTarget) "key-range" Request Frame since 1;
    /// These.
    86 KeyRangeAnswer(KeyRangeAnswer) "key-range-answer" Answer Frames since 1;
    /// The state of a node's member of a group.
    87 GroupState(GroupTarget) "group-state" Request Frame since 2;
    /// As JSON.
    88 GroupStateAnswer(GroupStateAnswer) "group-state-answer" Answer Frames since 2;
    /// The sums of pages of a node's part in a group, for scrubbing.
    89 GroupSums(GroupSums) "group-sums" Request Frame since 2;
    /// These.
    90 GroupSumsAnswer(GroupSumsAnswer) "group-sums-answer" Answer Frames since 2;
    /// A page of parity is wrong: make it anew. Answered by `Done`.
    91 GroupMend(GroupMend) "group-mend" Request Frame since 2;
    /// Stop its process in good order, whatever is lost by it. Answered by `Done`.
    92 NodeStopForced(NodeTarget) "node-stop-forced" Request Frame since 2;
    /// Add one of its disks, empty it, or take it out. Answered by `Done`.
    93 NodeDisk(DiskChange) "node-disk" Request Frame since 12;
}

impl Message {
    /// The `epoch` of its frame's header: the map revision that the sender works from where
    /// that matters, else 0.
    pub fn epoch(&self) -> u64 {
        match self {
            Message::Service(ServiceRequest { revision, .. })
            | Message::ServiceAnswers(ServiceAnswers { revision, .. })
            | Message::MapAnswer(MapAnswer { revision, .. }) => revision.0,
            _ => 0,
        }
    }

    /// From a frame's opcode, `epoch` and body. The body's large parts are not copied.
    pub fn decode(opcode: Opcode, epoch: u64, body: Bytes) -> Result<Message, DecodeError> {
        let mut message = Message::take_body(opcode, body)?;
        match &mut message {
            Message::Service(ServiceRequest { revision, .. })
            | Message::ServiceAnswers(ServiceAnswers { revision, .. })
            | Message::MapAnswer(MapAnswer { revision, .. }) => *revision = Revision(epoch),
            Message::Hello(hello) if hello.credentials.len() > CREDENTIALS_BYTES_MAX => {
                return Err(DecodeError::TooMany {
                    what: "the credentials' bytes",
                    len: hello.credentials.len(),
                    max: CREDENTIALS_BYTES_MAX,
                });
            }
            _ => {}
        }
        Ok(message)
    }

    /// Bytes of values, of a file or of a map that it carries: there may be hundreds of megabytes, and it is known before they
    /// are encoded.
    pub fn carried_bytes(&self) -> usize {
        match self {
            Message::Service(request) => request.ops.iter().map(|op| op.body.bytes()).sum(),
            Message::ServiceAnswers(answers) => {
                answers.answers.iter().map(Answer::value_bytes).sum()
            }
            Message::FileBytes(answer) => answer.bytes.as_ref().map_or(0, Bytes::len),
            Message::FilePut(put) => put.bytes.len(),
            Message::LogSaid(said) => said.body.len(),
            Message::MapAnswer(answer) => answer.map.as_ref().map_or(0, Bytes::len),
            _ => 0,
        }
    }

    /// An error packet.
    pub fn error(code: crate::error::ErrorCode, text: impl Into<String>) -> Message {
        Message::Error(ErrorPacket::new(code, text))
    }
}
