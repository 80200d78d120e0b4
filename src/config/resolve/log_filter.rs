//! What may be written as the level of the log: in a file, on the command line, in the environment.

use crate::config::diagnostics::suggest;

/// The levels that there are.
const LEVELS: [&str; 6] = ["debug", "error", "info", "off", "trace", "warn"];
/// What to write instead of something else.
pub(in crate::config) const LOG_FILTER_HELP: &str =
    "levels are error, warn, info, debug and trace; a filter looks like `info,tollbridge=debug`";

/// A text is no filter of log lines; whoever wrote it mends it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a log level or filter{}; {LOG_FILTER_HELP}", suggestion_text(*suggestion))]
pub struct InvalidLogFilter {
    /// The level that was most likely meant.
    pub(in crate::config) suggestion: Option<&'static str>,
}

fn suggestion_text(close: Option<&str>) -> String {
    close.map_or_else(String::new, |close| format!(" (did you mean `{close}`?)"))
}

/// Checks what is to filter the log. The library takes any word for the name of a module: alone,
/// it is a mistyped level, and so is one with nothing behind its `=`.
///
/// # Errors
/// When `text` is no level and no filter.
pub(crate) fn check_log_filter(text: &str) -> Result<(), InvalidLogFilter> {
    let level = text.trim().to_lowercase();
    if LEVELS.contains(&level.as_str()) {
        return Ok(());
    }
    let is_word = level.chars().all(char::is_alphanumeric);
    let is_cut_off = level.split(',').any(|part| part.trim_end().ends_with('='));
    let is_read = tracing_subscriber::EnvFilter::try_new(text).is_ok();
    if is_read && !is_word && !is_cut_off {
        return Ok(());
    }
    let close = suggest::closest(&level, LEVELS);
    Err(InvalidLogFilter { suggestion: close })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_alone_are_levels() {
        let check = |text: &str, is_filter: bool| {
            assert_eq!(check_log_filter(text).is_ok(), is_filter, "{text:?}");
        };
        for text in [
            "info",
            " WARN ",
            "off",
            "tollbridge=debug",
            "info,hyper=off",
        ] {
            check(text, true);
        }
        for text in ["", "loud", "3", "banana=", "info,banana= ", "loud=very"] {
            check(text, false);
        }
        let slip = check_log_filter("inof").unwrap_err().to_string();
        let start = "not a log level or filter (did you mean `info`?); levels are";
        assert!(slip.starts_with(start), "{slip}");
    }
}
