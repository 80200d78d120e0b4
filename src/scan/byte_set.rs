//! Sets of bytes, read from regular expressions.

use regex_syntax::hir::{Class, Hir, HirKind};

/// A set of bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct ByteSet([u64; 4]);

impl ByteSet {
    pub(super) const ALL: Self = Self([u64::MAX; 4]);

    pub(super) fn contains(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] & (1 << (byte & 63)) != 0
    }

    pub(super) fn add(&mut self, byte: u8) {
        self.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }

    pub(super) fn union(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] | other.0[at]))
    }

    pub(super) fn any(&self, test: impl Fn(u8) -> bool) -> bool {
        (0..=u8::MAX).any(|byte| self.contains(byte) && test(byte))
    }

    pub(super) fn of(byte: u8) -> Self {
        let mut set = Self::default();
        set.add(byte);
        set
    }

    /// Adds all that `hir` may match.
    pub(super) fn add_all(&mut self, hir: &Hir) {
        match hir.kind() {
            HirKind::Literal(literal) => {
                for byte in &literal.0 {
                    self.add(*byte);
                }
            }
            HirKind::Class(Class::Bytes(class)) => {
                for range in class.iter() {
                    for byte in range.start()..=range.end() {
                        self.add(byte);
                    }
                }
            }
            HirKind::Class(Class::Unicode(class)) => {
                for range in class.iter() {
                    for c in range.start()..=range.end() {
                        let mut buffer = [0; 4];
                        for byte in c.encode_utf8(&mut buffer).bytes() {
                            self.add(byte);
                        }
                    }
                }
            }
            HirKind::Repetition(repetition) => self.add_all(&repetition.sub),
            HirKind::Capture(capture) => self.add_all(&capture.sub),
            HirKind::Concat(parts) | HirKind::Alternation(parts) => {
                for part in parts {
                    self.add_all(part);
                }
            }
            HirKind::Empty | HirKind::Look(_) => {}
        }
    }
}
