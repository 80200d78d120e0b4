//! Suggestions for names that do not exist.

use std::fmt::Write;

use super::output::escape_terminal;

/// Suggestions made at most.
const SHOWN_MAX: usize = 3;
/// Characters a name must have to be looked for inside of others.
const PART_CHARS_MIN: usize = 3;

/// What `written` most likely means, as an ending of the complaint about it; empty when nothing is
/// near. Each name of `known` may be written in several ways, of which the first is suggested.
pub(super) fn did_you_mean<'k, const N: usize>(
    written: &str,
    known: impl IntoIterator<Item = [&'k str; N]>,
) -> String {
    let mut near: Vec<(usize, &str)> = known
        .into_iter()
        .filter_map(|ways| {
            let distance = ways
                .iter()
                .filter_map(|way| edit_distance(written, way))
                .min()?;
            Some((distance, *ways.first()?))
        })
        .collect();
    near.sort_unstable();
    near.dedup();
    let mut ending = String::new();
    for (index, (_, name)) in near.iter().take(SHOWN_MAX).enumerate() {
        let before = if index == 0 { "; did you mean" } else { " or" };
        write!(ending, "{before} `{}`", escape_terminal(name)).expect("a String takes all");
    }
    if !ending.is_empty() {
        ending.push('?');
    }
    ending
}

/// How far two names are apart; `None` when nobody would take one for the other. A third of the
/// letters may be wrong, in short names one; a part of a name counts as near it. A gateway puts a
/// prefix before names that may not be known here, so the ends of `known` count like the whole.
fn edit_distance(written: &str, known: &str) -> Option<usize> {
    let (written, known) = (written.to_lowercase(), known.to_lowercase());
    let length = written.chars().count();
    let wrong_max = (length / 3).max(1);
    let near = |name: &str| {
        let distance = strsim::damerau_levenshtein(&written, name);
        (distance <= wrong_max).then_some(distance)
    };
    let is_part = || length >= PART_CHARS_MIN && known.contains(&written);
    near(&known)
        .or_else(|| name_suffixes(&known).filter_map(near).min())
        .or_else(|| is_part().then_some(length))
}

/// What is left of `name` behind each of its separators, where it is long enough to be one.
fn name_suffixes(name: &str) -> impl Iterator<Item = &str> {
    name.char_indices()
        .filter(|(_, c)| matches!(c, '_' | '-' | '.' | '/'))
        .map(|(at, _)| &name[at + 1..])
        .filter(|end| end.chars().count() >= PART_CHARS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_come_first() {
        let check = |written: &str, expect: &str| {
            let known = [
                ["mcp_a_read_file", "read_file"],
                ["mcp_a_read_files", "read_files"],
                ["mcp_b_reader", "reader"],
                ["mcp_b_read", "read"],
                ["mcp_c_write", "write"],
            ];
            assert_eq!(did_you_mean(written, known), expect, "{written}");
        };
        check(
            "read_fiel",
            "; did you mean `mcp_a_read_file` or `mcp_a_read_files`?",
        );
        check("mcp_c_wriet", "; did you mean `mcp_c_write`?");
        check(
            "READ",
            "; did you mean `mcp_b_read` or `mcp_a_read_file` or `mcp_a_read_files`?",
        );
        check("teleport", "");
    }

    #[test]
    fn unknown_prefixes_do_not_hide_a_name() {
        let check = |written: &str, expect: &str| {
            let known = [["mcp_a_read_file"], ["mcp_a_list.files"], ["mcp_a_x"]];
            assert_eq!(did_you_mean(written, known), expect, "{written}");
        };
        check("raed_file", "; did you mean `mcp_a_read_file`?");
        check("flies", "; did you mean `mcp_a_list.files`?");
        check("read_file", "; did you mean `mcp_a_read_file`?");
        check("y", "");
    }

    #[test]
    fn suggestions_do_not_steer_a_terminal() {
        let ending = did_you_mean("pngs", [["\u{202e}pngs"]]);
        assert_eq!(ending, r"; did you mean `\u202epngs`?");
    }
}
