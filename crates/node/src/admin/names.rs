//! The names that the doors of HTTP answer to.
//!
//! A page in a browser may ask any address, as long as a name of the page's own leads there (DNS rebinding). The browser
//! then names that name as the host: so whoever asks for a host that is none of this node's is refused.

use std::collections::BTreeSet;
use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};

use crate::config::{Config, Doors};

/// The hosts of this node, beside the loopback addresses and the address at which a connection came in.
#[derive(Clone, Debug)]
pub(crate) struct HostNames(BTreeSet<String>);

impl HostNames {
    /// The machine's name, the node's, and the hosts that its doors have or are advertised with.
    pub(crate) fn new(config: &Config, told: &Doors) -> HostNames {
        let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let mut names = BTreeSet::from(["localhost".to_owned()]);
        let doors = [&config.admin, &told.admin, &told.resp, &told.native];
        let doors = doors.into_iter().chain(&config.http);
        names.extend(doors.map(|door| plain(&door.host)));
        names.extend([machine.trim(), config.name.as_deref().unwrap_or("")].map(plain));
        names.retain(|name| !name.is_empty());
        HostNames(names)
    }

    /// Returns the host that was asked for, if it is not of this node. Who names none is no browser.
    pub(crate) fn stranger(&self, uri: &Uri, headers: &HeaderMap, local: IpAddr) -> Option<String> {
        let named = headers.get_all(header::HOST).iter();
        let named = named.map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
        let mut asked = named.chain(uri.authority().map(ToString::to_string));
        asked.find(|host| !self.is_own(host, local))
    }

    fn is_own(&self, host: &str, local: IpAddr) -> bool {
        let Ok(authority) = host.parse::<Authority>() else {
            return false;
        };
        let host = plain(authority.host());
        match host.parse::<IpAddr>().map(|addr| addr.to_canonical()) {
            Ok(addr) if addr.is_loopback() || addr == local.to_canonical() => true,
            _ => self.0.contains(&host),
        }
    }
}

/// A host as it is compared: without brackets, the last dot and capitals.
fn plain(host: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_hosts_are_known_with_and_without_a_port() {
        let config = Config {
            name: Some("Rack7".into()),
            admin: "10.0.0.1:1680".parse().expect("an address"),
            ..Config::default()
        };
        let told = Doors {
            native: "n7.example:1600".parse().expect("an address"),
            resp: config.resp.clone(),
            admin: config.admin.clone(),
        };
        let names = HostNames::new(&config, &told);
        let local = IpAddr::from([192, 168, 1, 5]);
        for own in [
            "localhost",
            "LOCALHOST:1680",
            "127.0.0.1:1680",
            "127.3.2.1",
            "[::1]:1680",
            "192.168.1.5:1",
            "[::ffff:192.168.1.5]",
            "10.0.0.1",
            "rack7",
            "n7.example.:9",
        ] {
            assert!(names.is_own(own, local), "{own}");
        }
        for other in [
            "evil.example",
            "localhost.evil.example",
            "rack7.evil.example",
            "10.0.0.2",
            "[::2]",
            "",
            ":1680",
            "a b",
        ] {
            assert!(!names.is_own(other, local), "{other}");
        }
    }

    #[test]
    fn every_host_of_a_request_must_be_own() {
        let names = HostNames::new(
            &Config::default(),
            &Doors {
                native: Config::default().listen,
                resp: Config::default().resp,
                admin: Config::default().admin,
            },
        );
        let local = IpAddr::from([127, 0, 0, 1]);
        let stranger = |uri: &str, hosts: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, host.parse().expect("a header"));
            }
            names.stranger(&uri.parse().expect("an address"), &headers, local)
        };
        assert_eq!(stranger("/livez", &[]), None);
        assert_eq!(stranger("/livez", &["localhost"]), None);
        let evil = Some("evil.example".to_owned());
        assert_eq!(stranger("/livez", &["localhost", "evil.example"]), evil);
        assert_eq!(stranger("http://evil.example/livez", &["localhost"]), evil);
    }
}
