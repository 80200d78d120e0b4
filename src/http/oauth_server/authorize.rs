//! The authorization endpoint: people log in, see what a client wants, and decide.

use std::sync::Arc;

use http::{Response, StatusCode};

use super::{OAuthForm, OAuthRequest, pages, path_below, redirect, resource_label};
use crate::{
    audit::EventKind,
    auth::{Agent, token::TokenSubject},
    authorization_server::{
        AuthorizationRequest, AuthorizeError, AuthorizeParams, ClientError, LoggedIn,
        LoginCallback, LoginPurpose, LoginRequest, OidcError, OidcIssuer, RedirectUri, ServerError,
        redirect_url,
    },
    browser_login::BrowserLogin,
    clock,
    http::{body::Body, browser::Browser},
};

impl OAuthRequest<'_> {
    /// A client sends the browser of its person here.
    pub(super) async fn authorize(&mut self) -> Response<Body> {
        let request = match self.checked_request().await {
            Ok(request) => request,
            Err(response) => return *response,
        };
        let answered = self.ask(&request).await;
        answered.unwrap_or_else(|error| Self::failed(&error))
    }

    async fn ask(&self, request: &AuthorizationRequest) -> Result<Response<Body>, ServerError> {
        let browser = self.browser()?;
        let who = self.who(&browser).filter(|_| !request.asks_login);
        match who {
            Some(who) => self.ask_or_approve(request, &who, &browser).await,
            None => self.ask_login(request, &browser, None).await,
        }
    }

    /// Who is logged in in `browser`, and may grant clients access.
    fn who(&self, browser: &Browser<'_>) -> Option<LoggedIn> {
        let login = browser.login()?;
        let subject = login.subject.as_ref()?;
        let who = LoggedIn::new(subject, login.name.clone());
        self.agent_of(subject).map(|_| who)
    }

    /// What the client asks for. Until it is known that the redirect URI is its own, and a person is logged in, errors
    /// stay here.
    async fn checked_request(&self) -> Result<AuthorizationRequest, Box<Response<Body>>> {
        let refuse = |reason, why: &str| {
            self.refused(reason);
            Box::new(pages::error(StatusCode::BAD_REQUEST, why))
        };
        let query = self.request.uri().query().unwrap_or_default();
        let params = AuthorizeParams::parse(query).map_err(|name| {
            refuse(
                "oauth_request",
                &format!("the parameter {name} is missing, or stands there twice"),
            )
        })?;
        if !self.oauth.clients.admit(self.peer.address) {
            let why = "too many requests from this address; try again in a minute";
            return Err(Box::new(pages::error(StatusCode::TOO_MANY_REQUESTS, why)));
        }
        let client = match self.server().client(&params.client_id).await {
            Ok(client) => client,
            Err(ClientError::Server(error)) => return Err(Box::new(Self::failed(&error))),
            Err(error) => return Err(refuse("oauth_client", &error.to_string())),
        };
        let redirect_uri = client.redirect_uri(params.redirect_uri.as_deref());
        let redirect_uri = redirect_uri.ok_or_else(|| {
            refuse(
                "oauth_foreign_redirect",
                "the redirect URI is none that the client has registered",
            )
        })?;
        let canonical = |wanted: Option<&str>| self.canonical_resource(wanted);
        params
            .check(&client, (&redirect_uri, &self.issuer), canonical)
            .map_err(|why| {
                // Anybody may register a client and make a link: without its person nobody is sent on to where that
                // client is (RFC 9700, section 4.11.2).
                if !self.is_logged_in() {
                    return refuse("oauth_request", &why.to_string());
                }
                self.refused("oauth_request");
                let error = [("error", why.error), ("error_description", why.description)];
                let url = redirect_url(&redirect_uri, &error, params.state(), &self.issuer);
                Box::new(redirect(&url))
            })
    }

    /// Asks somebody who is logged in whether the client may; who said so before is not asked again.
    async fn ask_or_approve(
        &self,
        request: &AuthorizationRequest,
        who: &LoggedIn,
        browser: &Browser<'_>,
    ) -> Result<Response<Body>, ServerError> {
        let (server, now) = (self.server(), clock::now());
        if let Some(url) = server.approve_as_before(request, who, now).await? {
            return Ok(redirect(&url));
        }
        let page = pages::Consent {
            action: path_below(&self.issuer, "/oauth/authorize"),
            client_name: request.client_name.as_deref(),
            client_id: &request.client_id,
            redirect_uri: &RedirectUri::parse(&request.redirect_uri).ok(),
            who: &who.name,
            scopes: request.scope.split(' ').collect(),
            resources: (request.resources.iter())
                .map(|resource| resource_label(resource, &self.issuer))
                .collect(),
            switch: format!(
                "{}?{}&prompt=login",
                path_below(&self.issuer, "/oauth/authorize"),
                request.to_query()
            ),
            page: &server.seal_page(request, &browser.binding(), now)?,
        };
        Ok(browser.keep(page.render()))
    }

    /// Asks who is there; `wrong` says why the last answer did not do.
    async fn ask_login(
        &self,
        request: &AuthorizationRequest,
        browser: &Browser<'_>,
        wrong: Option<&str>,
    ) -> Result<Response<Body>, ServerError> {
        if let Some(issuer) = self.oauth.login_issuer() {
            let purpose = LoginPurpose::Authorize(Box::new(request.clone()));
            return Ok(match self.begin_login(&issuer, purpose, browser).await {
                Ok(url) => browser.keep(redirect(&url)),
                Err(why) => self.not_logged_in(&why),
            });
        }
        let server = self.server();
        let page = pages::Login {
            action: path_below(&self.issuer, "/oauth/login"),
            client_name: request.client_name.as_deref(),
            redirect_uri: &RedirectUri::parse(&request.redirect_uri).ok(),
            wrong,
            page: &server.seal_page(request, &browser.binding(), clock::now())?,
        };
        Ok(browser.keep(page.render()))
    }

    /// The URL of the issuer where somebody logs in for `purpose`.
    ///
    /// # Errors
    /// When the issuer cannot be reached.
    pub(in crate::http) async fn begin_login(
        &self,
        issuer: &OidcIssuer,
        purpose: LoginPurpose,
        browser: &Browser<'_>,
    ) -> Result<String, OidcError> {
        let login = LoginRequest {
            purpose,
            gateway: &self.issuer,
            browser: &browser.binding(),
        };
        self.server().begin_login(issuer, login, clock::now()).await
    }

    /// Somebody has decided.
    pub(super) async fn decide(&mut self) -> Response<Body> {
        let form = match self.form().await {
            Ok(form) => form,
            Err(response) => return response,
        };
        let found = self.page_request(form.get("page").unwrap_or_default());
        let (request, browser) = match found {
            Ok(found) => found,
            Err(response) => return *response,
        };
        let Some(who) = self.who(&browser) else {
            let asked = self.ask_login(&request, &browser, None).await;
            return asked.unwrap_or_else(|error| Self::failed(&error));
        };
        if form.get("decision") == Some("allow") {
            return self.approve(&request, &who).await;
        }
        self.refused("oauth_denied");
        redirect(&request.error_redirect(&AuthorizeError::DENIED))
    }

    async fn approve(&self, request: &AuthorizationRequest, who: &LoggedIn) -> Response<Body> {
        match self.server().approve(request, who, clock::now()).await {
            Ok((grant, url)) => {
                let detail = format!(
                    "to {} ({}) at {}: {}; {}",
                    grant.client_label(),
                    grant.client,
                    grant.redirect_target,
                    grant.scopes,
                    grant.resources.join(" "),
                );
                self.record(EventKind::GrantCreated, &grant.id, &who.name, &detail);
                redirect(&url)
            }
            Err(error) => {
                tracing::error!(%error, "a grant was not kept");
                redirect(&request.error_redirect(&AuthorizeError::FAILED))
            }
        }
    }

    /// The request of a page that came back, and the browser that it came from.
    fn page_request(
        &self,
        page: &str,
    ) -> Result<(AuthorizationRequest, Browser<'_>), Box<Response<Body>>> {
        let browser = self.browser();
        let browser = browser.map_err(|error| Box::new(Self::failed(&error)))?;
        let request = self
            .server()
            .open_page(page, &browser.binding(), clock::now());
        if let Some(request) = request {
            return Ok((request, browser));
        }
        self.refused("oauth_tampered_state");
        let why = "this page has expired, or was not sent to this browser; start again in the \
            client, and allow cookies for this site";
        Err(Box::new(pages::error(StatusCode::BAD_REQUEST, why)))
    }

    /// Somebody sends a login code.
    pub(super) async fn login(&mut self) -> Response<Body> {
        let form = match self.form().await {
            Ok(form) => form,
            Err(response) => return response,
        };
        if !self.admits_login() {
            return Self::too_many_logins();
        }
        let found = self.page_request(form.get("page").unwrap_or_default());
        let (request, browser) = match found {
            Ok(found) => found,
            Err(response) => return *response,
        };
        let code = form.get("code").unwrap_or_default();
        let answered = self.log_in(&request, browser, code).await;
        answered.unwrap_or_else(|error| Self::failed(&error))
    }

    async fn log_in(
        &self,
        request: &AuthorizationRequest,
        mut browser: Browser<'_>,
        code: &str,
    ) -> Result<Response<Body>, ServerError> {
        let Some(login) = self.use_login_code(code).await? else {
            let wrong = "This code is not valid. Each code is good once, and for a short time.";
            return self.ask_login(request, &browser, Some(wrong)).await;
        };
        browser.log_in(login)?;
        Ok(browser.keep(self.back_to(request)))
    }

    /// Who may log in with a login code, which is used up; `None` where it is none.
    ///
    /// # Errors
    /// When the store fails.
    pub(in crate::http) async fn use_login_code(
        &self,
        code: &str,
    ) -> Result<Option<BrowserLogin>, ServerError> {
        let agent = self.server().use_login_code(code, clock::now()).await?;
        let directory = self.edge.proxy.governance().directory();
        let agent = agent.and_then(|id| directory.current(id));
        let Some(agent) = agent.filter(|agent| agent.enabled) else {
            self.refused("oauth_login_code");
            return Ok(None);
        };
        self.record(
            EventKind::SignedIn,
            &agent.name,
            &agent.name,
            &format!("with a login code, from {}", self.peer.address),
        );
        let (subject, name) = (TokenSubject::Agent(agent.id), agent.name.clone());
        Ok(Some(BrowserLogin::new(agent, subject, name)))
    }

    /// Whether somebody at the address of the request may try to log in: each try may cost a request to the issuer.
    pub(in crate::http) fn admits_login(&self) -> bool {
        let is_admitted = self.oauth.logins.admit(self.peer.address);
        if !is_admitted {
            self.refused("oauth_login_rate");
        }
        is_admitted
    }

    fn too_many_logins() -> Response<Body> {
        pages::error(StatusCode::TOO_MANY_REQUESTS, TOO_MANY_LOGINS)
    }

    /// The issuer sends somebody back.
    pub(super) async fn finish_login(&mut self) -> Response<Body> {
        if !self.admits_login() {
            return Self::too_many_logins();
        }
        let query = self.request.uri().query().unwrap_or_default();
        let Ok(params) = OAuthForm::parse(query.as_bytes()) else {
            return self.not_logged_in(&OidcError::State);
        };
        let mut browser = match self.browser() {
            Ok(browser) => browser,
            Err(error) => return Self::failed(&error),
        };
        let Some(issuer) = self.oauth.login_issuer().filter(|_| !browser.is_new()) else {
            return self.not_logged_in(&OidcError::State);
        };
        let callback = LoginCallback {
            code: params.get("code"),
            state: params.get("state").unwrap_or_default(),
            iss: params.get("iss"),
            error: params.get("error"),
        };
        let (server, binding) = (self.server(), browser.binding());
        let finished = server.finish_login(&issuer, callback, &binding, clock::now());
        let (purpose, who) = match finished.await {
            Ok(finished) => finished,
            Err(why) => return self.not_logged_in(&why),
        };
        let Some(agent) = self.agent_of(&who.subject()) else {
            self.refused("oauth_no_agent");
            let why = format!(
                "{} may not use this gateway: no agent is for them",
                who.name
            );
            return pages::error(StatusCode::FORBIDDEN, &why);
        };
        let detail = format!("as {} at {}", who.name, self.peer.address);
        self.record(EventKind::SignedIn, &agent.name, &agent.name, &detail);
        let login = BrowserLogin::new(agent, who.subject(), who.name);
        if let Err(error) = browser.log_in(login) {
            return Self::failed(&error.into());
        }
        browser.keep(match purpose {
            LoginPurpose::Authorize(request) => self.back_to(&request),
            LoginPurpose::Connections(link) => {
                redirect(&self.edge.proxy.sign_ins().page_path(link.as_deref()))
            }
        })
    }

    fn not_logged_in(&self, why: &OidcError) -> Response<Body> {
        self.note_failed_login(why);
        pages::error(
            StatusCode::BAD_REQUEST,
            &format!("{why}; start again in the client"),
        )
    }

    /// Counts a login that failed.
    pub(in crate::http) fn note_failed_login(&self, why: &OidcError) {
        self.refused(why.reason());
        if let OidcError::Egress(_) | OidcError::Metadata(_) | OidcError::Server(_) = why {
            tracing::warn!(%why, "nobody can log in");
        }
    }

    /// Goes on with `request` where somebody has logged in.
    fn back_to(&self, request: &AuthorizationRequest) -> Response<Body> {
        let next = path_below(&self.issuer, "/oauth/authorize");
        redirect(&format!("{next}?{}", request.to_query()))
    }

    /// The agent that `subject` may log in as.
    pub(super) fn agent_of(&self, subject: &TokenSubject) -> Option<Arc<Agent>> {
        let directory = self.edge.proxy.governance().directory();
        let agent = directory.agent_of_subject(subject).ok();
        agent.filter(|agent| agent.enabled)
    }

    /// Whether somebody is logged in in the browser.
    fn is_logged_in(&self) -> bool {
        let browser = self.browser();
        browser.is_ok_and(|browser| self.who(&browser).is_some())
    }
}

/// What is said to who tries to log in too often.
pub(in crate::http) const TOO_MANY_LOGINS: &str =
    "too many logins from this address; try again in a minute";
