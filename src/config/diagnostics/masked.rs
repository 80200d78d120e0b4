//! Values that somebody copied from where secrets are hidden, such as the output of `check`: they are `***`
//! instead of what was meant, and no server or caller could be authenticated with that.

use crate::config::{
    diagnostics::{redact::MASK, report::Diagnostic},
    node::{Node, join_path},
};

/// Keys of which a part may be hidden.
const PARTLY_HIDDEN: [&str; 3] = ["args", "command", "url"];

/// What is before the mask where the rest of a value is shown, such as in `Bearer ***`.
const BEFORE_MASK: [char; 4] = [' ', '=', ':', '/'];

/// Whether `text`, the value at `path`, has a mask in it instead of what it hides.
pub(in crate::config) fn is_masked(text: &str, path: &[String]) -> bool {
    let text = text.trim();
    let is_description = path.iter().any(|key| key == "describe");
    if is_description || !text.contains(MASK) {
        return false;
    }
    let of_server = path.first().is_some_and(|section| section == "servers");
    let key = path.last().map_or("", String::as_str);
    let rest = text.strip_suffix(MASK);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with(BEFORE_MASK))
        || of_server && PARTLY_HIDDEN.contains(&key)
}

/// Says that `node`, the value at `path`, is such a value.
pub(in crate::config) fn masked_error(node: &Node, path: &[String]) -> Diagnostic {
    let path = path
        .iter()
        .fold(String::new(), |path, key| join_path(&path, key));
    Diagnostic::error(format!("`{path}` has `{MASK}` in place of a secret"))
        .at(Some(node.span), "the secret itself was not copied")
        .help("write the secret, or `${VARIABLE}` and set the variable")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_told_from_stars() {
        let check = |path: &str, text: &str, expect: bool| {
            let path: Vec<String> = path.split('.').map(str::to_owned).collect();
            assert_eq!(is_masked(text, &path), expect, "{text}");
        };
        for text in ["***", " *** ", "Bearer ***", "key=***", "https://h/***"] {
            check("servers.a.headers.X", text, true);
            check("agents.a.keys", text, true);
        }
        for text in ["", "**", "****", "*** note ***.", "a***", "/srv/**", "***a"] {
            check("servers.a.env.X", text, false);
        }
        check("servers.a.args", "--db=https://***@h/x", true);
        check("servers.a.url", "https://h/?key=***&a=b", true);
        check("servers.a.tools.describe.x", "see ***", false);
        check("agents.a.args.matches", "^a***", false);
    }
}
