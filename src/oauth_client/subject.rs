//! Tokens of callers, for grants that exchange them. They are kept in memory alone, and go to the authorization server
//! of a server with such a grant.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, header::AUTHORIZATION};
use serde_json::Value;

use super::Grants;
use crate::{config::Secret, names::AgentId, store::GrantOwner};

/// Of so many agents the token is kept that they showed last.
const AGENTS_MAX: usize = 10_000;

/// The token of a caller, to be exchanged for another.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SubjectToken {
    /// The token.
    pub(super) token: Secret,
    /// What it is.
    pub(super) kind: SubjectTokenKind,
}

/// What a token is (RFC 8693, section 3).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum SubjectTokenKind {
    /// An access token.
    AccessToken,
    /// An ID token of OpenID Connect.
    IdToken,
    /// A JWT that does not say which of the two it is.
    Jwt,
}

impl SubjectToken {
    /// The token in `headers`. One that is no JWT says nothing to another issuer.
    fn of_request(headers: &HeaderMap) -> Option<Self> {
        let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
        let (scheme, token) = value.split_once(' ')?;
        let token = Some(token.trim()).filter(|_| scheme.eq_ignore_ascii_case("bearer"))?;
        let (header, rest) = token.split_once('.')?;
        (rest.split('.').count() == 2).then_some(())?;
        let header = URL_SAFE_NO_PAD.decode(header).ok()?;
        let header: Value = serde_json::from_slice(&header).ok()?;
        let kind = header["typ"].as_str().unwrap_or_default();
        let kind = kind.strip_prefix("application/").unwrap_or(kind);
        Some(Self {
            token: Secret::new(token.to_owned()),
            kind: if kind.eq_ignore_ascii_case("at+jwt") {
                SubjectTokenKind::AccessToken
            } else {
                SubjectTokenKind::Jwt
            },
        })
    }
}

impl Grants {
    /// Keeps the token that a request of `agent` has shown, whose `headers` these are, where a server has a grant that
    /// exchanges it.
    pub fn offer_subject(&self, agent: AgentId, headers: &HeaderMap) {
        let servers = self.0.servers.load();
        if !servers.values().any(|server| server.grant.takes_subjects()) {
            return;
        }
        let Some(token) = SubjectToken::of_request(headers) else {
            return;
        };
        let subjects = &self.0.subjects;
        let is_known = |it: &SubjectToken| *it == token;
        if subjects.get(&agent).is_some_and(|it| is_known(&it)) {
            return;
        }
        if subjects.len() >= AGENTS_MAX {
            let any = subjects.iter().next().map(|it| *it.key());
            any.and_then(|any| subjects.remove(&any));
        }
        let is_first = subjects.is_empty();
        subjects.insert(agent, token);
        // Servers that were waiting for somebody can be listed.
        for server in servers
            .values()
            .filter(|it| is_first && it.grant.takes_subjects())
        {
            self.tell(server, GrantOwner::Agent(agent));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_say_something_to_others_are_kept() {
        let check = |value: &str, expect: Option<SubjectTokenKind>| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            let found = SubjectToken::of_request(&headers);
            assert_eq!(found.map(|it| it.kind), expect, "{value}");
        };
        let jwt = |typ: &str| {
            let header = URL_SAFE_NO_PAD.encode(format!("{{\"alg\":\"ES256\",\"typ\":\"{typ}\"}}"));
            format!("Bearer {header}.e30.c2ln")
        };
        check(&jwt("JWT"), Some(SubjectTokenKind::Jwt));
        check(&jwt("at+jwt"), Some(SubjectTokenKind::AccessToken));
        check(
            &jwt("application/at+jwt"),
            Some(SubjectTokenKind::AccessToken),
        );
        check("Bearer e30.e30.c2ln", Some(SubjectTokenKind::Jwt));
        check("Bearer tb_key", None);
        check("Bearer a.b.c", None);
        check("Bearer e30.e30.c2ln.more", None);
        check("Basic e30.e30.c2ln", None);
        assert_eq!(SubjectToken::of_request(&HeaderMap::new()), None);
    }
}
