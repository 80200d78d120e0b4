//! Where the key stands that secrets are sealed with.

use std::{fmt, path::PathBuf};

use crate::config::Secret;

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
