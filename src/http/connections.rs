//! `/connections`: where a person signs in to servers for an agent, and `/oauth/callback`, where issuers send them back.
//!
//! Who uses a browser is known by the login that all pages share (`browser_login`): by the key of an agent, a login
//! code, or the issuer of `oauth.login`. The link of another agent does not open there. Every form has a token that is
//! made of the cookie, so that no other site can send one. There are no scripts.

mod page;

use std::{fmt, sync::Arc};

use http::{
    HeaderMap, HeaderValue, Method as Verb, Request, Response, StatusCode, header::LOCATION,
};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use maud::Markup;
use url::Url;

use super::{
    HttpEdge, RequestPeer,
    body::{self, Body},
    browser::{Browser, agent_of_key},
    oauth_server::{OAuthEdge, OAuthRequest, TOO_MANY_LOGINS},
    request_log,
};
use crate::{
    auth::token::TokenSubject,
    authorization_server::{LoginPurpose, OidcError},
    browser_login::{BrowserLogin, BrowserPages, FormFields, Person},
    config::AuthMethod,
    names::{AgentId, ServerName},
    oauth_client::SignIn,
    sign_in::{self, LinkTarget},
};
use page::{LoginForms, PageContext, PageNotice};

/// Bytes of a form; ours are smaller.
const FORM_BYTES_MAX: usize = 16 << 10;

/// One request for a page.
struct Visit<'e> {
    edge: &'e Arc<HttpEdge>,
    peer: &'e RequestPeer,
    browser: Browser<'e>,
}

/// The fields of a form.
struct ConnectionsForm(FormFields);

impl ConnectionsForm {
    /// Empty where there is none.
    fn field(&self, name: &str) -> &str {
        self.0.get(name)
    }

    /// The code of the link that led here, if one did.
    fn link(&self) -> Option<&str> {
        Some(self.field("link")).filter(|code| !code.is_empty())
    }
}

/// Answers a request for `/connections`.
pub(super) async fn handle(
    edge: &Arc<HttpEdge>,
    peer: &RequestPeer,
    request: &mut Request<Incoming>,
) -> Response<Body> {
    let mut visit = match Visit::of(edge, peer, request.headers()) {
        Ok(visit) => visit,
        Err(response) => return *response,
    };
    if request.method() != Verb::POST {
        let query = request.uri().query().unwrap_or_default();
        let query = FormFields::parse(query.as_bytes());
        let code = Some(query.get("code")).filter(|code| !code.is_empty());
        return visit.show(code).await;
    }
    let body = Limited::new(request.body_mut(), FORM_BYTES_MAX)
        .collect()
        .await;
    let Ok(body) = body else {
        return visit
            .page(StatusCode::BAD_REQUEST, &PageNotice::InvalidForm)
            .await;
    };
    let form = ConnectionsForm(FormFields::parse(&body.to_bytes()));
    if !visit.browser.has_sent(form.field("token")) {
        return visit
            .page(StatusCode::FORBIDDEN, &PageNotice::InvalidForm)
            .await;
    }
    match form.field("action") {
        "enter" => visit.enter(form.field("code")).await,
        "key" => visit.log_in_with_key(&form, request).await,
        "login-code" => visit.log_in_with_code(&form, request).await,
        "issuer" => visit.log_in_at_issuer(&form, request).await,
        "start" => visit.start(form.field("server"), false).await,
        "switch" => visit.start(form.field("server"), true).await,
        "revoke" => visit.revoke(form.field("server")).await,
        "log-out" => visit.log_out(),
        _ => {
            visit
                .page(StatusCode::BAD_REQUEST, &PageNotice::InvalidForm)
                .await
        }
    }
}

