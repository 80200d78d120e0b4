//! `/ui`: the dashboard. Who uses a browser is known by a cookie of these pages alone, which no request that another
//! site makes comes with; forms have a token besides. What pages show and change goes through the API, in the name of
//! who is logged in.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method as Verb, Request, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY},
};
use hyper::body::Incoming;
use maud::Markup;

use super::{
    HttpEdge, RequestPeer, Route, api,
    body::{self, Body},
    browser::{Browser, agent_of_key},
    request_log,
};
use crate::{
    api::{Api, ApiCaller},
    auth::{Agent, token::TokenSubject},
    browser_login::{BrowserLogin, BrowserPages, FormFields, Person},
    config::Role,
    dashboard::{self, PageAnswer, PageRequest, Viewer},
    names::AgentId,
};

/// Where people log in.
pub(super) const LOGIN_PATH: &str = "/ui/login";
/// What the browser may do with a page: show it with our style, script and pictures, and send its forms to us.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; \
     media-src data:; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
const ALLOWED_METHODS: [Verb; 3] = [Verb::GET, Verb::HEAD, Verb::POST];
/// Bytes of a form of who is not logged in; ours are smaller.
const LOGIN_BYTES_MAX: usize = 16 << 10;
/// With whom the audit says that a change was, who came by `tollbridge ui`.
const OPERATOR: &str = "operator";

/// One request for a page.
struct DashboardVisit<'e> {
    edge: &'e HttpEdge,
    api: &'e Api,
    peer: &'e RequestPeer,
    browser: Browser<'e>,
}

/// Answers a request for the dashboard.
pub(super) async fn handle(
    edge: &HttpEdge,
    api: &Api,
    peer: &RequestPeer,
    request: &mut Request<Incoming>,
) -> Response<Body> {
    let path = request.uri().path();
    let path = path.strip_prefix("/ui").unwrap_or(path);
    let path = path.trim_matches('/').to_owned();
    if !ALLOWED_METHODS.contains(request.method()) {
        return super::wrong_method(&Route::Dashboard);
    }
    if let Some((kind, content)) = dashboard::asset(&path) {
        return asset_response(kind, content);
    }
    let browser = match Browser::of(edge, BrowserPages::Dashboard, request.headers()) {
        Ok(browser) => browser,
        Err(error) => {
            let message = format!("the system has no random numbers: {error}");
            return super::text_response(StatusCode::INTERNAL_SERVER_ERROR, &message);
        }
    };
    let visit = DashboardVisit {
        edge,
        api,
        peer,
        browser,
    };
    if request.method() == Verb::POST {
        visit.post(&path, request).await
    } else {
        visit.get(&path, request).await
    }
}

