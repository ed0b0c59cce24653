//! The code: m data buckets, k parity buckets, and recipes that make any of them of any m others.

use crate::kernel::Kernel;
use crate::matrix;

/// Most members of a group: elements of the field.
pub const MEMBERS_MAX: usize = 256;

/// A request that the code cannot serve.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodeError {
    /// m is 0, or m + k is above [`MEMBERS_MAX`].
    #[error("a code of {m}+{k} cannot be: m must be at least 1 and m + k at most {MEMBERS_MAX}")]
    Shape {
        /// Data buckets.
        m: usize,
        /// Parity buckets.
        k: usize,
    },
    /// A recipe needs exactly m different members to start from.
    #[error("{given} different members are given, and {needed} are needed to make another")]
    Sources {
        /// Different ones.
        given: usize,
        /// The number it is, which is m.
        needed: usize,
    },
    /// A member that the code does not have.
    #[error("member {member} is not one of the code's {members}")]
    Member {
        /// Its slot.
        member: usize,
        /// m + k.
        members: usize,
    },
}

/// A systematic code over m data buckets with k parity buckets. The first parity bucket is their plain
/// XOR; so is every parity bucket of a code with m = 1, which makes it a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Code {
    m: usize,
    k: usize,
    /// k rows of m coefficients.
    rows: Vec<u8>,
    kernel: Kernel,
}

impl Code {
    /// A code with the fastest kernel of this machine.
    pub fn new(m: usize, k: usize) -> Result<Code, CodeError> {
        if m == 0 || m.saturating_add(k) > MEMBERS_MAX {
            return Err(CodeError::Shape { m, k });
        }
        Ok(Code {
            m,
            k,
            rows: matrix::parity_rows(m, k),
            kernel: Kernel::best(),
        })
    }

    /// The same code with another kernel.
    pub fn with_kernel(mut self, kernel: Kernel) -> Code {
        self.kernel = kernel;
        self
    }

    /// Data buckets.
    pub fn m(&self) -> usize {
        self.m
    }

    /// Parity buckets.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The coefficient of data bucket `data` at parity bucket `parity` (from 0).
    #[inline]
    pub fn coefficient(&self, parity: usize, data: usize) -> u8 {
        self.rows[parity * self.m + data]
    }

    /// Makes all parity of all data, reading the data once.
    ///
    /// # Panics
    /// If there are not m of `data` and k of `parity`, all of one length.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        assert_eq!(
            (data.len(), parity.len()),
            (self.m, self.k),
            "data and parity of a {}+{}",
            self.m,
            self.k
        );
        self.kernel.combine(&self.rows, data, parity, false);
    }

    /// Takes the change of a data bucket's bytes into a parity bucket's: `bytes ^= coefficient x delta`.
    ///
    /// # Panics
    /// If the lengths differ, or there are no such buckets.
    #[inline]
    pub fn apply(&self, parity: usize, data: usize, delta: &[u8], bytes: &mut [u8]) {
        self.kernel.combine(
            &[self.coefficient(parity, data)],
            &[delta],
            &mut [bytes],
            true,
        );
    }

    /// The recipe that makes the members `wanted` of the m members `sources`, by their slots: 0..m are data, m..m+k
    /// parity.
    pub fn recipe(&self, sources: &[usize], wanted: &[usize]) -> Result<Recipe, CodeError> {
        let members = self.m + self.k;
        if let Some(member) = sources
            .iter()
            .chain(wanted)
            .copied()
            .find(|x| *x >= members)
        {
            return Err(CodeError::Member { member, members });
        }
        let mut seen = [false; MEMBERS_MAX];
        for source in sources {
            seen[*source] = true;
        }
        let given = seen.iter().filter(|s| **s).count();
        if given != self.m || sources.len() != self.m {
            return Err(CodeError::Sources {
                given,
                needed: self.m,
            });
        }
        let data = self.data_of(sources);
        let m = self.m;
        let mut rows = Vec::with_capacity(wanted.len() * m);
        for member in wanted {
            match member.checked_sub(m) {
                None => rows.extend_from_slice(&data[member * m..][..m]),
                Some(parity) => rows.extend((0..m).map(|source| {
                    (0..m).fold(0, |sum, d| {
                        sum ^ crate::field::mul(self.coefficient(parity, d), data[d * m + source])
                    })
                })),
            }
        }
        Ok(Recipe {
            m,
            rows,
            kernel: self.kernel,
        })
    }

    // All data as sums of the sources: m rows of m coefficients.
    //
    // Of the lost data L, the parity sources Q tell sums: with S the rows Q and columns L of the code, L = S^-1 x (Q -
    // what the data that is there adds to Q). S is a square part of a scaled Cauchy matrix, so it has an inverse.
    fn data_of(&self, sources: &[usize]) -> Vec<u8> {
        let m = self.m;
        let lost: Vec<usize> = (0..m).filter(|d| !sources.contains(d)).collect();
        let parity: Vec<(usize, usize)> = sources
            .iter()
            .enumerate()
            .filter(|(_, x)| **x >= m)
            .map(|(at, x)| (at, x - m))
            .collect();
        let e = lost.len();
        let mut inverse: Vec<u8> = parity
            .iter()
            .flat_map(|(_, q)| lost.iter().map(|l| self.coefficient(*q, *l)))
            .collect();
        matrix::invert(&mut inverse, e)
            .expect("every square part of the code's parity rows has an inverse");
        let mut rows = vec![0; m * m];
        for (at, source) in sources.iter().enumerate().filter(|(_, x)| **x < m) {
            rows[source * m + at] = 1;
            for (i, l) in lost.iter().enumerate() {
                rows[l * m + at] = parity.iter().enumerate().fold(0, |sum, (j, (_, q))| {
                    sum ^ crate::field::mul(inverse[i * e + j], self.coefficient(*q, *source))
                });
            }
        }
        for (j, (at, _)) in parity.iter().enumerate() {
            for (i, l) in lost.iter().enumerate() {
                rows[l * m + at] = inverse[i * e + j];
            }
        }
        rows
    }
}

/// The recipe by which some members are made of m others; the same for every page of theirs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recipe {
    m: usize,
    rows: Vec<u8>,
    kernel: Kernel,
}

impl Recipe {
    /// Makes the wanted members' bytes of the sources', reading each source once.
    ///
    /// # Panics
    /// If there are not as many sources and outputs as the recipe names, all of one length.
    pub fn make(&self, sources: &[&[u8]], wanted: &mut [&mut [u8]]) {
        self.kernel.combine(&self.rows, sources, wanted, false);
    }

    /// Adds what one source gives to the wanted members' bytes: for sources that come one by one. After
    /// all m were added to zeroes, the bytes are those of [`Recipe::make`]. A source that is all zeroes
    /// (a vacant member, a freed page) can be left out.
    pub fn add(&self, source: usize, bytes: &[u8], wanted: &mut [&mut [u8]]) {
        let column: Vec<u8> = self
            .rows
            .iter()
            .skip(source)
            .step_by(self.m)
            .copied()
            .collect();
        self.kernel.combine(&column, &[bytes], wanted, true);
    }

    /// The coefficient of a source for a wanted member; both by their place in the lists
    /// that the recipe was made of.
    pub fn coefficient(&self, wanted: usize, source: usize) -> u8 {
        self.rows[wanted * self.m + source]
    }
}
