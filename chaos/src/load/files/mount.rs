//! `staves mount` as a process of the run's.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::NAME;
use crate::lab::tool;

/// The bound on mounting.
const PATIENCE: Duration = Duration::from_secs(30);

/// A mount; taken away when dropped.
pub struct Mount {
    name: &'static str,
    child: Option<Child>,
    point: PathBuf,
    log: PathBuf,
}

impl Mount {
    /// Mounts a source beside itself. `command`: begins one of `staves`.
    pub fn start(
        mut command: Command,
        name: &'static str,
        source: &Path,
        doors: &[String],
    ) -> anyhow::Result<Mount> {
        let (point, log) = (source.with_extension(name), source.with_extension("log"));
        let log = log.with_file_name(format!("mount-{name}.log"));
        std::fs::create_dir(&point).with_context(|| format!("cannot make {}", point.display()))?;
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        command.args(["--cluster", &doors.join(","), "--deadline", "20s"]);
        command.args(["mount", "--foreground", "--pool", NAME, "--dataset", NAME]);
        command.args([source, &point]);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .context("cannot run nsenter or staves")?;
        let mut mount = Mount {
            name,
            child: Some(child),
            point,
            log,
        };
        let until = Instant::now() + PATIENCE;
        while !mount.point.join(super::source::name(0)).exists() {
            if let Some(ended) = mount.ended() {
                bail!("{ended}");
            }
            if Instant::now() >= until {
                bail!("the mount '{name}' was not there after {PATIENCE:?}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(mount)
    }

    /// Its place: "far" from the nodes, or "near" the first.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its folder.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// The last words of its process, if it ended by itself; returned once.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let said = log.lines().last().unwrap_or_default();
        let name = self.name;
        Some(format!(
            "the mount '{name}' ended by itself ({status}); it said: {said}"
        ))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // It may have ended, or never begun; either way it is gone after this.
        let _ = tool("umount", &["-l", &self.point.display().to_string()]);
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
