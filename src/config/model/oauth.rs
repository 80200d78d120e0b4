//! Tokens of clients: who issues them, and which agent their subject is.

use std::time::Duration;

use globset::{Glob, GlobMatcher};
use indexmap::IndexMap;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{
    policy::{GlobList, Policy, glob, name_matcher},
    role::Role,
};
use crate::config::{Secret, units::Time};

/// OAuth of clients: who issues the access tokens of `auth = "oauth"`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct OAuthConfig {
    /// Who issues the tokens.
    pub mode: OAuthMode,
    /// Issuer of the tokens with `mode = "external"`, as it names itself in them. Its metadata says where its keys
    /// are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    /// Audiences of tokens that are accepted besides the URL of the route, with `mode = "external"`. Entra has
    /// `api://...` or the id of the application.
    pub audience: Vec<String>,
    /// Scopes that clients are told to ask the external issuer for, in place of `tools:read`, `tools:call` and
    /// `profile:NAME`. A token that has all of them may do everything that its agent may.
    pub scopes: Vec<String>,
    /// Lifetime of access tokens of the built-in server.
    #[serde(with = "Time")]
    #[schemars(extend("x-min" = "10s", "x-max" = "1h"))]
    pub access_token_lifetime: Duration,
    /// How long after a sign-in clients of the built-in server can refresh their tokens, however often they do. Then the
    /// person signs in again.
    #[serde(with = "Time")]
    #[schemars(extend("x-min" = "1m", "x-max" = "365d"))]
    pub refresh_token_lifetime: Duration,
    /// How long a refresh token stays valid after its first use, for clients that did not get the response. A
    /// later use revokes the grant.
    #[serde(with = "Time")]
    #[schemars(extend("x-min" = "0s", "x-max" = "1h"))]
    pub refresh_grace: Duration,
    /// Whether clients of the built-in server may be named by the URL of a client ID metadata document, which the
    /// gateway fetches. Turn it off where the gateway does not reach the internet: clients register themselves then.
    pub client_id_metadata_documents: bool,
    /// Whether clients may register themselves with the built-in server (RFC 7591), which most need.
    pub registration: bool,
    /// Maximum number of clients that registered themselves. At the maximum a further one replaces the least recently
    /// used without a sign-in, and is refused where all have one.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub registrations_max: usize,
    /// How long a client that registered itself is kept without being used.
    #[serde(with = "Time")]
    #[schemars(extend("x-min" = "1m", "x-max" = "365d"))]
    pub registration_lifetime: Duration,
    /// OpenID Connect issuer where people sign in to the built-in server; `agents.match` says which agents they are.
    /// Without it they enter a code of `tollbridge login-code`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login: Option<OidcLogin>,
}

impl Default for OAuthConfig {
    fn default() -> Self {
        Self {
            mode: OAuthMode::Builtin,
            issuer: None,
            audience: Vec::new(),
            scopes: Vec::new(),
            access_token_lifetime: Duration::from_secs(60 * 60),
            refresh_token_lifetime: Duration::from_secs(30 * 24 * 60 * 60),
            refresh_grace: Duration::from_secs(60),
            client_id_metadata_documents: true,
            registration: true,
            registrations_max: 10_000,
            registration_lifetime: Duration::from_secs(30 * 24 * 60 * 60),
            login: None,
        }
    }
}

/// The OpenID Connect issuer where people sign in to the built-in server. Register the gateway there as a client
/// with the redirect URI `public_url` + `/oauth/login/callback`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OidcLogin {
    /// URL of the issuer, whose metadata are at `/.well-known/openid-configuration` below it.
    pub issuer: String,
    /// The client that the gateway is there.
    pub client_id: String,
    /// Its secret. Default: none, a public client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<Secret>,
    /// Scopes that are asked for; `openid` must be one of them.
    #[serde(default = "OidcLogin::default_scopes")]
    pub scopes: Vec<String>,
}

impl OidcLogin {
    fn default_scopes() -> Vec<String> {
        ["openid", "profile", "email"].map(str::to_owned).to_vec()
    }
}

/// Who issues access tokens.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OAuthMode {
    /// The gateway.
    Builtin,
    /// The authorization server `oauth.issuer`.
    External,
}

