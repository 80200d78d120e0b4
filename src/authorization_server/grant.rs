//! Grants: which client may act for whom, on what.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    auth::token::{Scopes, TokenSubject},
    names::AgentId,
    store::StoredOAuthGrant,
};

/// Who gave a grant, or is logged in: as bodies in the store and cookies have it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SubjectBody {
    Agent(AgentId),
    Claims(Map<String, Value>),
}

impl From<&TokenSubject> for SubjectBody {
    fn from(subject: &TokenSubject) -> Self {
        match subject {
            TokenSubject::Agent(id) => Self::Agent(*id),
            TokenSubject::Claims(claims) => Self::Claims(claims.clone()),
        }
    }
}

impl From<SubjectBody> for TokenSubject {
    fn from(subject: SubjectBody) -> Self {
        match subject {
            SubjectBody::Agent(id) => Self::Agent(id),
            SubjectBody::Claims(claims) => Self::Claims(claims),
        }
    }
}

/// Whether two subjects are the same person or agent, whatever else is claimed of them.
pub(super) fn is_same_subject(a: &TokenSubject, b: &TokenSubject) -> bool {
    match (a, b) {
        (TokenSubject::Agent(a), TokenSubject::Agent(b)) => a == b,
        (TokenSubject::Claims(a), TokenSubject::Claims(b)) => ["iss", "sub"]
            .into_iter()
            .all(|name| a.get(name).is_some() && a.get(name) == b.get(name)),
        (TokenSubject::Agent(_), TokenSubject::Claims(_))
        | (TokenSubject::Claims(_), TokenSubject::Agent(_)) => false,
    }
}

/// The sealed part of a grant.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct GrantBody {
    pub(super) client: String,
    pub(super) client_name: Option<String>,
    pub(super) subject: SubjectBody,
    /// What people call the subject.
    pub(super) subject_name: String,
    pub(super) redirect_target: String,
    pub(super) scope: String,
    pub(super) resources: Vec<String>,
    #[serde(with = "super::time_ms")]
    pub(super) signed_in: Timestamp,
}

/// A grant that somebody gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// Its public id.
    pub id: String,
    /// The `client_id` that it was given to.
    pub client: String,
    /// What the client calls itself.
    pub client_name: Option<String>,
    /// Who gave it.
    pub subject: TokenSubject,
    /// What people call them.
    pub subject_name: String,
    /// The host, or scheme, where its code went.
    pub redirect_target: String,
    /// What it is for.
    pub scopes: Scopes,
    /// The resources that it is for.
    pub resources: Vec<String>,
    /// When its subject last signed in, whose claims are those of that time.
    pub signed_in: Timestamp,
    /// When it was given.
    pub created: Timestamp,
    /// When it last gave tokens.
    pub used: Timestamp,
}

impl Grant {
    pub(super) fn from_stored(stored: &StoredOAuthGrant, body: GrantBody) -> Self {
        Self {
            id: stored.id.clone(),
            client: body.client,
            client_name: body.client_name,
            subject: body.subject.into(),
            subject_name: body.subject_name,
            redirect_target: body.redirect_target,
            scopes: Scopes::parse(&body.scope),
            resources: body.resources,
            signed_in: body.signed_in,
            created: stored.created,
            used: stored.used,
        }
    }

    pub(super) fn to_body(&self) -> GrantBody {
        GrantBody {
            client: self.client.clone(),
            client_name: self.client_name.clone(),
            subject: (&self.subject).into(),
            subject_name: self.subject_name.clone(),
            redirect_target: self.redirect_target.clone(),
            scope: self.scopes.to_string(),
            resources: self.resources.clone(),
            signed_in: self.signed_in,
        }
    }

    /// The agent that gave it, unless a user of an issuer did.
    pub fn agent(&self) -> Option<AgentId> {
        match &self.subject {
            TokenSubject::Agent(id) => Some(*id),
            TokenSubject::Claims(_) => None,
        }
    }

    /// What people see of its client: its name, or where its codes go.
    pub fn client_label(&self) -> &str {
        self.client_name.as_deref().unwrap_or(&self.client)
    }
}
