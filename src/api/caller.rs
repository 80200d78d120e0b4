//! Who uses the API, and what they may do.

use std::sync::Arc;

use aide::{
    OperationInput,
    generate::GenContext,
    openapi::{Operation, Response as DocResponse, StatusCode as DocStatus},
};
use axum::extract::FromRequestParts;
use http::request::Parts;

use super::{
    ApiState,
    input::problems,
    problem::{Problem, ProblemType},
};
use crate::{
    auth::Agent,
    config::Role,
    names::{AgentId, PeerAddress},
};

/// Who sent a request, signed in.
#[derive(Clone, Debug)]
pub(crate) struct ApiCaller {
    /// The agent.
    pub agent: Arc<Agent>,
    /// What it may do.
    pub role: Role,
    /// Where it came from.
    pub address: PeerAddress,
}

impl ApiCaller {
    /// How the audit names it.
    pub(super) fn actor(&self) -> String {
        format!("{} from {}", self.agent.name, self.address)
    }

    /// Whether what belongs to `team` is there for it: a workspace admin sees its own workspace alone.
    pub(super) fn sees_team(&self, team: Option<&str>) -> bool {
        self.role != Role::WorkspaceAdmin || team.is_some() && team == self.agent.team.as_deref()
    }
}

/// Which roles an operation is open to. An extractor each, so that the description cannot differ from what is held.
macro_rules! access {
    ($($(#[$doc:meta])* $name:ident: $roles:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        #[allow(dead_code, reason = "not every operation looks at who asks")]
        pub(super) struct $name(pub(super) ApiCaller);

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
                caller_in(parts, &$roles).map(Self)
            }
        }

        impl OperationInput for $name {
            fn operation_input(_: &mut GenContext, operation: &mut Operation) {
                describe_roles(operation, &$roles);
            }

            fn inferred_early_responses(
                ctx: &mut GenContext,
                operation: &mut Operation,
            ) -> Vec<(Option<DocStatus>, DocResponse)> {
                problems(ctx, operation, &[401, 403])
            }
        }
    )*};
}

access! {
    /// For who may change everything.
    AdminOnly: [Role::Admin];
    /// For who changes what belongs to a workspace: a workspace admin has its own alone.
    Manager: [Role::WorkspaceAdmin, Role::Admin];
    /// For everybody who has signed in: what they see of it is looked at then.
    SignedIn: [Role::Agent, Role::WorkspaceAdmin, Role::Auditor, Role::Admin];
    /// For who may see everything.
    Reader: [Role::Auditor, Role::Admin];
    /// For who sees what belongs to a workspace: a workspace admin its own alone.
    WorkspaceReader: [Role::WorkspaceAdmin, Role::Auditor, Role::Admin];
}

/// The agent that `written` means: an id with or without prefix, or a name.
pub(super) fn find_agent(state: &ApiState, written: &str) -> Result<Arc<Agent>, Problem> {
    let directory = state.proxy.governance().directory();
    let prefixed = format!("{}{written}", AgentId::PREFIX);
    let id = written.parse().or_else(|_| prefixed.parse()).ok();
    let found = id.and_then(|id| directory.current(id));
    let found = found.or_else(|| directory.named(written));
    found.ok_or_else(|| Problem::not_found(format_args!("agent `{written}`")))
}

fn caller_in(parts: &Parts, roles: &[Role]) -> Result<ApiCaller, Problem> {
    let caller = parts.extensions.get::<ApiCaller>().cloned();
    let caller = caller.ok_or_else(|| {
        let detail = "send an API key of an agent: `Authorization: Bearer KEY`";
        Problem::new(ProblemType::Unauthorized, detail)
    })?;
    if roles.contains(&caller.role) {
        return Ok(caller);
    }
    let allowed: Vec<&str> = roles.iter().map(|role| role.as_str()).collect();
    Err(Problem::forbidden(format!(
        "the agent `{}` has the role `{}`; this needs {}",
        caller.agent.name,
        caller.role.as_str(),
        allowed.join(" or ")
    )))
}

fn describe_roles(operation: &mut Operation, roles: &[Role]) {
    let names = roles.iter().map(|role| role.as_str()).collect();
    operation.extensions.insert("x-roles".to_owned(), names);
}
