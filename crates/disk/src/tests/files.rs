//! A journal in a file, with its thread.

use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::{BLOCK, DISK, opened};
use crate::format::JOURNAL_BYTES_MIN;
use crate::{Committer, Device, FileDevice, OpenError};

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn what_was_committed_is_in_the_file_and_its_end_is_marked() {
    for is_closed in [true, false] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let device = FileDevice::create_journal(&path, JOURNAL_BYTES_MIN, DISK).expect("room");
        let (journal, _) = opened(&device).expect("it opens");
        let committer = Committer::start(journal, Box::new(device), |_| {}).expect("a thread");
        let number = committer.append(b"one").expect("room");
        assert!(committer.wait(number, PATIENCE).expect("well"));
        committer.append(b"two").expect("room");
        match is_closed {
            true => committer.close().expect("well"),
            false => drop(committer),
        }
        let copy = folder.path().join("copy");
        std::fs::copy(&path, &copy).expect("room");
        let device = FileDevice::open(&path).expect("it is open no more");
        let (_, records) = opened(&device).expect("it opens");
        assert_eq!(records.into_values().collect::<Vec<_>>(), [b"one", b"two"]);
        // The last batch is the second block.
        let file = std::fs::File::options().write(true).open(&copy);
        let rot = file
            .expect("it is there")
            .write_all_at(&[0xFF], 3 * BLOCK + 66);
        rot.expect("well");
        let refused = opened(&FileDevice::open(&copy).expect("it is there"));
        assert!(
            matches!(refused, Err(OpenError::Damaged { .. })),
            "{refused:?}"
        );
    }
}

/// Regression: two processes wrote one journal.
#[test]
fn a_file_is_open_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let device = FileDevice::create_journal(&path, JOURNAL_BYTES_MIN, DISK).expect("room");
    for _ in 0..2 {
        let taken = FileDevice::open(&path).expect_err("it is open");
        assert_eq!(taken.kind(), ErrorKind::WouldBlock);
        assert!(taken.to_string().contains("open already"), "{taken}");
    }
    drop(device);
    FileDevice::open(&path).expect("it is not open any more");
}

/// Regression: a crash between a file and its headers left a journal that looked damaged.
#[test]
fn a_journal_is_made_whole_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    // A crash left this one.
    let cut_off = folder.path().join("journal.new");
    std::fs::write(&cut_off, [7; 100]).expect("room");
    drop(FileDevice::create_journal(&path, JOURNAL_BYTES_MIN, DISK).expect("room"));
    assert!(!cut_off.exists());
    let device = FileDevice::open(&path).expect("it is there");
    opened(&device).expect("it is a journal from the first moment on");
    let again = FileDevice::create_journal(&path, JOURNAL_BYTES_MIN, DISK);
    let again = again.expect_err("it exists");
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    for bytes in [1 << 62, JOURNAL_BYTES_MIN - 1] {
        let other = folder.path().join("other");
        FileDevice::create_journal(&other, bytes, DISK).expect_err("too large or too small");
        let left = std::fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(left, 1, "only the first one is there");
    }
}

/// Bytes that pass the system's memory by, in whole blocks or not, are read back as those that go through it.
#[test]
fn what_is_written_past_the_memory_of_the_system_is_what_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    let block = BLOCK as usize;
    drop(FileDevice::allocate(&path, 8 << 20).expect("room"));
    let device = FileDevice::open_to_write(&path).expect("it is there");
    let bytes: Vec<u8> = (0..6 << 20).map(|at: u32| (at % 251) as u8).collect();
    let mut into = vec![0; bytes.len()];
    device.read(0, &mut into).expect("well");
    assert!(into.iter().all(|b| *b == 0), "the system has it in memory");
    device.write(BLOCK, &bytes).expect("room");
    device.read(BLOCK, &mut into).expect("well");
    assert!(into == bytes, "as it was written");
    device.write(BLOCK + 7, &bytes[..3]).expect("room");
    device.write(3 * BLOCK, &bytes[5..block + 5]).expect("room");
    device.sync().expect("well");
    device.read(BLOCK, &mut into).expect("well");
    let mut expected = bytes.clone();
    expected[7..10].copy_from_slice(&bytes[..3]);
    expected[2 * block..3 * block].copy_from_slice(&bytes[5..block + 5]);
    assert!(into == expected, "the last one of each place counts");
    device.write((8 << 20) - 1, &[1, 2]).expect_err("beyond");
    let parts = [&bytes[..3], &bytes[7..5 << 20], &bytes[..4]];
    device.write_parts(2 * BLOCK, &parts).expect("room");
    let whole = parts.concat();
    into.resize(whole.len(), 0);
    device.read(2 * BLOCK, &mut into).expect("well");
    assert!(into == whole, "one part behind the other");
}
