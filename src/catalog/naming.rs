//! Exposed names: from the template, and distinct whatever the servers call their items.
//!
//! Called while a snapshot is built, once for tools and once for prompts. The outcome depends on the
//! set of claims alone, never on the order in which servers answered. Names are never parsed back:
//! a table leads from the exposed name to the server and its item.

use std::{cmp::Reverse, collections::HashMap, fmt::Write as _};

use sha2::{Digest as _, Sha256};

use super::prefixes::Affix;
use crate::config::{Charset, Conflict, Naming};
use crate::names::{ServerName, to_strict_char};

/// Hex digits after the last `_` of a distinguished name.
pub(super) const HASH_SUFFIX_DIGITS: usize = 8;

/// The parsed `naming.template`.
#[derive(Clone, Debug)]
pub(super) struct NameTemplate {
    parts: Vec<TemplatePart>,
    charset: Charset,
}

#[derive(Clone, Debug)]
enum TemplatePart {
    Literal(String),
    Server,
    Tool,
}

impl NameTemplate {
    pub(super) fn parse(naming: &Naming) -> Self {
        let (mut parts, mut rest) = (Vec::new(), naming.template.as_str());
        while let Some((at, length, part)) = first_placeholder(rest) {
            parts.push(TemplatePart::Literal(rest[..at].to_owned()));
            parts.push(part);
            rest = &rest[at + length..];
        }
        parts.push(TemplatePart::Literal(rest.to_owned()));
        Self {
            parts,
            charset: naming.charset,
        }
    }

    /// The name of `tool` of `server`; literal parts of the template stay as the operator wrote them.
    pub(super) fn render(&self, server: &str, tool: &str) -> String {
        let mut name = String::with_capacity(server.len() + tool.len() + 8);
        for part in &self.parts {
            match part {
                TemplatePart::Literal(text) => name.push_str(text),
                TemplatePart::Server => self.push_sanitized(server, &mut name),
                TemplatePart::Tool => self.push_sanitized(tool, &mut name),
            }
        }
        name
    }

    /// What stands around the item in the names of `server`.
    pub(super) fn affix_of(&self, server: &str) -> Affix {
        let mut affix = Affix::default();
        let mut is_behind = false;
        for part in &self.parts {
            let text = if is_behind {
                &mut affix.after
            } else {
                &mut affix.before
            };
            match part {
                TemplatePart::Literal(literal) => text.push_str(literal),
                TemplatePart::Server => self.push_sanitized(server, text),
                TemplatePart::Tool => {
                    affix.after.clear();
                    is_behind = true;
                }
            }
        }
        affix
    }

    /// How much text names have before the server, where that precedes the item, and behind it, where
    /// that follows the item.
    pub(super) fn literal_lengths(&self) -> (Option<usize>, Option<usize>) {
        fn literal_length<'p>(parts: impl Iterator<Item = &'p TemplatePart>) -> Option<usize> {
            let mut length = 0;
            for part in parts {
                match part {
                    TemplatePart::Literal(text) => length += text.len(),
                    TemplatePart::Server => return Some(length),
                    TemplatePart::Tool => return None,
                }
            }
            None
        }
        (
            literal_length(self.parts.iter()),
            literal_length(self.parts.iter().rev()),
        )
    }

    /// What a name that begins as those of `server` do calls the item, where the template tells
    /// servers apart by what precedes it. Only for names that nobody has listed.
    pub(super) fn strip_affix<'n>(&self, server: &str, name: &'n str) -> Option<&'n str> {
        let mut before = String::new();
        let mut is_named = false;
        let mut parts = self.parts.iter();
        for part in parts.by_ref() {
            match part {
                TemplatePart::Literal(text) => before.push_str(text),
                TemplatePart::Server => {
                    self.push_sanitized(server, &mut before);
                    is_named = true;
                }
                TemplatePart::Tool => break,
            }
        }
        let item = name.strip_prefix(&before).filter(|item| !item.is_empty())?;
        let item = match parts.as_slice() {
            [TemplatePart::Literal(end)] => item.strip_suffix(&**end).unwrap_or(item),
            [] | [_, ..] => item,
        };
        is_named.then_some(item)
    }

    fn push_sanitized(&self, text: &str, name: &mut String) {
        match self.charset {
            Charset::Original => name.push_str(text),
            Charset::Strict => name.extend(text.chars().map(to_strict_char)),
        }
    }
}

