//! How issuers differ, as data.

use jsonwebtoken::Algorithm;
use serde_json::{Map, Value, json};

/// Where an issuer publishes metadata, for an issuer `https://host/path`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Document {
    /// `https://host/path/.well-known/oauth-authorization-server`
    OauthAppended,
    /// `https://host/.well-known/oauth-authorization-server/path` (RFC 8414)
    OauthInserted,
    /// `https://host/path/.well-known/openid-configuration` (OpenID Connect)
    OidcAppended,
    /// `https://host/.well-known/openid-configuration/path`
    OidcInserted,
}

/// How clients get registered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Registration {
    /// Metadata names an endpoint, which wants a token of an administrator.
    NeedsToken,
    /// Only by an administrator: see `Issuer::add_client`.
    None,
    /// By anybody (RFC 7591).
    Open,
}

/// What an issuer makes of the parameter `resource` (RFC 8707).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ResourceParameter {
    /// It is the audience of the token.
    Audience,
    /// Nothing: the audience is [`Behaviour::audience`].
    Ignored,
    /// An error.
    Refused,
}

/// How access tokens carry scopes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ScopeClaim {
    /// `"scope": "a b"` (RFC 9068)
    Scope,
    /// `"scp": "a b"`
    Scp,
    /// `"scp": ["a", "b"]`
    ScpList,
}

/// What an issuer is like, and what goes wrong with it. A test changes it at any time: `Issuer::change`.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one thing that an issuer does or does not"
)]
pub(crate) struct Behaviour {
    /// Path of the issuer's identifier: empty, `/`, or like `/realms/test`.
    pub(crate) path: &'static str,
    pub(crate) documents: Vec<Document>,
    /// Members that replace those of the metadata; `null` takes one away.
    pub(crate) metadata: Map<String, Value>,
    pub(crate) registration: Registration,
    /// Of secrets of registered clients, in seconds; 0 is for ever.
    pub(crate) secret_lifetime: i64,
    /// Clients may be named by URLs of their metadata (CIMD). They are not fetched.
    pub(crate) client_id_documents: bool,
    pub(crate) resource: ResourceParameter,
    /// Of access tokens that no `resource` names one for.
    pub(crate) audience: Option<String>,
    /// `iss` stands in authorization responses (RFC 9207), and metadata says so.
    pub(crate) iss_parameter: bool,
    /// What `iss` is instead, as an attacker has it.
    pub(crate) false_iss: Option<String>,
    /// Metadata names PKCE methods. `S256` is checked whenever a client uses it.
    pub(crate) advertises_pkce: bool,
    /// A client must use PKCE.
    pub(crate) requires_pkce: bool,
    pub(crate) scopes: Vec<String>,
    /// An unknown scope is an error.
    pub(crate) refuses_unknown_scopes: bool,
    /// Without this scope there is no refresh token.
    pub(crate) refresh_scope: Option<&'static str>,
    /// A refresh token is good once: the answer has the next one.
    pub(crate) rotates: bool,
    /// A rotated refresh token is good for a while yet.
    pub(crate) rotates_with_grace: bool,
    /// Whoever uses a rotated refresh token again loses the grant.
    pub(crate) reuse_revokes: bool,
    /// Access tokens are random text.
    pub(crate) opaque: bool,
    pub(crate) algorithm: Algorithm,
    /// Header `typ` of access tokens.
    pub(crate) token_type: &'static str,
    pub(crate) scope_claim: ScopeClaim,
    /// Tokens have scopes of APIs without the URL of the API, and none of OpenID Connect.
    pub(crate) short_scopes: bool,
    /// The claim that names the client.
    pub(crate) client_claim: &'static str,
    /// Who logs in: further claims of every token of a person, `sub` among them.
    pub(crate) user: Map<String, Value>,
    /// Of access tokens, in seconds.
    pub(crate) lifetime: i64,
    /// Seconds that the issuer's clock is ahead.
    pub(crate) clock_ahead: i64,

