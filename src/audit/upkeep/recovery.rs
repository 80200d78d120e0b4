//! Ending the chains of processes that died, and what a chain amounts to.
//!
//! A chain without `end` whose lock can be taken is dead. Its last segment says which calls were
//! open; each gets its one record, `interrupted`, and then the chain gets its end. Every step leaves
//! a chain that the next attempt understands, so that we may die here too; and the lock lets one
//! process at a time do it.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use super::verify::FaultAt;
use crate::{
    audit::{
        AuditError, ChainId, LineType,
        error::LineFault,
        files::{self, ChainLock},
        hash_chain::{ChainPosition, SealedLine, unseal},
        reader::{ReadStep, SegmentReader},
        record::record_line::Opened,
        signature::{PublicKey, SigningKey},
        write::{
            segment::OpenSegment,
            segment_store::{SegmentDirectory, SegmentStore as _},
            totals::ChainTotals,
            writer::{ResumedChain, Writer},
        },
    },
    money::Micros,
};

/// A chain of a dead process, as it is after recovery.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovered {
    /// The chain.
    pub chain: ChainId,
    /// How many records it has, all segments together, removed ones included.
    pub calls: u64,
    /// How many of them were added now because the process ended during the call.
    pub interrupted: u64,
    /// Bytes of a line that was being written; they were cut off.
    pub torn_bytes: u64,
    /// The prices of all its records by account.
    pub charged: BTreeMap<String, Micros>,
    /// Where the chain is not what we wrote. Such a chain is left as it is, for somebody to look at;
    /// `charged` counts what can be read, open calls included, and `interrupted` is 0.
    pub damage: Option<FaultAt>,
}

/// What a chain amounts to.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainTotal {
    /// The chain.
    pub chain: ChainId,
    /// Whether it has ended, as a signature says, so that nothing will be added.
    pub ended: bool,
    /// How many records it has, removed segments included.
    pub calls: u64,
    /// Their prices by account.
    pub charged: BTreeMap<String, Micros>,
}

/// All chains in `directory`, by when they began.
///
/// # Errors
/// When the directory cannot be listed.
pub fn chains(directory: &Path) -> Result<Vec<ChainId>, AuditError> {
    Ok(files::list_chains(directory)?.into_keys().collect())
}

/// What `chain` amounts to; nothing when there is no such chain, or none of it can be read.
///
/// Of a chain that has ended only the last line is read, else the last segment. Budgets compare this
/// with what they count as spent.
///
/// # Errors
/// When its files or the key cannot be read.
pub fn chain_total(directory: &Path, chain: ChainId) -> Result<Option<ChainTotal>, AuditError> {
    chain_total_signed(directory, chain, PublicKey::load(directory)?.as_ref())
}

/// The same, where an end is signed with this key.
pub(in crate::audit) fn chain_total_signed(
    directory: &Path,
    chain: ChainId,
    key: Option<&PublicKey>,
) -> Result<Option<ChainTotal>, AuditError> {
    let segments = files::chain_segments(directory, chain)?;
    for segment in segments.into_iter().rev() {
        if let Some(total) = ended_total(directory, chain, segment, key)? {
            return Ok(Some(total));
        }
        if let Some(found) = load_chain(directory, chain, segment, None)? {
            return Ok(Some(ChainTotal {
                chain,
                ended: false,
                calls: found.tally.calls,
                charged: found.tally.charged,
            }));
        }
    }
    Ok(None)
}

/// Ends every chain in `directory` that nobody owns and that has no end, and says what each amounts
/// to. A chain that cannot be ended, say because the disk is full, is an error of its own and is
/// tried again next time.
///
/// Several processes may do this at once; each dead chain is returned to one of them. It reads and
/// writes files; call it where blocking is allowed, when the process starts.
///
/// # Errors
/// When the directory cannot be listed.
pub fn recover(directory: &Path) -> Result<Vec<Result<Recovered, AuditError>>, AuditError> {
    // Where there is nothing to sign no key is made.
    if files::list_chains(directory)?.is_empty() {
        remove_stale_locks(directory)?;
        return Ok(Vec::new());
    }
    recover_with(directory, &Arc::new(SigningKey::load_or_create(directory)?))
}

