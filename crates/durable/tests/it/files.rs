//! The files of a disk in a folder.

use staves_disk::DiskId;
use staves_durable::{DiskFiles, DiskSizes, create_files, open};

const ID: DiskId = DiskId([3; 16]);

#[test]
fn a_disk_is_made_whole_or_not_at_all_and_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("disk");
    let sizes = DiskSizes::of(4 << 20);
    // A crash has left this of an attempt.
    std::fs::create_dir(folder.path().join("disk.new")).expect("a folder");
    std::fs::write(folder.path().join("disk.new/journal"), b"half").expect("a file");
    create_files(&disk, sizes, ID).expect("room");
    assert!(!folder.path().join("disk.new").exists());
    let files = DiskFiles::open(&disk).expect("it is there");
    let opened = open(&files).expect("an empty disk");
    assert!(opened.members.is_empty() && opened.dropped.is_empty());
    let (used, free) = opened.store.page_file().places();
    assert!(used == 0 && free >= 1024 + 32, "{free} places");
    let again = create_files(&disk, sizes, ID).expect_err("it is there");
    assert_eq!(again.kind(), std::io::ErrorKind::AlreadyExists);
    let taken = DiskFiles::open(&disk).expect_err("it is open");
    assert!(taken.to_string().contains("is open already"), "{taken}");
}

#[test]
fn a_disk_without_room_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("disk");
    let sizes = DiskSizes::of(1 << 50);
    create_files(&disk, sizes, ID).expect_err("no disk has a petabyte here");
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("it reads").count(),
        0
    );
}

#[test]
fn files_of_two_disks_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    create_files(&one, DiskSizes::of(1 << 20), ID).expect("room");
    create_files(&other, DiskSizes::of(1 << 20), DiskId([4; 16])).expect("room");
    std::fs::copy(other.join("journal"), one.join("journal")).expect("a copy");
    let files = DiskFiles::open(&one).expect("they are there");
    let mixed = open(&files).map(drop).expect_err("they are of two disks");
    assert!(mixed.to_string().contains("two disks"), "{mixed}");
    std::fs::remove_file(one.join("table")).expect("it was there");
    drop(files);
    let missing = DiskFiles::open(&one).expect_err("one is gone");
    assert!(missing.to_string().starts_with("table:"), "{missing}");
}
