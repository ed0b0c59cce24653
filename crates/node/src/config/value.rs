//! The kinds of values: each read from text, and written so that it reads back the same.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use staves_model::{Scheme, with_unit};

/// A value of the configuration.
pub trait Setting: Sized {
    /// Reads text without blanks around it. The error names what would have fitted.
    fn parse(text: &str) -> Result<Self, String>;

    /// As text that the value's key reads as the same value.
    fn show(&self) -> String;

    /// That text as a TOML value.
    fn toml(text: &str) -> String {
        format!("{text:?}")
    }
}

/// Bytes, written with a unit: `512MiB`, `1GB`, `1.5 GiB`, `100B`. A plain number is refused: who writes
/// `--memory 100` hardly means bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

/// Names of units, and their bytes. One letter counts as the binary unit, as it does in most tools.
const UNITS: [(&str, u64); 13] = [
    ("tib", 1 << 40),
    ("gib", 1 << 30),
    ("mib", 1 << 20),
    ("kib", 1 << 10),
    ("tb", 1_000_000_000_000),
    ("gb", 1_000_000_000),
    ("mb", 1_000_000),
    ("kb", 1_000),
    ("t", 1 << 40),
    ("g", 1 << 30),
    ("m", 1 << 20),
    ("k", 1 << 10),
    ("b", 1),
];

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let wrong = || format!("'{text}' is no size; write for example 512MiB or 1GB");
        if is_negative(text) {
            return Err(format!(
                "'{text}' is negative; a size is written for example 64MiB"
            ));
        }
        if text == "0" {
            return Ok(Size(0)); // of any unit
        }
        if is_bare(text) {
            return Err(format!(
                "'{text}' has no unit; say {text}MiB, {text}GiB or, for bytes, {text}B"
            ));
        }
        let digits = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim().to_ascii_lowercase();
        let (_, unit) = UNITS
            .into_iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(wrong)?;
        let bytes = match number.parse::<u64>() {
            Ok(whole) => whole.checked_mul(unit),
            Err(_) => {
                let bytes = number.parse::<f64>().map_err(|_| wrong())? * unit as f64;
                (bytes < u64::MAX as f64).then_some(bytes.round() as u64)
            }
        };
        bytes
            .map(Size)
            .ok_or_else(|| format!("'{text}' is more than any machine has"))
    }
}

impl fmt::Display for Size {
    /// Writes the largest binary unit that is exact.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_unit(self.0))
    }
}

impl Setting for Size {
    fn parse(text: &str) -> Result<Size, String> {
        text.parse()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

fn is_negative(text: &str) -> bool {
    let number = text.strip_prefix('-');
    number.is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
}

/// A number without anything after it.
fn is_bare(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// Milliseconds, written with a unit: `500ms`, `2s`, `1m`. A plain number is refused: to some it means
/// seconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Millis(pub u64);

impl Millis {
    /// As the standard library's duration.
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl std::str::FromStr for Millis {
    type Err = String;

    fn from_str(text: &str) -> Result<Millis, String> {
        let wrong = || format!("'{text}' is no time; write for example 500ms or 2s");
        if is_negative(text) {
            return Err(format!(
                "'{text}' is negative; a time is written for example 500ms or 2s"
            ));
        }
        if is_bare(text) {
            return Err(format!("'{text}' has no unit; say {text}s or {text}ms"));
        }
        let digits = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit_ms = match unit.trim() {
            "ms" => 1.0,
            "s" => 1000.0,
            "m" | "min" => 60_000.0,
            _ => return Err(wrong()),
        };
        let ms = number.parse::<f64>().map_err(|_| wrong())? * unit_ms;
        // A day: more is a slip of the unit.
        if !(1.0..=86_400_000.0).contains(&ms) {
            return Err(format!("'{text}' is not between 1ms and a day"));
        }
        Ok(Millis(ms.round() as u64))
    }
}

impl Setting for Millis {
    fn parse(text: &str) -> Result<Millis, String> {
        text.parse()
    }

    fn show(&self) -> String {
        self.0.to_string()
    }

    fn toml(text: &str) -> String {
        text.to_owned()
    }
}

/// A host and a port. `[::1]:1600` for IPv6.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Endpoint {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port; 0 asks for a free one.
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl std::str::FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        let wrong =
            || format!("'{text}' is no address; write host:port, for example 127.0.0.1:1600");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let host = bracketed.unwrap_or(host);
        if !is_host(host) || (host.contains(':') && bracketed.is_none()) {
            return Err(wrong());
        }
        let port = port.parse().map_err(|_| wrong())?;
        Ok(Endpoint {
            host: host.to_owned(),
            port,
        })
    }
}

fn is_host(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 253
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || ".-_:%".contains(c))
}

impl Setting for Endpoint {
    fn parse(text: &str) -> Result<Endpoint, String> {
        text.parse()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for Option<Endpoint> {
    fn parse(text: &str) -> Result<Option<Endpoint>, String> {
        match text.is_empty() {
            true => Ok(None),
            false => text.parse().map(Some),
        }
    }

    fn show(&self) -> String {
        self.as_ref().map_or(String::new(), Endpoint::to_string)
    }
}

impl Setting for Vec<Endpoint> {
    fn parse(text: &str) -> Result<Vec<Endpoint>, String> {
        let parts = text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty());
        parts.map(Endpoint::parse).collect()
    }

    fn show(&self) -> String {
        self.iter()
            .map(Endpoint::to_string)
            .collect::<Vec<_>>()
            .join(",")
    }

    fn toml(text: &str) -> String {
        let items: Vec<String> = text
            .split(',')
            .filter(|t| !t.is_empty())
            .map(|t| format!("{t:?}"))
            .collect();
        format!("[{}]", items.join(", "))
    }
}

/// The addresses of a node's three doors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Doors {
    /// The native protocol.
    pub native: Endpoint,
    /// Redis's protocol.
    pub resp: Endpoint,
    /// HTTP.
    pub admin: Endpoint,
}

/// The advertised addresses, where they differ from those that the doors bind to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Advertise {
    /// The address of every door without one of its own.
    pub host: Option<String>,
    /// The native protocol.
    pub native: Option<Endpoint>,
    /// Redis's protocol.
    pub resp: Option<Endpoint>,
    /// HTTP.
    pub admin: Option<Endpoint>,
}

