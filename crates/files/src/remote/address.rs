//! Addresses of servers: `s3://BUCKET/PREFIX` and `http(s)://HOST/PATH`, each perhaps with `#KEY=VALUE,…`.
//!
//! An address stands in the cluster's map, for all to see: there is nothing secret in it.

use crate::entry::SourceError;

/// A parsed address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// The server.
    pub server: Server,
    /// Below what; no slash at either end.
    pub prefix: String,
}

/// The location of a dataset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Server {
    /// A bucket of an object store.
    Bucket {
        /// Its name.
        name: String,
        /// The store's URL, if it is not that of Amazon's.
        endpoint: Option<String>,
        /// Amazon's word for where it lies.
        region: Option<String>,
    },
    /// A web server.
    Web {
        /// Its URL, without a path.
        origin: String,
        /// The manifest: an absolute path of this machine, or a name below the prefix.
        manifest: Option<String>,
    },
}

impl Address {
    /// From its words; `None` if they are those of a folder.
    pub fn parse(text: &str) -> Result<Option<Address>, SourceError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Ok(None);
        };
        let read = match scheme {
            "s3" => bucket(rest),
            "http" | "https" => web(scheme, rest),
            _ => Err(format!(
                "a source is a folder's whole path, s3://BUCKET/PREFIX, http://… or https://…, and not {scheme}://…"
            )),
        };
        read.map(Some).map_err(|reason| SourceError::Malformed {
            text: text.to_owned(),
            reason,
        })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut options = Vec::new();
        let mut option = |key: &str, value: &Option<String>| {
            options.extend(value.iter().map(|value| format!("{key}={value}")));
        };
        match &self.server {
            Server::Bucket {
                name,
                endpoint,
                region,
            } => {
                option("endpoint", endpoint);
                option("region", region);
                write!(f, "s3://{name}")?;
            }
            Server::Web { origin, manifest } => {
                option("manifest", manifest);
                f.write_str(origin)?;
            }
        }
        if !self.prefix.is_empty() {
            let is_web = matches!(self.server, Server::Web { .. });
            let prefix = if is_web {
                escaped(&self.prefix)
            } else {
                self.prefix.clone()
            };
            write!(f, "/{prefix}")?;
        }
        match options.is_empty() {
            true => Ok(()),
            false => write!(f, "#{}", options.join(",")),
        }
    }
}

/// The values of `KEY=VALUE,…` for the keys that there are.
fn options<const N: usize>(
    text: Option<&str>,
    keys: [&str; N],
) -> Result<[Option<String>; N], String> {
    let mut values = [const { None }; N];
    for option in text.into_iter().flat_map(|text| text.split(',')) {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let Some(at) = keys.iter().position(|known| *known == key) else {
            let known = keys.join("=…, ");
            return Err(format!(
                "after the # it may say {known}=…, and not '{option}'"
            ));
        };
        if value.is_empty() {
            return Err(format!("after the # it says '{key}' without a value"));
        }
        values[at] = Some(value.to_owned());
    }
    Ok(values)
}

fn bucket(rest: &str) -> Result<Address, String> {
    let (rest, after) = split(rest);
    let [endpoint, region] = options(after, ["endpoint", "region"])?;
    let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if name.is_empty() || !name.chars().all(fits) {
        return Err(format!(
            "'{name}' cannot be a bucket: write s3://BUCKET/PREFIX"
        ));
    }
    let endpoint = endpoint.map(|url| checked_endpoint(&url)).transpose()?;
    let server = Server::Bucket {
        name: name.to_owned(),
        endpoint,
        region,
    };
    let prefix = checked_path(prefix)?;
    Ok(Address { server, prefix })
}

