//! Protocol vocabulary: envelopes with raw params, methods, revisions as data, codes, `_meta`.

pub mod json;
