//! The environment that child processes inherit before what the config adds.

use std::ffi::OsString;

use crate::config::SecretKeyPlace;

/// Variables that programs need to find their files, speak the user's language, reach the network and other
/// programs of the session. Proxies may have passwords in them; all else is no secret.
const INHERITED_VARIABLES: [&str; 46] = [
    "ALL_PROXY",
    "CURL_CA_BUNDLE",
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "DOCKER_CERT_PATH",
    "DOCKER_CONFIG",
    "DOCKER_CONTEXT",
    "DOCKER_HOST",
    "DOCKER_TLS_VERIFY",
    "HOME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LANG",
    "LANGUAGE",
    "LC_ADDRESS",
    "LC_ALL",
    "LC_COLLATE",
    "LC_CTYPE",
    "LC_IDENTIFICATION",
    "LC_MEASUREMENT",
    "LC_MESSAGES",
    "LC_MONETARY",
    "LC_NAME",
    "LC_NUMERIC",
    "LC_PAPER",
    "LC_TELEPHONE",
    "LC_TIME",
    "LOGNAME",
    "NODE_EXTRA_CA_CERTS",
    "NO_PROXY",
    "PATH",
    "REQUESTS_CA_BUNDLE",
    "SHELL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// Our values of the variables that every child inherits, and of `more`; the key of secrets is for none.
pub fn child_environment(more: &[String]) -> Vec<(String, OsString)> {
    let names = INHERITED_VARIABLES.into_iter();
    let names = names.chain(more.iter().map(String::as_str));
    names
        .filter(|name| *name != SecretKeyPlace::VARIABLE)
        .filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_of_programs_is_documented() {
        let documented = include_str!("../../../docs/src/servers.md");
        for name in INHERITED_VARIABLES {
            let name = match name.strip_prefix("LC_") {
                Some(_) => "LC_*",
                None if name.starts_with("DOCKER_") => "DOCKER_*",
                None => name,
            };
            let name = name.to_uppercase();
            assert!(documented.contains(&format!("`{name}`")), "{name}");
        }
    }
}
