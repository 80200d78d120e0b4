//! How clients say who they are.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

/// A way in which clients authenticate.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthMethod {
    /// No authentication: a client without a credential is the anonymous agent.
    Anonymous,
    /// API key in `Authorization: Bearer` or `X-API-Key`.
    Keys,
    /// OAuth 2.1 access token of the authorization server of `[oauth]`.
    Oauth,
    /// JWT of an issuer of `[jwt.NAME]`, for machines.
    Jwt,
    /// Client certificate that `tls.client_ca` has issued.
    Mtls,
}

impl AuthMethod {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Anonymous,
        Self::Keys,
        Self::Oauth,
        Self::Jwt,
        Self::Mtls,
    ];

    /// What a config calls it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::Keys => "keys",
            Self::Oauth => "oauth",
            Self::Jwt => "jwt",
            Self::Mtls => "mtls",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// In which ways clients may authenticate.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq)]
#[serde(from = "WrittenAuthentication")]
pub struct Authentication(u8);

/// As a config writes it.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum WrittenAuthentication {
    /// One way.
    One(AuthMethod),
    /// Several ways; a request uses one of them.
    Many(Vec<AuthMethod>),
}

impl From<WrittenAuthentication> for Authentication {
    fn from(written: WrittenAuthentication) -> Self {
        match written {
            WrittenAuthentication::One(method) => Self::from(method),
            WrittenAuthentication::Many(methods) => methods.into_iter().collect(),
        }
    }
}

impl From<AuthMethod> for Authentication {
    fn from(method: AuthMethod) -> Self {
        Self(method.bit())
    }
}

impl FromIterator<AuthMethod> for Authentication {
    fn from_iter<I: IntoIterator<Item = AuthMethod>>(methods: I) -> Self {
        let bits = methods.into_iter().map(AuthMethod::bit);
        Self(bits.fold(0, |all, bit| all | bit))
    }
}

impl Authentication {
    /// Nobody has to say who they are, and nobody can.
    pub const ANONYMOUS: Self = Self(AuthMethod::Anonymous.bit());
    /// API keys alone.
    pub const KEYS: Self = Self(AuthMethod::Keys.bit());

    /// Whether clients may authenticate so.
    pub const fn allows(self, method: AuthMethod) -> bool {
        self.0 & method.bit() != 0
    }

    /// Whether a client may have no credential.
    pub const fn allows_anonymous(self) -> bool {
        self.allows(AuthMethod::Anonymous)
    }

    /// Whether callers can be told from each other.
    pub const fn identifies_callers(self) -> bool {
        self.0 & !AuthMethod::Anonymous.bit() != 0
    }

    /// Whether clients may show a token.
    pub const fn allows_tokens(self) -> bool {
        self.allows(AuthMethod::Oauth) || self.allows(AuthMethod::Jwt)
    }

    /// Whether there is no way at all.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Each of the ways.
    pub fn methods(self) -> impl Iterator<Item = AuthMethod> {
        let all = AuthMethod::ALL.into_iter();
        all.filter(move |method| self.allows(*method))
    }
}

/// As people read it: the words of a config.
impl fmt::Display for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, method) in self.methods().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{}", method.as_str())?;
        }
        Ok(())
    }
}

/// One way as a word, several as a list.
impl Serialize for Authentication {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut methods = self.methods();
        match (methods.next(), methods.next()) {
            (Some(only), None) => only.serialize(to),
            _ => to.collect_seq(self.methods()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_way_is_a_word_and_several_are_a_list() {
        let check = |text: &str, shown: &str| {
            let read: Authentication = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), shown, "{text}");
        };
        check(r#""keys""#, r#""keys""#);
        check(r#"["keys"]"#, r#""keys""#);
        check(r#"["oauth", "keys", "keys"]"#, r#"["keys","oauth"]"#);
        check("[]", "[]");
        for method in AuthMethod::ALL {
            let written = serde_json::to_value(method).unwrap();
            assert_eq!(written, method.as_str());
            assert!(Authentication::from(method).allows(method));
        }
    }
}
