//! The field GF(2^8) over x^8 + x^4 + x^3 + x^2 + 1 (0x11D), byte by byte, and the tables that the
//! kernels need. All tables are made by the compiler.

/// The polynomial, its highest power left out.
const POLYNOMIAL: u8 = 0x1D;

const fn double(a: u8) -> u8 {
    (a << 1) ^ (POLYNOMIAL & 0u8.wrapping_sub(a >> 7))
}

const fn slow_mul(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        product ^= a & 0u8.wrapping_sub(b & 1);
        a = double(a);
        b >>= 1;
    }
    product
}

const fn products() -> [[u8; 256]; 256] {
    let mut table = [[0; 256]; 256];
    let mut c = 0;
    while c < 256 {
        // A product is a sum of products with powers of two: eight multiplications a row, not 256.
        let mut x = 1;
        while x < 256 {
            let high = 1 << (7 - (x as u8).leading_zeros());
            table[c][x] = if x == high {
                slow_mul(c as u8, x as u8)
            } else {
                table[c][high] ^ table[c][x ^ high]
            };
            x += 1;
        }
        c += 1;
    }
    table
}

const fn inverses() -> [u8; 256] {
    // The powers of 2 run through all 255 elements: the inverse of 2^i is 2^(255 - i).
    let mut power = [0u8; 255];
    let (mut i, mut x) = (0, 1);
    while i < 255 {
        power[i] = x;
        x = double(x);
        i += 1;
    }
    let mut table = [0; 256];
    i = 0;
    while i < 255 {
        table[power[i] as usize] = power[(255 - i) % 255];
        i += 1;
    }
    table
}

/// `PRODUCT[a][b]` = a times b.
pub(crate) static PRODUCT: [[u8; 256]; 256] = products();

static INVERSE: [u8; 256] = inverses();

/// For each c: c times the sixteen low nibbles, then c times the sixteen high ones. A byte's product is
/// the sum of what a shuffle finds for its two nibbles.
pub(crate) static NIBBLES: [[u8; 32]; 256] = {
    let mut table = [[0; 32]; 256];
    let mut c = 0;
    while c < 256 {
        let mut x = 0;
        while x < 16 {
            table[c][x] = PRODUCT[c][x];
            table[c][16 + x] = PRODUCT[c][x << 4];
            x += 1;
        }
        c += 1;
    }
    table
};

/// For each c: multiplication by c as the matrix of 8 x 8 bits that GF2P8AFFINEQB takes. Byte 7 - i
/// selects the bits of the source whose sum is bit i of the product.
pub(crate) static AFFINE: [u64; 256] = {
    let mut table = [0; 256];
    let mut c = 0;
    while c < 256 {
        let (mut matrix, mut i) = (0u64, 0);
        while i < 8 {
            let mut j = 0;
            while j < 8 {
                let bit = (PRODUCT[c][1 << j] >> i) & 1;
                matrix |= (bit as u64) << (8 * (7 - i) + j);
                j += 1;
            }
            i += 1;
        }
        table[c] = matrix;
        c += 1;
    }
    table
};

/// a times b.
#[inline]
pub fn mul(a: u8, b: u8) -> u8 {
    PRODUCT[a as usize][b as usize]
}

/// The inverse of a; `None` for 0.
#[inline]
pub fn inverse(a: u8) -> Option<u8> {
    (a != 0).then(|| INVERSE[a as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_field() {
        for a in 0..=255u8 {
            assert_eq!(mul(a, 1), a);
            assert_eq!(mul(a, 0), 0);
            match inverse(a) {
                Some(b) => assert_eq!(mul(a, b), 1, "{a}"),
                None => assert_eq!(a, 0),
            }
            for b in 0..=255u8 {
                assert_eq!(mul(a, b), slow_mul(a, b));
                assert_eq!(mul(a, b), mul(b, a));
                let c = a.wrapping_mul(31).wrapping_add(b);
                assert_eq!(mul(a, b ^ c), mul(a, b) ^ mul(a, c));
                assert_eq!(mul(a, mul(b, c)), mul(mul(a, b), c));
            }
        }
    }
}
