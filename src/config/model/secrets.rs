//! Values that do not stand in a config, and the key that secrets are sealed with.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    config::{DisplayOnly, Environment, Secret},
    names::SecretName,
};

/// The variable that names the directory of the credentials that systemd hands to a service.
const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";
/// The name of the credential with the key.
const CREDENTIAL_NAME: &str = "tollbridge-key";

/// Secrets outside of the config: `${secret:NAME}` is one that `tollbridge secret set NAME` stored (`NAME@OWNER` for a
/// server of a workspace or an agent), `${file:PATH}` the text of a file, `${exec:COMMAND ARGS}` what a command prints.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Secrets {
    /// File with the key that stored secrets are encrypted with, at least 32 bytes. A systemd credential
    /// `tollbridge-key` comes before it, the variable `TOLLBRIDGE_SECRET_KEY` after it. Relative paths start at the
    /// directory of the config file. Default: `secret.key` in `data_dir`, which is created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// Allow `${exec:COMMAND ARGS}`: the command runs without a shell whenever the config is read, for at most 10
    /// seconds.
    pub exec: bool,
    /// Where the key stands.
    #[serde(skip)]
    pub key: SecretKeyPlace,
    /// Where secrets of the store stand in the config, in its order.
    #[serde(skip)]
    pub uses: DisplayOnly<Vec<SecretUse>>,
}

/// A place of the config that uses a secret of the store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SecretUse {
    /// The secret, with its owner.
    pub name: SecretName,
    /// The key, such as `servers.docs.auth.token`.
    pub path: String,
}

/// Where the key stands that secrets are sealed with.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum SecretKeyPlace {
    /// A credential that systemd hands to the service.
    Credential(PathBuf),
    /// The file that `secrets.key_file` names.
    File(PathBuf),
    /// The value of the variable `TOLLBRIDGE_SECRET_KEY`.
    Variable(Secret),
    /// The key of the store, which is a file of the data directory.
    #[default]
    DataDir,
}

impl SecretKeyPlace {
    /// The variable that may hold the key.
    pub const VARIABLE: &str = "TOLLBRIDGE_SECRET_KEY";

    /// The first place that somebody has set up.
    pub(in crate::config) fn find(
        key_file: Option<PathBuf>,
        environment: &Environment,
        is_file: fn(&Path) -> bool,
    ) -> Self {
        let credentials = environment.get(CREDENTIALS_VARIABLE).map(Path::new);
        let credential = credentials.map(|directory| directory.join(CREDENTIAL_NAME));
        let variable = environment.get(Self::VARIABLE);
        match (credential, key_file, variable) {
            (Some(path), _, _) if path.is_absolute() && is_file(&path) => Self::Credential(path),
            (_, Some(path), _) => Self::File(path),
            // Who empties a variable wants nothing of it.
            (_, _, Some(key)) if !key.is_empty() => Self::Variable(Secret::new(key)),
            _ => Self::DataDir,
        }
    }

    /// The file, where it is one beside the data directory.
    pub(in crate::config) fn file(&self) -> Option<&Path> {
        match self {
            Self::Credential(path) | Self::File(path) => Some(path),
            Self::Variable(_) | Self::DataDir => None,
        }
    }
}

impl fmt::Display for SecretKeyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Credential(path) => write!(f, "the systemd credential {}", path.display()),
            Self::File(path) => write!(f, "the file {} (`secrets.key_file`)", path.display()),
            Self::Variable(_) => write!(f, "the variable {}", Self::VARIABLE),
            Self::DataDir => f.write_str("the file secret.key of the data directory"),
        }
    }
}
