//! Failures of commands, and their codes.

use serde_json::json;
use staves_client::{ClientError, SourceError};
use staves_directory::{DirectoryError, StoreError};
use staves_net::{NetError, SecretError};
use staves_node::StartError;
use staves_node::config::{ConfigError, Origin};
use staves_wire::ErrorCode;

use crate::codes::{Code, Own, exit_code};

/// The remedy if no node answers.
pub const HINT: &str = "is a node running there? See --cluster and STAVES_CLUSTER";

/// A failure with a code of its own. Any other error is `failed`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// No such thing.
    NotFound(String),
    /// The map of the node that was asked has no such thing.
    NotInMap(String),
    /// A node answered so, or none answered.
    Wire(ErrorCode, String),
    /// The program itself found it.
    Own(Own, String),
}

impl Failure {
    /// The cluster did not answer in time.
    pub fn late(text: impl Into<String>) -> Failure {
        Failure::Wire(ErrorCode::Deadline, text.into())
    }

    fn code(&self) -> Code {
        match self {
            Failure::NotFound(_) | Failure::NotInMap(_) => Code::Wire(ErrorCode::NotFound),
            Failure::Wire(code, _) => Code::Wire(*code),
            Failure::Own(code, _) => Code::Own(*code),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Failure::NotFound(text)
        | Failure::NotInMap(text)
        | Failure::Wire(_, text)
        | Failure::Own(_, text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for Failure {}

/// The same error in other words: its code stays.
pub fn with_text(error: &anyhow::Error, text: String) -> anyhow::Error {
    with_code(code(error), text)
}

/// An error of this code.
pub fn with_code(code: Code, text: String) -> anyhow::Error {
    match code {
        Code::Wire(ErrorCode::NotFound) => Failure::NotFound(text).into(),
        Code::Wire(code) => Failure::Wire(code, text).into(),
        Code::Own(code) => Failure::Own(code, text).into(),
        Code::Redis(_) => anyhow::anyhow!(text),
    }
}

/// An error of the network as a failure of the command.
pub fn from_net(error: NetError) -> anyhow::Error {
    Failure::Wire(error.code(), error.to_string()).into()
}

/// A client's error as a failure of the command.
pub fn failed(error: ClientError) -> anyhow::Error {
    let code = error.code();
    let text = match error {
        ClientError::NoSuchPool { .. } | ClientError::NoSuchRegion { .. } => {
            return Failure::NotInMap(error.to_string()).into();
        }
        ClientError::Operation { text, .. } => text,
        error => error.to_string(),
    };
    with_code(Code::Wire(code), text)
}

/// The same, where no node was found yet.
pub fn not_reached(error: ClientError) -> anyhow::Error {
    let error = failed(error);
    match code(&error) {
        Code::Wire(ErrorCode::Unreachable | ErrorCode::Deadline) => {
            with_text(&error, format!("{error:#}; {HINT}"))
        }
        _ => error,
    }
}

/// A source's error as a failure of the command.
pub fn no_source(error: SourceError) -> anyhow::Error {
    let text = error.to_string();
    match error {
        SourceError::NotFound { .. } | SourceError::Absent { .. } => Failure::NotFound(text).into(),
        SourceError::Denied { .. } | SourceError::Private { .. } => {
            Failure::Wire(ErrorCode::Denied, text).into()
        }
        SourceError::Unreachable { .. } => Failure::Wire(ErrorCode::Unreachable, text).into(),
        SourceError::Malformed { .. } => Failure::Own(Own::Usage, text).into(),
        SourceError::Changed { .. } => Failure::Own(Own::Failed, text).into(),
    }
}

/// The code of an error, wherever in its chain the reason stands.
pub fn code(error: &anyhow::Error) -> Code {
    let of = |cause: &(dyn std::error::Error + 'static)| {
        let failure = cause.downcast_ref::<Failure>().map(Failure::code);
        let start = || cause.downcast_ref::<StartError>().map(of_start);
        let config = || cause.downcast_ref::<ConfigError>().map(of_config);
        let secret = || {
            cause
                .downcast_ref::<SecretError>()
                .map(|_| Code::Own(Own::BadConfiguration))
        };
        failure.or_else(start).or_else(config).or_else(secret)
    };
    error.chain().find_map(of).unwrap_or(Code::Own(Own::Failed))
}

/// A flag with a value that is none is a wrong command line, as with any other command.
fn of_config(error: &ConfigError) -> Code {
    Code::Own(match error {
        ConfigError::BadValue {
            origin: Origin::Flag { .. },
            ..
        } => Own::Usage,
        _ => Own::BadConfiguration,
    })
}

fn of_start(error: &StartError) -> Code {
    Code::Own(match error {
        StartError::PortInUse { .. } => Own::PortInUse,
        StartError::Bind { .. } => Own::CannotBind,
        StartError::Config(error) => return of_config(error),
        StartError::Memory { .. } => Own::NoMemory,
        StartError::Join { reason, .. } => return of_directory(reason),
        StartError::TwoClusters { .. } => Own::OtherCluster,
        StartError::Folder(error) => of_folder(error),
        StartError::Directory(error) => return of_directory(error),
        StartError::Over(error) => return of_directory(error),
        StartError::Secret(_) | StartError::OneSecret | StartError::Tls(_) => Own::BadConfiguration,
        StartError::Denied { reason } => return Code::Wire(reason.code()),
        StartError::DiskWithoutFolder => Own::BadConfiguration,
        StartError::Disk(_) | StartError::DiskFailed(_) => Own::FolderUnusable,
        StartError::Runtime(_) => Own::Failed,
    })
}

fn of_directory(error: &DirectoryError) -> Code {
    Code::Own(match error {
        DirectoryError::Store(error) => of_folder(error),
        DirectoryError::Options { .. } => Own::BadConfiguration,
        DirectoryError::NoLeader { .. } => Own::NoClusterToJoin,
        DirectoryError::Unknown { .. } => return Code::Wire(ErrorCode::Deadline),
        DirectoryError::Refused(_) => return Code::Wire(ErrorCode::Refused),
        DirectoryError::OtherCluster { .. } => Own::OtherCluster,
        DirectoryError::Removed { .. } => Own::NodeRemoved,
        DirectoryError::AddressTaken { .. } => Own::AddressTaken,
        DirectoryError::IsRunning { .. } | DirectoryError::Displaced { .. } => Own::IdentityTaken,
        DirectoryError::NotRunning { .. } | DirectoryError::Forgotten { .. } => {
            Own::DirectoryStopped
        }
    })
}

fn of_folder(error: &StoreError) -> Own {
    match error {
        StoreError::Locked { .. } => Own::FolderInUse,
        StoreError::Unreadable { .. } => Own::FolderUnusable,
        StoreError::NewerFormat { .. } => Own::FolderNewer,
        StoreError::FormerFormat { .. } => Own::FolderUnusable,
    }
}

/// One line for people: the error and its code, which `staves explain` explains.
pub fn line(code: Code, message: &str) -> String {
    let word = format!("({})", code.word());
    match message.ends_with(&word) {
        true => format!("staves: {message}"),
        false => format!("staves: {message} {word}"),
    }
}

/// One object for programs.
pub fn object(code: Code, message: &str) -> String {
    let exit = exit_code(code);
    json!({ "error": { "code": code.word(), "message": message, "exit_code": exit } }).to_string()
}
