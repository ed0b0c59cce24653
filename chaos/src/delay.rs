//! The command that delays packets between namespaces of others, and the one that measures appends behind a delay.

use std::io::Read;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use staves_chaos::run::RunSettings;
use staves_chaos::wan::{self, Wan, measure};
use staves_chaos::{lab, wan_log};

use crate::args::{Args, Command};

/// A network namespace, and the address that its packets come from.
#[derive(Clone, Debug)]
pub struct DelayPlace {
    file: PathBuf,
    address: Ipv4Addr,
}

/// Reads a namespace of the command line.
pub fn place(text: &str) -> Result<DelayPlace, String> {
    let wrong =
        || format!("'{text}' is no namespace with its address; write /run/netns/a=10.0.0.1");
    let (file, address) = text.rsplit_once('=').ok_or_else(wrong)?;
    Ok(DelayPlace {
        file: file.into(),
        address: address.parse().map_err(|_| wrong())?,
    })
}

/// Reads a delay of the command line.
pub fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no delay; write 10ms or 500us, at most 2s");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let n: u64 = digits.parse().map_err(|_| wrong())?;
    let unit = match &text[digits.len()..] {
        "us" => Duration::from_micros(1),
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        _ => return Err(wrong()),
    };
    let n = u32::try_from(n).map_err(|_| wrong())?;
    let time = unit.checked_mul(n).filter(|time| *time <= wan::DELAY_MAX);
    time.ok_or_else(wrong)
}

/// Delays until stdin ends, and tells the counts then; without places, measures in a lab of its own. True if no packet was lost.
pub fn execute(one_way: Duration, places: &[DelayPlace]) -> anyhow::Result<bool> {
    if places.is_empty() {
        if let Some(why) = lab::impossible() {
            bail!("{why}");
        }
        println!("{}", measure::measure(one_way)?);
        return Ok(true);
    }
    if places.len() == 1 {
        bail!("a delay is between namespaces: name two or more");
    }
    let mut wan = Wan::new(one_way)?;
    for (at, place) in places.iter().enumerate() {
        let others = places.iter().enumerate().filter(|(other, _)| *other != at);
        let senders: Vec<String> = others.map(|(_, other)| other.address.to_string()).collect();
        wan.delay(&place.file, &senders)?;
    }
    println!("delaying");
    // Whoever began this has its other end: it closes also if that process is killed.
    let mut ignored = [0; 64];
    while std::io::stdin().read(&mut ignored).is_ok_and(|len| len > 0) {}
    let counts = wan.counts();
    if !wan.is_whole() {
        bail!("the delay had ended at some namespace, which was cut off since");
    }
    println!("{counts}");
    Ok(counts.dropped == 0 && counts.overflows == 0)
}

/// Measures appends from far away; true if all were acknowledged and no packet was lost.
pub fn far_appends(args: &Args, settings: &RunSettings) -> anyhow::Result<bool> {
    let Command::WanLog {
        one_way,
        two_regions,
        rates,
        clients,
        nodes,
        scheme,
        seconds,
        rounds,
    } = &args.command
    else {
        return Ok(true);
    };
    if let Some(why) = wan::impossible() {
        bail!("{why}");
    }
    let plan = wan_log::WanLogPlan {
        one_way: *one_way,
        two_regions: *two_regions,
        rates: rates.clone(),
        clients: *clients,
        nodes: *nodes as usize,
        scheme: scheme.clone(),
        seconds: *seconds,
        rounds: *rounds,
    };
    let report = wan_log::measure(settings, &plan, |line| eprintln!("{line}"))?;
    match args.json {
        true => println!("{}", report.json()),
        false => println!("{report}"),
    }
    Ok(report.is_clean())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_and_places_are_understood() {
        assert_eq!(time("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(time("500us"), Ok(Duration::from_micros(500)));
        for wrong in [
            "",
            "ms",
            "10",
            "3s",
            "10 ms",
            "-1ms",
            "99999999999999999999us",
        ] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        let there = place("/proc/7/ns/net=10.78.0.1").expect("it reads");
        assert_eq!(there.address, Ipv4Addr::new(10, 78, 0, 1));
        for wrong in ["", "10.78.0.1", "/run/netns/a=", "/run/netns/a=b"] {
            assert!(place(wrong).is_err(), "{wrong}");
        }
    }
}
