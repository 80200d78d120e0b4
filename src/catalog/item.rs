//! The items of one server: read from what it listed, with the config's rules applied.
//!
//! Tolerant: what cannot be served is left out with a [`CatalogProblem`], everything else goes on. The text
//! of an item is only ever spliced.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    sync::Arc,
};

use globset::{Glob, GlobMatcher};

use super::{
    CatalogProblem, ConfiguredNames, HeaderFault, HeaderParam, ItemExcess, Kind, ProblemCause,
    ServerOffer,
    header_annotations::{self, ToolHeaders},
    rewrite::meta_uris,
    uri_map::UriMap,
    uri_variants,
};
use crate::config::{ItemRules, glob, name_matcher};
use crate::mcp::json::{self, Member, Patch, Raw};

/// As much of a name as says which item is meant.
const NAME_CHARS_MAX: usize = 128;

/// What a tool says about calling it; untrusted, so nothing may be permitted because of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ToolHints {
    /// `readOnlyHint`: a call changes nothing.
    pub read_only: bool,
    /// `idempotentHint`: a repeated call changes nothing more.
    pub idempotent: bool,
}

/// One item that may be listed.
#[derive(Debug)]
pub(super) struct Item<'a> {
    pub(super) source: &'a Raw,
    /// The server's own name or URI.
    pub(super) original: Arc<str>,
    /// What takes the original name's place in the template, and on the server's own route.
    pub(super) name: Arc<str>,
    /// What rules know it by.
    pub(super) names: ConfiguredNames,
    pub(super) headers: Arc<[HeaderParam]>,
    pub(super) hints: ToolHints,
    /// URIs that `_meta` names; servers need not list them.
    pub(super) linked_uris: Vec<Arc<str>>,
    spans: MemberSpans,
    pub(super) label: Option<&'a str>,
    description: Option<&'a str>,
    faults: Vec<usize>,
}

/// Where the members stand that may be replaced. Repeated keys all are, so that no reader of the
/// item sees another value than we do.
#[derive(Debug, Default)]
struct MemberSpans {
    key: Vec<Range<usize>>,
    /// The display name of a resource; for tools it is the key.
    name: Vec<Range<usize>>,
    description: Vec<Range<usize>>,
    /// URIs in a tool's `_meta`.
    links: Vec<Range<usize>>,
    annotations: Option<Range<usize>>,
    schema: Option<Range<usize>>,
}

impl Item<'_> {
    /// The item's text with `key` as its name or URI, and with `label` as a resource's name for
    /// people.
    pub(super) fn render(&self, key: &str, label: Option<&str>, uris: &UriMap) -> Raw {
        let json = self.source.as_bytes();
        let mut patch = Patch::new(json);
        if *key != *self.original {
            replace_spans(&mut patch, &self.spans.key, key);
        }
        if let Some(label) = label {
            replace_spans(&mut patch, &self.spans.name, label);
            if self.spans.name.is_empty() {
                insert_member(&mut patch, "name", label);
            }
        }
        if let Some(description) = self.description {
            replace_spans(&mut patch, &self.spans.description, description);
            if self.spans.description.is_empty() {
                insert_member(&mut patch, "description", description);
            }
        }
        for span in &self.spans.links {
            let Some(uri) = json::decode_string(&json[span.clone()]) else {
                continue;
            };
            let exposed = uris.expose(&uri);
            if exposed != uri {
                patch.replace(span.clone(), json_string(&exposed));
            }
        }
        for at in &self.faults {
            patch.remove_members(*at, |member| {
                header_annotations::is_annotation(member, json)
            });
        }
        if patch.is_empty() {
            return self.source.clone();
        }
        patch.finish()
    }
}

fn replace_spans(patch: &mut Patch<'_>, spans: &[Range<usize>], text: &str) {
    for span in spans {
        patch.replace(span.clone(), json_string(text));
    }
}

fn insert_member(patch: &mut Patch<'_>, key: &str, text: &str) {
    patch.insert_members(0, &format!("\"{key}\":{}", Raw::string(text).as_str()));
}

fn json_string(text: &str) -> Vec<u8> {
    Raw::string(text).as_bytes().to_vec()
}

