//! Small matrices over the field: the code's parity rows, and inversion.

use crate::field::{PRODUCT, inverse, mul};

/// A matrix that has no inverse.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the matrix has no inverse: its rows depend on one another")]
pub struct Singular;

/// The k x m parity rows of a code, row by row: a Cauchy matrix, whose every square part has an
/// inverse, with each column and then each row scaled so that the first row and the first column
/// are ones. Scaling changes no rank, so any m of the m + k rows of (identity, these) have an inverse.
///
/// `m + k` must be at most 256.
pub(crate) fn parity_rows(m: usize, k: usize) -> Vec<u8> {
    debug_assert!(m + k <= 256);
    // 1 / (x + y), the x of the rows and the y of the columns all different.
    let cauchy = |row: usize, column: usize| {
        let sum = (m + row) as u8 ^ column as u8;
        inverse(sum).expect("rows and columns have different elements")
    };
    let mut rows = Vec::with_capacity(k * m);
    for row in 0..k {
        let scaled = |column| {
            let by_column = inverse(cauchy(0, column)).expect("no element is zero");
            mul(cauchy(row, column), by_column)
        };
        let by_row = if m == 0 {
            1
        } else {
            inverse(scaled(0)).expect("no element is zero")
        };
        rows.extend((0..m).map(|column| mul(scaled(column), by_row)));
    }
    rows
}

/// Inverts an n x n matrix in place, row by row: Gauss and Jordan, with pivots from below.
///
/// # Panics
/// If `matrix` is not n x n.
pub fn invert(matrix: &mut [u8], n: usize) -> Result<(), Singular> {
    assert_eq!(matrix.len(), n * n, "the matrix must be {n} x {n}");
    match n {
        0..=8 => invert_in::<8>(matrix, n),
        9..=16 => invert_in::<16>(matrix, n),
        17..=32 => invert_in::<32>(matrix, n),
        _ => invert_in::<256>(matrix, n),
    }
}

// Rows of a fixed width are what the compiler can keep in registers.
fn invert_in<const WIDTH: usize>(matrix: &mut [u8], n: usize) -> Result<(), Singular> {
    let mut a = vec_of_rows::<WIDTH>(matrix, n);
    // Column `swapped[i]` of the result belongs where row i came from.
    let mut swapped = [0usize; 256];
    for pivot in 0..n {
        let from = (pivot..n).find(|row| a[*row][pivot] != 0).ok_or(Singular)?;
        swapped[pivot] = from;
        a.swap(pivot, from);
        let by = inverse(a[pivot][pivot]).ok_or(Singular)?;
        a[pivot][pivot] = 1;
        let table = &PRODUCT[by as usize];
        for x in &mut a[pivot] {
            *x = table[*x as usize];
        }
        let pivot_row = a[pivot];
        for row in (0..n).filter(|row| *row != pivot) {
            let c = a[row][pivot];
            if c == 0 {
                continue;
            }
            a[row][pivot] = 0;
            let table = &PRODUCT[c as usize];
            for (x, p) in a[row].iter_mut().zip(pivot_row) {
                *x ^= table[p as usize];
            }
        }
    }
    for pivot in (0..n).rev().filter(|p| swapped[*p] != *p) {
        for row in a.iter_mut().take(n) {
            row.swap(pivot, swapped[pivot]);
        }
    }
    for (to, row) in matrix.chunks_exact_mut(n.max(1)).zip(&a) {
        to.copy_from_slice(&row[..n]);
    }
    Ok(())
}

fn vec_of_rows<const WIDTH: usize>(matrix: &[u8], n: usize) -> Vec<[u8; WIDTH]> {
    let mut rows = vec![[0; WIDTH]; n];
    for (row, from) in rows.iter_mut().zip(matrix.chunks_exact(n.max(1))) {
        row[..n].copy_from_slice(from);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn product(a: &[u8], b: &[u8], n: usize) -> Vec<u8> {
        let entry = |i: usize| {
            let (row, column) = (i / n, i % n);
            (0..n).fold(0, |sum, x| sum ^ mul(a[row * n + x], b[x * n + column]))
        };
        (0..n * n).map(entry).collect()
    }

    fn identity(n: usize) -> Vec<u8> {
        (0..n * n).map(|i| u8::from(i / n == i % n)).collect()
    }

    #[test]
    fn first_row_and_column_are_ones() {
        for (m, k) in [
            (1, 1),
            (1, 4),
            (2, 1),
            (4, 2),
            (8, 3),
            (10, 4),
            (32, 8),
            (200, 56),
        ] {
            let rows = parity_rows(m, k);
            assert!(rows[..m].iter().all(|c| *c == 1), "{m}+{k}");
            assert!(rows.chunks(m).all(|row| row[0] == 1), "{m}+{k}");
            assert!(rows.iter().all(|c| *c != 0), "{m}+{k}");
        }
    }

    proptest! {
        #[test]
        fn an_inverse_times_its_matrix_is_one(n in 1usize..20, bytes in prop::collection::vec(any::<u8>(), 400), zeroes in 0u8..4) {
            let mut matrix = bytes[..n * n].to_vec();
            // Zeroes make pivots rare, so that rows must be exchanged.
            for x in matrix.iter_mut().filter(|x| **x < 64 * zeroes) {
                *x = 0;
            }
            let mut inverted = matrix.clone();
            if invert(&mut inverted, n).is_ok() {
                prop_assert_eq!(product(&matrix, &inverted, n), identity(n));
                prop_assert_eq!(product(&inverted, &matrix, n), identity(n));
            }
        }

        #[test]
        fn dependent_rows_are_refused(n in 2usize..12, bytes in prop::collection::vec(any::<u8>(), 144), c in any::<u8>()) {
            let mut matrix = bytes[..n * n].to_vec();
            let (first, rest) = matrix.split_at_mut(n);
            for (x, y) in rest[..n].iter_mut().zip(first) {
                *x = mul(c, *y);
            }
            prop_assert_eq!(invert(&mut matrix, n), Err(Singular));
        }
    }
}
