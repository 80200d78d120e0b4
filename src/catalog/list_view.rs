//! One list as one route shows it, joined to JSON text when the snapshot is built.
//!
//! An answer to a list request copies that text or a range of it; nothing is serialized.

use std::{
    borrow::Cow,
    hash::{DefaultHasher, Hasher as _},
    ops::Range,
    sync::{Arc, LazyLock},
};

use super::{ConfiguredNames, Kind, repair};
use crate::mcp::{
    Era,
    json::{Patch, Raw},
};
use crate::names::ServerName;

/// One item of a list.
#[derive(Clone, Debug)]
pub struct ListEntry {
    /// The server that offers it.
    pub server: ServerName,
    /// The server's own name or URI of it.
    pub original: Arc<str>,
    /// The name or URI on this route; entries of merged routes are sorted by it.
    pub exposed: Arc<str>,
    /// The name or URI on merged routes; empty for a tool or prompt that they do not list.
    pub merged: Arc<str>,
    /// What rules know it by.
    pub names: ConfiguredNames,
    /// What the profile of this route calls it, where it renames it; else empty.
    pub alias: Arc<str>,
    /// The item as listed; a slice of the list's text.
    pub item: Raw,
    /// Hash of `item`.
    pub digest: u64,
}

/// How long a list may be kept, and by whom (`ttlMs` and `cacheScope`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Freshness {
    /// Milliseconds; 0 when any part did not say.
    pub ttl_ms: u64,
    /// Whether every part may be shared between callers.
    pub public: bool,
}

/// A list of a snapshot, ready to be sent.
#[derive(Clone, Debug)]
pub(super) struct ListCache {
    entries: Vec<ListEntry>,
    array: Raw,
    /// Where each item begins and ends in `array`.
    spans: Vec<Range<usize>>,
    digest: u64,
    /// The same list for clients of legacy revisions, where that differs.
    legacy: Option<Box<ListCache>>,
    pub(super) freshness: Freshness,
    pub(super) other_members: Option<Raw>,
}

impl Default for ListCache {
    fn default() -> Self {
        Self::concatenate(Vec::new())
    }
}

impl ListCache {
    /// The list of these items of `kind`.
    pub(super) fn of(kind: Kind, entries: Vec<ListEntry>) -> Self {
        let mut list = Self::concatenate(entries);
        if kind == Kind::Tools {
            list.legacy =
                legacy_entries(&list.entries).map(|entries| Box::new(Self::concatenate(entries)));
        }
        list
    }

    /// Joins `entries`, whose items may lie anywhere, in their order.
    pub(super) fn concatenate(mut entries: Vec<ListEntry>) -> Self {
        let mut patch = Patch::new(b"[]");
        let (mut at, mut spans) = (1, Vec::with_capacity(entries.len()));
        for entry in &entries {
            if at > 1 {
                patch.replace(1..1, &b","[..]);
                at += 1;
            }
            let item = entry.item.as_bytes();
            patch.replace(1..1, item);
            spans.push(at..at + item.len());
            at += item.len();
        }
        let array = patch.finish();
        for (entry, span) in entries.iter_mut().zip(&spans) {
            entry.item = array.slice(span.clone());
            entry.digest = bytes_digest(entry.item.as_bytes());
        }
        Self {
            digest: combined_digest(&entries),
            entries,
            array,
            spans,
            legacy: None,
            freshness: Freshness {
                ttl_ms: 0,
                public: false,
            },
            other_members: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn entries(&self) -> &[ListEntry] {
        &self.entries
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }
}

/// The tools for clients of legacy revisions; `None` where these can read all of `entries`.
fn legacy_entries(entries: &[ListEntry]) -> Option<Vec<ListEntry>> {
    let mut changed = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        changed.extend(repair::without_output_schema(&entry.item).map(|item| (at, item)));
    }
    if changed.is_empty() {
        return None;
    }
    let mut entries = entries.to_vec();
    for (at, item) in changed {
        entries[at].item = item;
    }
    Some(entries)
}

/// One list as one route shows it.
#[derive(Clone, Copy, Debug)]
pub struct CatalogView<'a> {
    list: &'a ListCache,
    /// Where the text of pages is.
    page_source: &'a ListCache,
}

impl<'a> CatalogView<'a> {
    pub(super) fn new(list: &'a ListCache) -> Self {
        Self {
            list,
            page_source: list,
        }
    }

