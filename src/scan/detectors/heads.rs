//! Which words are worth a closer look: one that begins like no prefix and no vendor costs three looks
//! into tables, whatever the number of rows.

/// Longest word that is told apart from longer ones.
const WORD_BYTES_MAX: usize = 254;
/// Starts that are told apart.
const STARTS: usize = 1 << 16;

/// How long a word is at least that begins a prefix or a vendor's name, by its start.
#[derive(Debug)]
pub(super) struct Heads {
    /// By the first two characters, of what has no more in common.
    pairs: Box<[u8]>,
    /// By a hash of the first three, of what has three.
    threes: Box<[u8]>,
    /// By a hash of the first four, whatever their case.
    fours: Box<[u8]>,
}

impl Heads {
    pub(super) fn new() -> Self {
        let none = || vec![u8::MAX; STARTS].into_boxed_slice();
        Self {
            pairs: none(),
            threes: none(),
            fours: none(),
        }
    }

    /// Words of `length` and more characters that begin with `start` are worth a look.
    pub(super) fn add(&mut self, start: &[u8], length: usize) {
        let length = u8::try_from(length.min(WORD_BYTES_MAX)).unwrap_or(u8::MAX);
        let lower = |slot: &mut u8| *slot = length.min(*slot);
        match *start {
            [a, b] => lower(&mut self.pairs[usize::from(pair(a, b))]),
            [a, b, c] => lower(&mut self.threes[usize::from(three([a, b, c]))]),
            [a, b, c, d, ..] => lower(&mut self.fours[usize::from(four([a, b, c, d]))]),
            [] | [_] => {}
        }
    }

    /// Whether a word of `length` characters at the start of `rest` is worth a look.
    #[inline]
    pub(super) fn may_begin(&self, rest: &[u8], length: usize) -> bool {
        let start = rest.first_chunk().copied().unwrap_or_else(|| {
            let mut padded = [0; 4];
            padded[..rest.len()].copy_from_slice(rest);
            padded
        });
        let [a, b, c, _] = start;
        let least = self.fours[usize::from(four(start))]
            .min(self.threes[usize::from(three([a, b, c]))])
            .min(self.pairs[usize::from(pair(a, b))]);
        length >= usize::from(least)
    }
}

fn pair(a: u8, b: u8) -> u16 {
    u16::from_le_bytes([a, b])
}

fn three([a, b, c]: [u8; 3]) -> u16 {
    hash(u32::from_le_bytes([a, b, c, 0]))
}

/// Of four characters, whatever the case of letters.
fn four(start: [u8; 4]) -> u16 {
    const LOWER: u32 = 0x2020_2020;
    hash(u32::from_le_bytes(start) | LOWER)
}

fn hash(start: u32) -> u16 {
    let [.., high, highest] = start.wrapping_mul(0x9E37_79B1).to_le_bytes();
    u16::from_le_bytes([high, highest])
}
