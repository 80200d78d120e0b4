//! How issuers depart from the standards: what is known of some, and what the answers of others show.

use serde::{Deserialize, Serialize};
use url::Url;

use super::{discovery::IssuerMetadata, token_endpoint::ClientCredential};

/// How an issuer departs from the standards.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one thing that an issuer does or does not"
)]
pub(super) struct Quirks {
    /// It wants no `resource` (RFC 8707): scopes say what a token is for.
    pub(super) refuses_resource: bool,
    /// It takes a secret the other way than its metadata says: in the form where they do not say so, by HTTP Basic
    /// where they do.
    pub(super) secret_in_form: bool,
    /// The audience of a client assertion is the token endpoint, not the issuer.
    pub(super) assertion_for_endpoint: bool,
    /// It has PKCE, and does not say so.
    pub(super) hides_pkce: bool,
    /// Further parameters of the authorization request, without which there is no refresh token.
    pub(super) authorize: Vec<(String, String)>,
}

/// An issuer of which quirks are known beforehand.
struct KnownIssuer {
    /// Its host.
    host: &'static str,
    refuses_resource: bool,
    assertion_for_endpoint: bool,
    hides_pkce: bool,
    authorize: &'static [(&'static str, &'static str)],
}

const KNOWN: [KnownIssuer; 4] = [
    // AADSTS9010010 where `resource` stands beside scopes of another name; the metadata is silent about PKCE.
    // Source: learn.microsoft.com/entra/identity-platform (v2.0 endpoints).
    KnownIssuer {
        host: "login.microsoftonline.com",
        refuses_resource: true,
        assertion_for_endpoint: true,
        hides_pkce: true,
        authorize: &[],
    },
    KnownIssuer {
        host: "login.microsoftonline.us",
        refuses_resource: true,
        assertion_for_endpoint: true,
        hides_pkce: true,
        authorize: &[],
    },
    KnownIssuer {
        host: "sts.windows.net",
        refuses_resource: true,
        assertion_for_endpoint: true,
        hides_pkce: true,
        authorize: &[],
    },
    // There is no scope `offline_access`. Source: developers.google.com/identity/protocols/oauth2/web-server.
    KnownIssuer {
        host: "accounts.google.com",
        refuses_resource: false,
        assertion_for_endpoint: true,
        hides_pkce: false,
        authorize: &[("access_type", "offline"), ("prompt", "consent")],
    },
];

impl Quirks {
    /// What is known of `issuer` beforehand.
    pub(super) fn known(issuer: &str) -> Self {
        let url = Url::parse(issuer).ok();
        let host = url.as_ref().and_then(Url::host_str);
        let known = KNOWN.iter().find(|it| Some(it.host) == host);
        let Some(known) = known else {
            return Self::default();
        };
        let owned = |pair: &(&str, &str)| (pair.0.to_owned(), pair.1.to_owned());
        Self {
            refuses_resource: known.refuses_resource,
            secret_in_form: false,
            assertion_for_endpoint: known.assertion_for_endpoint,
            hides_pkce: known.hides_pkce,
            authorize: known.authorize.iter().map(owned).collect(),
        }
    }

    /// Takes what the error `code` shows. Whether it is worth to ask once more.
    pub(super) fn learn(
        &mut self,
        code: &str,
        description: &str,
        has_resource: bool,
        credential: &ClientCredential,
    ) -> bool {
        if has_resource && !self.refuses_resource && refuses_resource(code, description) {
            self.refuses_resource = true;
            return true;
        }
        let other_way = match credential {
            ClientCredential::Secret(_) => &mut self.secret_in_form,
            ClientCredential::PrivateKey(_) => &mut self.assertion_for_endpoint,
            ClientCredential::Public => return false,
        };
        // The second time the way that was known before is wrong as well.
        let is_first = code == "invalid_client" && !*other_way;
        *other_way |= is_first;
        is_first
    }
}