    /// The list that has nothing.
    pub(super) fn empty() -> CatalogView<'static> {
        static EMPTY: LazyLock<ListCache> = LazyLock::new(ListCache::default);
        CatalogView::new(&EMPTY)
    }

    /// The list whose pages clients of `era` can read; all else is the same.
    #[must_use]
    pub fn for_era(self, era: Era) -> Self {
        let legacy = self.list.legacy.as_deref().filter(|_| era == Era::Legacy);
        Self {
            page_source: legacy.unwrap_or(self.list),
            ..self
        }
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.list.entries.len()
    }

    /// Whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.list.entries.is_empty()
    }

    /// The items with what is known about them, in the order they are listed.
    pub fn entries(&self) -> &'a [ListEntry] {
        &self.list.entries
    }

    /// The items as they are listed.
    pub fn items(&self) -> impl Iterator<Item = &'a Raw> + use<'a> {
        self.list.entries.iter().map(|entry| &entry.item)
    }

    /// The whole list as one JSON array.
    pub fn array(&self) -> &'a Raw {
        &self.list.array
    }

    /// Changes exactly when the bytes of [`array`](Self::array) do (as far as 64 bits can tell).
    /// Equal on replicas of the same build, not across builds.
    pub fn digest(&self) -> u64 {
        self.list.digest
    }

    /// How long the list may be kept. Whoever filters it by caller must not call it public.
    pub fn freshness(&self) -> Freshness {
        self.list.freshness
    }

    /// On the route of one server: the other members of the first page of its own list, an object.
    pub fn other_members(&self) -> Option<&'a Raw> {
        self.list.other_members.as_ref()
    }

    /// At most `size` items from `offset` on, all of them for `None`; `None` when `offset` lies
    /// beyond the end, as that of a stale cursor may. A `size` of 0 counts as 1.
    pub fn page(&self, offset: usize, size: Option<usize>) -> Option<PageRange<'a>> {
        let total = self.len();
        if offset > 0 && offset >= total {
            return None;
        }
        let size = size.unwrap_or(total).max(1);
        let end = offset.saturating_add(size).min(total);
        Some(PageRange {
            items: self.joined_items(offset..end).into(),
            next: (end < total).then_some(end),
        })
    }

    /// Like [`page`](Self::page), of those items that are `visible`. Offsets count all items, so a
    /// cursor stays right when what is visible changes.
    pub fn page_where(
        &self,
        offset: usize,
        size: Option<usize>,
        visible: impl Fn(&ListEntry) -> bool,
    ) -> Option<PageRange<'a>> {
        let total = self.len();
        if offset > 0 && offset >= total {
            return None;
        }
        let size = size.unwrap_or(total).max(1);
        let (mut runs, mut shown, mut next) = (Vec::<Range<usize>>::new(), 0, None);
        for (at, entry) in self.list.entries.iter().enumerate().skip(offset) {
            if !visible(entry) {
                continue;
            }
            if shown == size {
                next = Some(at);
                break;
            }
            shown += 1;
            match runs.last_mut() {
                Some(run) if run.end == at => run.end += 1,
                Some(_) | None => runs.push(at..at + 1),
            }
        }
        let items = match runs.as_slice() {
            [] => Cow::Borrowed(""),
            [run] => self.joined_items(run.clone()).into(),
            _ => {
                let texts: Vec<&str> = runs.into_iter().map(|run| self.joined_items(run)).collect();
                texts.join(",").into()
            }
        };
        Some(PageRange { items, next })
    }

    /// Like [`digest`](Self::digest), of those items that are `visible`; the same when all are.
    pub fn digest_where(&self, visible: impl Fn(&ListEntry) -> bool) -> u64 {
        let shown = self.list.entries.iter().filter(|entry| visible(entry));
        combined_digest(shown)
    }

    /// The items at these positions with the commas between them.
    fn joined_items(self, positions: Range<usize>) -> &'a str {
        let spans = &self.page_source.spans[positions];
        match (spans.first(), spans.last()) {
            (Some(first), Some(last)) => &self.page_source.array.as_str()[first.start..last.end],
            _ => "",
        }
    }
}

/// A range of a list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PageRange<'a> {
    /// The items with commas between them, as they stand between the brackets of an array.
    pub items: Cow<'a, str>,
    /// The offset of the next page, if there is one.
    pub next: Option<usize>,
}

/// Hash of the digests of items, in their order.
fn combined_digest<'e>(entries: impl IntoIterator<Item = &'e ListEntry>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for entry in entries {
        hasher.write_u64(entry.digest);
    }
    hasher.finish()
}

/// Hash of `bytes`, with fixed keys so that replicas agree.
pub(super) fn bytes_digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}
