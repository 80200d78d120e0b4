//! Calls to servers that their agent has not signed in to.
//!
//! The caller is told where to sign in, in the form that its client can use: an elicitation with a URL (2026-07-28),
//! the error that asks for one (2025-11-25), or words. A client of 2026-07-28 makes the call again with its answer;
//! the answer is ours and taken out, and the call waits for the sign-in.

use serde_json::{Value, json};
use tokio::time::timeout;
use url::Url;

use super::Proxy;
use crate::{
    audit::EventKind,
    backend::{BackendError, ServerState},
    browser_login::Person,
    governance::CallOutcome,
    mcp::{
        Era, Method, Params, Raw, Revision, RpcError,
        error::{self, FailureReason},
        json::{self as text, Patch},
        method::notice,
    },
    names::ServerName,
    oauth_client::{GrantStatus, GrantSummary, Grants, SignIn, SignInRequest, client_metadata},
    router::Routed,
    session::{Call, Client, Event},
    sign_in::{LinkTarget, SignInLink},
    store::GrantOwner,
};

/// Where issuers send browsers back.
pub(crate) const CALLBACK_PATH: &str = "/oauth/callback";
/// Where issuers read who this client is.
pub(crate) const CLIENT_PATH: &str = "/oauth/client.json";

/// What our elicitation is called in `inputRequests`.
const INPUT_KEY: &str = "tollbridge/sign-in";

/// What a client answered to our elicitation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum SignInAnswer {
    /// The person opens the link.
    Accepted,
    /// They do not.
    Declined,
}

impl SignInAnswer {
    /// Takes the answer out of the params of a call that goes on with an earlier one.
    pub(super) fn take_from(call: &mut Call) -> Option<Self> {
        let params = call.params.as_ref().filter(|it| !it.is_standard())?;
        if call.client.era() != Era::Modern {
            return None;
        }
        let answers = params.member("inputResponses")?;
        let own = params.slice(answers.clone()).get(INPUT_KEY)?;
        let action = own.get("action");
        let action = action.as_ref().and_then(Raw::as_text);
        let json = params.as_bytes();
        let is_own = |member: &text::Member| member.matches(json, INPUT_KEY);
        let mut patch = Patch::new(json);
        if text::members(json, answers.start).all(|member| is_own(&member)) {
            patch.remove_members(0, |member| member.matches(json, "inputResponses"));
        } else {
            patch.remove_members(answers.start, is_own);
        }
        let answer = match action.as_deref() {
            Some("accept") => Self::Accepted,
            Some(_) | None => Self::Declined,
        };
        call.params = Some(Params::from(patch.finish()));
        Some(answer)
    }
}

impl Proxy {
    /// Waits until the agent of a call has signed in, as its person is about to: as long as the call may take.
    pub(super) async fn wait_signed_in(&self, routed: &Routed) {
        let Some(backend) = self.backends.get(&routed.server) else {
            return;
        };
        let original = routed.tool.as_ref().map(|tool| &*tool.original);
        let patience = backend.idle_timeout_of_tools(original.into_iter());
        tokio::select! {
            biased;
            _ = timeout(patience, backend.signed_in(&routed.call.client)) => {}
            () = routed.call.cancel.cancelled() => {}
        }
    }

    /// How a call ends whose agent has not signed in to `server`.
    pub(super) fn sign_in_outcome(
        &self,
        (client, method): (&Client, &Method),
        (server, failure, state): (&ServerName, &BackendError, Option<ServerState>),
        answer: Option<SignInAnswer>,
    ) -> CallOutcome {
        let mut error = failure.to_error(server, state);
        let reason = failure.kind();
        let is_own = matches!(failure, BackendError::NeedsSignIn { per_user: true });
        let failed = |error| CallOutcome::Failed {
            error,
            delivered: false,
            reason,
        };
        if !is_own {
            return failed(error);
        }
        let grants = self.backends.grants();
        if grants.is_some_and(|grants| !grants.is_interactive(server)) {
            error.message = format!(
                "{}; the gateway exchanges the token of the caller for one of the server: come with an access \
                 token that is a JWT",
                error.message
            );
            return failed(error);
        }
        let target = LinkTarget {
            person: Person::Agent(client.agent.clone()),
            server: Some(server.clone()),
            is_by_operator: false,
        };
        let session = client.session.as_ref();
        let link = self.sign_ins.link(target, session).ok();
        let Some(link) = link.filter(|_| !self.sign_ins.base().is_empty()) else {
            let agent = &client.agent.name;
            error.message = format!(
                "{}; sign in with `tollbridge login {server} --agent {agent}`, and call again",
                error.message
            );
            return failed(error);
        };
        let is_declined = answer == Some(SignInAnswer::Declined);
        if !is_declined && let Some(asked) = elicit(client, method, server, &link) {
            return asked;
        }
        error.message = format!(
            "{}; open {} in a browser (code {}), sign in, and call again",
            error.message, link.url, link.code
        );
        let data = error.data.get_or_insert_default();
        data["signIn"] = json!({ "url": link.url, "page": link.page, "code": link.code });
        failed(error)
    }

