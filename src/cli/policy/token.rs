//! `tollbridge policy explain --token`: whether a token is good, and which agent its subject is.

use std::{path::Path, sync::Arc};

use serde_json::{Map, Value, json};

use crate::{
    app,
    auth::{
        Agent, AgentDirectory, jwt, route_url,
        token::{TokenRejection, TokenSubject, VerifiedToken},
    },
    config::{AuthMethod, Config},
    names::ProfileName,
};

/// What is known of a token.
pub(super) struct ExplainedToken {
    /// For people, a line for each fact.
    pub(super) text: String,
    /// The same for scripts.
    pub(super) json: Value,
    /// The agent that its subject is; `None` where it opens nothing.
    pub(super) agent: Option<Arc<Agent>>,
}

/// Reads a token from `file`, or from stdin where that is `-`.
pub(super) fn read(file: &Path) -> std::io::Result<String> {
    let text = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin())?
    } else {
        std::fs::read_to_string(file)?
    };
    let text = text.trim();
    let text = text.strip_prefix("Authorization:").unwrap_or(text).trim();
    Ok(text
        .strip_prefix("Bearer ")
        .unwrap_or(text)
        .trim()
        .to_owned())
}

/// Explains `token` as the gateway of `config` takes it, on the route of `profile` or the merged one.
pub(super) async fn explain(
    token: &str,
    config: &Config,
    profile: Option<&ProfileName>,
) -> ExplainedToken {
    let directory = AgentDirectory::new(config.governance.auth, config.agents.values().cloned());
    app::apply_identity(config, &directory);
    let resource = route_url(config, profile);
    let verified = directory.verify_token(token, &resource).await;
    let claims = match &verified {
        Ok(VerifiedToken {
            subject: TokenSubject::Claims(claims),
            ..
        }) => Some(claims.clone()),
        Ok(_) | Err(_) => jwt::unverified_claims(token),
    };
    let rule = claims
        .as_ref()
        .and_then(|claims| directory.matching_rule(claims));
    let agent = match &verified {
        Ok(verified) => directory.agent_of_subject(&verified.subject),
        Err(why) => Err(*why),
    };
    let scopes = verified.as_ref().ok().map(|it| it.scopes.to_string());
    let mut facts = vec![verdict(&resource, &verified, &agent)];
    facts.extend(hint(config, why_of(&verified)));
    if let Some(claims) = &claims {
        facts.extend(claim_facts(claims));
        facts.push(rule.map_or_else(
            || "No rule of `agents.match` fits.".to_owned(),
            |index| {
                let agent = &config.agent_matches[index].agent;
                format!(
                    "Rule {} of `agents.match` fits: agent `{agent}`.",
                    index + 1
                )
            },
        ));
    }
    facts.extend(
        scopes
            .as_ref()
            .map(|scopes| format!("Scopes that count: {scopes}")),
    );
    let json = json!({
        "valid": verified.is_ok(),
        "reason": why_of(&verified).or(agent.as_ref().err().copied()).map(TokenRejection::reason),
        "resource": resource,
        "agent": agent.as_ref().ok().map(|agent| &agent.name),
        "agent_id": agent.as_ref().ok().map(|agent| agent.id),
        "rule": rule.map(|index| index + 1),
        "scopes": scopes,
        "expires": verified.as_ref().ok().map(|it| it.expires.to_string()),
        "claims": claims,
    });
    ExplainedToken {
        text: facts.join("\n"),
        json,
        agent: agent.ok(),
    }
}

/// Whether the token opens something.
fn verdict(
    resource: &str,
    verified: &Result<VerifiedToken, TokenRejection>,
    agent: &Result<Arc<Agent>, TokenRejection>,
) -> String {
    match (verified, agent) {
        (Ok(_), Ok(agent)) => {
            format!(
                "The token is good on {resource}: it is that of `{}`.",
                agent.name
            )
        }
        (Ok(_), Err(why)) | (Err(why), _) => {
            format!("The token is refused on {resource}: {why}.")
        }
    }
}

/// What is special about the config, or the token.
fn hint(config: &Config, why: Option<TokenRejection>) -> Option<String> {
    let auth = config.governance.auth;
    if !auth.allows_tokens() {
        return Some(format!(
            "`governance.auth` is {auth}: the gateway takes no tokens."
        ));
    }
    (why == Some(TokenRejection::Unknown)).then(|| unknown_hint(config).to_owned())
}

/// The claims that decide.
fn claim_facts(claims: &Map<String, Value>) -> impl Iterator<Item = String> {
    let names = [
        "iss",
        "sub",
        "aud",
        "exp",
        "nbf",
        "scope",
        "scp",
        "client_id",
        "azp",
        "act",
    ];
    let facts = names.into_iter();
    facts.filter_map(|name| Some(format!("{name}: {}", claims.get(name)?)))
}

fn why_of(verified: &Result<VerifiedToken, TokenRejection>) -> Option<TokenRejection> {
    verified.as_ref().err().copied()
}

fn unknown_hint(config: &Config) -> &'static str {
    if config.governance.auth.allows(AuthMethod::Oauth) && config.oauth.external_issuer().is_some()
    {
        "It is no JWT: only the issuer could say what it means, and the gateway asks nobody."
    } else {
        "It is no JWT of an issuer of the config."
    }
}
