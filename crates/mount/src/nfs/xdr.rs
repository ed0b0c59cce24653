//! The encoding of NFS's messages (RFC 4506): words of four bytes, the high one first; strings are filled up to whole words.

/// Arguments that end too early, or exceed a bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Garbage;

/// The arguments of a call, read from their beginning. Nothing is allocated for lengths that others state.
#[derive(Debug)]
pub struct XdrReader<'a> {
    rest: &'a [u8],
}

impl<'a> XdrReader<'a> {
    /// All of a message.
    pub fn new(message: &'a [u8]) -> XdrReader<'a> {
        XdrReader { rest: message }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Garbage> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Garbage)?;
        self.rest = rest;
        Ok(taken)
    }

    /// A word.
    pub fn u32(&mut self) -> Result<u32, Garbage> {
        let word = self.take(4)?.try_into();
        Ok(u32::from_be_bytes(word.expect("four bytes")))
    }

    /// Two words.
    pub fn u64(&mut self) -> Result<u64, Garbage> {
        Ok(u64::from(self.u32()?) << 32 | u64::from(self.u32()?))
    }

    /// A string of so many bytes at most.
    pub fn bytes(&mut self, len_max: usize) -> Result<&'a [u8], Garbage> {
        let len = self.u32()? as usize;
        if len > len_max {
            return Err(Garbage);
        }
        let filled = self.take(len.next_multiple_of(4))?;
        Ok(&filled[..len])
    }
}

/// An answer, written from its beginning.
#[derive(Debug, Default)]
pub struct XdrWriter {
    bytes: Vec<u8>,
}

impl XdrWriter {
    /// The bytes that were written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The number of bytes that were written.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Takes back what was written behind this point.
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// A word.
    pub fn u32(&mut self, word: u32) {
        self.bytes.extend_from_slice(&word.to_be_bytes());
    }

    /// A word in place of one that was written.
    pub fn set_u32(&mut self, at: usize, word: u32) {
        self.bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }

    /// Two words.
    pub fn u64(&mut self, words: u64) {
        self.bytes.extend_from_slice(&words.to_be_bytes());
    }

    /// A string.
    pub fn string(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.bytes.extend_from_slice(bytes);
        self.fill();
    }

    /// Room for so many bytes, which are zeroes until they are written; [`XdrWriter::fill`] follows.
    pub fn room(&mut self, len: usize) -> &mut [u8] {
        let from = self.bytes.len();
        self.bytes.resize(from + len, 0);
        &mut self.bytes[from..]
    }

    /// Zeroes up to a whole word.
    pub fn fill(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_cut_is_garbage() {
        let mut reply = XdrWriter::default();
        reply.u32(7);
        reply.u64(1 << 40);
        reply.string(b"names");
        reply.room(3).copy_from_slice(b"abc");
        reply.fill();
        assert_eq!(reply.len(), 4 + 8 + 4 + 8 + 4);
        let mut args = XdrReader::new(reply.bytes());
        assert_eq!(args.u32(), Ok(7));
        assert_eq!(args.u64(), Ok(1 << 40));
        assert_eq!(args.bytes(5), Ok(&b"names"[..]));
        assert_eq!(args.u32(), Ok(u32::from_be_bytes(*b"abc\0")));
        assert_eq!(args.u32(), Err(Garbage));
        for cut in 0..24 {
            let mut args = XdrReader::new(&reply.bytes()[..cut]);
            let all = args.u32().and(args.u64().map(|_| ())).and(args.bytes(5));
            assert_eq!(all.is_err(), cut < 24, "{cut}");
        }
        assert_eq!(XdrReader::new(&reply.bytes()[12..]).bytes(4), Err(Garbage));
        assert_eq!(XdrReader::new(&[0xff; 64]).bytes(usize::MAX), Err(Garbage));
    }
}
