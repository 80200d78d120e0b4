//! What a browser carries between pages, sealed: who is logged in there, and the request that a page is about.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    AuthorizationRequest, AuthorizationServer, ServerError, grant::SubjectBody, secret, tokens,
};
use crate::auth::token::TokenSubject;

/// How long a page may wait for its person.
const PAGE_LIFETIME: Duration = Duration::from_secs(10 * 60);

/// A browser, and who is logged in there.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct LoginSession {
    /// Random; pages that were sent to it have it too.
    id: String,
    /// Who is logged in.
    pub who: Option<LoggedIn>,
    #[serde(with = "super::time_ms")]
    expires: Timestamp,
}

/// Somebody who is logged in.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct LoggedIn {
    subject: SubjectBody,
    /// What people call them.
    pub name: String,
}

impl LoggedIn {
    /// `subject`, whom people call `name`.
    pub fn new(subject: &TokenSubject, name: String) -> Self {
        Self {
            subject: subject.into(),
            name,
        }
    }

    /// Who they are.
    pub fn subject(&self) -> TokenSubject {
        self.subject.clone().into()
    }
}

/// A request in a page that was sent to a browser.
#[derive(Debug, Deserialize, Serialize)]
struct PageState {
    browser: String,
    request: AuthorizationRequest,
    #[serde(with = "super::time_ms")]
    expires: Timestamp,
}

impl LoginSession {
    /// How long somebody stays logged in, so that the next client does not ask again.
    pub const LIFETIME: Duration = Duration::from_secs(15 * 60);

    /// That of a browser in which `who` is logged in; what it was known by before counts no longer.
    ///
    /// # Errors
    /// When there are no random numbers.
    pub fn new(who: Option<LoggedIn>, now: Timestamp) -> Result<Self, ServerError> {
        Ok(Self {
            id: secret::random_text::<32>()?,
            who,
            expires: tokens::after(now, Self::LIFETIME),
        })
    }
}

impl LoginSession {
    pub(super) fn id(&self) -> &str {
        &self.id
    }
}

impl AuthorizationServer {
    /// The value of the cookie of a browser.
    ///
    /// # Errors
    /// When it cannot be sealed.
    pub fn seal_browser(&self, browser: &LoginSession) -> Result<String, ServerError> {
        self.seal_text("oauth browser", browser)
    }

    /// The browser that a cookie is of; `None` where it is none of ours, or its time has passed.
    pub fn open_browser(&self, cookie: &str, now: Timestamp) -> Option<LoginSession> {
        let browser: LoginSession = self.open_text("oauth browser", cookie)?;
        (now < browser.expires).then_some(browser)
    }

    /// `request` for a page that goes to `browser`.
    ///
    /// # Errors
    /// When it cannot be sealed.
    pub fn seal_page(
        &self,
        request: &AuthorizationRequest,
        browser: &LoginSession,
        now: Timestamp,
    ) -> Result<String, ServerError> {
        let page = PageState {
            browser: browser.id.clone(),
            request: request.clone(),
            expires: tokens::after(now, PAGE_LIFETIME),
        };
        self.seal_text("oauth page", &page)
    }

    /// The request of a page that comes back from `browser`; `None` where it was not sent there, or waited for
    /// too long.
    pub fn open_page(
        &self,
        page: &str,
        browser: &LoginSession,
        now: Timestamp,
    ) -> Option<AuthorizationRequest> {
        let page: PageState = self.open_text("oauth page", page)?;
        (page.browser == browser.id && now < page.expires).then_some(page.request)
    }
}