/// The same with this key.
pub(in crate::audit) fn recover_with(
    directory: &Path,
    key: &Arc<SigningKey>,
) -> Result<Vec<Result<Recovered, AuditError>>, AuditError> {
    let chains = files::list_chains(directory)?.into_keys();
    let recovered = chains.filter_map(|chain| recover_chain(directory, chain, key).transpose());
    let recovered = recovered.collect();
    remove_stale_locks(directory)?;
    Ok(recovered)
}

fn recover_chain(
    directory: &Path,
    chain: ChainId,
    key: &Arc<SigningKey>,
) -> Result<Option<Recovered>, AuditError> {
    if newest_segment(directory, chain)?.is_none_or(|newest| newest.ended) {
        return Ok(None);
    }
    let unusable = |source| files::directory_error(directory, source);
    let Some(owned) = ChainLock::try_acquire(directory, chain).map_err(unusable)? else {
        return Ok(None);
    };
    let lock = Arc::new(owned);
    let recovered = match newest_segment(directory, chain)? {
        None => None,
        Some(newest) if newest.ended => None,
        Some(newest) => match load_chain(directory, chain, newest.segment, Some(key))? {
            Some(found) if found.damage.is_none() => {
                let place = SegmentDirectory {
                    path: directory.to_owned(),
                    chain,
                    chain_lock: Arc::clone(&lock),
                };
                Some(close_chain(place, key, found)?)
            }
            Some(found) => return Ok(Some(found.into_damaged(chain))),
            None => None,
        },
    };
    lock.release().map_err(unusable)?;
    Ok(recovered)
}

struct NewestSegment {
    segment: u32,
    ended: bool,
}

/// The last segment of a chain that has a whole line, if any has.
fn newest_segment(directory: &Path, chain: ChainId) -> Result<Option<NewestSegment>, AuditError> {
    let segments = files::chain_segments(directory, chain)?;
    for number in segments.into_iter().rev() {
        let Some(mut segment) = SegmentReader::open_existing(directory, chain, number)? else {
            continue;
        };
        if segment.last_line()?.is_some() {
            return Ok(Some(NewestSegment {
                segment: number,
                ended: LineType::of(segment.line()) == Some(LineType::End),
            }));
        }
    }
    Ok(None)
}

/// The total that stands in the last line of a segment, if that is the end of the chain, signed with
/// `key`: by it, budgets are given back.
fn ended_total(
    directory: &Path,
    chain: ChainId,
    number: u32,
    key: Option<&PublicKey>,
) -> Result<Option<ChainTotal>, AuditError> {
    let Some(mut segment) = SegmentReader::open_existing(directory, chain, number)? else {
        return Ok(None);
    };
    let last = segment.last_line()?;
    let line = segment.line();
    let is_signed = key.is_some_and(|key| key.verify_line(chain, line).is_some());
    if last.is_none() || LineType::of(line) != Some(LineType::End) || !is_signed {
        return Ok(None);
    }
    let total = ChainTotals::from_line(segment.line()).map(|tally| ChainTotal {
        chain,
        ended: true,
        calls: tally.calls,
        charged: tally.charged,
    });
    let offset = last.map_or(0, |last| last.offset);
    total
        .map(Some)
        .ok_or_else(|| segment.line_error(offset, LineFault::NotALine))
}

/// A chain up to the end of one segment.
struct LoadedChain {
    segment: u32,
    length: u64,
    last: ChainPosition,
    tally: ChainTotals,
    /// Lines after the last one that is signed.
    unsigned: u64,
    torn_bytes: u64,
    damage: Option<FaultAt>,
}

impl LoadedChain {
    fn into_damaged(self, chain: ChainId) -> Recovered {
        Recovered {
            chain,
            calls: self.tally.calls,
            interrupted: 0,
            torn_bytes: self.torn_bytes,
            charged: self.tally.charged_with_open(),
            damage: self.damage,
        }
    }
}