/// True if a host stands for every address of the machine.
pub(crate) fn is_wildcard(host: &str) -> bool {
    matches!(host, "0.0.0.0" | "::")
}

impl Advertise {
    /// The advertised addresses of doors that are open at `bound`.
    pub fn over(&self, bound: &Doors) -> Result<Doors, String> {
        let told = |own: &Option<Endpoint>, bound: &Endpoint| {
            if let Some(own) = own {
                return Ok(own.clone());
            }
            let host = self.host.clone().unwrap_or_else(|| bound.host.clone());
            if is_wildcard(&host) {
                return Err(format!(
                    "{bound} stands for every address of this machine; set advertise to the one that \
                     others reach it by"
                ));
            }
            Ok(Endpoint {
                host,
                port: bound.port,
            })
        };
        Ok(Doors {
            native: told(&self.native, &bound.native)?,
            resp: told(&self.resp, &bound.resp)?,
            admin: told(&self.admin, &bound.admin)?,
        })
    }
}

impl Setting for Advertise {
    fn parse(text: &str) -> Result<Advertise, String> {
        let mut told = Advertise::default();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            match part.split_once('=') {
                Some(("native", address)) => told.native = Some(address.parse()?),
                Some(("resp", address)) => told.resp = Some(address.parse()?),
                Some(("admin", address)) => told.admin = Some(address.parse()?),
                Some((door, _)) => {
                    return Err(format!(
                        "'{door}' is no door; the doors are native, resp and admin"
                    ));
                }
                None => told.take_host(part)?,
            }
        }
        Ok(told)
    }

    fn show(&self) -> String {
        let host = self.host.clone().into_iter();
        let doors = [
            ("native", &self.native),
            ("resp", &self.resp),
            ("admin", &self.admin),
        ];
        let doors = doors
            .into_iter()
            .filter_map(|(d, a)| a.as_ref().map(|a| format!("{d}={a}")));
        host.chain(doors).collect::<Vec<_>>().join(",")
    }
}

impl Advertise {
    /// A part that names no door: a host, or the native door's host and port.
    fn take_host(&mut self, part: &str) -> Result<(), String> {
        let bare = part
            .strip_prefix('[')
            .and_then(|p| p.strip_suffix(']'))
            .unwrap_or(part);
        let is_address = bare.parse::<std::net::Ipv6Addr>().is_ok();
        if is_address || (is_host(bare) && !bare.contains(':')) {
            self.host = Some(bare.to_owned());
            return Ok(());
        }
        let native: Endpoint = part.parse()?;
        self.host = Some(native.host.clone());
        self.native = Some(native);
        Ok(())
    }
}