/// Answers a browser that an issuer sends back.
pub(super) async fn callback(
    edge: &Arc<HttpEdge>,
    peer: &RequestPeer,
    request: &Request<Incoming>,
) -> Response<Body> {
    let visit = match Visit::of(edge, peer, request.headers()) {
        Ok(visit) => visit,
        Err(response) => return *response,
    };
    let Some(login) = visit.browser.login() else {
        return visit
            .page(StatusCode::FORBIDDEN, &PageNotice::OtherBrowser)
            .await;
    };
    let query = request.uri().query().unwrap_or_default();
    let binding = visit.browser.binding();
    let finished = edge
        .proxy
        .finish_sign_in(query, (&login.person, &binding))
        .await;
    match finished {
        Ok(SignIn::Done { server, .. }) => {
            visit
                .page(StatusCode::OK, &PageNotice::SignedIn(server))
                .await
        }
        Ok(SignIn::Again(url)) => {
            visit
                .page(StatusCode::OK, &PageNotice::Leaving(None, url))
                .await
        }
        Err(reason) => {
            visit
                .page(StatusCode::BAD_REQUEST, &PageNotice::Failed(reason))
                .await
        }
    }
}

impl<'e> Visit<'e> {
    /// That of the browser with these headers.
    fn of(
        edge: &'e Arc<HttpEdge>,
        peer: &'e RequestPeer,
        headers: &HeaderMap,
    ) -> Result<Self, Box<Response<Body>>> {
        let browser = Browser::of(edge, BrowserPages::SignIn, headers)
            .map_err(|error| Box::new(failed(error)))?;
        Ok(Self {
            edge,
            peer,
            browser,
        })
    }

    /// Who is logged in.
    fn person(&self) -> Option<&Person> {
        self.browser.login().map(|login| &login.person)
    }

    /// Whether somebody is logged in for whom `target` is not.
    fn is_other_person(&self, target: &LinkTarget) -> bool {
        self.person()
            .is_some_and(|person| person.owner() != target.person.owner())
    }

    /// The page for the link with `code`, or without one.
    async fn show(&self, code: Option<&str>) -> Response<Body> {
        let Some(code) = code else {
            return self.page(StatusCode::OK, &PageNotice::None).await;
        };
        match self.edge.proxy.sign_ins().target(code) {
            None => {
                self.page(StatusCode::NOT_FOUND, &PageNotice::UnknownCode)
                    .await
            }
            Some(target) if self.is_other_person(&target) => {
                self.page(
                    StatusCode::FORBIDDEN,
                    &PageNotice::OtherPerson(target.person),
                )
                .await
            }
            Some(target) => {
                let code = code.to_owned();
                let notice = if self.is_login_needed(&target) {
                    PageNotice::LogInFirst(target, code, None)
                } else {
                    PageNotice::Link(target, code)
                };
                self.page(StatusCode::OK, &notice).await
            }
        }
    }

    /// Whether the person has to show first that they are the one that `target` is for. Links travel in URLs and in
    /// answers of tools; who was sent one of another agent would connect their account to it.
    fn is_login_needed(&self, target: &LinkTarget) -> bool {
        let Person::Agent(agent) = &target.person else {
            return false;
        };
        if target.is_by_operator || self.person().is_some() {
            return false;
        }
        if self.edge.proxy.governance().directory().has_key(agent.id) {
            return true;
        }
        self.edge.authorization_server().is_some_and(|oauth| {
            let user = agent.user.as_ref();
            match oauth.login_issuer() {
                None => user.is_none() && agent.id != AgentId::ANONYMOUS,
                Some(issuer) => user.is_some_and(|user| issuer.is(&user.issuer)),
            }
        })
    }

    /// Begins the sign-in that the link with `code` is for.
    async fn enter(&mut self, code: &str) -> Response<Body> {
        let sign_ins = self.edge.proxy.sign_ins();
        let target = sign_ins.target(code);
        let is_refused = |it| self.is_other_person(&it) || self.is_login_needed(&it);
        if target.is_none_or(is_refused) {
            return self.show(Some(code)).await;
        }
        let Some(LinkTarget { person, server, .. }) = sign_ins.take(code) else {
            return self.show(Some(code)).await;
        };
        if self.person().is_none()
            && let Err(error) = self.browser.log_in(BrowserLogin::by_link(person))
        {
            return failed(error);
        }
        match server {
            Some(server) => self.start(server.as_str(), false).await,
            None => self.redirect(None),
        }
    }