impl DashboardVisit<'_> {
    async fn get(self, path: &str, request: &Request<Incoming>) -> Response<Body> {
        let query = request.uri().query().unwrap_or_default();
        let fields = FormFields::parse(query.as_bytes());
        let Some(viewer) = self.viewer() else {
            if path == "login" {
                return self.show_login(StatusCode::OK, &fields, None);
            }
            let next = request
                .uri()
                .path_and_query()
                .map_or("/ui", |it| it.as_str());
            return self.see_other(&dashboard::login_link(next));
        };
        if let Some(stream) = dashboard::event_stream(path) {
            let asked = viewer.request(Verb::GET, &stream, Bytes::new());
            return api::into_response(self.api.handle(asked).await);
        }
        if path == "login" && fields.get("code").is_empty() {
            return self.see_other("/ui");
        }
        if path == "login" {
            return self.show_login(StatusCode::OK, &fields, None);
        }
        self.show(&viewer, &PageRequest::new(path, fields, None))
            .await
    }

    async fn post(mut self, path: &str, request: &mut Request<Incoming>) -> Response<Body> {
        let viewer = self.viewer();
        let body = match &viewer {
            Some(viewer) => {
                let reader = (viewer.caller.agent.id, self.peer);
                body::read_body(request, self.edge, reader).await
            }
            None => body::read_small_body(request, self.edge, self.peer, LOGIN_BYTES_MAX).await,
        };
        let body = match body {
            Ok(body) => body,
            Err(refused) => return refused,
        };
        let form = FormFields::parse(&body);
        if !self.browser.has_sent(form.get("token")) {
            let page = dashboard::message_page(
                "The form has expired",
                "Nothing was changed. Go back, reload the page and send it again.",
            );
            return self.respond(StatusCode::FORBIDDEN, page);
        }
        match (path, viewer) {
            ("login", _) => self.log_in(&form, request).await,
            ("logout", _) => {
                self.browser.log_out();
                self.see_other(LOGIN_PATH)
            }
            (_, None) => self.see_other(LOGIN_PATH),
            (path, Some(viewer)) => {
                let query = request.uri().query().unwrap_or_default();
                let query = FormFields::parse(query.as_bytes());
                self.show(&viewer, &PageRequest::new(path, query, Some(form)))
                    .await
            }
        }
    }

    /// Who is logged in, as what they may do now.
    fn viewer(&self) -> Option<Viewer> {
        let login = self.browser.login()?;
        let directory = self.edge.proxy.governance().directory();
        let (agent, role) = match &login.person {
            Person::Gateway => {
                let name = OPERATOR.to_owned();
                (
                    Agent {
                        name,
                        ..Agent::anonymous()
                    }
                    .into(),
                    Role::Admin,
                )
            }
            Person::Agent(agent) => {
                let agent = directory.current(agent.id)?;
                let role = agent.role;
                (agent, role)
            }
        };
        Some(Viewer {
            caller: ApiCaller {
                agent,
                role,
                address: self.peer.address,
            },
            name: login.name.clone(),
            form_token: self.browser.form_token(),
            base: self.edge.proxy.sign_ins().base(),
        })
    }

    async fn show(&self, viewer: &Viewer, request: &PageRequest<'_>) -> Response<Body> {
        match dashboard::answer(self.api, viewer, request).await {
            PageAnswer::Page(status, page) => self.respond(status, page),
            PageAnswer::SeeOther(path) => self.see_other(&path),
        }
    }

    /// Logs in who has a code of `tollbridge ui`, or the key of an agent.
    async fn log_in(mut self, form: &FormFields, request: &Request<Incoming>) -> Response<Body> {
        let login = if form.get("code").is_empty() {
            match agent_of_key(self.edge, form.get("key"), request).await {
                Ok(agent) if agent.id != AgentId::ANONYMOUS => {
                    let (subject, name) = (TokenSubject::Agent(agent.id), agent.name.clone());
                    BrowserLogin::new(agent, subject, name)
                }
                Ok(_) => {
                    let why = "no agent has this key";
                    return self.show_login(StatusCode::UNAUTHORIZED, form, Some(why));
                }
                Err(error) => {
                    let refused = request_log::refused_request(request);
                    let governance = self.edge.proxy.governance();
                    governance.record_auth_failure(&error, self.peer.address, refused);
                    let why = error.to_string();
                    return self.show_login(StatusCode::UNAUTHORIZED, form, Some(&why));
                }
            }
        } else if self.edge.dashboard_codes.take(form.get("code")) {
            BrowserLogin {
                name: OPERATOR.to_owned(),
                ..BrowserLogin::by_link(Person::Gateway)
            }
        } else {
            let why = "the link was used already, or is too old: run `tollbridge ui` again";
            return self.show_login(StatusCode::FORBIDDEN, &FormFields::default(), Some(why));
        };
        match self.browser.log_in(login) {
            Ok(()) => self.see_other(dashboard::local_path(form.get("next"))),
            Err(error) => {
                let message = format!("the system has no random numbers: {error}");
                super::text_response(StatusCode::INTERNAL_SERVER_ERROR, &message)
            }
        }
    }

    fn show_login(
        &self,
        status: StatusCode,
        fields: &FormFields,
        wrong: Option<&str>,
    ) -> Response<Body> {
        let token = self.browser.form_token();
        self.respond(status, dashboard::login_page(&token, fields, wrong))
    }

    fn see_other(&self, path: &str) -> Response<Body> {
        let mut response = Response::new(body::full_body(Bytes::new()));
        *response.status_mut() = StatusCode::SEE_OTHER;
        if let Ok(path) = HeaderValue::try_from(path) {
            response.headers_mut().insert(LOCATION, path);
        }
        self.browser.keep(response)
    }

    fn respond(&self, status: StatusCode, page: Markup) -> Response<Body> {
        let mut response = Response::new(body::full_body(page.into_string()));
        *response.status_mut() = status;
        set_page_headers(response.headers_mut());
        self.browser.keep(response)
    }
}

fn set_page_headers(headers: &mut HeaderMap) {
    for (name, value) in [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY),
        // With none at all, browsers do not say of which site a form is.
        (REFERRER_POLICY, "same-origin"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// A file of the dashboard; its name changes with what is in it.
fn asset_response(kind: &'static str, content: &'static str) -> Response<Body> {
    let mut response = Response::new(body::full_body(content));
    for (name, value) in [
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ] {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}
