//! Suggestions: what an operator most likely meant.

/// The one of `known` that `written` is most likely a slip of the pen for.
pub(in crate::config) fn closest<'k>(
    written: &str,
    known: impl IntoIterator<Item = &'k str>,
) -> Option<&'k str> {
    let plain = |text: &str| {
        text.chars()
            .filter(|c| c.is_alphanumeric())
            .flat_map(char::to_lowercase)
            .collect::<String>()
    };
    let written = plain(written);
    // A third of the letters may be wrong; in short words one.
    let distance_max = (written.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| {
            (
                strsim::damerau_levenshtein(&written, &plain(candidate)),
                candidate,
            )
        })
        .filter(|(distance, _)| *distance <= distance_max)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `` `a`, `b` and `c` ``
pub(in crate::config) fn list_and<T: AsRef<str>>(names: &[T]) -> String {
    let quoted: Vec<String> = names
        .iter()
        .map(|name| format!("`{}`", name.as_ref()))
        .collect();
    join_words(&quoted, "and")
}

/// `a, b and c`, with `word` before the last.
pub(in crate::config) fn join_words(names: &[String], word: &str) -> String {
    match names {
        [] => "none".to_owned(),
        [only] => only.clone(),
        [most @ .., last] => format!("{} {word} {last}", most.join(", ")),
    }
}

/// How `words`, of which the first is a program, are written as the command of a server.
pub(in crate::config) fn command_suggestion(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    match words.as_slice() {
        [] => "use command = \"...\"".to_owned(),
        [program] => format!("use command = {program}"),
        [program, args @ ..] => {
            format!("use command = {program} and args = [{}]", args.join(", "))
        }
    }
}
