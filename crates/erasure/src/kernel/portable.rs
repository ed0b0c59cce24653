//! The kernel that runs anywhere: a table of products for each coefficient.

use super::Pass;
use crate::field::PRODUCT;

/// Makes up to four outputs over a part of the buffers.
pub(super) fn pass(pass: &mut Pass<'_, '_>) {
    let part = pass.from..pass.from + pass.len;
    let m = pass.sources.len();
    for (r, output) in pass.outputs.iter_mut().enumerate() {
        let output = &mut output[part.clone()];
        if !pass.add {
            output.fill(0);
        }
        for (c, source) in pass.rows[r * m..].iter().zip(pass.sources) {
            add_multiple(*c, &source[part.clone()], output);
        }
    }
}

fn add_multiple(c: u8, source: &[u8], output: &mut [u8]) {
    match c {
        0 => {}
        1 => {
            for (x, y) in output.iter_mut().zip(source) {
                *x ^= y;
            }
        }
        _ => {
            let table = &PRODUCT[c as usize];
            for (x, y) in output.iter_mut().zip(source) {
                *x ^= table[*y as usize];
            }
        }
    }
}
