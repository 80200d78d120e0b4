//! What a line of the log says.

pub(super) mod changed_values;
pub(super) mod line_writer;
pub(super) mod question_record;
pub(super) mod record_line;
pub(super) mod refusal_summary;
