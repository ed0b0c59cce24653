//! Names and folders of all kinds.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use staves_mount::Options;

use crate::{Fixture, Seen, Watched, age, can_mount};

fn names(dir: &std::path::Path) -> BTreeSet<OsString> {
    std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect()
}

#[test]
fn ten_thousand_names_in_a_folder_are_all_listed_and_found() {
    let Some(fixture) = Fixture::new(|source| {
        for i in 0..10_000 {
            std::fs::write(
                source.join(format!("a name of some length, number {i}")),
                [],
            )
            .unwrap();
        }
    }) else {
        return;
    };
    let listed = names(fixture.dir.path());
    assert_eq!(listed.len(), 10_000);
    assert_eq!(listed, names(fixture.source.path()));
    for i in (0..10_000).step_by(997) {
        let path = fixture.at(&format!("a name of some length, number {i}"));
        assert!(std::fs::metadata(path).unwrap().is_file());
    }
}

#[test]
fn deep_folders_and_odd_names_are_as_they_are_at_the_source() {
    let odd: [&[u8]; 6] = [
        b"\xff\xfe",
        b" ",
        b"a\nb",
        b"\\040",
        "\u{e9}\u{1f9ec}".as_bytes(),
        &[b'x'; 255],
    ];
    let deep: PathBuf = (0..60).map(|i| format!("folder-{i}")).collect();
    let Some(fixture) = Fixture::new(|source| {
        std::fs::create_dir_all(source.join(&deep)).unwrap();
        for name in odd {
            let path = source.join(&deep).join(OsStr::from_bytes(name));
            std::fs::write(path, name).unwrap();
        }
    }) else {
        return;
    };
    let dir = fixture.dir.path().join(&deep);
    let expected: BTreeSet<OsString> = odd
        .iter()
        .map(|n| OsStr::from_bytes(n).to_owned())
        .collect();
    assert_eq!(names(&dir), expected);
    for name in odd {
        assert_eq!(
            std::fs::read(dir.join(OsStr::from_bytes(name))).unwrap(),
            name
        );
    }
    let error = std::fs::metadata(dir.join("absent")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn links_are_shown_and_never_followed_by_us() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    let Some(fixture) = Fixture::new(|source| {
        std::fs::write(source.join("file"), "bytes").unwrap();
        symlink("file", source.join("inside")).unwrap();
        symlink("../../nowhere", source.join("broken")).unwrap();
        symlink(outside.path(), source.join("outside")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            source.join("pipe"),
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
    }) else {
        return;
    };
    assert_eq!(
        std::fs::read_link(fixture.at("inside")).unwrap(),
        PathBuf::from("file")
    );
    assert_eq!(
        std::fs::read_link(fixture.at("broken")).unwrap(),
        PathBuf::from("../../nowhere")
    );
    assert_eq!(
        std::fs::read(fixture.at("inside")).unwrap(),
        b"bytes",
        "the kernel follows it within the mount"
    );
    assert!(
        std::fs::symlink_metadata(fixture.at("outside"))
            .unwrap()
            .is_symlink()
    );
    // The kernel goes where the link says, by itself. The folder does not let anyone through.
    let folder = staves_mount::Folder::open(fixture.source.path()).unwrap();
    let through = staves_mount::Files::stat(&folder, "outside/secret".as_ref());
    assert_eq!(through, Err(staves_mount::FileError::NotFound));
    assert!(
        !names(fixture.dir.path()).contains(OsStr::new("pipe")),
        "no bytes to show"
    );
}

#[test]
fn attributes_are_those_of_the_source_and_inodes_the_same_at_the_next_mount() {
    if !can_mount() {
        return;
    }
    let mut fixture = Fixture::new(|source| {
        std::fs::create_dir(source.join("folder")).unwrap();
        std::fs::write(source.join("folder/file"), "bytes").unwrap();
        std::fs::set_permissions(source.join("folder/file"), PermissionsExt::from_mode(0o640))
            .unwrap();
    })
    .unwrap();
    let ours = std::fs::metadata(fixture.at("folder/file")).unwrap();
    let theirs = std::fs::metadata(fixture.source("folder/file")).unwrap();
    assert_eq!(ours.modified().unwrap(), theirs.modified().unwrap());
    assert_eq!(ours.mode(), theirs.mode());
    assert_eq!(ours.uid(), rustix::process::geteuid().as_raw());
    let folder = std::fs::metadata(fixture.at("folder")).unwrap().ino();
    fixture.mounted.take().unwrap().unmount().unwrap();
    let files = staves_mount::Folder::open(fixture.source.path()).unwrap();
    let again = staves_mount::mount(files, fixture.dir.path(), &Options::default()).unwrap();
    assert_eq!(
        std::fs::metadata(fixture.at("folder/file")).unwrap().ino(),
        ours.ino()
    );
    assert_eq!(
        std::fs::metadata(fixture.at("folder")).unwrap().ino(),
        folder
    );
    drop(again);
}

#[test]
fn more_names_than_inodes_are_allowed_are_all_found_still() {
    let options = Options {
        inodes_max: 200,
        ..Options::default()
    };
    let fill = |source: &std::path::Path| {
        for i in 0..2000 {
            std::fs::write(source.join(i.to_string()), i.to_string()).unwrap();
        }
    };
    let Some(fixture) = Fixture::with(&options, fill, |folder| folder) else {
        return;
    };
    let mut refused = 0;
    for i in 0..2000 {
        // The kernel is asked to forget as fast as it can; who is faster is told so, and tries again.
        staves_testkit::wait_until("a name is found", || {
            match std::fs::read(fixture.at(&i.to_string())) {
                Ok(bytes) => {
                    assert_eq!(bytes, i.to_string().as_bytes());
                    true
                }
                Err(error) => {
                    assert_eq!(crate::errno(&error), rustix::io::Errno::NFILE);
                    refused += 1;
                    false
                }
            }
        });
    }
    assert!(refused < 2000, "{refused}");
}

#[test]
fn more_folders_than_inodes_are_allowed_are_all_walked_through() {
    let options = Options {
        inodes_max: 200,
        ..Options::default()
    };
    let fill = |source: &std::path::Path| {
        for i in 0..1000 {
            std::fs::create_dir_all(source.join(format!("{i}/x"))).unwrap();
        }
    };
    let Some(fixture) = Fixture::with(&options, fill, |folder| folder) else {
        return;
    };
    // Who is in a folder stays there, whatever is forgotten meanwhile.
    let within = rustix::fs::open(
        fixture.at("500/x"),
        rustix::fs::OFlags::PATH,
        rustix::fs::Mode::empty(),
    );
    let within = within.unwrap();
    for i in 0..1000 {
        staves_testkit::wait_until("a folder is found", || {
            match std::fs::read_dir(fixture.at(&format!("{i}/x"))) {
                Ok(entries) => entries.count() == 0,
                Err(error) => {
                    assert_eq!(crate::errno(&error), rustix::io::Errno::NFILE);
                    false
                }
            }
        });
    }
    assert!(rustix::fs::fstat(&within).is_ok());
}

#[test]
fn a_name_that_went_since_its_folder_was_listed_is_left_out_and_the_others_are_not() {
    let seen = Arc::new(Seen::default());
    let options = Options {
        lifetime: std::time::Duration::ZERO,
        ..Options::default()
    };
    let fill = |source: &std::path::Path| {
        for name in ["goes", "stays"] {
            std::fs::write(source.join(name), name).unwrap();
        }
    };
    let wrap = |folder| Watched {
        folder,
        seen: seen.clone(),
    };
    let Some(fixture) = Fixture::with(&options, fill, wrap) else {
        return;
    };
    // Another version is listed than the kernel knows, and is not there any more when that is looked at.
    assert!(fixture.at("goes").metadata().is_ok());
    age(&fixture.source("goes"));
    seen.gone.store(true, Ordering::Relaxed);
    let left = names(fixture.dir.path());
    assert_eq!(left, BTreeSet::from(["stays".into()]));
}
