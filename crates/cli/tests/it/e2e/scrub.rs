//! A scrub finds bytes that changed in a node's memory by themselves, and mends what it can.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::{Cluster, PATIENCE};

const PAGE_BYTES: usize = 4096;

pub(super) fn page(seed: usize) -> Vec<u8> {
    (0..PAGE_BYTES)
        .map(|i| (seed + i * 7 + i / 251) as u8 | 1)
        .collect()
}

impl Cluster {
    /// The memory of a running node.
    fn arena(&self, node: usize) -> File {
        let child = self.nodes[node].child.as_ref().expect("it runs");
        let folder = format!("/proc/{}/fd", child.id());
        let links = std::fs::read_dir(folder)
            .expect("its descriptors")
            .flatten();
        let is_arena = |link: &std::fs::DirEntry| {
            let to = std::fs::read_link(link.path()).unwrap_or_default();
            to.to_string_lossy().contains("staves-arena")
        };
        let link = links.into_iter().find(is_arena).expect("an arena");
        let options = File::options().read(true).write(true).open(link.path());
        options.expect("ours to look at")
    }

    /// The place of this page in a node's memory.
    fn place_of(&self, node: usize, wanted: &[u8]) -> Option<u64> {
        let arena = self.arena(node);
        let mut bytes = vec![0; 1 << 20];
        for at in (0..).step_by(1 << 20) {
            let read = arena.read_at(&mut bytes, at).expect("memory");
            let mut pages = bytes[..read].chunks_exact(PAGE_BYTES);
            if let Some(page) = pages.position(|page| page == wanted) {
                return Some(at + (page * PAGE_BYTES) as u64);
            }
            if read == 0 {
                break;
            }
        }
        None
    }

    /// Turns one bit of a page over, as a cosmic ray would.
    pub(super) fn flip(&self, node: usize, wanted: &[u8], byte: usize) {
        let place = self.place_of(node, wanted).expect("the page is there");
        let flipped = [wanted[byte] ^ 0x10];
        let put = self.arena(node).write_at(&flipped, place + byte as u64);
        assert_eq!(put.expect("written"), 1);
    }

    /// The node of a member slot of a group.
    pub(super) fn node_of(&self, group: &str, slot: u64) -> usize {
        let shown = self.run(0, &["group", "show", group, "-o", "json"]).stdout;
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        let mut members = shown["members"].as_array().expect("members").iter();
        let member = members
            .find(|member| member["slot"] == slot)
            .expect("listed");
        let named = |node: &super::Node| member["name"] == node.native.as_str();
        self.nodes.iter().position(named).expect("one of ours")
    }

    /// The report of a scrub, and its exit code, once the groups are whole.
    fn scrub(&self, more: &[&str]) -> (Option<i32>, serde_json::Value, String) {
        let all = [&["scrub", "--pool", "memory", "-o", "json"], more].concat();
        let until = Instant::now() + PATIENCE;
        loop {
            let ran = self.run(0, &all);
            let changing = ["are not whole", "are being rebuilt"];
            let whole = !changing.iter().any(|words| ran.stderr.contains(words));
            if whole || Instant::now() >= until {
                let found = serde_json::from_str(&ran.stdout).unwrap_or_default();
                return (ran.code, found, ran.stderr);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn put(&self, offset: &str, bytes: &[u8]) {
        let out = self.pipe(0, &["memory", "write", "r", "--offset", offset], bytes);
        assert!(out.status.success(), "{out:?}");
    }
}

/// I4: a page of parity that is not the code of the data is made anew; a page of data that all others contradict is
/// told, and rebuilt when its node begins anew.
#[test]
fn i4_flipped_bytes_are_found_and_mended() {
    let mut cluster = Cluster::start(4);
    let c = &cluster;
    let pool = [
        "pool", "create", "memory", "--kind", "memory", "--scheme", "2+2", "--memory", "32MiB",
    ];
    assert_eq!(c.run(0, &pool).code, Some(0));
    let (code, found, said) = c.scrub(&[]);
    assert_eq!(
        (code, &found["result"]),
        (Some(1), &"nothing-checked".into())
    );
    assert!(said.contains("no page was checked"), "{said}");
    let made = c.run(0, &["memory", "create", "r", "--size", "10MiB"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let (code, found, said) = c.scrub(&[]);
    assert_eq!(
        (code, &found["result"]),
        (Some(1), &"nothing-checked".into())
    );
    assert!(said.contains("nothing was ever written"), "{said}");

    // Only the first data bucket has anything at these pages, and its coefficients are all 1: so parity has the same.
    c.put("0B", &page(3));
    c.put("4KiB", &page(100));
    let (code, found, said) = c.scrub(&[]);
    assert_eq!(
        (code, &found["result"]),
        (Some(0), &"clean".into()),
        "{said}"
    );
    let pages = found["pages_checked"].as_u64().expect("a count");
    assert!((2..64).contains(&pages), "those that were written: {found}");

    let shown = c.run(0, &["memory", "show", "r", "-o", "json"]).stdout;
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let group = shown["groups"][0].to_string();
    let parity = c.node_of(&group, 3);
    c.flip(parity, &page(3), 77);
    let (code, found, said) = c.scrub(&["--check"]);
    assert_eq!(
        (code, &found["result"]),
        (Some(1), &"wrong".into()),
        "{said}"
    );
    assert_eq!(found["told"][0]["outcome"], "parity", "{found}");
    assert_eq!(found["told"][0]["slot"], 3, "{found}");
    assert_eq!(
        c.place_of(parity, &page(3)),
        None,
        "--check changes nothing"
    );
    let (code, found, said) = c.scrub(&[]);
    assert_eq!(
        (code, &found["result"]),
        (Some(0), &"repaired".into()),
        "{said}"
    );
    assert_eq!(
        (&found["differences"], &found["repaired"]),
        (&1.into(), &1.into())
    );
    assert!(said.is_empty(), "nothing beside the JSON: {said}");
    assert!(c.place_of(parity, &page(3)).is_some(), "made anew");
    assert_eq!(c.scrub(&[]).1["result"], "clean");

    let data = c.node_of(&group, 0);
    c.flip(data, &page(100), 4095);
    let (code, found, _) = c.scrub(&[]);
    assert_eq!((code, &found["result"]), (Some(1), &"wrong".into()));
    assert_eq!(found["told"][0]["outcome"], "data", "{found}");
    assert_eq!(found["told"][0]["slot"], 0, "{found}");
    let told = c.run(0, &["scrub", "--pool", "memory"]);
    assert!(told.stdout.contains("restart the node"), "{}", told.stdout);
    assert!(
        c.place_of(parity, &page(100)).is_some(),
        "parity is left alone"
    );
    cluster.end(data, "-KILL");
    cluster.up(data);
    // Until its part is rebuilt there is less, or nothing, to compare.
    let until = Instant::now() + PATIENCE;
    loop {
        let (_, found, said) = cluster.scrub(&[]);
        let whole = found["groups_short"] == 0 && found["pages_missing"] == 0;
        if found["result"] == "clean" && whole && cluster.place_of(data, &page(3)).is_some() {
            break;
        }
        assert!(Instant::now() < until, "{found}{said}");
        std::thread::sleep(Duration::from_millis(200));
    }
    let read = [
        "memory", "read", "r", "--offset", "4KiB", "--length", "4KiB",
    ];
    assert!(cluster.pipe(0, &read, &[]).stdout == page(100));
}
