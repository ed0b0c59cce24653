//! The keys of TLS: `nbd_tls` as text, and the rules for all of them.

use super::Config;
use super::value::Setting;
use staves_nbd::TlsPolicy;

impl Setting for Option<TlsPolicy> {
    fn parse(text: &str) -> Result<Option<TlsPolicy>, String> {
        match text {
            "" => Ok(None),
            "off" => Ok(Some(TlsPolicy::Off)),
            "offered" => Ok(Some(TlsPolicy::Offered)),
            "required" => Ok(Some(TlsPolicy::Required)),
            _ => Err(format!(
                "'{text}' is none of 'off', 'offered' and 'required'"
            )),
        }
    }

    fn show(&self) -> String {
        let text = match self {
            None => "",
            Some(TlsPolicy::Off) => "off",
            Some(TlsPolicy::Offered) => "offered",
            Some(TlsPolicy::Required) => "required",
        };
        text.to_owned()
    }
}

impl Config {
    /// The policy of TLS at the NBD door.
    pub fn nbd_tls_policy(&self) -> TlsPolicy {
        let by_default = match self.tls_cert {
            Some(_) => TlsPolicy::Offered,
            None => TlsPolicy::Off,
        };
        self.nbd_tls.unwrap_or(by_default)
    }

    /// True, or the rule that does not hold.
    pub(super) fn tls_files_are_whole(&self) -> (bool, &'static str) {
        let is_pair = self.tls_cert.is_some() == self.tls_key.is_some();
        (
            is_pair && (self.tls_client_ca.is_none() || self.tls_cert.is_some()),
            "tls_cert and tls_key go together, and tls_client_ca needs both: name the files of the certificate and of its key",
        )
    }

    /// The same.
    pub(super) fn tls_has_a_certificate(&self) -> (bool, &'static str) {
        (
            self.tls_cert.is_some() || self.nbd_tls_policy() == TlsPolicy::Off,
            "nbd_tls needs a certificate: name its file with tls_cert, and that of its key with tls_key",
        )
    }
}
