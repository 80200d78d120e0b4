//! Redirects: which are followed, and what is said of the others.
//!
//! Called by `http`, `streams`, `sse` and `websocket`. Our credentials are for one origin alone.

use http::{HeaderMap, Method as Verb, Response, StatusCode, Uri, header::LOCATION};
use url::Url;

use crate::{backend::BackendError, governance::redact_name};

/// Redirects in a row that are followed.
pub(super) const REDIRECTS_MAX: usize = 3;

/// A URL whose origin gets our requests.
#[derive(Clone, Debug)]
pub(in crate::backend) struct RequestUrl {
    url: Url,
    /// Whether the path may be shown: that of a URL out of a variable may be a credential.
    shows_path: bool,
}

impl RequestUrl {
    pub(in crate::backend) fn new(uri: &Uri, shows_path: bool) -> Result<Self, BackendError> {
        let url = Url::parse(&uri.to_string()).map_err(|error| BackendError::Connect {
            reason: format!("`url` is not valid: {error}"),
        })?;
        Ok(Self { url, shows_path })
    }

    pub(super) fn to_uri(&self) -> Uri {
        // What is legal in a URL of these schemes is legal in a URI.
        self.url.as_str().parse().unwrap_or_default()
    }

    /// What `reference` names, where that is of the same origin.
    pub(super) fn join(&self, reference: &str) -> Result<Self, BadReference> {
        let mut url = self.url.join(reference).map_err(|_| BadReference::NoUrl)?;
        url.set_fragment(None);
        if url.origin() != self.url.origin() {
            return Err(BadReference::OtherOrigin(url));
        }
        if url.as_str().parse::<Uri>().is_err() {
            return Err(BadReference::NoUrl);
        }
        let shows_path = self.shows_path;
        Ok(Self { url, shows_path })
    }

    /// Where a redirect of a request to this URL leads, if it is followed: the method stays the same, and
    /// so does the origin.
    pub(super) fn redirect<B>(
        &self,
        verb: &Verb,
        response: &Response<B>,
    ) -> Result<Self, BackendError> {
        let status = response.status();
        let keeps_method = match status {
            StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND | StatusCode::SEE_OTHER => {
                *verb == Verb::GET
            }
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => true,
            _ => false,
        };
        let refuse = |why, target: Option<&Url>| {
            let target = target.filter(|_| self.shows_path).map(displayed);
            Err(BackendError::Redirect {
                status,
                why,
                target,
            })
        };
        let location = location(response.headers()).unwrap_or_default();
        match self.join(location) {
            Ok(target) if keeps_method && !location.is_empty() => Ok(target),
            Ok(_) if location.is_empty() => refuse("without a `Location`", None),
            Ok(target) => refuse("in a way that loses the request", Some(&target.url)),
            Err(BadReference::NoUrl) => refuse("to something that is no URL", None),
            Err(BadReference::OtherOrigin(target)) => refuse(
                "to another origin, which gets no credentials",
                Some(&target),
            ),
        }
    }

    /// That a request was redirected [`REDIRECTS_MAX`] times, and `response` redirects it once more.
    pub(super) fn too_many_redirects<B>(&self, response: &Response<B>) -> BackendError {
        BackendError::Redirect {
            status: response.status(),
            why: "again and again",
            target: Some(displayed(&self.url)).filter(|_| self.shows_path),
        }
    }

    /// What a redirect says where none is followed.
    pub(in crate::backend) fn unfollowed<B>(&self, response: &Response<B>) -> BackendError {
        let target = location(response.headers()).and_then(|it| self.url.join(it).ok());
        BackendError::Redirect {
            status: response.status(),
            why: "where none is followed",
            target: target.as_ref().filter(|_| self.shows_path).map(displayed),
        }
    }
}

/// Why a reference leads nowhere.
#[derive(Debug)]
pub(super) enum BadReference {
    NoUrl,
    OtherOrigin(Url),
}

fn location(headers: &HeaderMap) -> Option<&str> {
    headers.get(LOCATION)?.to_str().ok()
}

/// A URL without what may open something: user and query.
fn displayed(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // Those that cannot have them have none.
    url.set_username("").ok();
    url.set_password(None).ok();
    redact_name(url.as_str()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirected(verb: &Verb, status: u16, location: &str) -> Result<String, String> {
        let base = "https://a.example/mcp?key=1".parse().unwrap();
        let base = RequestUrl::new(&base, true).unwrap();
        let response = Response::builder().status(status);
        let response = response.header(LOCATION, location).body(()).unwrap();
        let target = base.redirect(verb, &response);
        target
            .map(|target| target.to_uri().to_string())
            .map_err(|failure| failure.to_string())
    }

    #[test]
    fn redirects_within_the_origin_keep_the_method() {
        let check = |verb: &Verb, status: u16, location: &str, expect: Option<&str>| {
            let found = redirected(verb, status, location).ok();
            assert_eq!(found.as_deref(), expect, "{verb} {status} {location}");
        };
        let (get, post) = (Verb::GET, Verb::POST);
        check(&post, 307, "/mcp/", Some("https://a.example/mcp/"));
        check(
            &post,
            308,
            "docs/4?x=1#y",
            Some("https://a.example/docs/4?x=1"),
        );
        check(
            &post,
            307,
            "https://a.example:443/m",
            Some("https://a.example/m"),
        );
        check(&post, 307, "?a=b", Some("https://a.example/mcp?a=b"));
        for status in [301, 302, 303, 307, 308] {
            check(&get, status, "/x", Some("https://a.example/x"));
        }
        for status in [300, 301, 302, 303, 304, 305] {
            check(&post, status, "/x", None);
        }
        for elsewhere in [
            "http://a.example/mcp",
            "https://a.example:444/mcp",
            "//b.example/mcp",
            "https://b.example/mcp",
            "",
            "https://",
        ] {
            check(&post, 307, elsewhere, None);
            check(&get, 302, elsewhere, None);
        }
    }

    #[test]
    fn a_redirect_that_is_not_followed_says_what_to_write_instead() {
        let elsewhere = "https://ann:hunter2@b.example:444/mcp/?token=hunter2#x";
        let said = redirected(&Verb::POST, 307, elsewhere).unwrap_err();
        assert_eq!(
            said,
            "the server redirects (HTTP 307 Temporary Redirect) to another origin, which gets no \
             credentials; put the final URL into the config: `https://b.example:444/mcp/`"
        );
        let base = "https://a.example/mcp".parse().unwrap();
        let hidden = RequestUrl::new(&base, false).unwrap();
        let response = Response::builder().status(307);
        let response = response.header(LOCATION, elsewhere).body(()).unwrap();
        let said = hidden.redirect(&Verb::POST, &response).unwrap_err();
        let said = said.to_string();
        assert!(
            said.ends_with("put the final URL into the config"),
            "{said}"
        );
    }
}