/// The `allow` and `deny` of a kind, ready to match. In names `*` matches any character; in URIs all but
/// `/`, and what refuses a URI refuses all of its spellings.
#[derive(Clone, Debug, Default)]
pub(super) struct ItemFilter {
    allow: Option<Vec<GlobMatcher>>,
    deny: Vec<GlobMatcher>,
    has_uris: bool,
}

impl ItemFilter {
    pub(super) fn new(rules: &ItemRules, kind: Kind) -> Self {
        let has_uris = kind.has_uris();
        let compile = |glob: &Glob| {
            if has_uris {
                glob.compile_matcher()
            } else {
                name_matcher(glob)
            }
        };
        let allow = rules.allow.as_ref();
        let allow = allow.map(|globs| globs.iter().map(compile).collect());
        let mut deny: Vec<_> = rules.deny.iter().map(compile).collect();
        if has_uris {
            let globs = rules.deny.iter();
            // What is left of one with its escapes decoded may be no glob.
            let others = globs.flat_map(|glob| uri_variants::glob_variants(glob.glob()));
            deny.extend(others.filter_map(|text| Some(glob(&text).ok()?.compile_matcher())));
        }
        Self {
            allow,
            deny,
            has_uris,
        }
    }

    /// Whether the item that the server calls `original` may be used. Where anything is said of
    /// resources, one of which nobody can tell what it is may not.
    pub(super) fn permits(&self, original: &str) -> bool {
        let matches =
            |globs: &[GlobMatcher], name: &str| globs.iter().any(|glob| glob.is_match(name));
        let essence = uri_variants::canonical(original).filter(|_| self.has_uris);
        let is_allowed = self.allow.as_deref().is_none_or(|globs| {
            matches(globs, original) && essence.is_none_or(|part| matches(globs, part))
        });
        if !is_allowed || matches(&self.deny, original) {
            return false;
        }
        if !self.has_uris || !self.is_restrictive() {
            return true;
        }
        let is_denied = |other: String| matches(&self.deny, &other);
        !uri_variants::is_ambiguous(original)
            && !uri_variants::variants(original).into_iter().any(is_denied)
    }

    /// Whether some items may not be used.
    pub(super) fn is_restrictive(&self) -> bool {
        self.allow.is_some() || !self.deny.is_empty()
    }
}

/// Reads what `offer` has of `kind`, in the server's order.
pub(super) fn read_items<'a>(
    offer: &'a ServerOffer,
    kind: Kind,
    filter: &ItemFilter,
    problems: &mut Vec<CatalogProblem>,
) -> Vec<Item<'a>> {
    let mut report = |cause| {
        problems.push(CatalogProblem {
            server: offer.server.clone(),
            kind: Some(kind),
            cause,
        });
    };
    let rules = offer.rules(kind);
    let (mut items, mut seen) = (Vec::new(), HashSet::new());
    for (index, source) in offer.listing.items(kind).iter().enumerate() {
        let (original, spans) = match locate_members(kind, source, index) {
            Ok(found) => found,
            Err(cause) => {
                report(cause);
                continue;
            }
        };
        if !filter.permits(&original) {
            continue;
        }
        if let Some(excess) = ItemExcess::of(source, &offer.config.limits) {
            let name = original.chars().take(NAME_CHARS_MAX).collect();
            report(ProblemCause::Oversized { name, excess });
            continue;
        }
        if !seen.insert(original.clone()) {
            let name = original.to_string();
            report(ProblemCause::Duplicate { name });
            continue;
        }
        let mut item = Item::new(source, original, spans);
        item.apply_rules(kind, rules);
        if kind != Kind::Tools || item.read_tool_members(offer.modern_http, &mut report) {
            items.push(item);
        }
    }
    resolve_rename_conflicts(&mut items, report);
    items
}

impl<'a> Item<'a> {
    fn new(source: &'a Raw, original: Arc<str>, spans: MemberSpans) -> Self {
        Self {
            source,
            name: original.clone(),
            names: ConfiguredNames::default(),
            original,
            headers: Arc::default(),
            hints: ToolHints::default(),
            linked_uris: Vec::new(),
            spans,
            label: None,
            description: None,
            faults: Vec::new(),
        }
    }

