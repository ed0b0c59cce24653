//! Further disks of nodes, which can fail: file systems of their own, in memory, each on a loop device.
//!
//! The image is an anonymous file. A disk that fails has it sealed: what is there can be read, and nothing is written any more, so that
//! syncs fail with EIO, as those of a device do. The loop device goes with the mount, and the image with both: nothing of a run
//! that was killed is left once [`crate::lab::sweep`] has unmounted it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, bail};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::{FOLDER, Nodes};
use crate::lab::tool;

/// Bytes of a further disk's file system, with holes until it is written.
const IMAGE_BYTES: u64 = 384 << 20;
/// Pages of a further disk: more than the first one's, so that buckets go there.
pub const FURTHER: &str = "128MiB";

/// A further disk.
pub(super) struct FurtherDisk {
    mounted: PathBuf,
    image: File,
    failed: bool,
}

impl FurtherDisk {
    fn mount(mounted: PathBuf) -> anyhow::Result<FurtherDisk> {
        std::fs::create_dir_all(&mounted)
            .with_context(|| format!("cannot make {}", mounted.display()))?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let image = memfd_create("staves-chaos-disk", flags).context("no memory for a disk")?;
        let image = File::from(image);
        image.set_len(IMAGE_BYTES)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), image.as_raw_fd());
        let make = ["-q", "-t", "ext4", "-O", "^has_journal", "-E", "nodiscard"];
        tool("mke2fs", &[&make[..], &[&path]].concat())?;
        let place = mounted.display().to_string();
        tool("mount", &["-t", "ext4", "-o", "loop", &path, &place])?;
        Ok(FurtherDisk {
            mounted,
            image,
            failed: false,
        })
    }

    /// As nodes know it.
    fn folder(&self) -> PathBuf {
        self.mounted.join("disk")
    }
}

impl Drop for FurtherDisk {
    fn drop(&mut self) {
        // What is still in use goes when its node lets go of it.
        let _ = tool("umount", &["-l", &self.mounted.display().to_string()]);
    }
}

/// The reason that there can be no disks that fail; `None` if there can.
pub fn impossible() -> Option<&'static str> {
    static WHY: OnceLock<Option<String>> = OnceLock::new();
    let probe = || -> anyhow::Result<()> {
        let prefix = format!("{FOLDER}{}-", std::process::id());
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir()?;
        // It goes before its folder does.
        FurtherDisk::mount(folder.path().join("disk")).map(drop)
    };
    let why = WHY.get_or_init(|| probe().err().map(|why| format!("{why:#}")));
    why.as_deref()
}

impl Nodes {
    /// Makes a further disk's file system for a node; the folder that the node is to use.
    pub fn add_disk(&mut self, at: usize) -> anyhow::Result<PathBuf> {
        let mut number = 2;
        let place = |number: usize| self.folder.join(format!("n{}-disk-{number}", at + 1));
        while place(number).exists() {
            number += 1;
        }
        let disk = FurtherDisk::mount(place(number))?;
        let folder = disk.folder();
        self.nodes[at].further.push(disk);
        Ok(folder)
    }

    /// The folder of the disk that a node began with.
    pub fn first_disk(&self, at: usize) -> PathBuf {
        self.data(at).join("disk")
    }

    /// The folder of a node's newest disk that has not failed, if it has a further one.
    pub fn newest_disk(&self, at: usize) -> Option<PathBuf> {
        let mut sound = self.nodes[at].further.iter().rev();
        sound.find(|disk| !disk.failed).map(FurtherDisk::folder)
    }

    /// Lets a disk fail.
    pub fn fail_disk(&mut self, at: usize, folder: &Path) -> anyhow::Result<()> {
        let mut all = self.nodes[at].further.iter_mut();
        let Some(disk) = all.find(|disk| disk.folder() == folder) else {
            bail!("n{} has no disk {} that can fail", at + 1, folder.display());
        };
        fcntl_add_seals(&disk.image, SealFlags::WRITE).context("cannot let a disk fail")?;
        disk.failed = true;
        Ok(())
    }

    /// A node does not use a disk any more: its device goes.
    pub fn drop_disk(&mut self, at: usize, folder: &Path) {
        self.nodes[at]
            .further
            .retain(|disk| disk.folder() != folder);
    }
}
