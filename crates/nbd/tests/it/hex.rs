//! Bytes as the tests write them: hexadecimal digits, with text in single quotes.

/// The bytes of `"00000005 'hello'"`.
pub fn hex(text: &str) -> Vec<u8> {
    let parts = text.split('\'').enumerate();
    parts
        .flat_map(|(index, part)| match index % 2 {
            1 => part.as_bytes().to_vec(),
            _ => digits(part),
        })
        .collect()
}

fn digits(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    let pairs = digits.chunks(2);
    pairs.map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

/// The answer to an option that refuses it.
pub fn refusal(option: u32, kind: u32, text: &str) -> Vec<u8> {
    let mut bytes = hex("0003e889045565a9");
    for word in [option, kind + (1 << 31), text.len() as u32] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend(text.as_bytes());
    bytes
}
