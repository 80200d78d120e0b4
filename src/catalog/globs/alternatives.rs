//! Globs without their braces: `a{b,c}` is `ab` and `ac`.

use std::{iter::Peekable, str::Chars};

use super::SpannedServers;
use crate::catalog::prefixes::{Affix, Prefixes};
use crate::names::ServerName;

/// The most that one glob may stand for. A thousand names are a list of a thousand entries.
pub(super) const ALTERNATIVES_MAX: usize = 4096;

/// A glob without braces.
#[derive(Debug)]
pub(super) struct Alternative {
    pub(super) text: String,
    tokens: Vec<GlobToken>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum GlobToken {
    /// This character.
    Char(char),
    /// Any number of characters.
    Many,
    /// One of several.
    One,
}

/// The globs that `glob`, which is one, stands for; `None` where they are too many.
pub(super) fn alternatives_of(glob: &str) -> Option<Vec<Alternative>> {
    let texts = expand(&mut glob.chars().peekable(), false)?;
    let alternative = |text: String| Alternative {
        tokens: tokens(&text),
        text,
    };
    Some(texts.into_iter().map(alternative).collect())
}

/// Reads up to the end, or `is_inner` up to the brace that closes.
fn expand(chars: &mut Peekable<Chars<'_>>, is_inner: bool) -> Option<Vec<String>> {
    let mut branches = Vec::new();
    let mut current = vec![String::new()];
    while let Some(c) = chars.next() {
        let put = |current: &mut Vec<String>, text: &str| {
            for it in current.iter_mut() {
                it.push_str(text);
            }
        };
        match c {
            '}' if is_inner => break,
            ',' if is_inner => {
                branches.append(&mut std::mem::replace(&mut current, empty_expansion()));
            }
            '{' => {
                let inner = expand(chars, true)?;
                if current.len() * inner.len() > ALTERNATIVES_MAX {
                    return None;
                }
                let joined = |before: &String| {
                    let before = before.clone();
                    let each = inner.iter();
                    each.map(move |after| format!("{before}{after}"))
                        .collect::<Vec<_>>()
                };
                current = current.iter().flat_map(joined).collect();
            }
            '[' => put(&mut current, &char_class(chars)),
            '\\' => {
                let escaped: String = chars.next().into_iter().collect();
                put(&mut current, &format!("\\{escaped}"));
            }
            c => put(&mut current, c.encode_utf8(&mut [0; 4])),
        }
    }
    branches.append(&mut current);
    // An empty branch is none, unless there is no other.
    if is_inner && branches.iter().any(|text| !text.is_empty()) {
        branches.retain(|text| !text.is_empty());
    }
    branches.dedup();
    (branches.len() <= ALTERNATIVES_MAX).then_some(branches)
}

fn empty_expansion() -> Vec<String> {
    vec![String::new()]
}

/// The rest of a class of characters, with its brackets.
fn char_class(chars: &mut Peekable<Chars<'_>>) -> String {
    let mut text = String::from("[");
    text.extend(chars.next_if(|c| matches!(c, '!' | '^')));
    // There it does not close it.
    text.extend(chars.next_if_eq(&']'));
    for c in chars.by_ref() {
        text.push(c);
        if c == ']' {
            break;
        }
    }
    text
}

fn tokens(text: &str) -> Vec<GlobToken> {
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        tokens.push(match c {
            '*' => GlobToken::Many,
            '?' => GlobToken::One,
            '\\' => GlobToken::Char(chars.next().unwrap_or(c)),
            '[' => {
                let class = char_class(&mut chars);
                let mut inner = class.trim_start_matches('[').trim_end_matches(']').chars();
                match (inner.next(), inner.next()) {
                    (Some(only), None) if only != '!' && only != '^' => GlobToken::Char(only),
                    _ => GlobToken::One,
                }
            }
            c => GlobToken::Char(c),
        });
    }
    tokens
}

impl Alternative {
    /// What it says of the server and of the item, where it has a `/`.
    pub(super) fn split_at_slash(&self) -> Option<(&str, &str)> {
        let mut chars = self.text.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            match c {
                '/' => return Some((&self.text[..at], &self.text[at + 1..])),
                '\\' => {
                    if let Some((slash, '/')) = chars.next() {
                        return Some((&self.text[..at], &self.text[slash + 1..]));
                    }
                }
                '[' => {
                    let mut rest = self.text[at + 1..].chars().peekable();
                    let length = char_class(&mut rest).len();
                    while chars.next_if(|(next, _)| *next < at + length).is_some() {}
                }
                _ => {}
            }
        }
        None
    }

    /// The servers whose prefix it begins with, the longest; `None` where it may be about any.
    pub(super) fn owners<'p>(&self, prefixes: &'p Prefixes) -> Option<&'p [ServerName]> {
        let (head, tail) = (self.literal_prefix(), self.literal_suffix());
        prefixes.matching_servers(&head, &tail, self.is_name_pattern())
    }

    pub(super) fn spanned<'p>(&self, prefixes: &'p Prefixes) -> Option<SpannedServers<'p>> {
        let is_whole_name = self.is_name_pattern() || self.split_at_slash().is_some();
        if is_whole_name
            || !prefixes.is_server_specific(&self.literal_prefix(), &self.literal_suffix())
        {
            return None;
        }
        let matched = prefixes
            .affixes()
            .filter(|(affix, _)| self.may_match(affix));
        let matched: Vec<&[ServerName]> = matched.map(|(_, servers)| servers).collect();
        (matched.len() > 1).then(|| SpannedServers {
            intended: self.owners(prefixes),
            servers: matched.into_iter().flatten().collect(),
        })
    }

    fn is_name_pattern(&self) -> bool {
        let mut tokens = self.tokens.iter();
        tokens.all(|token| matches!(token, GlobToken::Char(_)))
    }

    fn literal_prefix(&self) -> String {
        literal_chars(self.tokens.iter()).collect()
    }

    fn literal_suffix(&self) -> String {
        let mut tail: Vec<char> = literal_chars(self.tokens.iter().rev()).collect();
        tail.reverse();
        tail.into_iter().collect()
    }

    /// Whether it may match a name with `affix`.
    fn may_match(&self, affix: &Affix) -> bool {
        let reversed: Vec<GlobToken> = self.tokens.iter().rev().copied().collect();
        may_start_with(&self.tokens, affix.before.chars())
            && may_start_with(&reversed, affix.after.chars().rev())
    }
}