fn first_placeholder(text: &str) -> Option<(usize, usize, TemplatePart)> {
    let server = text
        .find("{server}")
        .map(|at| (at, "{server}".len(), TemplatePart::Server));
    let tool = text
        .find("{tool}")
        .map(|at| (at, "{tool}".len(), TemplatePart::Tool));
    match (server, tool) {
        (Some(server), Some(tool)) if server.0 < tool.0 => Some(server),
        (Some(_), Some(tool)) => Some(tool),
        (server, tool) => server.or(tool),
    }
}

/// One item that wants a name.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    /// What the template yields, before any length limit.
    pub(super) name: String,
    pub(super) server: &'a ServerName,
    /// How much of the name is of the server alone, in bytes.
    pub(super) server_prefix_len: usize,
    /// Position of the server in the config.
    pub(super) order: usize,
    pub(super) priority: i32,
    pub(super) original: &'a str,
}

/// What becomes of a claim.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ClaimVerdict {
    /// It is listed under a name of its own, since others claim the same one.
    Renamed,
    /// It is not listed; the claim at the index, if any, has the name.
    Hidden(Option<usize>),
    /// It has the name.
    Kept,
}

/// Applies `conflict` to every name that is claimed more than once. A name is of the servers with the
/// longest prefix: no other takes it by what it calls its items, whatever `conflict` says.
pub(super) fn resolve_claims(conflict: Conflict, claims: &[Claim<'_>]) -> Vec<ClaimVerdict> {
    let mut verdicts = vec![ClaimVerdict::Kept; claims.len()];
    for mut group in duplicate_groups(claims.iter().map(|claim| claim.name.as_str())) {
        let longest = group
            .iter()
            .map(|index| claims[*index].server_prefix_len)
            .max();
        group.retain(|index| {
            let is_owner = Some(claims[*index].server_prefix_len) == longest;
            if !is_owner {
                verdicts[*index] = ClaimVerdict::Renamed;
            }
            is_owner
        });
        if group.len() < 2 {
            continue;
        }
        let winner = match conflict {
            Conflict::Error | Conflict::Namespace => None,
            Conflict::First => group
                .iter()
                .copied()
                .min_by_key(|i| claim_rank(&claims[*i], 0)),
            Conflict::Priority => group
                .iter()
                .copied()
                .min_by_key(|i| claim_rank(&claims[*i], claims[*i].priority)),
        };
        for index in group {
            verdicts[index] = match conflict {
                Conflict::Namespace => ClaimVerdict::Renamed,
                Conflict::Error => ClaimVerdict::Hidden(None),
                Conflict::First | Conflict::Priority if winner == Some(index) => ClaimVerdict::Kept,
                Conflict::First | Conflict::Priority => ClaimVerdict::Hidden(winner),
            };
        }
    }
    verdicts
}

/// The smallest rank wins. Items of one server fall back to their original names, since the order
/// in which a server lists them may change from one listing to the next.
fn claim_rank<'a>(claim: &Claim<'a>, priority: i32) -> (Reverse<i32>, usize, &'a str) {
    (Reverse(priority), claim.order, claim.original)
}