    /// Logs in who has the key of an agent.
    async fn log_in_with_key(
        &mut self,
        form: &ConnectionsForm,
        request: &Request<Incoming>,
    ) -> Response<Body> {
        let found = agent_of_key(self.edge, form.field("key"), request).await;
        match found {
            // A key is what is asked for here.
            Ok(agent) if agent.id == AgentId::ANONYMOUS => {
                self.page(StatusCode::UNAUTHORIZED, &PageNotice::InvalidForm)
                    .await
            }
            Ok(agent) => {
                let (subject, name) = (TokenSubject::Agent(agent.id), agent.name.clone());
                self.log_in(BrowserLogin::new(agent, subject, name), form)
                    .await
            }
            Err(error) => {
                let refused = request_log::refused_request(request);
                let governance = self.edge.proxy.governance();
                governance.record_auth_failure(&error, self.peer.address, refused);
                self.fail_login(StatusCode::UNAUTHORIZED, &error, form)
                    .await
            }
        }
    }

    /// Logs in who has a login code.
    async fn log_in_with_code(
        &mut self,
        form: &ConnectionsForm,
        request: &mut Request<Incoming>,
    ) -> Response<Body> {
        let Some(oauth) = self.edge.authorization_server() else {
            return self.fail(StatusCode::NOT_FOUND, &NO_LOGIN).await;
        };
        let asked = OAuthRequest::new(self.edge, oauth, self.peer, request);
        if !asked.admits_login() {
            return self
                .fail(StatusCode::TOO_MANY_REQUESTS, &TOO_MANY_LOGINS)
                .await;
        }
        match asked.use_login_code(form.field("code")).await {
            Ok(Some(login)) => self.log_in(login, form).await,
            Ok(None) => {
                self.fail_login(StatusCode::FORBIDDEN, &INVALID_CODE, form)
                    .await
            }
            Err(error) => {
                tracing::error!(%error, "nobody can log in");
                self.fail(StatusCode::INTERNAL_SERVER_ERROR, &error).await
            }
        }
    }

    /// Sends the browser to the issuer where people log in.
    async fn log_in_at_issuer(
        &self,
        form: &ConnectionsForm,
        request: &mut Request<Incoming>,
    ) -> Response<Body> {
        let oauth = self.edge.authorization_server();
        let Some((oauth, issuer)) = oauth.and_then(|oauth| Some((oauth, oauth.login_issuer()?)))
        else {
            return self.fail(StatusCode::NOT_FOUND, &NO_LOGIN).await;
        };
        let asked = OAuthRequest::new(self.edge, oauth, self.peer, request);
        if !asked.admits_login() {
            return self
                .fail(StatusCode::TOO_MANY_REQUESTS, &TOO_MANY_LOGINS)
                .await;
        }
        let purpose = LoginPurpose::Connections(form.link().map(str::to_owned));
        let begun = asked.begin_login(&issuer, purpose, &self.browser).await;
        let url = begun.and_then(|url| {
            let url = Url::parse(&url).ok().filter(is_web);
            url.ok_or_else(|| OidcError::Refused(NO_ISSUER_PAGE.to_owned()))
        });
        match url {
            Ok(url) => {
                self.page(StatusCode::OK, &PageNotice::Leaving(None, url))
                    .await
            }
            Err(why) => {
                asked.note_failed_login(&why);
                self.fail_login(StatusCode::BAD_GATEWAY, &why, form).await
            }
        }
    }

    /// Lets somebody be logged in, and goes on with the link that led here.
    async fn log_in(&mut self, login: BrowserLogin, form: &ConnectionsForm) -> Response<Body> {
        let is_other = |person: &Person| person.owner() != login.person.owner();
        if self.person().is_some_and(is_other) {
            let notice = PageNotice::OtherPerson(login.person);
            return self.page(StatusCode::FORBIDDEN, &notice).await;
        }
        match self.browser.log_in(login) {
            Ok(()) => self.redirect(form.link()),
            Err(error) => failed(error),
        }
    }

    /// Sends the browser to the issuer of `server`, with another account than before if that `selects_account`.
    async fn start(&self, server: &str, selects_account: bool) -> Response<Body> {
        let (Some(person), Ok(server)) = (self.person(), ServerName::parse(server)) else {
            return self
                .page(StatusCode::FORBIDDEN, &PageNotice::InvalidForm)
                .await;
        };
        let browser = (person, &*self.browser.binding());
        let begun = self
            .edge
            .proxy
            .begin_sign_in((&server, selects_account), browser);
        match begun.await {
            Ok(url) if is_web(&url) => {
                self.page(StatusCode::OK, &PageNotice::Leaving(Some(server), url))
                    .await
            }
            Ok(_) => self.fail(StatusCode::BAD_GATEWAY, &NO_ISSUER_PAGE).await,
            Err(reason) => self.fail(StatusCode::BAD_GATEWAY, &reason).await,
        }
    }

