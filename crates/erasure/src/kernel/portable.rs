//! The kernel that runs anywhere: a table of products for each coefficient.

use crate::field::PRODUCT;

/// Makes up to four outputs over `from..upto`.
pub(super) fn pass(
    rows: &[u8],
    sources: &[&[u8]],
    outputs: &mut [&mut [u8]],
    from: usize,
    upto: usize,
    add: bool,
) {
    for (r, output) in outputs.iter_mut().enumerate() {
        let output = &mut output[from..upto];
        if !add {
            output.fill(0);
        }
        for (c, source) in rows[r * sources.len()..].iter().zip(sources) {
            add_multiple(*c, &source[from..upto], output);
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