fn literal_chars<'t>(tokens: impl Iterator<Item = &'t GlobToken>) -> impl Iterator<Item = char> {
    tokens.map_while(|token| match token {
        GlobToken::Char(c) => Some(*c),
        GlobToken::Many | GlobToken::One => None,
    })
}

/// Whether `tokens` match a text that begins with `start` and is longer.
fn may_start_with(tokens: &[GlobToken], start: impl Iterator<Item = char>) -> bool {
    /// Where one may stand: also behind what may be nothing.
    fn with_epsilon(mut places: Vec<usize>, tokens: &[GlobToken]) -> Vec<usize> {
        let mut at = 0;
        while let Some(place) = places.get(at).copied() {
            if tokens.get(place) == Some(&GlobToken::Many) && !places.contains(&(place + 1)) {
                places.push(place + 1);
            }
            at += 1;
        }
        places
    }
    let mut places = with_epsilon(vec![0], tokens);
    for c in start {
        let mut next = Vec::new();
        for place in places {
            let to = match tokens.get(place) {
                Some(GlobToken::Char(own)) if *own == c => place + 1,
                Some(GlobToken::One) => place + 1,
                Some(GlobToken::Many) => place,
                Some(GlobToken::Char(_)) | None => continue,
            };
            if !next.contains(&to) {
                next.push(to);
            }
        }
        places = with_epsilon(next, tokens);
    }
    places.iter().any(|place| *place < tokens.len())
}

#[cfg(test)]
mod tests {
    use globset::GlobBuilder;
    use proptest::prelude::*;

    use super::*;

    fn texts(glob: &str) -> Vec<String> {
        let all = alternatives_of(glob).unwrap();
        all.into_iter().map(|it| it.text).collect()
    }

    #[test]
    fn braces_are_taken_apart() {
        for (glob, expect) in [
            ("a", &["a"][..]),
            ("", &[""]),
            ("a{b,c}d", &["abd", "acd"]),
            ("{a,b}{c,d}", &["ac", "ad", "bc", "bd"]),
            ("{a,{b,c}}/*", &["a/*", "b/*", "c/*"]),
            ("a{,b}", &["ab"]),
            ("a{}", &["a"]),
            ("a,b", &["a,b"]),
            (r"a\{b,c\}", &[r"a\{b,c\}"]),
            ("[{]{a,b}[],}]", &["[{]a[],}]", "[{]b[],}]"]),
        ] {
            assert_eq!(texts(glob), expect, "{glob}");
        }
        let many = "{a,b}".repeat(12);
        assert_eq!(texts(&many).len(), ALTERNATIVES_MAX);
        assert!(alternatives_of(&format!("{many}{{a,b}}")).is_none());
        assert!(
            alternatives_of(&format!("{{{}}}", "x,".repeat(ALTERNATIVES_MAX + 1)))
                .is_some_and(|it| it.len() == 1)
        );
    }

    #[test]
    fn the_first_slash_parts_server_and_item() {
        for (glob, expect) in [
            ("a/b/c", Some(("a", "b/c"))),
            ("*/x", Some(("*", "x"))),
            (r"a\/b", Some(("a", "b"))),
            ("[/]a/b", Some(("[/]a", "b"))),
            ("a[!/]", None),
            ("abc", None),
        ] {
            assert_eq!(
                alternatives_of(glob).unwrap()[0].split_at_slash(),
                expect,
                "{glob}"
            );
        }
    }

    proptest! {
        /// All of them together match what the glob does.
        #[test]
        fn alternatives_mean_what_their_glob_means(
            glob in r"([ab?*]|\{[ab]{1,2},[ab*]{1,2}\}|\[[ab]\]){1,4}",
            name in "[ab]{1,5}",
        ) {
            let matches = |text: &str| {
                let glob = GlobBuilder::new(text).build().unwrap();
                glob.compile_matcher().is_match(&name)
            };
            prop_assert_eq!(texts(&glob).iter().any(|text| matches(text)), matches(&glob));
        }
    }
}
