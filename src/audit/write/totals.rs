//! What a chain amounts to so far: its calls, what they cost by account, which are still open.
//!
//! The writer keeps it while it writes, and each segment begins with it: whoever takes over a dead
//! chain reads its last segment alone, and older segments can be removed without loss.

use std::collections::BTreeMap;

use foldhash::HashMap;
use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::entry::{AuditEntry, EntryKind};
use crate::{
    audit::record::{
        line_writer::LineWriter,
        record_line::{LineType, Opened, Record},
    },
    money::Micros,
    names::InvocationId,
};

/// What a chain amounts to so far.
#[derive(Debug, Default)]
pub(in crate::audit) struct ChainTotals {
    /// Records written.
    pub(in crate::audit) calls: u64,
    /// Prices of the records by account.
    pub(in crate::audit) charged: BTreeMap<String, Micros>,
    open: HashMap<Uuid, OpenCall>,
    opened_count: u64,
}

#[derive(Debug)]
struct OpenCall {
    /// Orders the open calls.
    order: u64,
    /// The line `opened`, up to its seal.
    line: Vec<u8>,
}

impl OpenCall {
    /// What follows the kind.
    fn members(&self) -> &[u8] {
        let members = LineType::Opened.members(&self.line);
        members.expect("only lines of that kind are kept")
    }
}

/// The tally as a line holds it.
#[derive(Debug, Deserialize)]
pub(in crate::audit) struct WrittenTotals<'a> {
    calls: u64,
    charged: BTreeMap<String, u64>,
    #[serde(borrow, default)]
    open: Vec<&'a RawValue>,
}

impl ChainTotals {
    /// Takes up what a line holds; nothing when it is not of our making.
    pub(in crate::audit) fn from_line(line: &[u8]) -> Option<Self> {
        let written: WrittenTotals<'_> = serde_json::from_slice(line).ok()?;
        let charged = written.charged.into_iter();
        let mut totals = Self {
            calls: written.calls,
            charged: charged
                .map(|(name, sum)| (name, Micros::new(sum)))
                .collect(),
            ..Self::default()
        };
        for object in written.open {
            let object = object.get();
            let opened: Opened<'_> = serde_json::from_str(object).ok()?;
            let members = object.strip_prefix('{')?.strip_suffix('}')?;
            totals.open_call(opened.id, LineType::Opened.wrap(members.as_bytes()));
        }
        Some(totals)
    }

    /// Takes in a sealed line, of which the first `body` bytes come before the seal. Lines other
    /// than `opened` and `call` change nothing; nothing is returned for one not of our making.
    pub(in crate::audit) fn apply_sealed(&mut self, line: &[u8], body: usize) -> Option<()> {
        match LineType::of(line) {
            Some(LineType::Opened) => {
                let opened: Opened<'_> = serde_json::from_slice(line).ok()?;
                self.open_call(opened.id, line.get(..body)?.to_vec());
            }
            Some(LineType::Call) => {
                let record: Record<'_> = serde_json::from_slice(line).ok()?;
                let accounts = record.accounts.iter().map(AsRef::as_ref);
                self.close_call(record.id, record.price, accounts);
            }
            Some(
                LineType::Begin
                | LineType::Checkpoint
                | LineType::End
                | LineType::Event
                | LineType::Retired,
            )
            | None => {}
        }
        Some(())
    }

    /// Takes in a line that is written.
    pub(in crate::audit) fn apply(&mut self, written: AuditEntry) {
        match written.kind {
            EntryKind::Call {
                id,
                price,
                accounts,
            } => self.close_call(id, price, accounts.iter().map(String::as_str)),
            EntryKind::Event => {}
            EntryKind::Opened(id) => self.open_call(id, written.line),
        }
    }

    /// A call was opened by `line`, which comes without its seal.
    pub(in crate::audit) fn open_call(&mut self, id: InvocationId, line: Vec<u8>) {
        self.opened_count += 1;
        let open = OpenCall {
            order: self.opened_count,
            line,
        };
        self.open.insert(id.0, open);
    }

    /// A record was written.
    pub(in crate::audit) fn close_call<'a>(
        &mut self,
        id: InvocationId,
        price: Micros,
        accounts: impl Iterator<Item = &'a str>,
    ) {
        self.calls += 1;
        for account in accounts {
            match self.charged.get_mut(account) {
                Some(sum) => *sum = sum.saturating_add(price),
                None => drop(self.charged.insert(account.to_string(), price)),
            }
        }
        self.open.remove(&id.0);
    }

    /// Whether a call is open.
    pub(in crate::audit) fn is_open(&self, id: InvocationId) -> bool {
        self.open.contains_key(&id.0)
    }

    /// The calls that are open, in the order of opening; nothing when one cannot be read.
    pub(in crate::audit) fn open_calls(&self) -> Option<Vec<Opened<'static>>> {
        let parsed = self.open_lines().into_iter().map(|members| {
            let object = [b"{", members, b"}"].concat();
            serde_json::from_slice(&object).ok()
        });
        parsed.collect()
    }

    /// What the chain will have charged once its open calls are charged too.
    pub(in crate::audit) fn charged_with_open(&self) -> BTreeMap<String, Micros> {
        let mut charged = self.charged.clone();
        for opened in self.open_calls().unwrap_or_default() {
            for account in opened.accounts {
                let sum = charged.entry(account.into_owned()).or_default();
                *sum = sum.saturating_add(opened.price);
            }
        }
        charged
    }

    /// Writes sums and counts, as the last members of a line.
    pub(in crate::audit) fn write_sums(&self, line: &mut LineWriter<'_>) {
        line.number("calls", self.calls);
        let sums = self.charged.iter();
        line.sums(
            "charged",
            sums.map(|(account, sum)| (account.as_str(), *sum)),
        );
    }

    /// Writes everything, as the last members of a line.
    pub(in crate::audit) fn write_all(&self, line: &mut LineWriter<'_>) {
        self.write_sums(line);
        line.objects("open", self.open_lines().into_iter());
    }

    fn open_lines(&self) -> Vec<&[u8]> {
        let mut open: Vec<&OpenCall> = self.open.values().collect();
        open.sort_unstable_by_key(|open| open.order);
        open.into_iter().map(OpenCall::members).collect()
    }
}
