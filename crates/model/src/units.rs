//! Bytes in words.

/// Bytes in the largest unit that tells them exactly, as the program takes them: `201MiB`, `17B`.
pub fn with_unit(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let exact = |(shift, _): &(u32, &str)| bytes > 0 && bytes.trailing_zeros() >= *shift;
    match units.into_iter().find(exact) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_told_as_the_program_takes_them() {
        let told = [
            (0, "0B"),
            (17, "17B"),
            (4096, "4KiB"),
            (201 << 20, "201MiB"),
            (3 << 30, "3GiB"),
            (5 << 40, "5TiB"),
        ];
        for (bytes, text) in told {
            assert_eq!(with_unit(bytes), text);
        }
    }
}
