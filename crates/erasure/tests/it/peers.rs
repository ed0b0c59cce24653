//! Against another's arithmetic: the crate `reed-solomon-erasure` works in the same field. Its matrix is
//! another, so what is compared is the arithmetic and, through it, our coefficients.

use reed_solomon_erasure::galois_8;
use staves_erasure::{Code, field};

#[test]
fn products_and_quotients_are_the_same() {
    for a in 0..=255u8 {
        for b in 0..=255u8 {
            assert_eq!(field::mul(a, b), galois_8::mul(a, b));
            if let Some(inverse) = field::inverse(b) {
                assert_eq!(field::mul(a, inverse), galois_8::div(a, b));
            }
        }
    }
}

#[test]
fn parity_is_what_its_arithmetic_gives() {
    for (m, k) in [(2, 1), (4, 2), (8, 3), (10, 4), (32, 8)] {
        let code = Code::new(m, k).unwrap();
        let data: Vec<Vec<u8>> = (0..m)
            .map(|d| (0..777).map(|i| (i * 31 + d * 101 + i * d) as u8).collect())
            .collect();
        let mut parity = vec![vec![0; 777]; k];
        let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(&sources, &mut outputs);
        for (p, parity) in parity.iter().enumerate() {
            let mut expected = vec![0; 777];
            for (d, data) in data.iter().enumerate() {
                galois_8::mul_slice_xor(code.coefficient(p, d), data, &mut expected);
            }
            assert!(*parity == expected, "{m}+{k}, parity {p}");
        }
    }
}
