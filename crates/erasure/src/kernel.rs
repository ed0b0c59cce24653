//! Sums of multiples of buffers, as fast as the machine does them.
//!
//! Everything that the code does to bytes is one operation: `outputs[r] = sum over s of rows[r][s] x
//! sources[s]`, or the same added to what the outputs hold. [`Kernel::combine`] reads each source once for up to four
//! outputs at a time. How a vector is multiplied by a coefficient is what the kernels differ in:
//!
//! - GFNI: one instruction applies an 8 x 8 bit matrix to each byte (512 or 256 bits wide);
//! - AVX2, SSSE3: two shuffles look up the products of the two nibbles;
//! - portable: a table of 256 products.
//!
//! The vector loop is written once ([`vector`]), over a small set of operations that each instruction set
//! fills in.

mod portable;
#[cfg(target_arch = "x86_64")]
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// Outputs that one pass over the sources makes.
const OUTPUTS_MAX: usize = 4;
/// With more outputs than that, sources are read in pieces of so many bytes, so that the second pass
/// finds them in the cache.
const PIECE_BYTES: usize = 4096;

/// The way in which buffers are multiplied.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kernel {
    /// Tables, byte by byte: runs anywhere.
    Portable,
    /// Shuffles of 16 bytes.
    Ssse3,
    /// Shuffles of 32 bytes.
    Avx2,
    /// Bit matrices over 32 bytes.
    Gfni256,
    /// Bit matrices over 64 bytes.
    Gfni512,
}

/// No kernel of this name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no kernel is called '{0}': there are portable, ssse3, avx2, gfni256 and gfni512")]
pub struct UnknownKernel(String);

impl Kernel {
    /// All of them, the slowest first.
    pub const ALL: [Kernel; 5] = [
        Kernel::Portable,
        Kernel::Ssse3,
        Kernel::Avx2,
        Kernel::Gfni256,
        Kernel::Gfni512,
    ];

    /// The fastest that this machine runs.
    pub fn best() -> Kernel {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        *BEST.get_or_init(|| {
            let available = Kernel::ALL.into_iter().filter(|k| k.is_available());
            available.max().unwrap_or(Kernel::Portable)
        })
    }

    /// Returns whether this machine runs it.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return match self {
            Kernel::Portable => true,
            Kernel::Ssse3 => is_x86_feature_detected!("ssse3"),
            Kernel::Avx2 => is_x86_feature_detected!("avx2"),
            Kernel::Gfni256 => is_x86_feature_detected!("gfni") && is_x86_feature_detected!("avx2"),
            Kernel::Gfni512 => {
                is_x86_feature_detected!("gfni")
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
            }
        };
        #[cfg(not(target_arch = "x86_64"))]
        return self == Kernel::Portable;
    }

    /// Its name, as [`Kernel::from_str`] reads it.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Portable => "portable",
            Kernel::Ssse3 => "ssse3",
            Kernel::Avx2 => "avx2",
            Kernel::Gfni256 => "gfni256",
            Kernel::Gfni512 => "gfni512",
        }
    }

    /// `outputs[r] = sum over s of rows[r * sources.len() + s] x sources[s]`; with `add`, that is added to
    /// what the outputs hold. No sources give zeroes.
    ///
    /// # Panics
    /// If the machine does not run this kernel, `rows` has not one coefficient for each pair, or the
    /// buffers differ in length.
    pub fn combine(self, rows: &[u8], sources: &[&[u8]], outputs: &mut [&mut [u8]], add: bool) {
        assert!(
            self == Kernel::best() || self.is_available(),
            "this machine does not run the kernel {self}"
        );
        assert_eq!(
            rows.len(),
            sources.len() * outputs.len(),
            "one coefficient for each source of each output"
        );
        let Some(len) = outputs.first().map(|o| o.len()) else {
            return;
        };
        let same = sources.iter().all(|s| s.len() == len) && outputs.iter().all(|o| o.len() == len);
        assert!(
            same,
            "sources and outputs must be of one length, here {len} bytes"
        );
        let pass = |first: usize, outputs: &mut [&mut [u8]], from: usize, upto: usize| {
            self.pass(Pass {
                rows: &rows[first * sources.len()..][..outputs.len() * sources.len()],
                sources,
                outputs,
                from,
                len: upto - from,
                add,
            });
        };
        if outputs.len() <= OUTPUTS_MAX {
            return pass(0, outputs, 0, len);
        }
        for from in (0..len).step_by(PIECE_BYTES) {
            let upto = len.min(from + PIECE_BYTES);
            for (at, outputs) in outputs.chunks_mut(OUTPUTS_MAX).enumerate() {
                pass(at * OUTPUTS_MAX, outputs, from, upto);
            }
        }
    }

    #[inline]
    fn pass(self, mut pass: Pass<'_, '_>) {
        #[cfg(target_arch = "x86_64")]
        if self != Kernel::Portable {
            return x86::pass(self, &mut pass);
        }
        portable::pass(&mut pass);
    }
}

/// One pass over some sources: up to four outputs, `len` bytes of each buffer, `from` bytes behind its begin.
struct Pass<'a, 'b> {
    /// A coefficient for each source of each output.
    rows: &'a [u8],
    sources: &'a [&'a [u8]],
    outputs: &'a mut [&'b mut [u8]],
    from: usize,
    len: usize,
    /// The sums are added to what the outputs hold.
    add: bool,
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kernel {
    type Err = UnknownKernel;

    fn from_str(name: &str) -> Result<Kernel, UnknownKernel> {
        let is = |k: &Kernel| k.name() == name;
        Kernel::ALL
            .into_iter()
            .find(is)
            .ok_or_else(|| UnknownKernel(name.into()))
    }
}
