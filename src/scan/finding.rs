//! What detectors find, and what is looked for.

use std::ops::Range;

use super::class::{Class, Classes, Countries};

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedClasses {
    pub(super) classes: Classes,
    pub(super) countries: Countries,
}

/// One value of a built-in class.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct FoundValue {
    pub(super) class: Class,
    pub(super) span: Range<usize>,
    /// Whether only the surroundings say what it is: elsewhere it may stand without them.
    pub(super) by_context: bool,
}

impl FoundValue {
    /// A value that says by itself what it is.
    pub(super) fn by_value(class: Class, span: Range<usize>) -> Self {
        Self {
            class,
            span,
            by_context: false,
        }
    }

    /// A value of which only its surroundings say what it is.
    pub(super) fn by_context(class: Class, span: Range<usize>) -> Self {
        Self {
            class,
            span,
            by_context: true,
        }
    }
}
