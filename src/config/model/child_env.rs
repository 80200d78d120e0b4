//! The environment that child processes inherit before what the config adds.

use std::ffi::OsString;

/// Variables that programs need to find their files and speak the user's language; no secrets.
const INHERITED_VARIABLES: [&str; 14] = [
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "PATH",
    "SHELL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "XDG_RUNTIME_DIR",
];

/// Our values of the variables that every child inherits.
pub fn child_environment() -> Vec<(&'static str, OsString)> {
    INHERITED_VARIABLES
        .iter()
        .filter_map(|name| Some((*name, std::env::var_os(name)?)))
        .collect()
}
