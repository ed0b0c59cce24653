//! Access to buckets: the settings that Amazon's own tools would take from the environment and from their files.
//!
//! Credentials never leave the process that found them: each node and each mount looks for its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use object_store::ClientOptions;
use object_store::RetryConfig;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};

use crate::folder::Workers;
use crate::remote::address::checked_endpoint;
use crate::remote::bounded::Bounded;
use crate::remote::sifted::Sifted;

/// Further settings that are passed on as they are: other ways to credentials, and the like.
const PASSED_ON: [&str; 10] = [
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_METADATA_ENDPOINT",
    "AWS_REQUEST_PAYER",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_PROXY_URL",
];

/// Of these, those that lead to credentials.
const OTHER_CREDENTIALS: [&str; 4] = [
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_METADATA_ENDPOINT",
];

/// Bytes of the longest file of profiles.
const PROFILES_BYTES_MAX: u64 = 4 << 20;

/// The settings for access to buckets.
#[derive(Default)]
pub struct Settings {
    /// The store's URL, if it is not Amazon's.
    pub endpoint: Option<String>,
    /// The region, in Amazon's words.
    pub region: Option<String>,
    /// The keys for signatures.
    pub keys: Keys,
    passed_on: Vec<(AmazonS3ConfigKey, String)>,
}

/// The source of signatures.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum Keys {
    /// Nobody has any.
    #[default]
    None,
    /// Requests are not signed, by the user's choice.
    NotWanted,
    Known {
        id: String,
        secret: String,
        token: Option<String>,
        from: String,
    },
    /// The library gets them from where these variables point.
    Elsewhere,
}

impl Settings {
    /// From the environment of this process, and the files that it names.
    pub fn find() -> Result<Settings, String> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Settings::from(&variable)
    }

    /// From variables.
    pub fn from(variable: &dyn Fn(&str) -> Option<String>) -> Result<Settings, String> {
        let profile = Profile::read(variable)?;
        let any = |names: &[&str]| names.iter().find_map(|name| variable(name));
        let endpoint = any(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]);
        let endpoint = endpoint.or_else(|| profile.get("endpoint_url"));
        let region = any(&["AWS_REGION", "AWS_DEFAULT_REGION"]);
        let passed_on = PASSED_ON.iter().filter_map(|name| {
            let key = name.to_ascii_lowercase().parse().ok()?;
            Some((key, variable(name)?))
        });
        Ok(Settings {
            endpoint: endpoint.map(|url| checked_endpoint(&url)).transpose()?,
            region: region.or_else(|| profile.get("region")),
            keys: Keys::find(variable, &profile)?,
            passed_on: passed_on.collect(),
        })
    }

    /// The credentials in use, for the message that they do not suffice.
    pub fn credentials(&self) -> String {
        match &self.keys {
            Keys::None => "there are no credentials in the environment of this process (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE), nor in ~/.aws/credentials, so it was asked without".to_owned(),
            Keys::NotWanted => "it was asked without credentials, as AWS_SKIP_SIGNATURE says".to_owned(),
            Keys::Known { from, .. } => format!("the credentials of {from} do not open it"),
            Keys::Elsewhere => "the credentials that AWS_… in the environment lead to do not open it".to_owned(),
        }
    }

    /// Opens the client for the objects of a bucket.
    pub fn open(
        &self,
        bucket: &str,
        options: ClientOptions,
        (retry, list_bytes_max): (RetryConfig, usize),
    ) -> object_store::Result<AmazonS3> {
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_retry(retry)
            .with_http_connector(Sifted(Bounded(list_bytes_max)))
            .with_client_options(options);
        for (key, value) in &self.passed_on {
            builder = builder.with_config(*key, value);
        }
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = &self.region {
            builder = builder.with_region(region);
        }
        match &self.keys {
            Keys::None | Keys::NotWanted => builder = builder.with_skip_signature(true),
            Keys::Known {
                id, secret, token, ..
            } => {
                builder = builder
                    .with_access_key_id(id)
                    .with_secret_access_key(secret);
                if let Some(token) = token {
                    builder = builder.with_token(token);
                }
            }
            Keys::Elsewhere => {}
        }
        builder.build()
    }
}

