//! Globs of policies, profiles and argument rules, held against items: many at once, by what the config
//! alone says of names.
//!
//! A glob with a `/` is about `server/name`: the first one parts them. One without is about exposed
//! names, and means the server whose configured prefix it begins with, the longest of them; `*` matches
//! any character within its part. What refuses all of a server (`server/*`) refuses its resources as
//! well. What allows means that and nothing else. What refuses also means
//! whatever else its text matches, so that no name leads around it. Globs over URIs are about the whole
//! text, where `*` does not match `/`.

mod alternatives;

use globset::{Glob, GlobBuilder};
use regex::bytes::{RegexSet, RegexSetBuilder};

use super::{prefixes::Prefixes, uri_variants};
use crate::names::ServerName;
use alternatives::Alternative;

/// A list of globs is too large to match. The operator shortens it.
#[derive(Debug, thiserror::Error)]
#[error("invalid list of globs: {reason}")]
pub struct GlobsTooLarge {
    /// What the matcher says.
    reason: String,
}

impl GlobsTooLarge {
    fn new(reason: &dyn ToString) -> Self {
        let reason = reason.to_string();
        Self { reason }
    }
}

/// How much an entry means.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GlobWidth {
    /// No more than it surely does, as of entries that allow.
    Strict,
    /// All that it may, as of entries that refuse or demand.
    Broad,
}

/// What a list is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GlobTarget {
    /// Names of tools, prompts or methods.
    Names,
    /// URIs.
    Uris,
    /// Both.
    All,
}

/// All that globs may know an item by.
#[derive(Clone, Copy, Debug)]
pub struct ItemForms<'a> {
    /// The server that has it.
    pub server: &'a ServerName,
    /// What the server calls it.
    pub original: &'a str,
    /// What the config makes of that, see [`ConfiguredNames`](super::ConfiguredNames).
    pub plain: &'a str,
    /// The other of those names; may be empty.
    pub distinct: &'a str,
    /// What a profile calls it; may be empty.
    pub alias: &'a str,
}

/// The texts that globs are tried on for an item.
#[derive(Debug)]
pub struct MatchForms {
    texts: Vec<String>,
    are_uris: bool,
}

/// What [`MatchForms`] of names begin with, so that none can pass for one of another sort.
const QUALIFIED_MARK: char = 'q';
const EXPOSED_MARK: char = 'e';
const ALIAS_MARK: char = 'a';

impl MatchForms {
    /// Those of a tool, a prompt or a method.
    pub fn for_name(item: &ItemForms<'_>) -> Self {
        let forms = [
            (QUALIFIED_MARK, item.original),
            (EXPOSED_MARK, item.plain),
            (EXPOSED_MARK, item.distinct),
            (ALIAS_MARK, item.alias),
        ];
        let forms = forms.into_iter().filter(|(_, name)| !name.is_empty());
        let text = |server: &str, (sort, name): (char, &str)| {
            let mut text = String::with_capacity(server.len() + name.len() + 2);
            text.push(sort);
            text.push_str(server);
            text.push('/');
            text.push_str(name);
            text
        };
        let mut texts: Vec<String> = forms.map(|form| text(item.server.as_str(), form)).collect();
        if item.server.is_owned() {
            texts.push(text(item.server.local(), (QUALIFIED_MARK, item.original)));
        }
        Self {
            texts,
            are_uris: false,
        }
    }

    /// Those of a resource by which a glob may allow it. A URI that reads like an item of another server
    /// is left out: without prefixes, a server could take it to be let in by what was written for the
    /// other.
    fn for_uri(item: &ItemForms<'_>) -> Self {
        let is_foreign = |uri: &str| {
            let first = uri.split_once('/').map(|(first, _)| first);
            first.is_some_and(|it| !item.server.is_called(it) && ServerName::parse(it).is_ok())
        };
        let plain = [item.plain, item.distinct];
        let plain = plain.into_iter().filter(|uri| !is_foreign(uri));
        let texts = plain.filter(|uri| !uri.is_empty()).map(str::to_owned);
        Self {
            texts: qualified(item).chain(texts).collect(),
            are_uris: true,
        }
    }