    /// The servers that `owner` can sign in to, and how they stand.
    pub async fn connections(&self, owner: GrantOwner) -> Vec<GrantSummary> {
        let Some(grants) = self.backends.grants() else {
            return Vec::new();
        };
        let mut found = grants.list(owner).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list grants");
            Vec::new()
        });
        found.retain(|grant| {
            may_sign_in(grants, &grant.server, owner) && self.is_seen_by(owner, &grant.server)
        });
        found
    }

    /// Whether `owner` of grants sees `server`; the operator sees those of all workspaces and agents.
    fn is_seen_by(&self, owner: GrantOwner, server: &ServerName) -> bool {
        match owner {
            GrantOwner::Agent(id) => {
                let agent = self.governance.directory().current(id);
                agent.is_some_and(|agent| self.sees_server(&agent, server))
            }
            GrantOwner::Gateway => true,
        }
    }

    /// Where the browser with this binding goes in which `person` signs in to `server`, with another account than
    /// before if that `selects_account`.
    ///
    /// # Errors
    /// Why nobody can sign in there, for people.
    pub async fn begin_sign_in(
        &self,
        (server, selects_account): (&ServerName, bool),
        (person, binding): (&Person, &str),
    ) -> Result<Url, String> {
        let owner = person.owner();
        let grants = self.backends.grants();
        let grants = grants.filter(|grants| may_sign_in(grants, server, owner));
        let grants = grants.filter(|_| self.is_seen_by(owner, server));
        let grants = grants.ok_or_else(|| format!("nobody signs in to `{server}` here"))?;
        let base = self.sign_ins.base();
        let url = |path: &str| Url::parse(&format!("{base}{path}"));
        let redirect_uri = url(CALLBACK_PATH).map_err(|error| error.to_string())?;
        let request = SignInRequest {
            redirect_uri,
            browser: binding.to_owned(),
            selects_account,
            client_metadata: url(CLIENT_PATH).ok().filter(|_| self.sign_ins.is_secure()),
        };
        let begun = grants.begin(server, owner, &request).await;
        begun.map_err(|error| error.to_string())
    }

    /// Takes what an issuer sent the browser with this binding back with, in which `person` is logged in.
    ///
    /// # Errors
    /// Why nobody is signed in now, for people.
    pub async fn finish_sign_in(
        &self,
        query: &str,
        (person, binding): (&Person, &str),
    ) -> Result<SignIn, String> {
        let grants = self.backends.grants();
        let grants = grants.ok_or("nobody signs in to servers here")?;
        let before = grants.list(person.owner()).await;
        let before = before.map_err(|error| error.to_string())?;
        let name = Some(person.name());
        let finished = grants.finish(query, binding).await;
        let finished = finished.map_err(|error| {
            let (kind, reason) = (EventKind::ServerSignInRefused, error.to_string());
            self.governance.record_forbidden("sign_in");
            self.governance
                .record_event(kind, "sign-in", name, Some(&reason));
            reason
        })?;
        if let SignIn::Done { server, owner } = &finished {
            tracing::info!(%server, person = name, "signed in to a server");
            let kind = EventKind::ServerSignedIn;
            self.governance
                .record_event(kind, server.as_str(), name, None);
            let is_known =
                |it: &GrantSummary| it.server == *server && it.status != GrantStatus::NeedsSignIn;
            if before.iter().any(is_known) {
                // It may be another account.
                self.end_connections(server, *owner);
            }
            self.note_signed_in(*owner, server);
        }
        Ok(finished)
    }

    /// Ends the connections of an agent whose tokens are others now, or none.
    fn end_connections(&self, server: &ServerName, owner: GrantOwner) {
        if let (Some(backend), GrantOwner::Agent(agent)) = (self.backends.get(server), owner) {
            backend.end_connections_of(agent);
        }
    }

    /// Gives up what `person` was granted for `server`.
    ///
    /// # Errors
    /// Why it was not, for people.
    pub async fn sign_out(&self, server: &ServerName, person: &Person) -> Result<(), String> {
        let owner = person.owner();
        let grants = self.backends.grants();
        let grants = grants.filter(|grants| may_sign_in(grants, server, owner));
        let grants = grants.filter(|_| self.is_seen_by(owner, server));
        let grants = grants.ok_or_else(|| format!("nobody signs in to `{server}` here"))?;
        let revoked = grants.revoke(server, owner).await;
        revoked.map_err(|error| error.to_string())?;
        let (kind, name) = (EventKind::ServerSignedOut, Some(person.name()));
        self.governance
            .record_event(kind, server.as_str(), name, None);
        self.end_connections(server, owner);
        Ok(())
    }

    /// The document that issuers read who this client is (client metadata document).
    pub fn client_metadata(&self) -> Value {
        let base = self.sign_ins.base();
        let redirect_uri = Url::parse(&format!("{base}{CALLBACK_PATH}"));
        let mut document = redirect_uri.map_or_else(|_| json!({}), |it| client_metadata(&it));
        document["client_id"] = format!("{base}{CLIENT_PATH}").into();
        document["client_uri"] = format!("{base}/").into();
        document
    }

    /// Tells the clients that wait for it that `owner` has signed in to `server`.
    pub fn note_signed_in(&self, owner: GrantOwner, server: &ServerName) {
        for (elicitation, session) in self.sign_ins.finish(owner, server) {
            let params = Raw::from_value(&json!({ "elicitationId": elicitation }));
            session.deliver(Event::Notification {
                method: notice::ELICITATION_COMPLETE.into(),
                params: Some(params),
            });
        }
    }
}

