//! The last step of a walk: the page where people log in, and what authorization servers say in its place.

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use bytes::Bytes;
use http::{Response, header};
use regex::Regex;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use url::Url;
use uuid::Uuid;

use super::{
    super::discovery::BrowserCookies, Failure, FoundResource, SignInStep, Walk, failure, shorten,
    url_of,
};

/// Redirects on the way to a page where people log in.
const REDIRECTS_MAX: usize = 5;
/// How errors of Microsoft Entra begin, also in pages of status 200.
const ENTRA_ERROR: &str = "AADSTS";

impl Walk<'_> {
    /// Opens the page where people log in.
    pub(super) async fn start_login(
        &mut self,
        server: &Map<String, Value>,
        resource: &FoundResource,
        client_id: &str,
    ) -> Result<(), Failure> {
        let step = SignInStep::Authorization;
        let start = url_of(server, "authorization_endpoint");
        let mut page = start.expect("`find_server` has checked it");
        let verifier = Uuid::new_v4().to_string();
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
        page.query_pairs_mut().extend_pairs([
            ("response_type", "code"),
            ("client_id", client_id),
            ("redirect_uri", self.client.redirect_uri),
            ("state", &Uuid::new_v4().to_string()),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
            ("resource", &resource.id),
        ]);
        if let Some(scope) = &resource.scope {
            page.query_pairs_mut().append_pair("scope", scope);
        }
        let mut cookies = BrowserCookies::default();
        for _ in 0..=REDIRECTS_MAX {
            let host = page.host_str().unwrap_or_default().to_owned();
            let response = self.fetcher.visit(&page, &mut cookies).await;
            let response = response.map_err(|why| {
                let advice = "people have to reach that page with a browser; where it is private, use --allow";
                failure(step, why, advice)
            })?;
            let place = response.headers().get(header::LOCATION);
            let place = place.and_then(|place| place.to_str().ok());
            let next = place.and_then(|place| page.join(place).ok());
            let Some(next) = next.filter(|_| response.status().is_redirection()) else {
                return self.judge_page(&host, &response);
            };
            if next.as_str().starts_with(self.client.redirect_uri) {
                return self.judge_answer(&next);
            }
            page = next;
        }
        let detail = format!(
            "more than {REDIRECTS_MAX} redirects, the last to {}",
            without_query(&page)
        );
        Err(failure(
            step,
            detail,
            "look into the log of the authorization server",
        ))
    }

    /// What came of it where a page is shown.
    fn judge_page(&mut self, host: &str, response: &Response<Bytes>) -> Result<(), Failure> {
        let step = SignInStep::Authorization;
        let text = String::from_utf8_lossy(response.body());
        let entra = text.find(ENTRA_ERROR).map(|at| shorten(&text[at..]));
        match entra {
            Some(error) => Err(failure(
                step,
                format!("{host}: {error}"),
                self.advice_for(&error),
            )),
            None if response.status().is_success() => {
                self.ok(step, format!("{host} shows the page to log in"));
                Ok(())
            }
            None => {
                let error = error_of(response);
                let advice = self.advice_for(&error);
                Err(failure(step, format!("{host}: {error}"), advice))
            }
        }
    }

    /// What came of it where the authorization server answers the client at once.
    fn judge_answer(&mut self, answer: &Url) -> Result<(), Failure> {
        let step = SignInStep::Authorization;
        let param = |name: &str| {
            let found = answer.query_pairs().find(|(given, _)| given == name);
            found.map(|(_, value)| value.into_owned())
        };
        let Some(error) = param("error") else {
            self.ok(step, "the authorization server issues a code".to_owned());
            return Ok(());
        };
        let description = param("error_description").unwrap_or_default();
        let error = shorten(format!("{error} {description}").trim());
        let advice = self.advice_for(&error);
        Err(failure(step, error, advice))
    }

    /// What to do about an `error` of the authorization endpoint.
    fn advice_for(&self, error: &str) -> &'static str {
        let says = |part: &str| error.to_lowercase().contains(part);
        if says("aadsts9010010") || says("invalid_target") || says("invalid_resource") {
            "the authorization server refuses the parameter `resource`, which clients always send; put one before it \
             that takes it: in Tollbridge `oauth.mode = \"builtin\"` with this issuer in `[oauth.login]`"
        } else if says("scope") {
            "offer only scopes that the authorization server knows: in Tollbridge `oauth.scopes`"
        } else if says("redirect") {
            "allow the redirect URI of this client at the authorization server; a port on loopback does not count \
             (RFC 8252, section 7.3)"
        } else if says("client") && self.client.document.is_some() {
            "see that the authorization server knows the client; where it takes documents of clients, it must be able \
             to fetch them from the internet, or not name `client_id_metadata_document_supported`"
        } else {
            "look into the log of the authorization server"
        }
    }
}

/// The error of OAuth in `response`, or else its status and the first words of its text.
pub(super) fn error_of(response: &Response<Bytes>) -> String {
    let status = response.status();
    let answer: Value = serde_json::from_slice(response.body()).unwrap_or_default();
    let error = answer["error"].as_str().unwrap_or_default();
    let description = answer["error_description"].as_str().unwrap_or_default();
    let text = String::from_utf8_lossy(response.body());
    let text = match error {
        "" => page_text(&text),
        error => error.to_owned(),
    };
    let all = format!("{status} {text} {description}");
    shorten(all.trim())
}

/// The text of a page of HTML, as far as that can be told without reading it as a browser does.
fn page_text(html: &str) -> String {
    let hidden = Regex::new(
        r"(?is)<(?:head|script|style|svg)\b.*?</(?:head|script|style|svg)>|<!--.*?-->|<[^>]*>",
    );
    let hidden = hidden.expect("a constant pattern");
    hidden.replace_all(html, " ").into_owned()
}

fn without_query(url: &Url) -> String {
    let mut shown = url.clone();
    shown.set_query(None);
    shown.to_string()
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn errors_are_found_in_pages() {
        let check = |body: &'static str, expect: &str| {
            let mut response = Response::new(Bytes::from_static(body.as_bytes()));
            *response.status_mut() = StatusCode::BAD_REQUEST;
            assert_eq!(error_of(&response), format!("400 Bad Request {expect}"));
        };
        check(
            r#"{"error":"invalid_client","error_description":"unknown"}"#,
            "invalid_client unknown",
        );
        check("no client", "no client");
        check(
            "<!DOCTYPE html><head><title>x</title><style>a{b:c}</style></head><body><h1>oops</h1><!-- a -->\n<pre>\
             error: invalid_redirect_uri</pre></body>",
            "oops error: invalid_redirect_uri",
        );
    }
}