/// Reads a segment, which begins with what the chain amounted to; nothing without a whole line. Where
/// there is a `key`, signatures count, too.
fn load_chain(
    directory: &Path,
    chain: ChainId,
    number: u32,
    key: Option<&SigningKey>,
) -> Result<Option<LoadedChain>, AuditError> {
    let Some(mut segment) = SegmentReader::open_existing(directory, chain, number)? else {
        return Ok(None);
    };
    let mut found = LoadedChain {
        segment: number,
        length: 0,
        last: ChainPosition::default(),
        tally: ChainTotals::default(),
        unsigned: 0,
        torn_bytes: 0,
        damage: None,
    };
    let keys: Vec<PublicKey> = key.map(SigningKey::public).into_iter().collect();
    let mut lines = 0;
    loop {
        match segment.read()? {
            ReadStep::Line(_) => {
                lines += 1;
                let line = segment.line();
                let taken = found.apply_line(line, lines == 1);
                let taken = taken.and_then(|sealed| match key {
                    Some(_) => {
                        LineFault::check_signature(line, chain, &sealed, &keys, &mut found.unsigned)
                    }
                    None => Ok(()),
                });
                let fault = taken.err();
                let at = |fault| FaultAt {
                    segment: number,
                    line: lines,
                    seq: unseal(segment.line()).map(|sealed| sealed.position.seq),
                    fault,
                };
                found.damage = found.damage.take().or(fault.map(at));
            }
            ReadStep::Torn { bytes } => found.torn_bytes = bytes,
            ReadStep::End => {}
        }
        if segment.offset() == found.length {
            break;
        }
        found.length = segment.offset();
    }
    Ok((lines > 0).then_some(found))
}

impl LoadedChain {
    /// Takes in a line as far as it can be read, and says what is wrong with it.
    fn apply_line<'l>(&mut self, line: &'l [u8], first: bool) -> Result<SealedLine<'l>, LineFault> {
        let sealed = unseal(line).ok_or(LineFault::NotALine)?;
        let (before, link) = (self.last, sealed.position);
        self.last = link;
        if first {
            self.tally = ChainTotals::from_line(line).ok_or(LineFault::NotALine)?;
        } else {
            let known = self.tally.apply_sealed(line, sealed.body.len());
            known.ok_or(LineFault::NotALine)?;
        }
        if !sealed.is_hash_valid {
            return Err(LineFault::Hash);
        }
        if !first {
            LineFault::check_succession(before, &sealed)?;
        }
        Ok(sealed)
    }
}

/// Records the calls that were open, and ends the chain.
fn close_chain(
    place: SegmentDirectory,
    key: &Arc<SigningKey>,
    found: LoadedChain,
) -> Result<Recovered, AuditError> {
    let chain = place.chain;
    for later in files::chain_segments(&place.path, chain)? {
        // They were about to begin, and have no whole line.
        if later > found.segment {
            files::remove_segment(&place.path, chain, later)?;
        }
    }
    let path = files::segment_path(&place.path, chain, found.segment);
    let cannot = |source| AuditError::File {
        path: path.clone(),
        source,
    };
    let sink = place.resume(found.segment).map_err(cannot)?;
    sink.truncate(found.length).map_err(cannot)?;
    let before = found.tally.calls;
    let mut segment = OpenSegment::new(found.segment, sink, found.length);
    segment.used = true;
    let resumed = ResumedChain {
        segment,
        last: found.last,
        totals: found.tally,
        unsigned: found.unsigned,
    };
    let mut writer = Writer::resume(chain, Box::new(place), Arc::clone(key), resumed);
    writer.end(Opened::into_recovered_record)?;
    let synced = writer.sink().sync();
    synced.map_err(cannot)?;
    let totals = writer.totals();
    Ok(Recovered {
        chain,
        calls: totals.calls,
        interrupted: totals.calls - before,
        torn_bytes: found.torn_bytes,
        charged: totals.charged.clone(),
        damage: None,
    })
}

/// Removes lock files of chains of which there is nothing, or nothing more to come: their process
/// died before the first line or after the last.
fn remove_stale_locks(directory: &Path) -> Result<(), AuditError> {
    let unusable = |source| files::directory_error(directory, source);
    let is_stray = |chain| {
        Ok::<bool, AuditError>(newest_segment(directory, chain)?.is_none_or(|newest| newest.ended))
    };
    for chain in files::locked_chains(directory)? {
        if is_stray(chain)?
            && let Some(owned) = ChainLock::try_acquire(directory, chain).map_err(unusable)?
            && is_stray(chain)?
        {
            owned.release().map_err(unusable)?;
        }
    }
    Ok(())
}
