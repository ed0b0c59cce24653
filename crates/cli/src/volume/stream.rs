//! Exported volumes, byte by byte: docs/reference/volume-exports.md.

use std::io::{self, Read, Write};

use anyhow::{Context, bail, ensure};

/// The first bytes; the last one is the format's version.
const MAGIC: [u8; 8] = *b"STAVESV\x01";
/// Most bytes of a name.
const NAME_BYTES_MAX: usize = 1024;
/// Most bytes of one record.
pub(super) const RECORD_BYTES_MAX: usize = 1 << 20;

const END: u8 = 0;
const BYTES: u8 = 1;
const ZEROES: u8 = 2;

/// The beginning of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Head {
    /// The volume's length.
    pub(super) size_bytes: u64,
    /// The name of what was exported.
    pub(super) name: String,
    /// The name of the snapshot from which the stream leads to it; `None` if it is all of it.
    pub(super) since: Option<String>,
}

/// A part of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// Bytes from an offset on.
    Bytes(u64, Vec<u8>),
    /// Zeroes from an offset on, and how many.
    Zeroes(u64, u64),
}

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Writes a stream.
pub(super) struct StreamWriter<W: Write> {
    to: W,
    records: u64,
}

impl<W: Write> StreamWriter<W> {
    pub(super) fn begin(mut to: W, head: &Head) -> io::Result<StreamWriter<W>> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(head.size_bytes.to_le_bytes());
        for name in [&head.name, head.since.as_ref().unwrap_or(&String::new())] {
            bytes.extend((name.len() as u16).to_le_bytes());
            bytes.extend(name.as_bytes());
        }
        bytes.extend(crc32c(&bytes).to_le_bytes());
        to.write_all(&bytes)?;
        Ok(StreamWriter { to, records: 0 })
    }

    pub(super) fn bytes(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.record(BYTES, offset, bytes.len() as u64, bytes)
    }

    pub(super) fn zeroes(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.record(ZEROES, offset, len, &[])
    }

    /// Ends the stream: without this nobody takes it for whole.
    pub(super) fn end(mut self) -> io::Result<()> {
        let records = self.records;
        self.record(END, records, 0, &[])?;
        self.to.flush()
    }

    fn record(&mut self, kind: u8, offset: u64, len: u64, bytes: &[u8]) -> io::Result<()> {
        let mut record = Vec::with_capacity(21 + bytes.len());
        record.push(kind);
        record.extend(offset.to_le_bytes());
        record.extend(len.to_le_bytes());
        record.extend(bytes);
        record.extend(crc32c(&record).to_le_bytes());
        self.records += 1;
        self.to.write_all(&record)
    }
}

/// Reads a stream.
pub(super) struct StreamReader<R: Read> {
    from: R,
    records: u64,
    size_bytes: u64,
}

impl<R: Read> StreamReader<R> {
    pub(super) fn begin(from: R) -> anyhow::Result<(StreamReader<R>, Head)> {
        let mut reader = StreamReader {
            from,
            records: 0,
            size_bytes: 0,
        };
        let mut bytes = vec![0; 16];
        let what = "it is no exported volume";
        reader.take(&mut bytes).context(what)?;
        ensure!(bytes[..7] == MAGIC[..7], "{what}: it does not begin as one");
        let version = bytes[7];
        ensure!(
            version == MAGIC[7],
            "it has version {version} of the format, and this program knows {}: use a newer one",
            MAGIC[7]
        );
        let size_bytes = number(&bytes[8..16]);
        let name = reader.name(&mut bytes)?;
        let since = reader.name(&mut bytes)?;
        reader.check(&bytes)?;
        reader.size_bytes = size_bytes;
        let head = Head {
            size_bytes,
            name,
            since: Some(since).filter(|since| !since.is_empty()),
        };
        Ok((reader, head))
    }

