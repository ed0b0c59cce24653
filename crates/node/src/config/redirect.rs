//! `resp_redirect` as text.

use super::value::Setting;
use staves_resp::Redirect;

impl Setting for Redirect {
    fn parse(text: &str) -> Result<Redirect, String> {
        match text {
            "forward" => Ok(Redirect::Forward),
            "moved" => Ok(Redirect::Moved),
            _ => Err(format!("'{text}' is neither 'forward' nor 'moved'")),
        }
    }

    fn show(&self) -> String {
        match self {
            Redirect::Forward => "forward".into(),
            Redirect::Moved => "moved".into(),
        }
    }
}
