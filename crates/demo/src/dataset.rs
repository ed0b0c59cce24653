//! The demo's last act: a dataset, read from the memory of all nodes before and after one of them dies.
//!
//! Its files hold numbers that follow from a seed, and each has a checksum that was taken as it was written. They
//! are read through a mount, as any program would, or where nothing can be mounted through the client.

mod mounted;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;
use staves_client::{Client, ClientOptions, Dataset};
use tokio::runtime::Runtime;

use self::mounted::Mounted;
use staves_cli_common::served::Served;

/// The dataset's name, and that of the pool.
pub const NAME: &str = "demo-files";
/// Its files.
pub const FILES: u32 = 12;
/// Bytes of each.
const FILE_BYTES: u64 = 4 << 20;
/// Bytes of all.
pub const BYTES: u64 = FILES as u64 * FILE_BYTES;
/// Bytes of one read.
const READ_BYTES: u64 = 256 << 10;
/// Wrong files that are told one by one.
const EXAMPLES: usize = 5;

/// A folder of files, and what their checksums must be.
pub struct GeneratedSource {
    folder: PathBuf,
    sums: Vec<u32>,
}

impl GeneratedSource {
    /// Writes the files. A file counts as changing until two seconds after it was written: better early.
    pub fn generate(folder: PathBuf) -> anyhow::Result<GeneratedSource> {
        let write = |number: u32| {
            let path = folder.join(name(number));
            let bytes = contents(number);
            let written = File::create(&path).and_then(|mut file| file.write_all(&bytes));
            written.with_context(|| format!("cannot write {}", path.display()))?;
            Ok(crc32c::crc32c(&bytes))
        };
        std::fs::create_dir(&folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let sums: anyhow::Result<Vec<u32>> = (0..FILES).map(write).collect();
        let sums = sums?;
        Ok(GeneratedSource { folder, sums })
    }
}

fn name(number: u32) -> String {
    format!("{:02}.dat", number + 1)
}

/// A file's bytes, which follow from its number.
fn contents(number: u32) -> Vec<u8> {
    let mut word = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(u64::from(number) + 1);
    let words = (0..FILE_BYTES / 8).flat_map(|_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    });
    words.collect()
}

/// The counts of reads and of findings.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReadCounts {
    /// Files whose checksum was compared, each time that they were read.
    pub checked: u64,
    /// Of these, such that were wrong.
    pub wrong: u64,
    /// Bytes of all that were checked.
    pub bytes: u64,
    /// Reads that ended in an error; their file counts as wrong.
    pub errors: u64,
    /// The longest that one read took, of those that there were.
    pub longest_read_us: u64,
    /// The first that was wrong, and how.
    #[serde(skip)]
    pub examples: Vec<String>,
}

impl ReadCounts {
    /// Counts what was seen later, too.
    pub fn add(&mut self, later: ReadCounts) {
        self.checked += later.checked;
        self.wrong += later.wrong;
        self.bytes += later.bytes;
        self.errors += later.errors;
        self.longest_read_us = self.longest_read_us.max(later.longest_read_us);
        self.examples.extend(later.examples);
        self.examples.truncate(EXAMPLES);
    }
}

/// The reader of the files.
pub struct DatasetReader {
    sums: Vec<u32>,
    way: Way,
}

enum Way {
    Mount(Mounted),
    Client(Runtime, Dataset),
}

impl DatasetReader {
    /// Mounts the source beside it, or opens it through the client; and why that, if so.
    pub fn open(
        program: &Path,
        doors: &[String],
        source: GeneratedSource,
        look_up: impl Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<(DatasetReader, Option<String>)> {
        let GeneratedSource { folder, sums } = source;
        let (way, why) = match Mounted::start(program, doors, &folder, look_up)? {
            Ok(mounted) => (Way::Mount(mounted), None),
            Err(why) => {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(1)
                    .enable_all()
                    .build()
                    .context("cannot start the program's runtime")?;
                let text = folder.to_str().context("the folder's path is not UTF-8")?;
                let data = runtime.block_on(async {
                    let client = Client::connect(doors, ClientOptions::default()).await?;
                    client.dataset(NAME, NAME, text).await
                });
                let data = data.context("cannot open the dataset")?;
                (Way::Client(runtime, data), Some(why))
            }
        };
        Ok((DatasetReader { sums, way }, why))
    }

    /// In the words of the story.
    pub fn way(&self) -> &'static str {
        match self.way {
            Way::Mount(_) => "a mount",
            Way::Client(..) => "the client library",
        }
    }

