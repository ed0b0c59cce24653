//! 512 bytes that say where they belong.

/// Bytes of a block.
pub const BYTES: u64 = 512;
/// The first bytes of each.
pub const MAGIC: [u8; 8] = *b"stvchaos";

/// Appends the block of a file's version at an offset.
pub fn put(out: &mut Vec<u8>, file: u32, version: u32, offset: u64) {
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&file.to_le_bytes());
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&offset.to_le_bytes());
    let mut word = (u64::from(file) << 32 | u64::from(version)) ^ offset.rotate_left(20);
    for _ in 3..BYTES / 8 {
        // SplitMix64: neighbours differ in everything.
        word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        out.extend_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
    }
}

/// The version that a block of this file at this offset is of, or what is wrong with it.
pub fn version(block: &[u8], file: u32, offset: u64) -> Result<u32, String> {
    let word = |at: usize| {
        let bytes = block.get(at..at + 4).and_then(|b| b.try_into().ok());
        bytes.map_or(u32::MAX, u32::from_le_bytes)
    };
    let found = word(12);
    let mut whole = Vec::with_capacity(BYTES as usize);
    put(&mut whole, file, found, offset);
    if whole == block {
        return Ok(found);
    }
    let place = (u64::from(word(20)) << 32) | u64::from(word(16));
    let differ = whole.iter().zip(block).filter(|(a, b)| a != b).count();
    Err(format!(
        "wrong bytes: they say file {}, version {found}, offset {place}, and {differ} of {} are not as they must be",
        word(8),
        block.len()
    ))
}

/// The one version of all blocks of a file.
pub fn version_of_all(bytes: &[u8], file: u32) -> Result<u32, String> {
    let mut all = None;
    for (at, block) in (0..).zip(bytes.chunks(BYTES as usize)) {
        let found =
            version(block, file, at * BYTES).map_err(|e| format!("at {}: {e}", at * BYTES))?;
        if *all.get_or_insert(found) != found {
            return Err(format!("a mix: version {found} at {}", at * BYTES));
        }
    }
    all.ok_or_else(|| "it is empty".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(file: u32, version: u32, offset: u64) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, file, version, offset);
        out
    }

    #[test]
    fn d9_only_the_right_bytes_in_the_right_place_pass() {
        let right = block(3, 7, 1024);
        assert_eq!(right.len() as u64, BYTES);
        assert_eq!(version(&right, 3, 1024), Ok(7));
        for (file, offset) in [(4, 1024), (3, 1536)] {
            assert!(version(&right, file, offset).is_err());
        }
        for bit in 0..right.len() * 8 {
            let mut flipped = right.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(version(&flipped, 3, 1024).is_err(), "bit {bit}");
        }
        assert!(version(&right[..100], 3, 1024).is_err());
        assert!(version(&[0; 512], 0, 0).is_err());
    }

    #[test]
    fn d9_a_mix_of_versions_is_seen() {
        let mut bytes = block(1, 2, 0);
        bytes.extend(block(1, 2, 512));
        assert_eq!(version_of_all(&bytes, 1), Ok(2));
        bytes.extend(block(1, 3, 1024));
        let mix = version_of_all(&bytes, 1).expect_err("a mix");
        assert!(mix.contains("version 3 at 1024"), "{mix}");
        assert!(version_of_all(&[], 1).is_err());
    }
}
