//! Answers to operations that were not done.

use staves_model::mutant::{Mutant, planted};
use staves_service::BucketContext;
use staves_wire::ErrorCode;
use staves_wire::memory::Action;
use staves_wire::service::Answer;

pub(crate) fn lost() -> Answer {
    Answer::error(
        ErrorCode::Lost,
        "the group is lost: more of its nodes failed than its scheme bears",
    )
}

pub(crate) fn fenced(action: &Action, session: u64) -> Answer {
    let text = match action.session() {
        0 => "these bytes are a volume's: they are written through NBD".to_owned(),
        old => format!(
            "session {old} of the volume has ended: session {session} writes to it now, and this was not done; connect again"
        ),
    };
    Answer::error(ErrorCode::Fenced, text)
}

/// The answer to a write or a flush of a session that had not flushed all that it wrote when some of that was lost.
pub(crate) fn over(session: u64) -> Answer {
    let text = format!(
        "session {session} of the volume is over: nodes have crashed, and what was written and not flushed may be gone; this was not done"
    );
    Answer::error(ErrorCode::Fenced, text)
}

/// The answer to a write to an image that was deleted, or that its door has not told the bucket of.
pub(crate) fn no_image(image: u32) -> Answer {
    let text = format!("the bucket has no image {image}: it was deleted, and this was not done");
    Answer::error(ErrorCode::Fenced, text)
}

pub(crate) fn out_of_places() -> Answer {
    let text =
        "the bucket's places are used up by what snapshots and clones keep: delete some of them";
    Answer::error(ErrorCode::OutOfMemory, text)
}

pub(crate) fn out_of_memory() -> Answer {
    Answer::error(
        ErrorCode::OutOfMemory,
        "the pool's memory is used up on a node that holds these bytes: delete a region, or give the pool more with 'staves pool set NAME --memory SIZE'",
    )
}

/// The refusal of an operation whose session is over, because something that it had not flushed may be gone.
pub(crate) fn of_session(context: &BucketContext, action: &Action) -> Option<Answer> {
    let session = action.session();
    let is_over = session != 0 && session <= context.session_over(action.image());
    let is_flush = matches!(action, Action::Sync { .. });
    let passes = is_flush && planted(Mutant::FlushOfOldSession);
    (is_over && !passes).then(|| over(session))
}
