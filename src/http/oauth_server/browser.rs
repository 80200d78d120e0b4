//! The cookie that binds pages to the browser that they were sent to.

use http::{
    HeaderValue, Response, StatusCode,
    header::{COOKIE, SET_COOKIE},
};
use url::Url;

use super::{OAuthRequest, pages};
use crate::{
    authorization_server::{LoginSession, ServerError},
    clock,
    http::body::Body,
};

/// With this prefix a browser takes a cookie from its own host over TLS alone.
const COOKIE_SECURE: &str = "__Host-tollbridge";
/// The same without TLS, which is for this machine.
const COOKIE_PLAIN: &str = "tollbridge-login";

/// Browsers keep no larger ones (RFC 6265, section 6.1).
const COOKIE_BYTES_MAX: usize = 4_096;

impl OAuthRequest<'_> {
    /// The browser, as its cookie says.
    pub(super) fn browser(&self) -> Option<LoginSession> {
        let name = cookie_name(&self.issuer);
        let cookies = self.request.headers().get_all(COOKIE).iter();
        let pairs = cookies.filter_map(|value| value.to_str().ok());
        let mut pairs = pairs.flat_map(|value| value.split(';'));
        let value = pairs.find_map(|pair| {
            let (known, value) = pair.trim().split_once('=')?;
            (known == name).then_some(value)
        })?;
        self.server().open_browser(value, clock::now())
    }

    /// `response`, which says what the browser is known by.
    pub(super) fn with_browser(
        &self,
        mut response: Response<Body>,
        browser: &LoginSession,
    ) -> Result<Response<Body>, ServerError> {
        let name = cookie_name(&self.issuer);
        let value = self.server().seal_browser(browser)?;
        let seconds = LoginSession::LIFETIME.as_secs();
        let secure = if is_secure(&self.issuer) {
            "; Secure"
        } else {
            ""
        };
        let cookie =
            format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}");
        if cookie.len() > COOKIE_BYTES_MAX {
            self.refused("oauth_claims_size");
            let why = "the issuer says too much about you for a cookie: let it leave out groups";
            return Ok(pages::error(StatusCode::FORBIDDEN, why));
        }
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            response.headers_mut().insert(SET_COOKIE, cookie);
        }
        Ok(response)
    }
}

/// `path` below the path of the public URL.
pub(super) fn path(issuer: &str, path: &str) -> String {
    let base = Url::parse(issuer);
    let base = base
        .as_ref()
        .map_or("", |url| url.path().trim_end_matches('/'));
    format!("{base}{path}")
}

fn is_secure(issuer: &str) -> bool {
    issuer.starts_with("https:")
}

fn cookie_name(issuer: &str) -> &'static str {
    if is_secure(issuer) {
        COOKIE_SECURE
    } else {
        COOKIE_PLAIN
    }
}