/// Whether `owner` has a grant of its own towards `server`, or may get one. The grant that serves everybody is the
/// operator's to get.
fn may_sign_in(grants: &Grants, server: &ServerName, owner: GrantOwner) -> bool {
    grants.is_interactive(server) && (owner == GrantOwner::Gateway || grants.is_per_agent(server))
}

/// The elicitation of a client that can show URLs.
fn elicit(
    client: &Client,
    method: &Method,
    server: &ServerName,
    link: &SignInLink,
) -> Option<CallOutcome> {
    let declared = client.capabilities.get("elicitation");
    declared?.member("url")?;
    let message = format!(
        "The server `{server}` wants you to sign in. Your code is {}.",
        link.code
    );
    let outcome = match client.revision {
        Revision::V2026 if may_ask(method) => Ok(Raw::from_value(&json!({
            "resultType": "input_required",
            "inputRequests": { INPUT_KEY: {
                "method": "elicitation/create",
                "params": { "mode": "url", "url": link.url, "message": message },
            }},
        }))),
        Revision::V2025November => Err(RpcError::new(
            error::URL_ELICITATION_REQUIRED,
            format!(
                "server `{server}`: you have not signed in to it; open {}",
                link.url
            ),
        )
        .with_data(json!({
            "code": FailureReason::NeedsSignIn.code(),
            "server": server.as_str(),
            "elicitations": [{
                "mode": "url",
                "elicitationId": link.elicitation,
                "url": link.url,
                "message": message,
            }],
        }))
        .to_raw()),
        Revision::V2024 | Revision::V2025March | Revision::V2025June | Revision::V2026 => {
            return None;
        }
    };
    Some(CallOutcome::SignInRequired(outcome))
}

/// Whether a request of `method` may be answered with a question (2026-07-28).
fn may_ask(method: &Method) -> bool {
    matches!(
        method,
        Method::PromptsGet | Method::ResourcesRead | Method::ToolsCall
    )
}
