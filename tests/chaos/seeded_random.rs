//! Chance that can be repeated.

/// A course of chance; equal seeds give equal courses.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A course of its own for somebody else.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// A number from 0 up to, and without, `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// One of `things`.
    pub(crate) fn one_of<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        let end = u64::try_from(things.len()).unwrap();
        &things[usize::try_from(self.below(end)).unwrap()]
    }

    /// SplitMix64 (Steele, Lea and Flood, 2014).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