    /// Those of a resource by which a glob may refuse it: also as servers spell the same.
    pub fn for_any_uri(item: &ItemForms<'_>) -> Self {
        let mut texts: Vec<String> = qualified(item).collect();
        for server in names_of(item.server) {
            texts.extend(uri_variants::variants_of(server, item.original));
        }
        for exposed in [item.plain, item.distinct] {
            if !exposed.is_empty() {
                texts.push(exposed.to_owned());
                texts.extend(uri_variants::variants(exposed));
            }
        }
        Self {
            texts,
            are_uris: true,
        }
    }
}

fn qualified(item: &ItemForms<'_>) -> impl Iterator<Item = String> {
    names_of(item.server).map(move |server| format!("{server}/{}", item.original))
}

/// What globs call a server: its name, and that without its owner.
fn names_of(server: &ServerName) -> impl Iterator<Item = &str> {
    let local = server.is_owned().then(|| server.local());
    std::iter::once(server.as_str()).chain(local)
}

/// What a resource is by that of its URIs which says so, see [`uri_variants::canonical`].
fn canonical_form<'a>(item: &ItemForms<'a>) -> Option<ItemForms<'a>> {
    let part = |uri: &'a str| uri_variants::canonical(uri);
    let uris = [item.original, item.plain, item.distinct];
    uris.into_iter().find_map(part)?;
    let part = |uri: &'a str| part(uri).unwrap_or(uri);
    Some(ItemForms {
        original: part(item.original),
        plain: part(item.plain),
        distinct: part(item.distinct),
        ..*item
    })
}

/// Globs that are tried at once, each with what it belongs to.
#[derive(Clone, Debug)]
pub struct Globs<O> {
    names: Matcher<O>,
    uris: Matcher<O>,
}

/// An entry of a list.
#[derive(Clone, Debug)]
pub struct GlobEntry<O> {
    /// What it belongs to.
    pub owner: O,
    /// As it was written.
    pub text: String,
}

impl<O: Copy> Globs<O> {
    /// Compiles `globs`, which are read as `reading` says, for servers that have `prefixes`.
    ///
    /// # Errors
    /// When they are too large to match.
    pub fn new<'g>(
        globs: impl Iterator<Item = (O, &'g Glob)>,
        over: GlobTarget,
        reading: GlobWidth,
        prefixes: &Prefixes,
    ) -> Result<Self, GlobsTooLarge> {
        let (mut names, mut uris) = (GlobsBuilder::default(), GlobsBuilder::default());
        for (owner, glob) in globs {
            let text = glob.glob();
            if over != GlobTarget::Uris {
                let all = alternatives::alternatives_of(text).ok_or_else(|| {
                    let most = alternatives::ALTERNATIVES_MAX;
                    GlobsTooLarge::new(&format!(
                        "`{text}` expands to more than {most} \
                        alternatives"
                    ))
                })?;
                for alternative in &all {
                    for pattern in regex_patterns(alternative, reading, prefixes)? {
                        names.add(owner, text, pattern);
                    }
                    // What refuses all of a server refuses its resources too, however deep.
                    let whole = whole_server(alternative)
                        .filter(|_| (over, reading) == (GlobTarget::All, GlobWidth::Broad));
                    if let Some(whole) = whole {
                        uris.add(owner, text, format!("^{}$", glob_to_regex(&whole, true)?));
                    }
                }
            }
            if over != GlobTarget::Names {
                // Globs that were read from the store do not know that `/` is special.
                uris.add(owner, text, format!("^{}$", glob_to_regex(text, true)?));
                let others = match reading {
                    GlobWidth::Strict => Vec::new(),
                    GlobWidth::Broad => uri_variants::glob_variants(text),
                };
                // What is no glob with its escapes decoded has no other spelling.
                for other in others
                    .iter()
                    .filter_map(|other| glob_to_regex(other, true).ok())
                {
                    uris.add(owner, text, format!("^{other}$"));
                }
            }
        }
        Ok(Self {
            names: names.compile()?,
            uris: uris.compile()?,
        })
    }

