//! The browser that asks for a page, and who is logged in there.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};

use super::{HttpEdge, body::Body, oauth::RequestTarget};
use crate::auth::{API_KEY_HEADER, Agent, AuthError, Credentials, MERGED_ROUTE};
use crate::browser_login::{BrowserCookie, BrowserLogin, BrowserLogins, BrowserPages};

/// The browser that sent a request.
#[derive(Debug)]
pub(super) struct Browser<'e> {
    edge: &'e HttpEdge,
    pages: BrowserPages,
    /// The cookie that it has, or is given.
    cookie: BrowserCookie,
    /// Whether it is given one.
    is_new: bool,
    login: Option<BrowserLogin>,
}

impl<'e> Browser<'e> {
    /// The one that sent these headers to one of `pages`.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub(super) fn of(
        edge: &'e HttpEdge,
        pages: BrowserPages,
        headers: &HeaderMap,
    ) -> Result<Self, getrandom::Error> {
        let known = BrowserCookie::of(headers, pages, edge.proxy.sign_ins().is_secure());
        let directory = edge.proxy.governance().directory();
        let login = known.as_ref();
        let logins = logins_of(edge, pages);
        let login = login.and_then(|cookie| logins.get(cookie, directory));
        Ok(Self {
            edge,
            pages,
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
        let cookie = self.logins().open(login.clone(), &self.cookie)?;
        (self.cookie, self.is_new) = (cookie, true);
        self.login = Some(login);
        Ok(())
    }

    /// Lets nobody be logged in there.
    pub(super) fn log_out(&mut self) {
        self.logins().close(&self.cookie);
        self.login = None;
    }

    /// `response`, with the cookie where the browser does not have it.
    pub(super) fn keep(&self, mut response: Response<Body>) -> Response<Body> {
        if self.is_new {
            let is_secure = self.edge.proxy.sign_ins().is_secure();
            self.cookie
                .set_in(response.headers_mut(), self.pages, is_secure);
        }
        response
    }

    fn logins(&self) -> &BrowserLogins {
        logins_of(self.edge, self.pages)
    }
}

/// Who is logged in in one of `pages`.
fn logins_of(edge: &HttpEdge, pages: BrowserPages) -> &BrowserLogins {
    match pages {
        BrowserPages::SignIn => &edge.browser_logins,
        BrowserPages::Dashboard => &edge.dashboard_logins,
    }
}

/// The agent that has `key`, which somebody typed into a form.
pub(super) async fn agent_of_key<B>(
    edge: &HttpEdge,
    key: &str,
    request: &Request<B>,
) -> Result<Arc<Agent>, AuthError> {
    let mut headers = HeaderMap::new();
    if let Ok(key) = HeaderValue::try_from(key.trim()) {
        headers.insert(HeaderName::from_static(API_KEY_HEADER), key);
    }
    let resource_server = edge.resource_server.load_full();
    let shown = Credentials {
        headers: &headers,
        certificate: None,
        resource: resource_server
            .public_url
            .resource(MERGED_ROUTE, RequestTarget::of(request)),
    };
    let directory = edge.proxy.governance().directory();
    let found = directory.authenticate_signed_in(shown).await;
    found.map(|identity| identity.agent)
}
