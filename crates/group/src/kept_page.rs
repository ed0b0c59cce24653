//! A page as a disk keeps it, for a start.

use staves_model::{Epoch, Label};

/// A page as it is kept on a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptPage {
    /// Its number.
    pub page: u32,
    /// The epoch in which its member had joined.
    pub join: Epoch,
    /// A label for each column.
    pub labels: Vec<Label>,
    /// The state of its bytes.
    pub bytes: KeptBytes,
}

/// The bytes of a page as they are kept on a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeptBytes {
    /// All zero.
    Zero,
    /// They are read when they are needed.
    There,
    /// They cannot be read: what is there is not what was written.
    Bad,
}
