//! The same bytes, by every way to read.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::Command;

use staves_testkit::tools::missing;

use crate::{Fixture, age, noise};

/// Sizes about the edges of pages and requests.
const SIZES: [usize; 7] = [0, 1, 4095, 4096, 131_073, (1 << 20) + 5, 5_000_000];

fn fill(source: &std::path::Path) {
    for size in SIZES {
        std::fs::write(source.join(size.to_string()), noise(size as u64, size)).unwrap();
        age(&source.join(size.to_string()));
    }
}

#[test]
fn d8_a_program_that_knows_nothing_of_us_reads_the_same_bytes() {
    let Some(fixture) = Fixture::new(fill) else {
        return;
    };
    for size in SIZES {
        let name = size.to_string();
        let expected = noise(size as u64, size);
        assert_eq!(
            std::fs::metadata(fixture.at(&name)).unwrap().len(),
            size as u64
        );
        assert_eq!(
            std::fs::read(fixture.at(&name)).unwrap(),
            expected,
            "{size}"
        );
        let sum = |path| Command::new("md5sum").arg(path).output().unwrap().stdout;
        let ours = sum(fixture.at(&name));
        assert_eq!(ours[..32], sum(fixture.source(&name))[..32], "{size}");
        let cat = Command::new("cat").arg(fixture.at(&name)).output().unwrap();
        assert_eq!(cat.stdout, expected, "{size}");
    }
}

#[test]
fn reads_at_any_offset_give_the_bytes_that_are_there() {
    let Some(fixture) = Fixture::new(fill) else {
        return;
    };
    for size in SIZES {
        let expected = noise(size as u64, size);
        let file = File::open(fixture.at(&size.to_string())).unwrap();
        for i in 0..200u64 {
            let at = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize % (size + 5000);
            let len = (i as usize * 977) % 20_000 + 1;
            let mut got = vec![0; len];
            let read = file.read_at(&mut got, at as u64).unwrap();
            let from = at.min(size);
            assert_eq!(
                got[..read],
                expected[from..(from + len).min(size)],
                "{at}+{len} of {size}"
            );
        }
    }
}

#[test]
fn four_readers_at_once_read_right_bytes() {
    let Some(fixture) = Fixture::new(fill) else {
        return;
    };
    let size = 5_000_000;
    let expected = noise(size as u64, size);
    let path = fixture.at(&size.to_string());
    std::thread::scope(|scope| {
        for reader in 0..4u64 {
            let (path, expected) = (&path, &expected);
            scope.spawn(move || {
                let file = File::open(path).unwrap();
                for i in 0..300u64 {
                    let at = (i * 4 + reader).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize
                        % (size - 8192);
                    let mut got = vec![0; 8192];
                    file.read_exact_at(&mut got, at as u64).unwrap();
                    assert_eq!(got, expected[at..at + 8192]);
                }
                assert_eq!(std::fs::read(path).unwrap(), *expected);
            });
        }
    });
}

/// By Python, for mapping memory is no safe thing to do here.
#[test]
fn a_mapped_file_has_the_same_bytes() {
    let Some(fixture) = Fixture::new(fill) else {
        return;
    };
    let program = "import sys, mmap, hashlib\n\
        f = open(sys.argv[1], 'rb')\n\
        m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n\
        f.close()\n\
        end = len(m) - 5\n\
        jumps = b''.join(m[i * 7919093 % end:][:5] for i in range(500))\n\
        print(hashlib.md5(m).hexdigest(), hashlib.md5(jumps).hexdigest())";
    let run = |path| {
        Command::new("python3")
            .args(["-c", program])
            .arg(path)
            .output()
    };
    let theirs = match run(fixture.source("5000000")) {
        Ok(output) if output.status.success() => output,
        other => return missing(format_args!("python3 does not run: {other:?}")),
    };
    let ours = run(fixture.at("5000000")).unwrap();
    assert_eq!(ours.stdout, theirs.stdout, "{ours:?}");
    assert!(ours.stdout.len() > 60);
}

#[test]
fn a_sparse_file_of_a_tebibyte_is_read_at_its_end() {
    const TIB: u64 = 1 << 40;
    let Some(fixture) = Fixture::new(|source| {
        let file = File::create(source.join("large")).unwrap();
        file.set_len(TIB).unwrap();
        file.write_all_at(b"the end", TIB - 7).unwrap();
    }) else {
        return;
    };
    let mut file = File::open(fixture.at("large")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), TIB);
    file.seek(SeekFrom::End(-10)).unwrap();
    let mut end = Vec::new();
    file.read_to_end(&mut end).unwrap();
    assert_eq!(end, b"\0\0\0the end");
    let mut middle = [1; 100];
    file.read_exact_at(&mut middle, TIB / 2).unwrap();
    assert_eq!(middle, [0; 100]);
}

/// Regression: all of a file was data to programs that look for holes, and each file had one name.
#[test]
fn holes_and_links_are_those_of_the_source() {
    let Some(fixture) = Fixture::new(|source| {
        let file = File::create(source.join("holes")).unwrap();
        file.write_all_at(b"acgt", 1 << 20).unwrap();
        file.set_len(4 << 20).unwrap();
        std::fs::create_dir_all(source.join("a/b")).unwrap();
        std::fs::hard_link(source.join("holes"), source.join("a/more")).unwrap();
    }) else {
        return;
    };
    let find = |path: PathBuf, to| rustix::fs::seek(File::open(path).unwrap(), to);
    let size = 4 << 20;
    for from in [
        0,
        1,
        4096,
        1 << 20,
        (1 << 20) + 5000,
        size - 1,
        size,
        size + 1,
    ] {
        for to in [rustix::fs::SeekFrom::Data, rustix::fs::SeekFrom::Hole] {
            let ours = find(fixture.at("holes"), to(from));
            assert_eq!(ours, find(fixture.source("holes"), to(from)), "{from}");
        }
    }
    for name in ["", "a", "a/b", "a/more", "holes"] {
        let (ours, theirs) = [fixture.at(name), fixture.source(name)]
            .map(|path| std::fs::metadata(path).unwrap())
            .into();
        assert_eq!(ours.nlink(), theirs.nlink(), "{name}");
        let holes = |seen: &std::fs::Metadata| seen.blocks() * 512 < seen.size();
        assert!(theirs.is_dir() || holes(&ours) == holes(&theirs), "{name}");
    }
}
