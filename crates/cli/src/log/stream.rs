//! `staves log read --tag`: the records of one tag, in order.

use std::time::Duration;

use staves_client::{LogHandle, LogStat};

use super::read::{Wanted, print, trimmed};
use staves_cli_common::cluster::Cluster;
use staves_cli_common::options::Format;

/// The longest wait of one who follows, before it waits anew.
const WAIT: Duration = Duration::from_secs(3600);

pub fn read(
    session: &Cluster,
    log: &LogHandle,
    stat: &LogStat,
    tag: u64,
    wanted: &Wanted,
    out: Format,
) -> anyhow::Result<()> {
    if wanted.from < stat.trim {
        return Err(trimmed(log, wanted.from, Some(stat.trim)));
    }
    let mut left = wanted.count.unwrap_or(u64::MAX);
    let mut stdout = std::io::stdout().lock();
    let mut next = wanted.from;
    while left > 0 {
        let mut replay = session.wait(log.replay(tag, next))?;
        if replay.trim() > next && next > wanted.from {
            return Err(trimmed(log, next, Some(replay.trim())));
        }
        while left > 0 {
            let Some((position, record)) = session.wait(replay.next())? else {
                break;
            };
            left -= 1;
            if !print(&mut stdout, position, &record, out)? {
                return Ok(());
            }
        }
        if !wanted.follow {
            return Ok(());
        }
        next = next.max(replay.tail());
        while left > 0 && !session.wait(log.wait(next, Some(tag), WAIT))? {}
    }
    Ok(())
}