/// The final names: no longer than `length_max` characters and all different.
///
/// Contested and overlong names end in `_` and [`HASH_SUFFIX_DIGITS`] digits of [`name_hash`]. Should that name
/// be taken as well, those with a shorter prefix give way, a plain name gives way to a hashed one, and
/// two hashed ones both move on to the next digits; `None` is left for those (none, in practice) that
/// run out of digits.
pub(super) fn unique_names(
    claims: &[Claim<'_>],
    verdicts: &[ClaimVerdict],
    length_max: usize,
) -> Vec<Option<String>> {
    let mut names: Vec<Option<UniqueName<'_>>> = claims
        .iter()
        .zip(verdicts)
        .map(|(claim, verdict)| UniqueName::first_attempt(claim, *verdict, length_max))
        .collect();
    loop {
        let taken = names
            .iter()
            .map(|name| name.as_ref().map_or("", |name| name.text.as_str()));
        let collisions: Vec<Vec<usize>> = duplicate_groups(taken).collect();
        let mut moved = false;
        for group in collisions {
            let rank = |i: usize| {
                let is_hashed = names[i].as_ref().is_some_and(|name| name.window > 0);
                (claims[i].server_prefix_len, is_hashed)
            };
            let first = group.iter().map(|i| rank(*i)).max();
            let are_equal = group.iter().all(|i| Some(rank(*i)) == first);
            let moving: Vec<usize> = group
                .into_iter()
                .filter(|i| are_equal || Some(rank(*i)) != first)
                .collect();
            for index in moving {
                let Some(name) = names[index].as_mut() else {
                    continue;
                };
                moved = true;
                if !name.next_attempt(length_max) {
                    names[index] = None;
                }
            }
        }
        if !moved {
            break;
        }
    }
    names
        .into_iter()
        .map(|name| name.map(|name| name.text))
        .collect()
}

/// A name on its way to being the only one of its kind.
#[derive(Debug)]
struct UniqueName<'a> {
    text: String,
    /// 0 without a hash, else which [`HASH_SUFFIX_DIGITS`] of it are shown, counted from 1.
    window: usize,
    claim: &'a Claim<'a>,
}

impl<'a> UniqueName<'a> {
    fn first_attempt(
        claim: &'a Claim<'a>,
        verdict: ClaimVerdict,
        length_max: usize,
    ) -> Option<Self> {
        let mut name = Self {
            text: claim.name.clone(),
            window: 0,
            claim,
        };
        let hashed = match verdict {
            ClaimVerdict::Hidden(_) => return None,
            ClaimVerdict::Renamed => true,
            ClaimVerdict::Kept => claim.name.chars().count() > length_max,
        };
        (!hashed || name.next_attempt(length_max)).then_some(name)
    }

    /// Takes the next digits of the hash; false when there are none.
    fn next_attempt(&mut self, length_max: usize) -> bool {
        let digits = name_hash(self.claim.server, self.claim.original);
        let Some(window) =
            digits.get(self.window * HASH_SUFFIX_DIGITS..(self.window + 1) * HASH_SUFFIX_DIGITS)
        else {
            return false;
        };
        self.text = with_suffix(window, &self.claim.name, length_max);
        self.window += 1;
        true
    }
}

fn with_suffix(window: &str, name: &str, length_max: usize) -> String {
    let room = length_max.saturating_sub(HASH_SUFFIX_DIGITS + 1);
    let mut text: String = name.chars().take(room).collect();
    text.push('_');
    text.push_str(window);
    text
}

/// What [`unique_names`] makes of `name`, which the template yields for an item of a server, where it is too
/// long or another's as well.
pub(super) fn with_hash(
    name: &str,
    (server, original): (&ServerName, &str),
    length_max: usize,
) -> String {
    let digits = name_hash(server, original);
    with_suffix(&digits[..HASH_SUFFIX_DIGITS], name, length_max)
}

/// SHA-256 in lower-case hex over the server's name without its owner, a zero byte (which no server's name holds) and
/// the item's original name, all in UTF-8; the same on every replica and after every restart.
pub(super) fn name_hash(server: &ServerName, original: &str) -> String {
    let mut hasher = Sha256::new();
    hasher.update(server.local());
    hasher.update([0]);
    hasher.update(original);
    let mut hex = String::with_capacity(64);
    for byte in hasher.finalize() {
        write!(hex, "{byte:02x}").expect("a String takes everything");
    }
    hex
}