impl Setting for Scheme {
    fn parse(text: &str) -> Result<Scheme, String> {
        text.parse()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for u32 {
    fn parse(text: &str) -> Result<u32, String> {
        text.parse()
            .map_err(|_| format!("'{text}' is no whole number"))
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn toml(text: &str) -> String {
        text.to_owned()
    }
}

impl Setting for bool {
    fn parse(text: &str) -> Result<bool, String> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Ok(true),
            "false" | "no" | "off" | "0" => Ok(false),
            _ => Err(format!("'{text}' is neither true nor false")),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn toml(text: &str) -> String {
        text.to_owned()
    }
}

impl Setting for String {
    fn parse(text: &str) -> Result<String, String> {
        Ok(text.to_owned())
    }

    fn show(&self) -> String {
        self.clone()
    }
}

impl Setting for Option<String> {
    fn parse(text: &str) -> Result<Option<String>, String> {
        Ok((!text.is_empty()).then(|| text.to_owned()))
    }

    fn show(&self) -> String {
        self.clone().unwrap_or_default()
    }
}

impl Setting for Option<PathBuf> {
    fn parse(text: &str) -> Result<Option<PathBuf>, String> {
        Ok((!text.is_empty()).then(|| PathBuf::from(text)))
    }

    fn show(&self) -> String {
        self.as_ref()
            .map(|path| path.display().to_string())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let cases = [
            ("512MiB", 512 << 20),
            ("1GB", 1_000_000_000),
            ("1 GiB", 1 << 30),
            ("1.5GiB", 3 << 29),
            ("64k", 64 << 10),
            ("0B", 0),
            ("0", 0),
            ("1073741824 B", 1 << 30),
            ("7b", 7),
        ];
        for (text, bytes) in cases {
            let size: Size = text.parse().expect(text);
            assert_eq!(size.0, bytes, "{text}");
            assert_eq!(size.to_string().parse(), Ok(size), "{text} reads back");
        }
        for wrong in [
            "",
            "1073741824",
            "1.5",
            "MiB",
            "1XB",
            "-1",
            "1e9",
            "1.2.3k",
            "99999999999T",
            "NaN",
        ] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
        assert_eq!(Size(1 << 30).to_string(), "1GiB");
        assert_eq!(Size(1_000_000_000).to_string(), "1000000000B");
        let bare = "100".parse::<Size>().expect_err("no unit");
        assert_eq!(
            bare,
            "'100' has no unit; say 100MiB, 100GiB or, for bytes, 100B"
        );
    }

    #[test]
    fn times_have_units() {
        for (text, ms) in [
            ("500ms", 500),
            ("2s", 2000),
            ("1.5 s", 1500),
            ("1m", 60_000),
        ] {
            assert_eq!(text.parse(), Ok(Millis(ms)), "{text}");
        }
        for wrong in ["", "0ms", "5", "1.5", "s", "1h", "-1", "2000000s"] {
            assert!(wrong.parse::<Millis>().is_err(), "{wrong}");
        }
        let bare = "5".parse::<Millis>();
        assert_eq!(bare, Err("'5' has no unit; say 5s or 5ms".to_owned()));
    }

    #[test]
    fn addresses_are_host_and_port() {
        for text in [
            "127.0.0.1:1600",
            "[::1]:1600",
            "node-1.rack_2:0",
            "[fe80::1%eth0]:1",
        ] {
            assert_eq!(Endpoint::parse(text).map(|e| e.show()), Ok(text.to_owned()));
        }
        for wrong in [
            "",
            "1600",
            "host",
            ":1600",
            "::1:1600",
            "host:99999",
            "a b:1",
            "host:",
        ] {
            assert!(Endpoint::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_node_tells_what_others_can_reach() {
        let door = |text: &str| Endpoint::parse(text).expect(text);
        let bound = Doors {
            native: door("0.0.0.0:1600"),
            resp: door("0.0.0.0:6379"),
            admin: door("127.0.0.1:1680"),
        };
        let told = |text: &str| {
            let told = Advertise::parse(text)?.over(&bound)?;
            Ok::<_, String>(format!("{} {} {}", told.native, told.resp, told.admin))
        };
        assert_eq!(
            told("10.0.0.7"),
            Ok("10.0.0.7:1600 10.0.0.7:6379 10.0.0.7:1680".into())
        );
        assert_eq!(
            told("10.0.0.7:9"),
            Ok("10.0.0.7:9 10.0.0.7:6379 10.0.0.7:1680".into())
        );
        assert_eq!(told("::1"), Ok("[::1]:1600 [::1]:6379 [::1]:1680".into()));
        assert_eq!(told("h,resp=r:1"), Ok("h:1600 r:1 h:1680".into()));
        assert!(told("").is_err_and(|e| e.contains("0.0.0.0:1600") && e.contains("advertise")));
        assert!(told("smtp=h:1").is_err());
        for text in ["", "h", "h,native=n:1,resp=r:2,admin=a:3"] {
            assert_eq!(
                Advertise::parse(text).map(|a| a.show()),
                Ok(text.to_owned())
            );
        }
    }
}
