//! How tokens with a prefix and words of vendors begin: a word that begins like none of them costs one look into
//! a small table, whatever the number of rows.

use std::{cmp::Reverse, fmt::Debug, sync::Arc};

use super::RowId;

/// Longest word that is told apart from longer ones.
const WORD_BYTES_MAX: usize = 254;
/// Bits of a character that an index keeps: those that tell letters apart, whatever their case.
const CHARACTER_BITS: u32 = 5;
/// Indices of three characters.
const INDICES: usize = 1 << (3 * CHARACTER_BITS);

/// All starts of words that are worth a look.
#[derive(Debug)]
pub(super) struct TokenStarts {
    /// How long a word is at least that begins with one, by its first three characters.
    word_len_min: Box<[u8; INDICES]>,
    /// Which of the groups has those with the same characters.
    group_index: Box<[u16; INDICES]>,
    /// Starts with the same first three characters: that of JWTs, then the longest first; none in the
    /// first group.
    groups: Vec<Vec<KnownStart>>,
}

/// The start of a word that is worth a look.
#[derive(Clone, Debug)]
pub(in crate::scan) struct KnownStart {
    pub(in crate::scan) text: Vec<u8>,
    pub(in crate::scan) kind: StartKind,
}

/// What begins with a [`KnownStart`].
#[derive(Clone, Debug)]
pub(in crate::scan) enum StartKind {
    /// A JWT, which has no row, since its parts are decoded.
    Jwt,
    /// A token of this row, with its prefix as it is written.
    Token(RowId),
    /// The name of a vendor, whatever its case, which these rows need nearby.
    Vendor(Arc<[RowId]>),
}

impl TokenStarts {
    pub(super) fn new() -> Self {
        Self {
            word_len_min: filled_index(u8::MAX),
            group_index: filled_index(0),
            groups: vec![Vec::new()],
        }
    }

    /// Words of `length` and more characters that begin with `start` are worth a look.
    pub(super) fn add(&mut self, start: &KnownStart, length: usize) {
        let length = u8::try_from(length.min(WORD_BYTES_MAX)).unwrap_or(u8::MAX);
        // After two characters anything may follow.
        let third = start.text.get(2).map_or(0..=u8::MAX >> 3, |c| *c..=*c);
        for third in third {
            let index = prefix_index(&[start.text[0], start.text[1], third]);
            self.word_len_min[index] = length.min(self.word_len_min[index]);
            let group = &mut self.group_index[index];
            if *group == 0 {
                *group = u16::try_from(self.groups.len()).expect("fewer than indices");
                self.groups.push(Vec::new());
            }
            let group = &mut self.groups[usize::from(*group)];
            group.push(start.clone());
            let is_jwt = |start: &KnownStart| matches!(start.kind, StartKind::Jwt);
            group.sort_by_key(|start| (!is_jwt(start), Reverse(start.text.len())));
        }
    }

    /// Whether `rest`, which begins with a word of `length` characters, begins with a start.
    #[inline]
    pub(super) fn may_start(&self, rest: &[u8], length: usize) -> bool {
        length >= usize::from(self.word_len_min[prefix_index(rest)]) && self.matches(rest)
    }

    #[inline(never)]
    fn matches(&self, rest: &[u8]) -> bool {
        self.matching(rest).next().is_some()
    }

    /// The starts that `rest` begins with, in their order.
    pub(super) fn matching<'a>(
        &'a self,
        rest: &'a [u8],
    ) -> impl Iterator<Item = &'a KnownStart> + 'a {
        let group = &self.groups[usize::from(self.group_index[prefix_index(rest)])];
        group.iter().filter(|start| start.matches(rest))
    }
}

impl KnownStart {
    fn matches(&self, rest: &[u8]) -> bool {
        let any_case = matches!(self.kind, StartKind::Vendor(_));
        let is_same =
            |(own, byte): (&u8, &u8)| own == byte || any_case && *own == byte.to_ascii_lowercase();
        // From the end, since the first characters are the same in all of a group.
        rest.get(..self.text.len())
            .is_some_and(|rest| self.text.iter().zip(rest).rev().all(is_same))
    }
}

/// A table with `value` at each index.
#[expect(
    clippy::unnecessary_box_returns,
    reason = "the stack is no place for so many"
)]
fn filled_index<T: Clone + Debug>(value: T) -> Box<[T; INDICES]> {
    let table = vec![value; INDICES].into_boxed_slice();
    table.try_into().expect("one value an index")
}

/// The index of the first three characters of `rest`.
fn prefix_index(rest: &[u8]) -> usize {
    let [a, b, c] = rest.first_chunk().copied().unwrap_or_else(|| {
        let mut padded = [0; 3];
        padded[..rest.len()].copy_from_slice(rest);
        padded
    });
    let bits = |byte: u8| usize::from(byte) & ((1 << CHARACTER_BITS) - 1);
    bits(a) << (2 * CHARACTER_BITS) | bits(b) << CHARACTER_BITS | bits(c)
}