/// The indices of equal texts, for every non-empty text that occurs more than once.
fn duplicate_groups<'a>(texts: impl Iterator<Item = &'a str>) -> impl Iterator<Item = Vec<usize>> {
    let mut by_text: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, text) in texts.enumerate().filter(|(_, text)| !text.is_empty()) {
        by_text.entry(text).or_default().push(index);
    }
    by_text.into_values().filter(|group| group.len() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that `unique_names` gives to (template's name, server, original, verdict).
    fn settled(
        claims: &[(&str, &str, &str, ClaimVerdict)],
        length_max: usize,
    ) -> Vec<Option<String>> {
        let servers: Vec<ServerName> = claims
            .iter()
            .map(|(_, server, _, _)| ServerName::parse(server).unwrap())
            .collect();
        let verdicts: Vec<ClaimVerdict> =
            claims.iter().map(|(_, _, _, verdict)| *verdict).collect();
        let claims: Vec<Claim<'_>> = claims
            .iter()
            .zip(&servers)
            .map(|((name, _, original, _), server)| Claim {
                name: (*name).to_owned(),
                server,
                server_prefix_len: 0,
                order: 0,
                priority: 0,
                original,
            })
            .collect();
        unique_names(&claims, &verdicts, length_max)
    }

    #[test]
    fn the_hash_covers_server_and_original_name() {
        let server = ServerName::parse("a").unwrap();
        // printf 'a\0search' | sha256sum
        assert!(name_hash(&server, "search").starts_with("549d551a"));
        assert_eq!(name_hash(&server, "search").len(), 64);
    }

    #[test]
    fn a_plain_name_gives_way_to_a_hashed_one() {
        let (kept, contested) = (ClaimVerdict::Kept, ClaimVerdict::Renamed);
        // The third server's tool is called what the first one's is exposed as.
        let names = settled(
            &[
                ("search", "a", "search", contested),
                ("search", "b", "search", contested),
                ("search_549d551a", "c", "search_549d551a", kept),
            ],
            48,
        );
        assert_eq!(names[0].as_deref(), Some("search_549d551a"));
        assert_eq!(names[1].as_deref(), Some("search_5ba67924"));
        let third = names[2].as_deref().unwrap();
        assert!(
            third.starts_with("search_549d551a_") && third.len() == 24,
            "{third}"
        );
    }

    #[test]
    fn equal_hashes_both_take_their_next_digits() {
        // SHA-256 of `a\0t86253` and of `a\0t95690` begin alike.
        let twins = [
            ("name", "a", "t86253", ClaimVerdict::Renamed),
            ("name", "a", "t95690", ClaimVerdict::Renamed),
        ];
        let expect = [
            Some("name_b6cededa".to_owned()),
            Some("name_ca0037fb".to_owned()),
        ];
        assert_eq!(settled(&twins, 48), expect);
        let same = [("name", "a", "x", ClaimVerdict::Renamed); 2];
        assert_eq!(
            settled(&same, 48),
            [None, None],
            "what is not distinct runs out of digits"
        );
    }

    #[test]
    fn no_name_is_taken_from_a_longer_prefix() {
        let (short, long) = ["git", "git_hub"]
            .map(|name| ServerName::parse(name).unwrap())
            .into();
        let claim = |server, prefix, original: &'static str| Claim {
            name: "mcp_git_hub_x".to_owned(),
            server,
            server_prefix_len: prefix,
            order: usize::from(prefix > 8),
            priority: 8 - i32::try_from(prefix).unwrap(),
            original,
        };
        for conflict in [
            Conflict::Error,
            Conflict::First,
            Conflict::Namespace,
            Conflict::Priority,
        ] {
            let claims = [claim(&short, 8, "hub_x"), claim(&long, 12, "x")];
            let verdicts = resolve_claims(conflict, &claims);
            assert_eq!(
                verdicts,
                [ClaimVerdict::Renamed, ClaimVerdict::Kept],
                "{conflict:?}"
            );
        }
        // Not even by a name that was made to have the same hash.
        let mut claims = [claim(&short, 8, "hub_x"), claim(&long, 12, "x")];
        claims[1].name = with_hash(&claims[0].name, (&short, "hub_x"), 48);
        let names = unique_names(&claims, &[ClaimVerdict::Renamed, ClaimVerdict::Kept], 48);
        assert_eq!(names[1].as_deref(), Some(&*claims[1].name));
        assert_ne!(names[0], names[1]);
    }

    #[test]
    fn hidden_claims_get_no_name() {
        let claims = [
            ("n", "a", "n", ClaimVerdict::Hidden(None)),
            ("n", "b", "n", ClaimVerdict::Kept),
        ];
        assert_eq!(settled(&claims, 48), [None, Some("n".to_owned())]);
    }
}
