//! What is wrong with the arguments of a call, in the words that the model reads.

use std::fmt::Display;

/// A wrong argument: where, what, and what to send instead.
#[derive(Debug, thiserror::Error)]
#[error("{argument}: {problem}. {remedy}.")]
pub(super) struct InputError {
    /// The name of the argument, or `arguments` for their combination.
    argument: String,
    problem: String,
    remedy: &'static str,
}

impl InputError {
    /// `problem` and `remedy` come without a full stop.
    pub(super) fn new(argument: &str, problem: impl Display, remedy: &'static str) -> Self {
        Self {
            argument: argument.to_owned(),
            problem: problem.to_string(),
            remedy,
        }
    }
}
