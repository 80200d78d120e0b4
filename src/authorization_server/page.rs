//! What pages carry, sealed: the request that they are about. And who has logged in to decide about it.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{AuthorizationRequest, AuthorizationServer, ServerError, tokens};
use crate::auth::token::TokenSubject;

/// How long a page may wait for its person.
const PAGE_LIFETIME: Duration = Duration::from_secs(10 * 60);

/// Somebody who is logged in.
#[derive(Clone, Debug, PartialEq)]
pub struct LoggedIn {
    subject: TokenSubject,
    /// What people call them.
    pub name: String,
}

impl LoggedIn {
    /// `subject`, whom people call `name`.
    pub fn new(subject: &TokenSubject, name: String) -> Self {
        Self {
            subject: subject.clone(),
            name,
        }
    }

    /// Who they are.
    pub fn subject(&self) -> TokenSubject {
        self.subject.clone()
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

impl AuthorizationServer {
    /// `request` for a page that goes to the browser with this binding.
    ///
    /// # Errors
    /// When it cannot be sealed.
    pub fn seal_page(
        &self,
        request: &AuthorizationRequest,
        browser: &str,
        now: Timestamp,
    ) -> Result<String, ServerError> {
        let page = PageState {
            browser: browser.to_owned(),
            request: request.clone(),
            expires: tokens::after(now, PAGE_LIFETIME),
        };
        self.seal_text("oauth page", &page)
    }

    /// The request of a page that comes back from the browser with this binding; `None` where it was not sent
    /// there, or waited for too long.
    pub fn open_page(
        &self,
        page: &str,
        browser: &str,
        now: Timestamp,
    ) -> Option<AuthorizationRequest> {
        let page: PageState = self.open_text("oauth page", page)?;
        (page.browser == browser && now < page.expires).then_some(page.request)
    }
}