    /// Reads all files and compares their checksums. `look_up` ends it with an error.
    pub fn check(&self, look_up: impl Fn() -> anyhow::Result<()>) -> anyhow::Result<ReadCounts> {
        let mut seen = ReadCounts::default();
        for (number, sum) in (0..).zip(&self.sums) {
            let (read, longest) = self.checksum(number, &look_up)?;
            seen.checked += 1;
            seen.bytes += FILE_BYTES;
            seen.longest_read_us = seen.longest_read_us.max(longest.as_micros() as u64);
            let example = match read {
                Ok(read) if read == *sum => continue,
                Ok(read) => format!("{}: checksum {read:08x}, not {sum:08x}", name(number)),
                Err(error) => {
                    seen.errors += 1;
                    format!("{}: {error}", name(number))
                }
            };
            seen.wrong += 1;
            seen.examples.push(example);
        }
        seen.examples.truncate(EXAMPLES);
        Ok(seen)
    }

    /// A file's checksum as it is read, or why it cannot be; and the longest read. Only an interruption is an error.
    fn checksum(
        &self,
        number: u32,
        look_up: impl Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<(Result<u32, String>, Duration)> {
        let (mut sum, mut longest) = (0, Duration::ZERO);
        let file = match self.file(number) {
            Ok(file) => file,
            Err(why) => return Ok((Err(why), longest)),
        };
        for from in (0..FILE_BYTES).step_by(READ_BYTES as usize) {
            look_up()?;
            let began = Instant::now();
            let read = file(from);
            longest = longest.max(began.elapsed());
            match read {
                Ok(bytes) => sum = crc32c::crc32c_append(sum, &bytes),
                Err(why) => {
                    look_up()?;
                    return Ok((Err(why), longest));
                }
            }
        }
        Ok((Ok(sum), longest))
    }

    /// Opens a file; what reads of it.
    #[allow(clippy::type_complexity)] // one closure of two
    fn file(
        &self,
        number: u32,
    ) -> Result<Box<dyn Fn(u64) -> Result<Vec<u8>, String> + '_>, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let name = name(number);
        match &self.way {
            Way::Mount(mounted) => {
                let file = File::open(mounted.point().join(name)).map_err(|e| text(&e))?;
                // What the kernel has kept of an earlier read is not the cluster's doing.
                let advice = rustix::fs::Advice::DontNeed;
                rustix::fs::fadvise(&file, 0, None, advice).map_err(|e| text(&e))?;
                Ok(Box::new(move |from| {
                    let mut bytes = vec![0; READ_BYTES as usize];
                    let read = file.read_exact_at(&mut bytes, from);
                    read.map(|()| bytes).map_err(|e| text(&e))
                }))
            }
            Way::Client(runtime, data) => {
                let file = data.open(name.as_bytes()).map_err(|e| text(&e))?;
                Ok(Box::new(move |from| {
                    let read = runtime.block_on(data.read_at(&file, from, READ_BYTES as usize));
                    read.map(Vec::from).map_err(|e| text(&e))
                }))
            }
        }
    }

    /// Ends it: unmounts, if it was a mount. Where the bytes came from.
    pub fn end(self) -> anyhow::Result<Served> {
        let served = match self.way {
            Way::Mount(mounted) => mounted.end()?,
            Way::Client(_, data) => Served::of(data.figures()),
        };
        ensure!(served.all() > 0, "nothing was read by way of the cluster");
        Ok(served)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_differ_and_follow_from_their_numbers() {
        assert_eq!(contents(3).len() as u64, FILE_BYTES);
        assert!(contents(3) == contents(3));
        assert!(contents(3) != contents(4));
        let folder = tempfile::tempdir().expect("a folder");
        let source = GeneratedSource::generate(folder.path().join("x")).expect("written");
        let read = std::fs::read(source.folder.join(name(7))).expect("there");
        assert_eq!(crc32c::crc32c(&read), source.sums[7]);
        let sums: std::collections::BTreeSet<_> = source.sums.iter().collect();
        assert_eq!(sums.len() as u32, FILES);
    }
}