    /// No globs, which match nothing.
    pub const fn empty() -> Self {
        Self {
            names: Matcher::NONE,
            uris: Matcher::NONE,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names.entries.is_empty() && self.uris.entries.is_empty()
    }

    /// The entry that allows a tool, a prompt or a method.
    pub fn matching_name(&self, item: &ItemForms<'_>) -> Option<&GlobEntry<O>> {
        self.first_match(&MatchForms::for_name(item))
    }

    /// The entry that allows a resource, also by what it essentially is.
    pub fn matching_uri(&self, item: &ItemForms<'_>) -> Option<&GlobEntry<O>> {
        let entry = self.first_match(&MatchForms::for_uri(item))?;
        let is_allowed =
            canonical_form(item).is_none_or(|it| self.is_match(&MatchForms::for_uri(&it)));
        is_allowed.then_some(entry)
    }

    /// Whether any entry matches.
    pub fn is_match(&self, forms: &MatchForms) -> bool {
        let Some(set) = &self.matcher(forms).set else {
            return false;
        };
        let mut texts = forms.texts.iter();
        texts.any(|text| set.is_match(text.as_bytes()))
    }

    /// The first entry that matches the first of the texts that any entry matches.
    pub fn first_match(&self, forms: &MatchForms) -> Option<&GlobEntry<O>> {
        let matcher = self.matcher(forms);
        let set = matcher.set.as_ref()?;
        let mut texts = forms.texts.iter();
        let at = texts.find_map(|text| set.matches(text.as_bytes()).iter().next())?;
        Some(&matcher.entries[at])
    }

    /// What every entry belongs to that matches.
    pub fn matching_owners(&self, forms: &MatchForms) -> Vec<O> {
        let matcher = self.matcher(forms);
        let Some(set) = &matcher.set else {
            return Vec::new();
        };
        let texts = forms.texts.iter();
        let matches = texts.flat_map(|text| set.matches(text.as_bytes()));
        matches.map(|at| matcher.entries[at].owner).collect()
    }

    fn matcher(&self, forms: &MatchForms) -> &Matcher<O> {
        if forms.are_uris {
            &self.uris
        } else {
            &self.names
        }
    }
}

/// Entries, ready to match.
#[derive(Clone, Debug)]
struct Matcher<O> {
    /// By their meaning as regular expressions: a set of globs takes a last segment of `..` for no
    /// name at all and would not match it. None where there are no globs, as most lists have none
    /// and a matcher of nothing is kilobytes.
    set: Option<RegexSet>,
    entries: Vec<GlobEntry<O>>,
}

impl<O> Matcher<O> {
    const NONE: Self = Self {
        set: None,
        entries: Vec::new(),
    };
}

/// A matcher on its way.
#[derive(Debug)]
struct GlobsBuilder<O> {
    patterns: Vec<String>,
    entries: Vec<GlobEntry<O>>,
}

impl<O> Default for GlobsBuilder<O> {
    fn default() -> Self {
        Self {
            patterns: Vec::new(),
            entries: Vec::new(),
        }
    }
}

impl<O> GlobsBuilder<O> {
    fn add(&mut self, owner: O, text: &str, pattern: String) {
        self.patterns.push(pattern);
        let text = text.to_owned();
        self.entries.push(GlobEntry { owner, text });
    }