    /// What authorization answers instead of a code, like `access_denied`.
    pub(crate) authorize_error: Option<&'static str>,
    /// What the token endpoint answers: a status and an error.
    pub(crate) token_error: Option<(u16, &'static str)>,
    /// The token endpoint does what it is asked, and then breaks the connection.
    pub(crate) loses_token_answers: bool,
    /// How long the token endpoint takes, in milliseconds.
    pub(crate) token_delay_ms: u64,
    /// Connections are broken before anything is read.
    pub(crate) down: bool,
    /// Status of every metadata document.
    pub(crate) metadata_status: u16,
    /// Status of the JWKS.
    pub(crate) jwks_status: u16,
    /// How long the JWKS takes, in milliseconds.
    pub(crate) jwks_delay_ms: u64,
    /// Status of registration.
    pub(crate) registration_status: u16,
}

/// Does all that the specifications ask for.
impl Default for Behaviour {
    fn default() -> Self {
        Self {
            path: "",
            documents: vec![Document::OauthInserted, Document::OidcAppended],
            metadata: Map::new(),
            registration: Registration::Open,
            secret_lifetime: 0,
            client_id_documents: true,
            resource: ResourceParameter::Audience,
            audience: None,
            iss_parameter: true,
            false_iss: None,
            advertises_pkce: true,
            requires_pkce: true,
            scopes: texts(&[
                "openid",
                "profile",
                "email",
                "offline_access",
                "tools:read",
                "tools:call",
            ]),
            refuses_unknown_scopes: false,
            refresh_scope: None,
            rotates: true,
            rotates_with_grace: false,
            reuse_revokes: true,
            opaque: false,
            algorithm: Algorithm::ES256,
            token_type: "at+jwt",
            scope_claim: ScopeClaim::Scope,
            short_scopes: false,
            client_claim: "client_id",
            user: object(json!({"sub": "ada", "email": "ada@example.com", "groups": ["eng-core"]})),
            lifetime: 3600,
            clock_ahead: 0,
            authorize_error: None,
            token_error: None,
            loses_token_answers: false,
            token_delay_ms: 0,
            down: false,
            metadata_status: 200,
            jwks_status: 200,
            jwks_delay_ms: 0,
            registration_status: 201,
        }
    }
}

impl Behaviour {
    /// Microsoft Entra ID, tokens of version 2.0: refuses `resource` (AADSTS9010010), registers nobody, has
    /// metadata of OpenID Connect alone, in which PKCE is missing although it works, and tokens whose scopes have
    /// lost the URL of their API.
    pub(crate) fn entra() -> Self {
        Self {
            path: "/72f988bf-0000-4000-8000-000000000000/v2.0",
            documents: vec![Document::OidcAppended],
            registration: Registration::None,
            client_id_documents: false,
            resource: ResourceParameter::Refused,
            audience: Some("api://tollbridge".to_owned()),
            iss_parameter: false,
            advertises_pkce: false,
            requires_pkce: false,
            scopes: texts(&[
                "openid",
                "profile",
                "email",
                "offline_access",
                "api://tollbridge/tools",
            ]),
            refuses_unknown_scopes: true,
            refresh_scope: Some("offline_access"),
            reuse_revokes: false,
            algorithm: Algorithm::RS256,
            token_type: "JWT",
            scope_claim: ScopeClaim::Scp,
            short_scopes: true,
            client_claim: "azp",
            user: object(json!({
                "sub": "AAAAAAAAAAAAAAAAAAAAAIkzqFVrSaSaFHy782bbtaQ",
                "oid": "00000000-0000-4000-8000-00000000000a",
                "tid": "72f988bf-0000-4000-8000-000000000000",
                "preferred_username": "ada@example.com",
                "groups": ["7e5f0f5c-0000-4000-8000-000000000001"],
                "roles": ["Engineer"],
                "ver": "2.0",
            })),
            ..Self::default()
        }
    }

    /// Okta with a custom authorization server: its metadata names a registration endpoint that wants a token,
    /// the audience is fixed, scopes are a list.
    pub(crate) fn okta() -> Self {
        Self {
            path: "/oauth2/default",
            documents: vec![Document::OauthAppended, Document::OidcAppended],
            registration: Registration::NeedsToken,
            client_id_documents: false,
            resource: ResourceParameter::Ignored,
            audience: Some("api://default".to_owned()),
            iss_parameter: false,
            refuses_unknown_scopes: true,
            refresh_scope: Some("offline_access"),
            algorithm: Algorithm::RS256,
            token_type: "JWT",
            scope_claim: ScopeClaim::ScpList,
            client_claim: "cid",
            user: object(json!({
                "sub": "ada@example.com",
                "uid": "00u1a2b3c4d5e6f7g8h9",
                "groups": ["Everyone", "eng-core"],
            })),
            ..Self::default()
        }
    }

    /// Keycloak: registers anybody, ignores `resource`, and has `account` as the audience unless a mapper adds
    /// another.
    pub(crate) fn keycloak() -> Self {
        Self {
            path: "/realms/test",
            documents: vec![Document::OauthInserted, Document::OidcAppended],
            client_id_documents: false,
            resource: ResourceParameter::Ignored,
            audience: Some("account".to_owned()),
            requires_pkce: false,
            rotates: false,
            reuse_revokes: false,
            algorithm: Algorithm::RS256,
            token_type: "JWT",
            client_claim: "azp",
            user: object(json!({
                "sub": "f1d2c3b4-0000-4000-8000-00000000000a",
                "preferred_username": "ada",
                "realm_access": {"roles": ["engineer", "offline_access"]},
                "groups": ["/eng/core"],
                "typ": "Bearer",
            })),
            ..Self::default()
        }
    }

    /// Google: opaque access tokens, no registration, no scope `offline_access`, and a refresh token that stays.
    pub(crate) fn google() -> Self {
        Self {
            documents: vec![Document::OidcAppended],
            registration: Registration::None,
            client_id_documents: false,
            resource: ResourceParameter::Ignored,
            iss_parameter: false,
            requires_pkce: false,
            scopes: texts(&["openid", "profile", "email"]),
            refuses_unknown_scopes: true,
            rotates: false,
            reuse_revokes: false,
            opaque: true,
            algorithm: Algorithm::RS256,
            client_claim: "azp",
            user: object(json!({
                "sub": "110169484474386276334",
                "email": "ada@example.com",
                "email_verified": true,
                "hd": "example.com",
            })),
            ..Self::default()
        }
    }

    /// Auth0: the name of the issuer ends in a slash, and the audience comes by a parameter `audience` of its own.
    pub(crate) fn auth0() -> Self {
        Self {
            path: "/",
            client_id_documents: false,
            resource: ResourceParameter::Ignored,
            audience: Some("https://tollbridge.example.com".to_owned()),
            iss_parameter: false,
            requires_pkce: false,
            refresh_scope: Some("offline_access"),
            algorithm: Algorithm::RS256,
            client_claim: "azp",
            user: object(json!({
                "sub": "auth0|5f7c8ec7c33c6c004bbafe82",
                "https://tollbridge.example.com/groups": ["eng-core"],
            })),
            ..Self::default()
        }
    }
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|&text| text.to_owned()).collect()
}

/// The members of a JSON object.
pub(crate) fn object(value: Value) -> Map<String, Value> {
    let Value::Object(members) = value else {
        panic!("no object: {value}");
    };
    members
}
