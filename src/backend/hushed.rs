//! What a program was given in confidence, should it say so: many print the credential that a
//! server behind them refused.
//!
//! Called by `stdio` with every line of a program that is shown to somebody.

use std::borrow::Cow;

use crate::config::{self, Command, Secret};

/// What stands in place of a secret, as elsewhere.
const MASK: &str = "***";
/// Shorter values say too little to be secrets, and stand in too many other words.
const BYTES_MIN: usize = 8;
/// The same of what is known to be one.
const SECRET_BYTES_MIN: usize = 6;

/// What of a program's `env` and `args` is not shown.
#[derive(Debug)]
pub(super) struct Hushed(Vec<Secret>);

impl Hushed {
    /// The values in `env` of `command`, but for paths, which programs name in every second line, and what
    /// is secret in them and in `args`.
    pub(super) fn of(command: &Command) -> Self {
        let is_path = |text: &str| text.starts_with(['/', '.', '~']);
        let is_value = |text: &&str| text.len() >= BYTES_MIN && !is_path(text);
        let values: Vec<&str> = command.env.values().map(Secret::expose).collect();
        let args = config::hidden_in(&command.args, &command.shown_args.0);
        let known = args.iter().map(String::as_str);
        let known = known.filter(|text| !is_path(text));
        let all = values.iter().copied().chain(known.clone());
        let parts = all.flat_map(config::parts);
        let secrets = known.chain(parts).filter(|it| it.len() >= SECRET_BYTES_MIN);
        let hushed = values.iter().copied().filter(is_value).chain(secrets);
        let mut hushed: Vec<&str> = hushed.collect();
        // One may be a part of another.
        hushed.sort_by_key(|value| std::cmp::Reverse(value.len()));
        hushed.dedup();
        Self(hushed.into_iter().map(Secret::new).collect())
    }

    /// `line` as it may be shown.
    pub(super) fn shown<'l>(&self, line: &'l str) -> Cow<'l, str> {
        let mut shown = Cow::Borrowed(line);
        for secret in self.0.iter().map(Secret::expose) {
            if shown.contains(secret) {
                shown = shown.replace(secret, MASK).into();
            }
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ForPeople;

    #[test]
    fn what_a_program_was_given_is_not_shown() {
        let env = [
            ("TOKEN", "abcdefgh"),
            ("URL", "https://abcdefgh@host"),
            ("SHORT", "abcdefg"),
            ("HOME", "/home/somebody"),
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
        let hushed = Hushed::of(&Command {
            program: "x".to_owned(),
            args: ["--token", "qwertz", "--db=me:fromdb@h", "-v"]
                .map(str::to_owned)
                .into(),
            shown_args: ForPeople(
                ["--token", "***", "--db=${DB}@h", "-v"]
                    .map(str::to_owned)
                    .into(),
            ),
            env: env.into(),
            cwd: None,
            user: None,
        });
        let check = |line: &str, expect: &str| assert_eq!(hushed.shown(line), expect);
        check("invalid token abcdefgh, abcdefgh", "invalid token ***, ***");
        check("cannot reach https://abcdefgh@host", "cannot reach ***");
        check("abcdefg in /home/somebody", "abcdefg in /home/somebody");
        check("", "");
        check(
            "bad password hunter2hunter2 at db.internal",
            "bad password *** at db.internal",
        );
        check("key swordfish, qwertz", "key ***, ***");
        check("no me:fromdb", "no ***");
        check("> MIIBOgIBAAJBAKj34Gkx", "> ***");
    }
}