impl Keys {
    fn find(variable: &dyn Fn(&str) -> Option<String>, profile: &Profile) -> Result<Keys, String> {
        let skip = variable("AWS_SKIP_SIGNATURE");
        if skip.is_some_and(|value| matches!(&*value.to_ascii_lowercase(), "1" | "true" | "yes")) {
            return Ok(Keys::NotWanted);
        }
        let known = |id, secret, token, from| {
            Ok(Keys::Known {
                id,
                secret,
                token,
                from,
            })
        };
        match (
            variable("AWS_ACCESS_KEY_ID"),
            variable("AWS_SECRET_ACCESS_KEY"),
        ) {
            (Some(id), Some(secret)) => {
                let from = "AWS_ACCESS_KEY_ID in the environment".to_owned();
                return known(id, secret, variable("AWS_SESSION_TOKEN"), from);
            }
            (None, None) => {}
            (Some(_), None) => return Err(half("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
            (None, Some(_)) => return Err(half("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID")),
        }
        if OTHER_CREDENTIALS
            .iter()
            .any(|name| variable(name).is_some())
        {
            return Ok(Keys::Elsewhere);
        }
        match (
            profile.get("aws_access_key_id"),
            profile.get("aws_secret_access_key"),
        ) {
            (Some(id), Some(secret)) => {
                let from = format!("the profile '{}'", profile.name);
                known(id, secret, profile.get("aws_session_token"), from)
            }
            (None, None) if profile.named && profile.values.is_empty() => {
                let name = &profile.name;
                Err(format!(
                    "AWS_PROFILE names the profile '{name}', and neither ~/.aws/credentials nor ~/.aws/config has it"
                ))
            }
            // Those of other kinds (single sign-on, assumed roles) are not understood; the bucket may be open to all.
            _ => Ok(Keys::None),
        }
    }
}

fn half(there: &str, missing: &str) -> String {
    format!("{there} is set in the environment and {missing} is not: set both, or neither")
}

/// A file's text, if there is such a file. It may be on a file server that does not answer: then whoever asks waits for some seconds, and
/// those after it do not.
fn text_of(path: PathBuf) -> Result<Option<String>, String> {
    static READERS: LazyLock<Workers> = LazyLock::new(|| {
        let home = std::env::var_os("HOME").unwrap_or_else(|| "/".into());
        let look = move || drop(std::fs::metadata(&home));
        Workers::new("where credentials are kept (~/.aws)", look)
    });
    let read = READERS.call(move |_| Ok((read_text(&path), path)));
    let (read, path) = read.map_err(|error| error.to_string())?;
    match read {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{} cannot be read: {error}", path.display())),
    }
}

/// Of a file that a variable names, which may be a device without an end.
fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?
        .take(PROFILES_BYTES_MAX + 1)
        .read_to_string(&mut text)?;
    match text.len() as u64 > PROFILES_BYTES_MAX {
        true => Err(io::Error::other(format!(
            "it has more than {PROFILES_BYTES_MAX} bytes"
        ))),
        false => Ok(text),
    }
}

/// One profile of the files that Amazon's tools share.
#[derive(Default)]
struct Profile {
    name: String,
    /// The user asked for it.
    named: bool,
    values: BTreeMap<String, String>,
}

impl Profile {
    fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<Profile, String> {
        let named = variable("AWS_PROFILE").or_else(|| variable("AWS_DEFAULT_PROFILE"));
        let mut profile = Profile {
            named: named.is_some(),
            name: named.unwrap_or_else(|| "default".to_owned()),
            values: BTreeMap::new(),
        };
        let of_home = |file: &str| Some(PathBuf::from(variable("HOME")?).join(".aws").join(file));
        let place = |name: &str, file: &str| match variable(name) {
            Some(path) => Some(PathBuf::from(path)),
            None => of_home(file),
        };
        // The file of credentials takes precedence.
        for path in [
            place("AWS_CONFIG_FILE", "config"),
            place("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
        ] {
            let Some(path) = path else { continue };
            if let Some(text) = text_of(path)? {
                profile.take(&text);
            }
        }
        Ok(profile)
    }

    fn take(&mut self, text: &str) {
        let mut is_this = false;
        for line in text.lines() {
            let is_nested = line.starts_with([' ', '\t']);
            let line = line.trim();
            if line.is_empty() || line.starts_with(['#', ';']) || is_nested {
                continue;
            }
            if let Some(section) = line.strip_prefix('[') {
                let section = section.split(']').next().unwrap_or_default().trim();
                let name = section
                    .strip_prefix("profile")
                    .filter(|n| n.starts_with([' ', '\t']));
                is_this = name.unwrap_or(section).trim() == self.name;
                continue;
            }
            if let Some((key, value)) = line.split_once('=').filter(|_| is_this) {
                let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
                self.values.insert(key, value.to_owned());
            }
        }
    }

    fn get(&self, key: &str) -> Option<String> {
        self.values
            .get(key)
            .filter(|value| !value.is_empty())
            .cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let all: BTreeMap<&str, &str> = variables.iter().copied().collect();
        Settings::from(&|name| all.get(name).map(|value| value.to_string()))
    }

    fn id(settings: &Settings) -> &str {
        match &settings.keys {
            Keys::Known { id, .. } => id,
            _ => "",
        }
    }

    #[test]
    fn credentials_are_found_in_their_usual_places_in_their_order() {
        let home = tempfile::tempdir().unwrap();
        let aws = home.path().join(".aws");
        std::fs::create_dir(&aws).unwrap();
        let config = "[default]\nregion = eu-west-1\ns3 =\n  region = none\n[profile lab]\nregion=eu-north-1\nendpoint_url = http://10.0.0.9:9000/\naws_access_key_id = not this one\n";
        std::fs::write(aws.join("config"), config).unwrap();
        let credentials = "# keys\n[default]\naws_access_key_id = D\naws_secret_access_key = d/+=\n[lab]\naws_access_key_id=L\naws_secret_access_key=l\naws_session_token=t\n[none]\n";
        std::fs::write(aws.join("credentials"), credentials).unwrap();
        let home = home.path().to_str().unwrap();

        let found = settings(&[("HOME", home)]).unwrap();
        assert_eq!(
            (id(&found), found.region.as_deref()),
            ("D", Some("eu-west-1"))
        );
        assert!(matches!(&found.keys, Keys::Known { secret, .. } if secret == "d/+="));
        let found = settings(&[("HOME", home), ("AWS_PROFILE", "lab")]).unwrap();
        assert_eq!(
            (id(&found), found.region.as_deref()),
            ("L", Some("eu-north-1"))
        );
        assert_eq!(found.endpoint.as_deref(), Some("http://10.0.0.9:9000"));
        assert!(matches!(&found.keys, Keys::Known { token: Some(t), .. } if t == "t"));
        let env = [
            ("HOME", home),
            ("AWS_ACCESS_KEY_ID", "E"),
            ("AWS_SECRET_ACCESS_KEY", "e"),
            ("AWS_REGION", "r"),
            ("AWS_ENDPOINT_URL", "https://store"),
        ];
        let found = settings(&env).unwrap();
        assert_eq!((id(&found), found.region.as_deref()), ("E", Some("r")));
        assert_eq!(found.endpoint.as_deref(), Some("https://store"));
        let found = settings(&[("HOME", home), ("AWS_SKIP_SIGNATURE", "true")]).unwrap();
        assert!(matches!(found.keys, Keys::NotWanted));
        let found = settings(&[("HOME", home), ("AWS_METADATA_ENDPOINT", "http://m")]).unwrap();
        assert!(matches!(found.keys, Keys::Elsewhere));
        let found = settings(&[("HOME", "/nowhere")]).unwrap();
        assert!(matches!(found.keys, Keys::None));
    }

    #[test]
    fn a_file_without_an_end_is_no_file_of_profiles() {
        let env = [("AWS_CONFIG_FILE", "/dev/zero"), ("HOME", "/nowhere")];
        let error = settings(&env).err().unwrap();
        assert!(
            error.contains("/dev/zero") && error.contains("more than"),
            "{error}"
        );
    }

    #[test]
    fn half_of_what_is_needed_is_said_to_be_half() {
        let error = settings(&[("AWS_ACCESS_KEY_ID", "E")]).err().unwrap();
        assert!(error.contains("AWS_SECRET_ACCESS_KEY is not"), "{error}");
        let error = settings(&[("AWS_PROFILE", "gone"), ("HOME", "/nowhere")])
            .err()
            .unwrap();
        assert!(error.contains("'gone'"), "{error}");
        let error = settings(&[("AWS_ENDPOINT_URL", "10.0.0.9:9000")])
            .err()
            .unwrap();
        assert!(error.contains("begins with neither"), "{error}");
    }

    /// Nothing that is shown or logged has a secret in it.
    #[test]
    fn what_is_said_of_credentials_does_not_tell_them() {
        let env = [
            ("AWS_ACCESS_KEY_ID", "AKIA"),
            ("AWS_SECRET_ACCESS_KEY", "hush"),
        ];
        let found = settings(&env).unwrap();
        let said = found.credentials();
        assert!(!said.contains("hush") && !said.contains("AKIA"), "{said}");
    }
}
