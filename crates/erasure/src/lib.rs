//! Erasure coding: k parity buckets protect m data buckets against the loss of any k of the m + k.
//!
//! **Promises.** Reed-Solomon over GF(2^8), polynomial 0x11D, systematic. The first parity bucket is the
//! plain XOR of the data, and with m = 1 every parity bucket is a copy (rows H1, H2 of the mission). Any m members make any
//! other ([`Code::recipe`]); one pass over m sources makes all that is wanted (row H5). A change of data
//! reaches parity as `coefficient x (old ^ new)` ([`Code::apply`]). The bytes do not depend on the kernel.
//!
//! **Path of the data.** [`Code`] knows coefficients (`matrix`, over `field`); [`Kernel::combine`] is the one operation on
//! bytes, and the fastest kernel of the machine does it.
//!
//! **Not here.** Which pages agree, who holds what: `staves-group`.

mod code;
pub mod field;
mod kernel;
mod matrix;

pub use code::{Code, CodeError, MEMBERS_MAX, Recipe};
pub use kernel::{Kernel, UnknownKernel};
pub use matrix::{Singular, invert};
