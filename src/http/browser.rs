//! The browser that asks for a page, and who is logged in there.

use http::{HeaderMap, Response};

use super::{HttpEdge, body::Body};
use crate::browser_login::{BrowserCookie, BrowserLogin};

/// The browser that sent a request.
#[derive(Debug)]
pub(super) struct Browser<'e> {
    edge: &'e HttpEdge,
    /// The cookie that it has, or is given.
    cookie: BrowserCookie,
    /// Whether it is given one.
    is_new: bool,
    login: Option<BrowserLogin>,
}

impl<'e> Browser<'e> {
    /// The one that sent these headers.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub(super) fn of(edge: &'e HttpEdge, headers: &HeaderMap) -> Result<Self, getrandom::Error> {
        let known = BrowserCookie::of(headers, edge.proxy.sign_ins().is_secure());
        let directory = edge.proxy.governance().directory();
        let login = known.as_ref();
        let login = login.and_then(|cookie| edge.browser_logins.get(cookie, directory));
        Ok(Self {
            edge,
            is_new: known.is_none(),
            cookie: match known {
                Some(cookie) => cookie,
                None => BrowserCookie::new()?,
            },
            login,
        })
    }

    /// Who is logged in.
    pub(super) fn login(&self) -> Option<&BrowserLogin> {
        self.login.as_ref()
    }

    /// Whether it came without a cookie: nothing that it sends was made for it.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// What its forms have.
    pub(super) fn form_token(&self) -> String {
        self.cookie.form_token()
    }

    /// Whether a form with `token` was made for it.
    pub(super) fn has_sent(&self, token: &str) -> bool {
        !self.is_new && self.cookie.is_form_token(token)
    }

    /// What it proves itself with where it comes back from elsewhere.
    pub(super) fn binding(&self) -> String {
        self.cookie.binding()
    }

    /// Lets somebody be logged in there from now on, under another cookie than before.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub(super) fn log_in(&mut self, login: BrowserLogin) -> Result<(), getrandom::Error> {
        let cookie = self.edge.browser_logins.open(login.clone(), &self.cookie)?;
        (self.cookie, self.is_new) = (cookie, true);
        self.login = Some(login);
        Ok(())
    }

    /// Lets nobody be logged in there.
    pub(super) fn log_out(&mut self) {
        self.edge.browser_logins.close(&self.cookie);
        self.login = None;
    }

    /// `response`, with the cookie where the browser does not have it.
    pub(super) fn keep(&self, mut response: Response<Body>) -> Response<Body> {
        if self.is_new {
            let is_secure = self.edge.proxy.sign_ins().is_secure();
            self.cookie.set_in(response.headers_mut(), is_secure);
        }
        response
    }
}
