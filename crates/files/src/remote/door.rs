//! The client of a server, with the credentials that were found; opened anew with new ones when the server refuses
//! them, for they may have an end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::aws::AmazonS3;
use object_store::http::HttpBuilder;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use parking_lot::Mutex;

use super::address::{Address, Server};
use super::bounded::Bounded;
use super::bucket::{Keys, Settings};
use super::failure;
use super::roots;
use crate::driver;

/// The bound on a connection attempt.
const CONNECT: Duration = Duration::from_secs(3);
/// The longest silence of a server within a request.
const SILENCE: Duration = Duration::from_secs(5);
/// The bound on a request with all its tries.
pub const TOTAL: Duration = Duration::from_secs(25);
/// The least interval between two searches for credentials, where a server refuses the known ones.
const LOOK: Duration = Duration::from_secs(10);

/// Finds what this process has, now.
pub type Find = Box<dyn Fn() -> Result<Settings, String> + Send + Sync>;

/// A way to a server. It is asked nothing here.
pub struct Door {
    find: Find,
    opened: Mutex<Opened>,
    /// Bytes of the longest answer that lists names.
    list_bytes_max: usize,
    /// The time of the last search for credentials. Locked during a search: callers that are refused meanwhile wait for its result.
    looked: Mutex<Option<Instant>>,
}

struct Opened {
    store: Arc<dyn ObjectStore>,
    /// The same, if it lists by pages; web servers do not.
    pages: Option<Arc<AmazonS3>>,
    /// None for web servers.
    keys: Option<Keys>,
    /// The origin of the credentials, for the message of a refusal.
    credentials: String,
    since: Instant,
}

impl Door {
    /// With what is found now.
    pub fn open(address: &Address, list_bytes_max: usize, find: Find) -> Result<Door, String> {
        Ok(Door {
            opened: Mutex::new(open(address, list_bytes_max, &find)?),
            list_bytes_max,
            looked: Mutex::default(),
            find,
        })
    }

    /// The client for requests.
    pub fn store(&self) -> Arc<dyn ObjectStore> {
        self.opened.lock().store.clone()
    }

    /// The client for lists by pages, of a bucket.
    pub fn pages(&self) -> Option<Arc<AmazonS3>> {
        self.opened.lock().pages.clone()
    }

    /// The origin of the credentials, for the message of a refusal.
    pub fn credentials(&self) -> String {
        self.opened.lock().credentials.clone()
    }

    /// The server refused a request that was made at that time. True if there are other credentials by now. Reads files.
    pub fn is_opened_anew(&self, address: &Address, asked: Instant) -> bool {
        let mut looked = self.looked.lock();
        let keys = {
            let known = self.opened.lock();
            if known.since > asked {
                return true; // somebody else was faster
            }
            known.keys.clone()
        };
        if keys.is_none() || looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return false;
        }
        *looked = Some(Instant::now());
        match open(address, self.list_bytes_max, &self.find) {
            Ok(now) if now.keys != keys => {
                tracing::info!(%address, "other credentials are used from now on");
                *self.opened.lock() = now;
                true
            }
            Ok(_) => false,
            Err(error) => {
                tracing::warn!(%address, error, "no other credentials are found");
                false
            }
        }
    }
}

fn open(address: &Address, list_bytes_max: usize, find: &Find) -> Result<Opened, String> {
    roots::check()?;
    // A try fails or succeeds as a whole, and by our own rules: the library tries once.
    let retry = RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    };
    let options = ClientOptions::new()
        .with_allow_http(true)
        .with_connect_timeout(CONNECT)
        .with_read_timeout(SILENCE)
        .with_timeout(TOTAL);
    let failed = |error: object_store::Error| failure::no_client(&error);
    let (store, pages, keys, credentials): (Arc<dyn ObjectStore>, _, _, _) = match &address.server {
        Server::Bucket { name, .. } => {
            let settings = settings(address, find()?);
            let made = driver::within(|| settings.open(name, options, (retry, list_bytes_max)))?;
            let s3 = Arc::new(made.map_err(failed)?);
            let keys = Some(settings.keys.clone());
            (s3.clone(), Some(s3), keys, settings.credentials())
        }
        Server::Web { origin, .. } => {
            let builder = HttpBuilder::new().with_url(origin).with_retry(retry);
            let builder = builder.with_http_connector(Bounded(list_bytes_max));
            let made = driver::within(|| builder.with_client_options(options).build())?;
            let web = Arc::new(made.map_err(failed)?);
            (web, None, None, "passwords are not supported".to_owned())
        }
    };
    Ok(Opened {
        store,
        pages,
        keys,
        credentials,
        since: Instant::now(),
    })
}