    /// Applies `rename` and `describe`. The URI of a resource is its identity, which no rule
    /// changes; there `rename` gives the name that people see.
    fn apply_rules(&mut self, kind: Kind, rules: &'a ItemRules) {
        self.description = rules.describe.get(&*self.original).map(String::as_str);
        let Some(name) = rules.rename.get(&*self.original) else {
            return;
        };
        match kind {
            Kind::Prompts | Kind::Tools => self.name = name.as_str().into(),
            Kind::Resources | Kind::Templates => self.label = Some(name),
        }
    }

    /// Reads what only tools have; false when the tool cannot be served.
    ///
    /// Over HTTP a client must drop a tool whose annotations break the rules. A server that is
    /// reached otherwise was never bound by them, and clients of ours would drop its tool: there
    /// the annotation goes instead.
    fn read_tool_members(
        &mut self,
        modern_http: bool,
        report: &mut impl FnMut(ProblemCause),
    ) -> bool {
        let json = self.source.as_bytes();
        if let Some(span) = &self.spans.annotations {
            self.hints = hints(json, span.start);
        }
        let linked = self
            .spans
            .links
            .iter()
            .filter_map(|span| json::decode_string(&json[span.clone()]));
        self.linked_uris = linked.map(|uri| Arc::from(&*uri)).collect();
        if !header_annotations::may_annotate(json) {
            return true;
        }
        let Some(schema) = &self.spans.schema else {
            return true;
        };
        let ToolHeaders { params, faults } = ToolHeaders::read(json, schema.start);
        self.headers = params.into();
        let tool = &self.original;
        let mut blame = |fault: HeaderFault| {
            report(ProblemCause::Header {
                tool: tool.to_string(),
                fault,
                dropped: modern_http,
            });
        };
        let served = faults.is_empty() || !modern_http;
        for (at, fault) in faults {
            self.faults.push(at);
            blame(fault);
        }
        served
    }
}

fn locate_members(
    kind: Kind,
    source: &Raw,
    index: usize,
) -> Result<(Arc<str>, MemberSpans), ProblemCause> {
    if !source.is_object() {
        return Err(ProblemCause::NotAnObject { index });
    }
    let json = source.as_bytes();
    let mut spans = MemberSpans::default();
    for Member { key, value } in json::members(json, 0) {
        let Some(key) = json::decode_string(&json[key]) else {
            continue;
        };
        match key.as_ref() {
            key if key == kind.key() => spans.key.push(value),
            "name" => spans.name.push(value),
            "description" => spans.description.push(value),
            "_meta" if kind == Kind::Tools => spans.links.extend(meta_uris(json, value.start)),
            "annotations" => spans.annotations = Some(value),
            "inputSchema" => spans.schema = Some(value),
            _ => {}
        }
    }
    let key = spans
        .key
        .last()
        .and_then(|span| json::decode_string(&json[span.clone()]));
    match key.filter(|key| !key.is_empty()) {
        Some(key) => Ok((key.into(), spans)),
        None => Err(ProblemCause::NoName {
            index,
            member: kind.key(),
        }),
    }
}

fn hints(json: &[u8], annotations: usize) -> ToolHints {
    let mut hints = ToolHints::default();
    for member in json::members(json, annotations) {
        let says = &json[member.value.clone()] == b"true";
        if member.matches(json, "readOnlyHint") {
            hints.read_only = says;
        } else if member.matches(json, "idempotentHint") {
            hints.idempotent = says;
        }
    }
    hints
}

/// Leaves out what a rename of the config collides with. The renamed item stays: the operator chose
/// its name, and a server must not be able to take it by listing another item of that name.
fn resolve_rename_conflicts(items: &mut Vec<Item<'_>>, mut report: impl FnMut(ProblemCause)) {
    let mut owners: HashMap<Arc<str>, Arc<str>> = HashMap::new();
    for item in items.iter().filter(|item| item.name != item.original) {
        let owner = owners
            .entry(item.name.clone())
            .or_insert_with(|| item.original.clone());
        if item.original < *owner {
            *owner = item.original.clone();
        }
    }
    if owners.is_empty() {
        return;
    }
    items.retain(|item| match owners.get(&item.name) {
        Some(owner) if *owner != item.original => {
            report(ProblemCause::RenamedOver {
                original: item.original.to_string(),
                by: owner.to_string(),
                name: item.name.to_string(),
            });
            false
        }
        Some(_) | None => true,
    });
}