    fn compile(self) -> Result<Matcher<O>, GlobsTooLarge> {
        let compile = |patterns: Vec<String>| {
            let mut builder = RegexSetBuilder::new(patterns);
            builder.unicode(false).dot_matches_new_line(true).build()
        };
        let set = (!self.patterns.is_empty()).then(|| compile(self.patterns));
        Ok(Matcher {
            set: set
                .transpose()
                .map_err(|error| GlobsTooLarge::new(&error))?,
            entries: self.entries,
        })
    }
}

/// What `alternative` means as regular expressions over [`MatchForms`] of names.
fn regex_patterns(
    alternative: &Alternative,
    reading: GlobWidth,
    prefixes: &Prefixes,
) -> Result<Vec<String>, GlobsTooLarge> {
    const ANY_SEGMENT: &str = "[^/]+";
    let text = alternative.text.as_str();
    let whole = glob_to_regex(text, false)?;
    let Some((server, item)) = alternative.split_at_slash() else {
        let servers = match reading {
            GlobWidth::Strict => alternative.owners(prefixes).map(servers_group),
            GlobWidth::Broad => None,
        };
        let servers = servers.as_deref().unwrap_or(ANY_SEGMENT);
        return Ok(vec![format!(
            "^[{EXPOSED_MARK}{ALIAS_MARK}]{servers}/{whole}$"
        )]);
    };
    if reading == GlobWidth::Broad {
        // A server chooses its names: `*/delete_*` refuses its tool `repo/delete_all` too.
        return Ok(vec![
            format!("^{QUALIFIED_MARK}{whole}$"),
            format!("^[{EXPOSED_MARK}{ALIAS_MARK}]{ANY_SEGMENT}/{whole}$"),
        ]);
    }
    let glob = GlobBuilder::new(server)
        .build()
        .map_err(|error| GlobsTooLarge::new(&error))?;
    let glob = glob.compile_matcher();
    let meant: Vec<ServerName> = prefixes
        .servers()
        .filter(|server| names_of(server).any(|name| glob.is_match(name)))
        .cloned()
        .collect();
    let mut all = vec![format!("^{ALIAS_MARK}{ANY_SEGMENT}/{whole}$")];
    if !meant.is_empty() {
        let item = glob_to_regex(item, false)?;
        all.push(format!(
            "^{QUALIFIED_MARK}{}/{item}$",
            servers_group(&meant)
        ));
    }
    Ok(all)
}

/// The glob over URIs of all that a server has, where that is what `alternative` says of names.
fn whole_server(alternative: &Alternative) -> Option<String> {
    let is_all = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte == b'*');
    match alternative.split_at_slash() {
        Some((server, item)) => is_all(item).then(|| format!("{server}/**")),
        None => is_all(&alternative.text).then(|| "**".to_owned()),
    }
}

/// A group that matches the names of these servers.
fn servers_group(servers: &[ServerName]) -> String {
    let names: Vec<String> = servers
        .iter()
        .map(|server| regex::escape(server.as_str()))
        .collect();
    format!("(?:{})", names.join("|"))
}

/// The glob `text` as a regular expression without its anchors.
fn glob_to_regex(text: &str, literal_separator: bool) -> Result<String, GlobsTooLarge> {
    let glob = GlobBuilder::new(text)
        .literal_separator(literal_separator)
        .build()
        .map_err(|error| GlobsTooLarge::new(&error))?;
    let inner = glob.regex().strip_prefix("(?-u)^");
    let inner = inner.and_then(|regex| regex.strip_suffix('$'));
    let inner =
        inner.ok_or_else(|| GlobsTooLarge::new(&"internal error: cannot translate a glob"))?;
    Ok(format!("(?:{inner})"))
}

/// The servers whose names a glob without a `/` may match, where it begins as the names of one or of some
/// do and matches those of others too: who reads it may take it for one of the others.
pub fn spanned_servers<'p>(glob: &str, prefixes: &'p Prefixes) -> Option<SpannedServers<'p>> {
    let all = alternatives::alternatives_of(glob)?;
    all.iter()
        .find_map(|alternative| alternative.spanned(prefixes))
}

/// What a glob spans.
#[derive(Debug, Eq, PartialEq)]
pub struct SpannedServers<'p> {
    /// The servers that it means where it allows; all that follow where it has no whole prefix.
    pub intended: Option<&'p [ServerName]>,
    /// The servers whose names it matches.
    pub servers: Vec<&'p ServerName>,
}
