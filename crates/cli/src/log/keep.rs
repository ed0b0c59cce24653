//! Bounds on what a log keeps: `staves log set`, and the same options of `staves log create`.

use clap::{Args, ValueEnum};
use staves_client::{LogRetention, LogStat, WhenFull};
use staves_node::config::Size;

/// The options, for one who gave none.
pub const OPTIONS: &str = "give one or more of --keep-records N, --keep-bytes SIZE, --keep-for TIME, --keep-all and --when-full RULE (keep, discard or refuse)";

/// The options. What is not given stays as it is; of a new log all is kept.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub struct KeepOptions {
    /// Keep so many of the last records; older ones are trimmed in the background
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    keep_records: Option<u64>,
    /// Keep so many bytes of the last records
    #[arg(long, value_name = "SIZE")]
    keep_bytes: Option<Size>,
    /// Keep the records of this time, for example 90m, 36h or 7d
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    keep_for: Option<u64>,
    /// Keep all, but for what else is given here
    #[arg(long)]
    keep_all: bool,
    /// The use of older records that a cursor has not passed
    #[arg(long, value_enum, value_name = "RULE")]
    when_full: Option<WhenFullName>,
}

/// The use of older records that a cursor has not passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum WhenFullName {
    /// They stay, and the log grows
    Keep,
    /// They go, and their reader finds them trimmed
    Discard,
    /// They stay, and appends wait until the cursor has passed them
    Refuse,
}

impl KeepOptions {
    /// True if none was given.
    pub fn is_empty(&self) -> bool {
        self.keep_records.is_none()
            && self.keep_bytes.is_none()
            && self.keep_for.is_none()
            && self.when_full.is_none()
            && !self.keep_all
    }

    /// The rules that they make of those before.
    pub fn changed(&self, mut rules: LogRetention) -> LogRetention {
        if self.keep_all {
            (rules.records, rules.bytes, rules.seconds) = (None, None, None);
        }
        rules.records = self.keep_records.or(rules.records);
        rules.bytes = self.keep_bytes.map(|bytes| bytes.0.max(1)).or(rules.bytes);
        rules.seconds = self.keep_for.or(rules.seconds);
        if let Some(rule) = self.when_full {
            rules.when_full = match rule {
                WhenFullName::Keep => WhenFull::Keep,
                WhenFullName::Discard => WhenFull::Discard,
                WhenFullName::Refuse => WhenFull::Refuse,
            };
        }
        rules
    }
}

/// A time of whole seconds: up to ten years.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no time of 1s to 3650d: write for example 90m, 36h or 7d");
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let unit_seconds = match unit {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let time = number.checked_mul(unit_seconds).ok_or_else(wrong)?;
    match (1..=3650 * 86_400).contains(&time) {
        true => Ok(time),
        false => Err(wrong()),
    }
}

/// The rules, for people.
pub fn kept(stat: &LogStat) -> String {
    let rules = &stat.retention;
    let mut parts = Vec::new();
    parts.extend(rules.records.map(|n| format!("the last {n} records")));
    parts.extend(rules.bytes.map(|n| format!("the last {n} bytes")));
    parts.extend(rules.seconds.map(|n| format!("the last {n} s")));
    if parts.is_empty() {
        return "all".into();
    }
    let cursors = match rules.when_full {
        WhenFull::Keep => "what a cursor has not passed stays",
        WhenFull::Discard => "cursors or not",
        WhenFull::Refuse => "appends wait for cursors",
    };
    format!("{}; {cursors}", parts.join(", or "))
}

/// The rules, for programs.
pub fn as_json(stat: &LogStat) -> serde_json::Value {
    let rules = &stat.retention;
    serde_json::json!({
        "records": rules.records,
        "bytes": rules.bytes,
        "seconds": rules.seconds,
        "when_full": match rules.when_full {
            WhenFull::Keep => "keep",
            WhenFull::Discard => "discard",
            WhenFull::Refuse => "refuse",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_bounds() {
        assert_eq!(seconds("90m"), Ok(5400));
        assert_eq!(seconds("7d"), Ok(604_800));
        for wrong in [
            "7",
            "0s",
            "-1s",
            "1.5h",
            "3651d",
            "99999999999999999999s",
            "d",
            "",
        ] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
