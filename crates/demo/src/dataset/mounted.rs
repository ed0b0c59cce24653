//! `staves mount` as a process of the demo's, unmounted and ended whatever happens.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::NAME;
use staves_cli_common::served::{SERVING, Served};

/// Longest wait for the mount, and for its end.
const PATIENCE: Duration = Duration::from_secs(15);
/// The interval at which it is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// A mount that lives as long as this.
pub struct Mounted {
    child: Child,
    point: PathBuf,
    said: PathBuf,
}

impl Mounted {
    /// Mounts a folder beside itself. The inner error says why that cannot be done here.
    pub fn start(
        program: &Path,
        doors: &[String],
        source: &Path,
        look_up: impl Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<Result<Mounted, String>> {
        let beside = |end: &str| source.with_extension(end);
        let (point, said, log) = (beside("mnt"), beside("out"), beside("log"));
        std::fs::create_dir(&point).with_context(|| format!("cannot make {}", point.display()))?;
        let create = |path: &Path| {
            File::create(path).with_context(|| format!("cannot write {}", path.display()))
        };
        let mut command = Command::new(program);
        command
            .arg("mount")
            .args([source, &point])
            .args(["--cluster", &doors.join(",")])
            .args(["--pool", NAME, "--dataset", NAME, "--output", "json"])
            .arg("--foreground")
            // Also if this process is killed.
            .args(["--parent-pid", &std::process::id().to_string()])
            // Ctrl-C is for this process, which unmounts.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(create(&said)?)
            .stderr(create(&log)?);
        for name in ["STAVES_DEADLINE", "STAVES_OUTPUT", "STAVES_CLUSTER"] {
            command.env_remove(name);
        }
        let child = command
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let mut mounted = Mounted { child, point, said };
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            look_up()?;
            if mounted.said().lines().any(|line| line == SERVING) {
                return Ok(Ok(mounted));
            }
            if mounted.ended()?.is_some() {
                let why = std::fs::read_to_string(&log).unwrap_or_default();
                let last = why.lines().last().unwrap_or_default();
                let error: serde_json::Value = serde_json::from_str(last).unwrap_or_default();
                let why = error["error"]["message"].as_str().unwrap_or(last);
                return Ok(Err(why.to_owned()));
            }
            std::thread::sleep(LOOK);
        }
        Ok(Err(format!(
            "it was not there after {} s",
            PATIENCE.as_secs()
        )))
    }

    /// The folder that shows the files.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Has its process unmount and end. Where the bytes came from that were read.
    ///
    /// Its process is told, for what is unmounted from outside is served on as long as anybody has it: a container that was
    /// started meanwhile has a copy of all that was mounted then.
    pub fn end(mut self) -> anyhow::Result<Served> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.context("the mount has no process id")?;
        kill_process(pid, Signal::TERM).context("cannot end the mount's process")?;
        let until = Instant::now() + PATIENCE;
        while self.ended()?.is_none() {
            if Instant::now() >= until {
                bail!("the mount's process does not end");
            }
            std::thread::sleep(LOOK);
        }
        let said = self.said();
        let told = said.split_once(SERVING).map_or("", |(_, told)| told);
        serde_json::from_str(told).with_context(|| format!("the mount's last words are '{told}'"))
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.said).unwrap_or_default()
    }

    fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        let ended = self.child.try_wait();
        ended.context("cannot look at the mount's process")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Ended already, or never mounted: either way it is gone after this.
        let _ = staves_mount::unmount(&self.point, true);
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = staves_mount::unmount(&self.point, true);
    }
}