    /// The next part; `None` at the end.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<Part>> {
        let mut record = vec![0; 17];
        self.take(&mut record)?;
        let (offset, len) = (number(&record[1..9]), number(&record[9..17]));
        let within = || {
            offset
                .checked_add(len)
                .is_some_and(|end| end <= self.size_bytes)
        };
        match record[0] {
            BYTES => {
                let sound = len <= RECORD_BYTES_MAX as u64 && within();
                ensure!(sound, "a record of {len} bytes at {offset} makes no sense");
                let from = record.len();
                record.resize(from + len as usize, 0);
                self.take(&mut record[from..])?;
            }
            ZEROES => ensure!(within(), "{len} zeroes at {offset} make no sense"),
            END => ensure!(
                offset == self.records && len == 0,
                "it ends after {} records, and says that it has {offset}",
                self.records
            ),
            kind => bail!("a record of kind {kind} makes no sense"),
        }
        self.check(&record)?;
        self.records += 1;
        Ok(match record[0] {
            BYTES => Some(Part::Bytes(offset, record.split_off(17))),
            ZEROES => Some(Part::Zeroes(offset, len)),
            _ => None,
        })
    }

    fn name(&mut self, all: &mut Vec<u8>) -> anyhow::Result<String> {
        let mut len = [0; 2];
        self.take(&mut len)?;
        all.extend(len);
        let len = usize::from(u16::from_le_bytes(len));
        ensure!(
            len <= NAME_BYTES_MAX,
            "a name of {len} bytes makes no sense"
        );
        let mut name = vec![0; len];
        self.take(&mut name)?;
        all.extend(&name);
        String::from_utf8(name).context("a name in it is no text")
    }

    fn check(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let mut crc = [0; 4];
        self.take(&mut crc)?;
        let is_sound = u32::from_le_bytes(crc) == crc32c(bytes);
        ensure!(is_sound, "it is damaged: a check sum is wrong");
        Ok(())
    }

    fn take(&mut self, bytes: &mut [u8]) -> anyhow::Result<()> {
        self.from
            .read_exact(bytes)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => anyhow::anyhow!("it is cut off"),
                _ => anyhow::Error::new(error).context("it cannot be read"),
            })
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(since: Option<&str>) -> Head {
        Head {
            size_bytes: 1 << 20,
            name: "disk@tuesday".into(),
            since: since.map(str::to_owned),
        }
    }

    fn stream(since: Option<&str>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = StreamWriter::begin(&mut bytes, &head(since)).expect("memory");
        writer.bytes(65_536, b"some bytes").expect("memory");
        writer.zeroes(131_072, 65_536).expect("memory");
        writer.end().expect("memory");
        bytes
    }

    fn read(bytes: &[u8]) -> anyhow::Result<(Head, Vec<Part>)> {
        let (mut reader, head) = StreamReader::begin(bytes)?;
        let mut parts = Vec::new();
        while let Some(part) = reader.next()? {
            parts.push(part);
        }
        Ok((head, parts))
    }

    #[test]
    fn a_stream_is_read_as_it_was_written() {
        let parts = vec![
            Part::Bytes(65_536, b"some bytes".to_vec()),
            Part::Zeroes(131_072, 65_536),
        ];
        for since in [None, Some("disk@monday")] {
            let whole = read(&stream(since)).expect("sound");
            assert_eq!(whole, (head(since), parts.clone()));
        }
    }

    #[test]
    fn the_format_stays_as_it_is_drawn() {
        let bytes = stream(Some("s"));
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(&hex[..16], "53544156455356 01".replace(' ', ""));
        assert_eq!(
            bytes.len(),
            8 + 8 + 2 + 12 + 2 + 1 + 4 + (17 + 10 + 4) + 21 + 21
        );
    }

    #[test]
    fn what_is_cut_off_or_damaged_is_refused() {
        let bytes = stream(Some("disk@monday"));
        for cut in 0..bytes.len() {
            assert!(read(&bytes[..cut]).is_err(), "{cut}");
        }
        for at in 0..bytes.len() {
            for bit in [1, 128] {
                let mut damaged = bytes.clone();
                damaged[at] ^= bit;
                assert!(read(&damaged).is_err(), "byte {at}");
            }
        }
        let mut beyond = Vec::new();
        let mut writer = StreamWriter::begin(&mut beyond, &head(None)).expect("memory");
        writer.zeroes(1 << 20, 1).expect("memory");
        assert!(read(&beyond).is_err());
    }
}
