//! What a line of the log says.

pub(super) mod line;
pub(super) mod questions;
pub(super) mod refusals;
