//! Texts of the protocol, and their bound.

/// Longest name or text of the protocol, in bytes.
pub const STRING_BYTES_MAX: usize = 4096;

/// The longest start of a text that is at most [`STRING_BYTES_MAX`] long.
pub(crate) fn clipped(text: &str) -> &str {
    let mut ends = (0..=STRING_BYTES_MAX).rev();
    ends.find_map(|end| text.get(..end.min(text.len())))
        .unwrap_or_default()
}
