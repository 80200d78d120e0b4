//! Which agent the subject of a token is: rules over its claims.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Agent, AgentValidity, User, token::TokenRejection};
use crate::{
    config::{AgentMatch, QuotaOwner},
    names::ProfileName,
};

/// The claims that may say what people call a user, the best first.
const NAME_CLAIMS: [&str; 5] = ["preferred_username", "email", "upn", "name", "client_name"];

/// The claims that may say who somebody is at their issuer: a token for a machine may have no subject.
const SUBJECT_CLAIMS: [&str; 3] = ["sub", "client_id", "azp"];

/// Longest name of a user that is shown, characters.
const NAME_CHARS_MAX: usize = 64;

/// Elements of a claim, and objects in each other, that are looked at.
const VALUES_MAX: usize = 1000;

/// A rule and the agent that it leads to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MatchRule {
    pub(super) written: AgentMatch,
    /// `None` where there is no agent of that name.
    pub(super) base: Option<Arc<Agent>>,
}

/// Who the claims of a token are about.
///
/// # Errors
/// [`TokenRejection::Malformed`] where they do not say.
pub(super) fn user_of(claims: &Map<String, Value>) -> Result<User, TokenRejection> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let mut subjects = SUBJECT_CLAIMS.into_iter().filter_map(text);
    let actor = claims.get("act").and_then(|act| act.get("sub"));
    Ok(User {
        issuer: text("iss").ok_or(TokenRejection::Malformed)?.to_owned(),
        subject: subjects
            .find(|subject| !subject.is_empty())
            .ok_or(TokenRejection::Malformed)?
            .to_owned(),
        name: NAME_CLAIMS
            .into_iter()
            .filter_map(text)
            .find_map(shown_name),
        actor: actor.and_then(Value::as_str).map(str::to_owned),
    })
}

/// `name` as it may be shown anywhere.
fn shown_name(name: &str) -> Option<String> {
    let shown = name.chars().filter(|c| !c.is_control());
    let shown: String = shown.take(NAME_CHARS_MAX).collect();
    let shown = shown.trim();
    (!shown.is_empty()).then(|| shown.to_owned())
}

/// The agent that a user with these claims is by the first of `rules` that fits.
///
/// # Errors
/// Where they say nobody, or no rule fits.
pub(super) fn derive_agent(
    claims: &Map<String, Value>,
    rules: &[MatchRule],
) -> Result<Agent, TokenRejection> {
    let user = user_of(claims)?;
    let rule = rules.iter().find(|rule| fits(&rule.written, claims));
    let rule = rule.ok_or(TokenRejection::Subject)?;
    let base = rule.base.as_ref().ok_or(TokenRejection::Subject)?;
    let id = user.agent_id(base.id);
    let written = &rule.written;
    let profiles = written.profiles.as_ref().map(|names| {
        let names = names
            .iter()
            .filter_map(|name| ProfileName::parse(name).ok());
        names.collect()
    });
    let mut terms = base.terms.clone();
    if let Some(policy) = &written.policy {
        terms.policy = Some(policy.clone());
    }
    Ok(Agent {
        id,
        name: format!("{}/{user}", base.name),
        team: written.team.clone().or_else(|| base.team.clone()),
        enabled: base.enabled,
        role: written.role.unwrap_or(base.role),
        profiles: profiles.or_else(|| base.profiles.clone()),
        terms,
        user: Some(Arc::new(user)),
        base: base.id,
        quota_owner: match written.quota {
            QuotaOwner::Agent => base.quota_owner,
            QuotaOwner::User => id,
        },
        revocations: 0,
        session_validity: AgentValidity::default(),
    })
}

/// Whether a token with these claims is one that `rule` is about.
pub(super) fn fits(rule: &AgentMatch, claims: &Map<String, Value>) -> bool {
    rule.claims.iter().all(|(path, glob)| {
        let mut values = Vec::new();
        collect_values(claims, path, &mut values);
        values.iter().any(|value| glob.is_match(value))
    })
}