    /// Gives up what was granted for `server`.
    async fn revoke(&self, server: &str) -> Response<Body> {
        let (Some(person), Ok(server)) = (self.person(), ServerName::parse(server)) else {
            return self
                .page(StatusCode::FORBIDDEN, &PageNotice::InvalidForm)
                .await;
        };
        match self.edge.proxy.sign_out(&server, person).await {
            Ok(()) => self.redirect(None),
            Err(reason) => self.fail(StatusCode::BAD_GATEWAY, &reason).await,
        }
    }

    fn log_out(&mut self) -> Response<Body> {
        self.browser.log_out();
        self.redirect(None)
    }

    /// Has the browser ask for the page anew: for the link with `code`, or without one.
    fn redirect(&self, code: Option<&str>) -> Response<Body> {
        let mut response = self.respond(StatusCode::SEE_OTHER, maud::html! {});
        let page = self.edge.proxy.sign_ins().page_path(code);
        if let Ok(page) = HeaderValue::try_from(page) {
            response.headers_mut().insert(LOCATION, page);
        }
        response
    }

    /// Lets a person who could not log in try once more.
    async fn fail_login(
        &self,
        status: StatusCode,
        reason: &impl fmt::Display,
        form: &ConnectionsForm,
    ) -> Response<Body> {
        let link = form.link();
        let target = link.and_then(|code| self.edge.proxy.sign_ins().target(code));
        match link.zip(target) {
            Some((code, target)) => {
                let reason = Some(reason.to_string());
                let notice = PageNotice::LogInFirst(target, code.to_owned(), reason);
                self.page(status, &notice).await
            }
            None => self.fail(status, reason).await,
        }
    }

    async fn fail(&self, status: StatusCode, reason: &impl fmt::Display) -> Response<Body> {
        self.page(status, &PageNotice::Failed(reason.to_string()))
            .await
    }

    async fn page(&self, status: StatusCode, notice: &PageNotice) -> Response<Body> {
        let person = self.person();
        let connections = match person {
            Some(person) => self.edge.proxy.connections(person.owner()).await,
            None => Vec::new(),
        };
        let context = PageContext {
            person,
            connections,
            token: self.browser.form_token(),
            path: self.edge.proxy.sign_ins().page_path(None),
            login: self.login_forms(),
        };
        self.respond(status, page::render(&context, notice))
    }

    /// How people can log in.
    fn login_forms(&self) -> LoginForms {
        let directory = self.edge.proxy.governance().directory();
        let oauth = self.edge.authorization_server();
        let issuer = oauth.and_then(OAuthEdge::login_issuer);
        LoginForms {
            keys: directory.authentication().allows(AuthMethod::Keys),
            login_codes: oauth.is_some() && issuer.is_none(),
            issuer: issuer.map(|issuer| {
                let url = Url::parse(issuer.url());
                url.map_or_else(|_| issuer.url().to_owned(), |url| shown_host(&url))
            }),
        }
    }

    fn respond(&self, status: StatusCode, page: Markup) -> Response<Body> {
        let mut response = Response::new(body::full_body(page.into_string()));
        *response.status_mut() = status;
        page::set_headers(response.headers_mut());
        self.browser.keep(response)
    }
}

const NO_LOGIN: &str = "nobody logs in like this here";
const NO_ISSUER_PAGE: &str = "the issuer has no valid URL to sign in at";
const INVALID_CODE: &str =
    "this login code is not valid: each one is good once, and for a short time";

fn is_web(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
}

fn failed(error: getrandom::Error) -> Response<Body> {
    let message = format!("the system has no random numbers: {error}");
    super::text_response(StatusCode::INTERNAL_SERVER_ERROR, &message)
}

/// The host of a URL, for people.
fn shown_host(url: &Url) -> String {
    sign_in::host_of(url)
}
