//! What a program was given in confidence, should it say so: many print the credential that a
//! server behind them refused.
//!
//! Called by `stdio` with every line of a program that is shown to somebody.

use std::borrow::Cow;

use crate::config::{Command, Secret};

/// What stands in place of a secret, as elsewhere.
const MASK: &str = "***";
/// Shorter values say too little to be secrets, and stand in too many other words.
const BYTES_MIN: usize = 8;

/// The values of a program's `env` that are not shown.
#[derive(Debug)]
pub(super) struct Hushed(Vec<Secret>);

impl Hushed {
    /// Those of `command`, but for paths, which programs name in every second line.
    pub(super) fn of(command: &Command) -> Self {
        let values = command.env.values();
        let is_hushed = |value: &&Secret| {
            let text = value.expose();
            text.len() >= BYTES_MIN && !text.starts_with(['/', '.', '~'])
        };
        let mut hushed: Vec<Secret> = values.filter(is_hushed).cloned().collect();
        // One may be a part of another.
        hushed.sort_by_key(|value| std::cmp::Reverse(value.expose().len()));
        Self(hushed)
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
        ];
        let env = env.map(|(name, value)| (name.to_owned(), Secret::new(value)));
        let hushed = Hushed::of(&Command {
            program: "x".to_owned(),
            args: Vec::new(),
            shown_args: ForPeople::default(),
            env: env.into(),
            cwd: None,
        });
        let check = |line: &str, expect: &str| assert_eq!(hushed.shown(line), expect);
        check("invalid token abcdefgh, abcdefgh", "invalid token ***, ***");
        check("cannot reach https://abcdefgh@host", "cannot reach ***");
        check("abcdefg in /home/somebody", "abcdefg in /home/somebody");
        check("", "");
    }
}
