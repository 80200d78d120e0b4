//! What a program was given in confidence, should it say so: many print the credential that a
//! server behind them refused.
//!
//! Called by `stdio` with every line of a program that is shown to somebody.

use std::{borrow::Cow, ffi::OsString, path::Path};

use crate::config::{self, Secret, StdioCommand};

/// What stands in place of a secret, as elsewhere.
const MASK: &str = "***";
/// Shorter values say too little to be secrets, and stand in too many other words.
const VALUE_BYTES_MIN: usize = 8;
/// The same of what is known to be one.
const SECRET_BYTES_MIN: usize = 6;
/// Less of the beginning of a secret says nothing.
const PARTIAL_BYTES_MIN: usize = 3;

/// What of a program's `env` and `args` is not shown.
#[derive(Debug)]
pub(in crate::backend) struct EnvRedaction(Vec<Secret>);

impl EnvRedaction {
    /// The values in `env` of `command`, but for paths of what is there, which programs name in every second
    /// line, and what is secret in them, in `args` and in what it inherits, such as the password for a proxy.
    pub(in crate::backend) fn of(command: &StdioCommand) -> Self {
        let inherited = config::child_environment(&command.inherit_env);
        Self::with_inherited(command, &inherited)
    }

    fn with_inherited(command: &StdioCommand, inherited: &[(String, OsString)]) -> Self {
        let is_path = |text: &str| text.starts_with(['/', '.']) && Path::new(text).exists();
        let is_value = |text: &&str| text.len() >= VALUE_BYTES_MIN && !is_path(text);
        let inherited = inherited.iter();
        let inherited = inherited.filter_map(|(name, value)| Some((name, value.to_str()?)));
        let is_named = |name: &String| command.inherit_env.contains(name);
        let named = inherited.clone().filter(|(name, _)| is_named(name));
        let named = named.map(|(_, value)| value);
        let values = command.env.values().map(Secret::expose).chain(named);
        let values: Vec<&str> = values.collect();
        let args = config::hidden_parts(&command.args, &command.shown_args.0);
        let known = args.iter().map(String::as_str);
        let is_proxy = |name: &str| name.to_ascii_lowercase().ends_with("_proxy");
        let proxies = inherited.filter(|(name, _)| is_proxy(name));
        let proxies = proxies.map(|(_, value)| value);
        let all = values.iter().copied().chain(known.clone()).chain(proxies);
        let parts = all.flat_map(config::secret_parts);
        let secrets = known.chain(parts).filter(|it| it.len() >= SECRET_BYTES_MIN);
        let redacted = values.iter().copied().filter(is_value).chain(secrets);
        let mut redacted: Vec<&str> = redacted.collect();
        // One may be a part of another.
        redacted.sort_by_key(|value| std::cmp::Reverse(value.len()));
        redacted.dedup();
        Self(redacted.into_iter().map(Secret::new).collect())
    }

    /// `line` as it may be shown.
    pub(in crate::backend) fn redact<'l>(&self, line: &'l str) -> Cow<'l, str> {
        let mut shown = Cow::Borrowed(line);
        for secret in self.0.iter().map(Secret::expose) {
            if shown.contains(secret) {
                shown = shown.replace(secret, MASK).into();
            }
        }
        shown
    }

    /// The first `bytes_max` bytes of `text` as they may be shown, of which a secret that begins in them is
    /// no part.
    pub(in crate::backend) fn redact_prefix(&self, text: &[u8], bytes_max: usize) -> String {
        let shown = String::from_utf8_lossy(&text[..text.len().min(bytes_max)]);
        let shown = self.redact(shown.trim_end());
        let secrets = self.0.iter().map(Secret::expose);
        let begun = secrets.filter_map(|secret| {
            let lengths = secret.char_indices().map(|(at, _)| at).rev();
            let mut begun = lengths.filter(|length| *length >= PARTIAL_BYTES_MIN);
            begun.find(|length| shown.ends_with(&secret[..*length]))
        });
        match begun.max().filter(|_| text.len() >= bytes_max) {
            Some(begun) => format!("{}{MASK}", &shown[..shown.len() - begun]),
            None => shown.into_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DisplayOnly;

    #[test]
    fn what_a_program_was_given_is_not_shown() {
        let env = [
            ("TOKEN", "abcdefgh"),
            ("URL", "https://abcdefgh@host"),
            ("SHORT", "abcdefg"),
            ("HOME", "/usr"),
            ("ODD_KEY", "/Zq81kd+9xKlQ=="),
            (
                "DSN",
                "postgres://app:hunter2hunter2@db.internal/x?key=swordfish",
            ),
            (
                "KEY",
                "-----BEGIN KEY-----\nMIIBOgIBAAJBAKj34Gkx\n-----END KEY-----",
            ),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), Secret::new(value)));
        let inherited = [
            ("HTTPS_PROXY", "http://me:forproxy@proxy.internal:3128"),
            ("SSH_TOKEN", "inherited-token"),
            ("LANG", "en_US.UTF-8"),
        ];
        let inherited = inherited.map(|(name, value)| (name.to_owned(), value.into()));
        let command = StdioCommand {
            program: "x".to_owned(),
            args: ["--token", "qwertz", "--db=me:fromdb@h", "-v"]
                .map(str::to_owned)
                .into(),
            shown_args: DisplayOnly(
                ["--token", "***", "--db=${DB}@h", "-v"]
                    .map(str::to_owned)
                    .into(),
            ),
            env: env.into(),
            cwd: None,
            user: None,
            inherit_env: vec!["SSH_TOKEN".to_owned()],
        };
        let redacted = EnvRedaction::with_inherited(&command, &inherited);
        let check = |line: &str, expect: &str| assert_eq!(redacted.redact(line), expect);
        check("invalid token abcdefgh, abcdefgh", "invalid token ***, ***");
        check("cannot reach https://abcdefgh@host", "cannot reach ***");
        check("abcdefg in /usr", "abcdefg in /usr");
        check("no /Zq81kd+9xKlQ==", "no ***");
        check("", "");
        check(
            "bad password hunter2hunter2 at db.internal",
            "bad password *** at db.internal",
        );
        check("key swordfish, qwertz", "key ***, ***");
        check("no me:fromdb", "no ***");
        check("no forproxy, inherited-token", "no ***, ***");
        check(
            "en_US.UTF-8 at proxy.internal",
            "en_US.UTF-8 at proxy.internal",
        );
        check("> MIIBOgIBAAJBAKj34Gkx", "> ***");
        let cut = |line: &str, bytes_max: usize, expect: &str| {
            assert_eq!(redacted.redact_prefix(line.as_bytes(), bytes_max), expect);
        };
        cut("token abcdefgh!", 15, "token ***!");
        cut("token abcdefgh!", 13, "token ***");
        cut("token abcdefgh!", 9, "token ***");
        cut("token abcdefgh!", 8, "token ab");
        cut("token abc", 80, "token abc");
    }
}