/// The value of `prompt` by which a person chooses the account. Where it is not known that an issuer takes one, it gets
/// none: some refuse a request for it, and the person can log out there.
pub(super) fn account_prompt(metadata: &IssuerMetadata) -> Option<&'static str> {
    const SELECT: &str = "select_account";
    const LOGIN: &str = "login";
    if let Some(values) = &metadata.prompt_values_supported {
        let takes = |value: &&str| values.iter().any(|it| it == value);
        return [SELECT, LOGIN].into_iter().find(takes);
    }
    let url = metadata.issuer.as_deref().map(Url::parse);
    let host = url.as_ref().and_then(|it| it.as_ref().ok()?.host_str());
    if host.is_some_and(|host| KNOWN.iter().any(|it| it.host == host)) {
        return Some(SELECT);
    }
    // OpenID Connect Core, section 15.1: every issuer has `login`; `select_account` is an error at some.
    let is_openid = metadata.subject_types_supported.is_some();
    is_openid.then_some(LOGIN)
}

/// Whether an error is about `resource`.
pub(super) fn refuses_resource(code: &str, description: &str) -> bool {
    const OF_ENTRA: [&str; 2] = ["AADSTS9010010", "AADSTS901002"];
    code == "invalid_target" || OF_ENTRA.iter().any(|it| description.contains(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quirks_are_known_of_some_issuers() {
        let entra = Quirks::known("https://login.microsoftonline.com/tenant/v2.0");
        assert!(entra.refuses_resource && entra.hides_pkce);
        let google = Quirks::known("https://accounts.google.com");
        assert_eq!(google.authorize[0].0, "access_type");
        assert_eq!(
            Quirks::known("https://login.microsoftonline.com.example"),
            Quirks::default()
        );
        assert_eq!(Quirks::known("no URL"), Quirks::default());
    }

    #[test]
    fn an_account_is_chosen_where_the_issuer_lets_people() {
        let metadata = |issuer: &str, more: serde_json::Value| {
            let mut all = serde_json::json!({ "issuer": issuer, "token_endpoint": "https://x" });
            let more = more.as_object().cloned();
            all.as_object_mut().unwrap().extend(more.unwrap());
            serde_json::from_value::<IssuerMetadata>(all).unwrap()
        };
        let openid = serde_json::json!({ "subject_types_supported": ["public"] });
        let prompts = |values: &[&str]| serde_json::json!({ "prompt_values_supported": values });
        let (google, other) = ("https://accounts.google.com", "https://other.example");
        let entra = "https://login.microsoftonline.com/tenant/v2.0";
        for (issuer, more, expect) in [
            (entra, openid.clone(), Some("select_account")),
            (google, openid.clone(), Some("select_account")),
            (other, openid, Some("login")),
            (other, prompts(&["none", "login"]), Some("login")),
            (
                other,
                prompts(&["login", "select_account"]),
                Some("select_account"),
            ),
            (other, prompts(&["none"]), None),
            (other, serde_json::json!({}), None),
        ] {
            let found = account_prompt(&metadata(issuer, more.clone()));
            assert_eq!(found, expect, "{issuer} {more}");
        }
    }

    #[test]
    fn what_an_error_shows_is_learned_once() {
        let secret = ClientCredential::Secret("s".to_owned());
        let mut quirks = Quirks::default();
        let text = "AADSTS9010010: The resource parameter provided in the request doesn't match";
        assert!(quirks.learn("invalid_request", text, true, &secret));
        assert!(quirks.refuses_resource);
        assert!(!quirks.learn("invalid_request", text, true, &secret));
        assert!(quirks.learn("invalid_client", "", true, &secret) && quirks.secret_in_form);
        assert!(!quirks.learn("invalid_client", "", true, &secret));
        assert!(!quirks.learn("invalid_client", "", true, &ClientCredential::Public));
        assert!(!quirks.learn("invalid_grant", "", true, &secret));
    }
}
