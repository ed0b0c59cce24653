//! Small files that people name: a secret, a configuration. A path may lead to a pipe that nobody writes to, or to a device
//! without an end: a read is bounded in bytes and in time.
//!
//! Pipes are taken, for shells give them: `--secret-file <(command)`.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

/// The time in which a pipe has to be written to and closed.
const WAIT: Duration = Duration::from_secs(5);
/// The pause between two looks at a pipe.
const LOOK: Duration = Duration::from_millis(10);
/// Bytes that are read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Reads a file of at most so many bytes. The error says what is wrong with it, and not its name.
pub fn read_small_file(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    read_opened(open(path)?, bytes_max)
}

/// Opens it. To open a pipe waits for a writer otherwise.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let nonblock = OFlags::NONBLOCK.bits() as i32;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(nonblock).open(path)
}

/// Reads what was opened so.
pub(crate) fn read_opened(file: File, bytes_max: usize) -> io::Result<Vec<u8>> {
    read_within(file, bytes_max, WAIT)
}

fn read_within(mut file: File, bytes_max: usize, wait: Duration) -> io::Result<Vec<u8>> {
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(io::Error::new(ErrorKind::IsADirectory, "it is a folder"));
    }
    let is_pipe = kind.is_fifo();
    let until = Instant::now() + wait;
    let (mut bytes, mut piece) = (Vec::new(), vec![0; PIECE_BYTES.min(bytes_max + 1)]);
    loop {
        match file.read(&mut piece) {
            // A pipe that nobody has opened for writing yet looks like one at its end.
            Ok(0) if !is_pipe || !bytes.is_empty() => return Ok(bytes),
            Ok(0) => {}
            Ok(read) => {
                bytes.extend_from_slice(piece.get(..read).unwrap_or_default());
                if bytes.len() > bytes_max {
                    let text = format!("it has more than {bytes_max} bytes");
                    return Err(io::Error::new(ErrorKind::FileTooLarge, text));
                }
                continue;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if Instant::now() >= until {
            let what = if is_pipe { "a pipe" } else { "no plain file" };
            let text = format!(
                "it is {what}, and was not written to its end within {} s: name a file, or write to it",
                wait.as_secs()
            );
            return Err(io::Error::new(ErrorKind::TimedOut, text));
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a secret in a pipe that nobody wrote to held whoever read it for ever, whatever signal came; a configuration that is a
    /// device without an end took all memory.
    #[test]
    fn neither_pipes_nor_devices_hold_who_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let soon = Duration::from_millis(100);
        let error = read_within(open(&pipe).unwrap(), 100, soon).unwrap_err();
        assert!(error.to_string().contains("it is a pipe"), "{error}");
        // One that is written to, in pieces.
        let path = pipe.clone();
        let writer = std::thread::spawn(move || {
            use std::io::Write;
            let mut file = OpenOptions::new().write(true).open(path).unwrap();
            for _ in 0..3 {
                file.write_all(b"secret").unwrap();
                std::thread::sleep(3 * LOOK);
            }
        });
        let read = read_within(open(&pipe).unwrap(), 100, Duration::from_secs(60)).unwrap();
        assert_eq!(read, b"secretsecretsecret");
        writer.join().unwrap();
        let error = read_small_file(Path::new("/dev/zero"), 1 << 20).unwrap_err();
        assert!(error.to_string().contains("more than 1048576"), "{error}");
        assert_eq!(read_small_file(Path::new("/dev/null"), 100).unwrap(), b"");
        let error = read_small_file(dir.path(), 100).unwrap_err();
        assert!(error.to_string().contains("a folder"), "{error}");
        let plain = dir.path().join("plain");
        std::fs::write(&plain, [7; 100]).unwrap();
        assert_eq!(read_small_file(&plain, 100).unwrap(), [7; 100]);
        assert!(read_small_file(&plain, 99).is_err());
    }
}
