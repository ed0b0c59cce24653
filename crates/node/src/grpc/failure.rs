//! gRPC's codes for failures.

use staves_grpc::SETTLED;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::volumes::error::{BlockError, VolumeFault};

/// Most characters of a name from a client that an error repeats.
const NAME_CHARS_MAX: usize = 100;

/// The status of a call on a volume that failed.
pub(super) fn status(error: &BlockError) -> Status {
    let code = match error.fault {
        VolumeFault::SessionOver => Code::Aborted,
        VolumeFault::Deleted => Code::NotFound,
        VolumeFault::Attached => Code::FailedPrecondition,
        VolumeFault::Full => Code::ResourceExhausted,
        VolumeFault::BadRequest => Code::InvalidArgument,
        VolumeFault::Unsupported => Code::Unimplemented,
        VolumeFault::NoMemory | VolumeFault::NotServing => Code::Unavailable,
        VolumeFault::Late => Code::DeadlineExceeded,
        VolumeFault::Lost => Code::DataLoss,
        VolumeFault::Failed => Code::Internal,
    };
    if error.is_settled() {
        return settled(code, error.text.clone());
    }
    let text = format!(
        "{}; it is not known whether the write was done, and its session is over: attach anew",
        error.text
    );
    Status::new(code, text)
}

/// The status of a call of which nothing is on its way any more.
pub(super) fn settled(code: Code, text: impl Into<String>) -> Status {
    let mut status = Status::new(code, text);
    let yes = MetadataValue::from_static("yes");
    status.metadata_mut().insert(SETTLED, yes);
    status
}

pub(super) fn no_volume(name: &str) -> Status {
    let text = format!(
        "there is no volume '{name:.NAME_CHARS_MAX$}': 'staves volume list', or List, shows those that there are"
    );
    settled(Code::NotFound, text)
}

pub(super) fn no_session(name: &str, session: u64) -> Status {
    let text = format!(
        "session {session} of volume '{name:.NAME_CHARS_MAX$}' is not one of this connection, or over: attach the volume, and write in the session that you get"
    );
    settled(Code::Aborted, text)
}