/// The URL of an object store, as it may stand in an address.
pub fn checked_endpoint(url: &str) -> Result<String, String> {
    let split = url.split_once("://");
    let Some((_, host)) = split.filter(|(scheme, _)| matches!(*scheme, "http" | "https")) else {
        return Err(format!(
            "the endpoint '{url}' begins with neither http:// nor https://"
        ));
    };
    let host = host.trim_end_matches('/');
    checked_host(host.split('/').next().unwrap_or(host))?;
    if host.contains(['#', ',', '?', ' ']) {
        return Err(format!("the endpoint '{url}' is more than a URL"));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

fn web(scheme: &str, rest: &str) -> Result<Address, String> {
    let (rest, after) = split(rest);
    let [manifest] = options(after, ["manifest"])?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    checked_host(host)?;
    if path.contains('?') {
        return Err("files have no names below a URL with a query ('?…')".to_owned());
    }
    let server = Server::Web {
        origin: format!("{scheme}://{host}"),
        manifest,
    };
    let path = unescaped(path).ok_or("its path is not UTF-8 in %-escapes")?;
    let prefix = checked_path(&path)?;
    Ok(Address { server, prefix })
}

fn split(text: &str) -> (&str, Option<&str>) {
    match text.split_once('#') {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

fn checked_host(host: &str) -> Result<(), String> {
    if host.contains('@') {
        let text = "it has a user or a password in it, and the cluster's map would show it to all: leave it out";
        return Err(text.to_owned());
    }
    let fits =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '[' | ']' | '_');
    if host.is_empty() || !host.chars().all(fits) {
        return Err(format!("'{host}' cannot be a host"));
    }
    Ok(())
}

fn checked_path(path: &str) -> Result<String, String> {
    let path = path.trim_matches('/');
    match path.is_empty() || is_plain(path) {
        true => Ok(path.to_owned()),
        false => Err(format!(
            "'{path}' has a part that is empty, '.' or '..', or a character that cannot be shown"
        )),
    }
}

/// True if all parts of a path are names, which a server's answer need not honour.
pub fn is_plain(path: &str) -> bool {
    !path.chars().any(|c| c.is_ascii_control())
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

fn unescaped(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escape = after.get(..2).filter(|_| *first == b'%');
        let escape = escape.and_then(|two| std::str::from_utf8(two).ok());
        match escape.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

fn escaped(path: &str) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'%' | b'#' | b'?' | b' ' | 0x80.. => {
                let _ = write!(text, "%{byte:02X}");
            }
            byte => text.push(byte as char),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_said_again_as_they_were_read() {
        for (text, again) in [
            ("s3://genomes", "s3://genomes"),
            ("s3://genomes/hg38/", "s3://genomes/hg38"),
            (
                "s3://g/a b#region=eu-west-1,endpoint=http://10.0.0.9:9000/",
                "s3://g/a b#endpoint=http://10.0.0.9:9000,region=eu-west-1",
            ),
            ("http://host:8080", "http://host:8080"),
            ("https://host/a%20b/%C3%A9/", "https://host/a%20b/%C3%A9"),
            (
                "https://[::1]/x#manifest=/srv/list",
                "https://[::1]/x#manifest=/srv/list",
            ),
        ] {
            let read = Address::parse(text).unwrap().unwrap();
            assert_eq!(read.to_string(), again);
            assert_eq!(Address::parse(again).unwrap().unwrap(), read);
        }
        assert_eq!(Address::parse("/srv/genomes"), Ok(None));
        let web = Address::parse("http://h/a%20b").unwrap().unwrap();
        assert_eq!(web.prefix, "a b");
    }

    #[test]
    fn what_is_no_address_is_said_with_its_reason() {
        for (text, reason) in [
            ("ftp://host/x", "and not ftp://"),
            ("s3:///x", "cannot be a bucket"),
            ("s3://a b/x", "cannot be a bucket"),
            ("s3://key:secret@bucket/x", "cannot be a bucket"),
            ("s3://b/x/../y", "'.' or '..'"),
            ("s3://b#endpoint=10.0.0.9:9000", "begins with neither"),
            ("s3://b#endpoint=http://u:p@h", "leave it out"),
            ("s3://b#colour=red", "endpoint=…, region=…"),
            ("s3://b#region=", "without a value"),
            ("http://", "cannot be a host"),
            ("http://u:p@host/x", "leave it out"),
            ("http://host/x?y=1", "query"),
            ("http://host/%ff", "UTF-8"),
            ("http://host/a/%2e%2e/b", "'.' or '..'"),
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains(text), "{error}");
        }
    }
}