impl OAuthConfig {
    pub(in crate::config) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The issuer of the tokens, where that is not the gateway.
    pub fn external_issuer(&self) -> Option<&str> {
        match self.mode {
            OAuthMode::Builtin => None,
            OAuthMode::External => self.issuer.as_deref(),
        }
    }
}

/// An issuer of JWTs for machines, for `auth = "jwt"`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct JwtIssuer {
    /// The claim `iss` of its tokens.
    pub issuer: String,
    /// Audiences, of which a token has one. The URL of the route is another. Without any, only that is.
    #[serde(default)]
    pub audience: Vec<String>,
    /// URL of its keys. Default: as its metadata say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    /// Algorithms that its tokens may be signed with.
    #[serde(default = "JwtAlgorithm::all")]
    pub algorithms: Vec<JwtAlgorithm>,
    /// How far its clock may be from that of the gateway.
    #[serde(default = "JwtIssuer::clock_skew", with = "Time")]
    #[schemars(extend("x-min" = "0s", "x-max" = "10m"))]
    pub clock_skew: Duration,
}

impl JwtIssuer {
    /// How far clocks may be from each other where nobody says.
    pub const CLOCK_SKEW: Duration = Duration::from_secs(60);

    fn clock_skew() -> Duration {
        Self::CLOCK_SKEW
    }
}

/// An algorithm of signatures with a public key.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum JwtAlgorithm {
    /// Ed25519.
    EdDSA,
    /// ECDSA with P-256 and SHA-256.
    ES256,
    /// ECDSA with P-384 and SHA-384.
    ES384,
    /// RSA-PSS with SHA-256.
    PS256,
    /// RSA-PSS with SHA-384.
    PS384,
    /// RSA-PSS with SHA-512.
    PS512,
    /// RSA PKCS #1 with SHA-256.
    RS256,
    /// RSA PKCS #1 with SHA-384.
    RS384,
    /// RSA PKCS #1 with SHA-512.
    RS512,
}

impl JwtAlgorithm {
    /// All of them: none is symmetric.
    pub const ALL: [Self; 9] = [
        Self::EdDSA,
        Self::ES256,
        Self::ES384,
        Self::PS256,
        Self::PS384,
        Self::PS512,
        Self::RS256,
        Self::RS384,
        Self::RS512,
    ];

    fn all() -> Vec<Self> {
        Self::ALL.to_vec()
    }
}

/// Which agent the subjects of some tokens are. The first rule that fits holds.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AgentMatch {
    /// Claims that a token must have, with globs over their values. Of a list, one element has to match. A dot
    /// reaches into an object: `realm_access.roles`. Without claims, every token fits.
    #[serde(default)]
    pub claims: IndexMap<String, ClaimGlob>,
    /// The agent, whose terms the user has.
    pub agent: String,
    /// Team of the user. Default: that of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    /// Role of the user. Default: that of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Profiles that the user may use. Default: those of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiles: Option<Vec<String>>,
    /// Policy of the user. Default: that of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// Whose budgets and rates the calls count to.
    #[serde(default)]
    pub quota: QuotaOwner,
}

/// Whose budgets and rates the calls of a user count to.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum QuotaOwner {
    /// Those of the agent, which all its users share.
    #[default]
    Agent,
    /// Those of the user: each has the limits of the agent.
    User,
}

/// A glob over the values of a claim; `*` matches `/` too.
#[derive(Clone, Debug)]
pub struct ClaimGlob(GlobMatcher);

impl ClaimGlob {
    /// Whether it matches `value`.
    pub fn is_match(&self, value: &str) -> bool {
        self.0.is_match(value)
    }

    fn as_str(&self) -> &str {
        self.0.glob().glob()
    }
}

impl From<Glob> for ClaimGlob {
    fn from(glob: Glob) -> Self {
        Self(name_matcher(&glob))
    }
}

impl PartialEq for ClaimGlob {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Serialize for ClaimGlob {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ClaimGlob {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        glob(&text).map(Self::from).map_err(de::Error::custom)
    }
}

impl JsonSchema for ClaimGlob {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ClaimGlob".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": GlobList::FORMAT })
    }
}
