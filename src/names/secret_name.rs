//! Names of secrets, and who owns one.

use std::{fmt, sync::Arc};

use super::{InvalidServerName, ServerOwner, server_name::OWNER_MARK};

/// The name of a secret of the store: `docs/token` of the gateway, `docs/token@science` of the workspace `science`,
/// `docs/token@agent_<uuid>` of one agent. Servers use the secrets of their owner alone.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SecretName(Arc<str>);

impl SecretName {
    /// The longest accepted name without its owner, in characters.
    pub const LENGTH_MAX: usize = 128;

    /// Checks `name`, which may have an owner.
    ///
    /// # Errors
    /// When it is no name.
    pub fn parse(name: &str) -> Result<Self, InvalidSecretName> {
        let (local, owner) = match name.split_once(OWNER_MARK) {
            Some((local, owner)) => (local, Some(owner)),
            None => (name, None),
        };
        check_local(local)?;
        if let Some(owner) = owner {
            ServerOwner::parse(owner)?;
        }
        Ok(Self(name.into()))
    }

    /// The secret that `owner` calls `name`.
    ///
    /// # Errors
    /// When it is no name; one with an owner is none.
    pub fn parse_of(owner: &ServerOwner, name: &str) -> Result<Self, InvalidSecretName> {
        check_local(name)?;
        Ok(Self(match owner {
            ServerOwner::Gateway => name.into(),
            ServerOwner::Workspace(_) | ServerOwner::Agent(_) => {
                format!("{name}{OWNER_MARK}{owner}").into()
            }
        }))
    }

    /// The name as text, with its owner.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Who owns the secret.
    pub fn owner(&self) -> ServerOwner {
        // It was checked when the name was made.
        let owner = self.0.split_once(OWNER_MARK);
        owner.map_or(ServerOwner::Gateway, |(_, owner)| {
            ServerOwner::parse(owner).unwrap_or(ServerOwner::Gateway)
        })
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn check_local(name: &str) -> Result<(), InvalidSecretName> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    let length = 1..=SecretName::LENGTH_MAX;
    let is_name = length.contains(&name.len()) && name.chars().all(legal);
    is_name.then_some(()).ok_or(InvalidSecretName::Name)
}

/// Why a text names no secret; its writer mends it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidSecretName {
    /// A character that is not allowed, none, or too many.
    #[error("names of secrets have 1 to 128 letters, digits, `_`, `-`, `.` and `/`")]
    Name,
    /// What follows the `@` is no owner.
    #[error(transparent)]
    Owner(#[from] InvalidServerName),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_local_part_and_an_owner() {
        let agent = "agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11";
        for owner in ["science", agent] {
            let owner = ServerOwner::parse(owner).unwrap();
            let name = SecretName::parse_of(&owner, "docs/token").unwrap();
            assert_eq!(name.as_str(), format!("docs/token@{owner}"));
            assert_eq!(SecretName::parse(name.as_str()), Ok(name.clone()));
            assert_eq!(name.owner(), owner);
        }
        let name = SecretName::parse_of(&ServerOwner::Gateway, "docs/token").unwrap();
        assert_eq!(name, SecretName::parse("docs/token").unwrap());
        assert_eq!(name.owner(), ServerOwner::Gateway);
    }

    #[test]
    fn other_texts_are_no_names() {
        for name in ["", "@science", "a@", "a@b@c", "a b", "a@b c", "a@agent_x"] {
            SecretName::parse(name).unwrap_err();
        }
        let science = ServerOwner::parse("science").unwrap();
        for owner in [&science, &ServerOwner::Gateway] {
            // Nobody names the secret of another owner.
            for name in ["", "a@science", "a@arts", "a@"] {
                SecretName::parse_of(owner, name).unwrap_err();
            }
        }
        let longest = "a".repeat(SecretName::LENGTH_MAX);
        SecretName::parse(&format!("{longest}@science")).unwrap();
        SecretName::parse(&format!("{longest}a@science")).unwrap_err();
    }
}