/// Merges settings: those of the address take precedence over those of this process.
pub fn settings(address: &Address, mut found: Settings) -> Settings {
    if let Server::Bucket {
        endpoint, region, ..
    } = &address.server
    {
        found.endpoint = endpoint.clone().or(found.endpoint);
        found.region = region.clone().or(found.region);
    }
    found
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use crate::entry::SourceError;
    use crate::remote::Remote;
    use crate::stat_cache::NameLimits;

    use super::*;

    /// A store that has every file and knows one key. To others it answers `refusal`. It ends with the test's process.
    fn store(key: Arc<Mutex<&'static str>>, refusal: &'static str) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                let known = format!("Credential={}/", *key.lock());
                let status = match head.iter().any(|line| line.contains(&known)) {
                    true => "200 OK",
                    false => refusal,
                };
                let answer = format!(
                    "HTTP/1.1 {status}\r\nETag: \"x\"\r\nLast-Modified: Mon, 05 Jan 2026 10:00:00 GMT\r\nContent-Length: 5\r\nConnection: close\r\n\r\n"
                );
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        port
    }

    /// Regression: credentials were read once, and a mount whose token had come to its end had to be mounted anew.
    #[test]
    fn new_credentials_are_used_once_the_old_ones_are_refused() {
        // A question for a name is answered without a word about what is wrong.
        for refusal in ["403 Forbidden", "400 Bad Request"] {
            let home = tempfile::tempdir().unwrap();
            let file = home.path().join("credentials");
            let write = |key: &str| {
                let text = format!("[default]\naws_access_key_id={key}\naws_secret_access_key=s\n");
                std::fs::write(&file, text).unwrap();
            };
            write("FIRST");
            let key = Arc::new(Mutex::new("FIRST"));
            let port = store(key.clone(), refusal);
            let (looks, place) = (Arc::new(AtomicUsize::new(0)), file.clone());
            let count = looks.clone();
            let find = move || {
                count.fetch_add(1, Ordering::SeqCst);
                let place = place.to_string_lossy().into_owned();
                Settings::from(&|name| {
                    (name == "AWS_SHARED_CREDENTIALS_FILE").then(|| place.clone())
                })
            };
            let address = Address::parse(&format!("s3://lab#endpoint=http://127.0.0.1:{port}"));
            let remote = Remote::with(
                address.unwrap().unwrap(),
                NameLimits::default(),
                Box::new(find),
            )
            .unwrap();
            let remote = Arc::new(remote);
            assert_eq!(remote.stat(b"a").unwrap().size, 5);
            *key.lock() = "SECOND";
            write("SECOND");
            assert_eq!(remote.stat(b"b").unwrap().size, 5, "{refusal}");
            assert_eq!(looks.load(Ordering::SeqCst), 2);
            // Where there are no others, it is not looked for them each time.
            *key.lock() = "THIRD";
            let began = Instant::now();
            for i in 0..20 {
                let refused = remote.stat(format!("c{i}").as_bytes()).unwrap_err();
                assert!(
                    !matches!(refused, SourceError::NotFound { .. }),
                    "{refused}"
                );
            }
            let may = 3 + began.elapsed().as_secs() / LOOK.as_secs();
            assert!(looks.load(Ordering::SeqCst) as u64 <= may);
        }
    }
}
