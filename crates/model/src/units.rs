//! Numbers and bytes as text.

/// Bytes in the largest unit that is exact, as the program takes them: `201MiB`, `17B`.
pub fn with_unit(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let exact = |(shift, _): &(u32, &str)| bytes > 0 && bytes.trailing_zeros() >= *shift;
    match units.into_iter().find(exact) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => format!("{bytes}B"),
    }
}

/// Bytes rounded to three digits, in binary units: `12.5 MiB`.
pub fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 100.0);
    format!("{value:.digits$} {}", units[unit])
}

/// A number with commas between thousands: `41,234`.
pub fn number(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number and its noun: `1 copy`, `2 copies`.
pub fn count(count: impl TryInto<u64>, noun: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    let stem = noun.strip_suffix('y').filter(|stem| !stem.ends_with('e'));
    match (count, stem) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) => format!("{} {stem}ies", number(count)),
        (_, None) => format!("{} {noun}s", number(count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_people() {
        let sizes = [
            (0, "0 B"),
            (999, "999 B"),
            (1024, "1.0 KiB"),
            (512 << 20, "512 MiB"),
        ];
        for (count, text) in sizes {
            assert_eq!(bytes(count), text);
        }
        for (count, text) in [
            (0, "0"),
            (999, "999"),
            (41_234, "41,234"),
            (1_000_000, "1,000,000"),
        ] {
            assert_eq!(number(count), text);
        }
        for (number, noun, text) in [
            (0, "file", "0 files"),
            (1, "copy", "1 copy"),
            (2, "copy", "2 copies"),
            (1, "key", "1 key"),
            (1000, "key", "1,000 keys"),
        ] {
            assert_eq!(count(number, noun), text);
        }
    }

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
