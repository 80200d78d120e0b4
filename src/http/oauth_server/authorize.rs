//! The authorization endpoint: people log in, see what a client wants, and decide.

use std::sync::Arc;

use http::{Response, StatusCode};

use super::{OAuthForm, OAuthRequest, browser, pages, redirect, resource_label};
use crate::{
    audit::EventKind,
    auth::{Agent, token::TokenSubject},
    authorization_server::{
        AuthorizationRequest, AuthorizeError, AuthorizeParams, ClientError, LoggedIn,
        LoginCallback, LoginSession, OidcError, RedirectUri, ServerError, redirect_url,
    },
    clock,
    http::body::Body,
};

impl OAuthRequest<'_> {
    /// A client sends the browser of its person here.
    pub(super) async fn authorize(&mut self) -> Response<Body> {
        let request = match self.checked_request().await {
            Ok(request) => request,
            Err(response) => return *response,
        };
        let browser = self.browser();
        let who = browser.as_ref().and_then(|it| it.who.clone());
        let who = who.filter(|_| !request.asks_login);
        let answered = match who.filter(|who| self.may_log_in(&who.subject())) {
            Some(who) => self.ask_or_approve(&request, &who, browser).await,
            None => self.ask_login(&request, None).await,
        };
        answered.unwrap_or_else(|error| Self::failed(&error))
    }

    /// What the client asks for. Until it is known that the redirect URI is its own, errors stay here.
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
        browser: Option<LoginSession>,
    ) -> Result<Response<Body>, ServerError> {
        let (server, now) = (self.server(), clock::now());
        if let Some(url) = server.approve_as_before(request, who, now).await? {
            return Ok(redirect(&url));
        }
        let browser = match browser {
            Some(browser) => browser,
            None => LoginSession::new(Some(who.clone()), now)?,
        };
        let page = pages::Consent {
            action: browser::path(&self.issuer, "/oauth/authorize"),
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
                browser::path(&self.issuer, "/oauth/authorize"),
                request.to_query()
            ),
            page: &server.seal_page(request, &browser, now)?,
        };
        self.with_browser(page.render(), &browser)
    }

    /// Asks who is there; `wrong` says why the last answer did not do.
    pub(super) async fn ask_login(
        &self,
        request: &AuthorizationRequest,
        wrong: Option<&str>,
    ) -> Result<Response<Body>, ServerError> {
        let now = clock::now();
        let browser = match self.browser() {
            Some(browser) => browser,
            None => LoginSession::new(None, now)?,
        };
        let settings = self.server().settings()?;
        if let Some(issuer) = &settings.login {
            let begun = self
                .server()
                .begin_login(issuer, request, &browser, now)
                .await;
            return match begun {
                Ok(url) => self.with_browser(redirect(&url), &browser),
                Err(why) => Ok(self.not_logged_in(&why)),
            };
        }
        let page = pages::Login {
            action: browser::path(&self.issuer, "/oauth/login"),
            client_name: request.client_name.as_deref(),
            redirect_uri: &RedirectUri::parse(&request.redirect_uri).ok(),
            wrong,
            page: &self.server().seal_page(request, &browser, now)?,
        };
        self.with_browser(page.render(), &browser)
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
        let who = browser.who.filter(|who| self.may_log_in(&who.subject()));
        let Some(who) = who else {
            let asked = self.ask_login(&request, None).await;
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
    pub(super) fn page_request(
        &self,
        page: &str,
    ) -> Result<(AuthorizationRequest, LoginSession), Box<Response<Body>>> {
        let browser = self.browser();
        let found = browser.and_then(|browser| {
            let request = self.server().open_page(page, &browser, clock::now())?;
            Some((request, browser))
        });
        found.ok_or_else(|| {
            self.refused("oauth_tampered_state");
            let why = "this page has expired, or was not sent to this browser; start again in \
                the client, and allow cookies for this site";
            Box::new(pages::error(StatusCode::BAD_REQUEST, why))
        })
    }

    /// Somebody sends a login code.
    pub(super) async fn login(&mut self) -> Response<Body> {
        let form = match self.form().await {
            Ok(form) => form,
            Err(response) => return response,
        };
        if let Some(refusal) = self.refuse_many_logins() {
            return refusal;
        }
        let found = self.page_request(form.get("page").unwrap_or_default());
        let (request, _) = match found {
            Ok(found) => found,
            Err(response) => return *response,
        };
        let code = form.get("code").unwrap_or_default();
        let answered = self.log_in(&request, code).await;
        answered.unwrap_or_else(|error| Self::failed(&error))
    }

    async fn log_in(
        &self,
        request: &AuthorizationRequest,
        code: &str,
    ) -> Result<Response<Body>, ServerError> {
        let now = clock::now();
        let agent = self.server().use_login_code(code, now).await?;
        let directory = self.edge.proxy.governance().directory();
        let agent = agent.and_then(|id| directory.current(id));
        let Some(agent) = agent.filter(|agent| agent.enabled) else {
            self.refused("oauth_login_code");
            let wrong = "This code is not valid. Each code is good once, and for a short time.";
            return self.ask_login(request, Some(wrong)).await;
        };
        self.record(
            EventKind::SignedIn,
            &agent.name,
            &agent.name,
            &format!("with a login code, from {}", self.peer.address),
        );
        let who = LoggedIn::new(&TokenSubject::Agent(agent.id), agent.name.clone());
        self.go_on(request, who)
    }

    /// Refuses who tries too often: each try may cost a request to the issuer.
    fn refuse_many_logins(&self) -> Option<Response<Body>> {
        if self.oauth.logins.admit(self.peer.address) {
            return None;
        }
        self.refused("oauth_login_rate");
        let why = "too many logins from this address; try again in a minute";
        Some(pages::error(StatusCode::TOO_MANY_REQUESTS, why))
    }

    /// The issuer sends somebody back.
    pub(super) async fn finish_login(&mut self) -> Response<Body> {
        if let Some(refusal) = self.refuse_many_logins() {
            return refusal;
        }
        let query = self.request.uri().query().unwrap_or_default();
        let Ok(params) = OAuthForm::parse(query.as_bytes()) else {
            return self.not_logged_in(&OidcError::State);
        };
        let settings = match self.server().settings() {
            Ok(settings) => settings,
            Err(error) => return Self::failed(&error),
        };
        let (Some(issuer), Some(browser)) = (&settings.login, self.browser()) else {
            return self.not_logged_in(&OidcError::State);
        };
        let callback = LoginCallback {
            code: params.get("code"),
            state: params.get("state").unwrap_or_default(),
            iss: params.get("iss"),
            error: params.get("error"),
        };
        let finished = self
            .server()
            .finish_login(issuer, callback, &browser, clock::now());
        let (request, who) = match finished.await {
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
        self.go_on(&request, who)
            .unwrap_or_else(|error| Self::failed(&error))
    }

    fn not_logged_in(&self, why: &OidcError) -> Response<Body> {
        self.refused(why.reason());
        if let OidcError::Egress(_) | OidcError::Metadata(_) | OidcError::Server(_) = why {
            tracing::warn!(%why, "nobody can log in");
        }
        pages::error(
            StatusCode::BAD_REQUEST,
            &format!("{why}; start again in the client"),
        )
    }

    /// Goes on with `request` in a browser in which `who` has logged in.
    fn go_on(
        &self,
        request: &AuthorizationRequest,
        who: LoggedIn,
    ) -> Result<Response<Body>, ServerError> {
        // What the browser was known by before somebody logged in counts no longer.
        let browser = LoginSession::new(Some(who), clock::now())?;
        let next = browser::path(&self.issuer, "/oauth/authorize");
        self.with_browser(
            redirect(&format!("{next}?{}", request.to_query())),
            &browser,
        )
    }

    /// The agent that `subject` may log in as.
    pub(super) fn agent_of(&self, subject: &TokenSubject) -> Option<Arc<Agent>> {
        let directory = self.edge.proxy.governance().directory();
        let agent = directory.agent_of_subject(subject).ok();
        agent.filter(|agent| agent.enabled)
    }

    /// Whether somebody may log in as `subject`.
    fn may_log_in(&self, subject: &TokenSubject) -> bool {
        self.agent_of(subject).is_some()
    }
}