/// The texts that the claim at `path` has: a name with dots may be one claim or lead into objects.
fn collect_values(claims: &Map<String, Value>, path: &str, found: &mut Vec<String>) {
    if let Some(value) = claims.get(path) {
        collect_texts(value, found);
    }
    for (at, _) in path.match_indices('.') {
        if let Some(Value::Object(inner)) = claims.get(&path[..at]) {
            collect_values(inner, &path[at + 1..], found);
        }
    }
}

fn collect_texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Array(items) => {
            for item in items.iter().take(VALUES_MAX) {
                if !item.is_array() {
                    collect_texts(item, found);
                }
            }
        }
        Value::Bool(value) => found.push(value.to_string()),
        Value::Number(value) => found.push(value.to_string()),
        Value::String(value) => found.push(value.clone()),
        Value::Null | Value::Object(_) => {}
    }
}

/// Why no rule may fit although one was meant to: the issuer has left groups out of the token since there are too
/// many (Entra: `_claim_names`, `hasgroups`).
pub(super) fn has_group_overage(claims: &Map<String, Value>) -> bool {
    let names = claims
        .get("_claim_names")
        .and_then(|names| names.get("groups"));
    names.is_some() || claims.contains_key("hasgroups")
}

#[cfg(test)]
mod tests {
    use indexmap::IndexMap;
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_are_matched_by_globs() {
        let check = |rule: &[(&str, &str)], claims: Value, expect: bool| {
            let written: IndexMap<_, _> = rule.iter().copied().collect();
            let rule = json!({ "claims": written, "agent": "a" });
            let rule: AgentMatch = serde_json::from_value(rule).unwrap();
            let claims = claims.as_object().unwrap();
            assert_eq!(fits(&rule, claims), expect, "{rule:?} {claims:?}");
        };
        check(&[], json!({}), true);
        check(
            &[("iss", "https://*")],
            json!({"iss": "https://a/b/"}),
            true,
        );
        check(&[("iss", "https://*")], json!({}), false);
        check(
            &[("groups", "eng-*")],
            json!({"groups": ["x", "eng-core"]}),
            true,
        );
        check(&[("groups", "eng-*")], json!({"groups": ["x"]}), false);
        check(&[("groups", "eng")], json!({"groups": "eng"}), true);
        check(&[("groups", "eng")], json!({"groups": [["eng"]]}), false);
        let realm = json!({"realm_access": {"roles": ["admin"]}});
        check(&[("realm_access.roles", "admin")], realm.clone(), true);
        check(&[("realm_access", "admin")], realm, false);
        let url = json!({"https://a.example/roles": ["x"]});
        check(&[("https://a.example/roles", "x")], url, true);
        let nested = json!({"a.b": {"c": 1}, "a": {"b": {"c": 2}}});
        check(&[("a.b.c", "1")], nested.clone(), true);
        check(&[("a.b.c", "2")], nested, true);
        check(
            &[("admin", "true"), ("x", "*")],
            json!({"admin": true}),
            false,
        );
    }

    #[test]
    fn users_are_known_by_issuer_and_subject() {
        let claims = json!({
            "iss": "https://a", "sub": "1", "name": "Ann\n\u{7}", "act": {"sub": "bot", "act": {"sub": "x"}}
        });
        let user = user_of(claims.as_object().unwrap()).unwrap();
        assert_eq!(user.name.as_deref(), Some("Ann"));
        assert_eq!(user.actor.as_deref(), Some("bot"));
        let machine = json!({"iss": "https://a", "azp": "client"});
        assert_eq!(
            user_of(machine.as_object().unwrap()).unwrap().subject,
            "client"
        );
        for claims in [
            json!({"iss": "a"}),
            json!({"sub": "a"}),
            json!({"iss": "a", "sub": ""}),
        ] {
            let found = user_of(claims.as_object().unwrap());
            assert_eq!(found, Err(TokenRejection::Malformed));
        }
    }
}
