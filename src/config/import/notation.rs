//! How other programs write variables: what theirs expands is rewritten as `${X}`, what it does not is
//! found.
//!
//! `variables` expands `${X}` and the forms of editors later, for all documents alike.

use super::formats::Notation;

/// A text whose variables are written as ours.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct RewrittenText {
    pub(super) text: String,
    /// A form in it that looks like a variable, and that the program does not expand; never its name,
    /// which may be part of a password.
    pub(super) literal: Option<&'static str>,
}

/// Rewrites `text` of a program that expands `notations`.
pub(super) fn rewrite(text: &str, notations: &[Notation]) -> RewrittenText {
    let mut result = RewrittenText::default();
    let mut rest = text;
    while let Some(at) = rest.find(['$', '{', '%']) {
        result.text.push_str(&rest[..at]);
        let is_start = result
            .text
            .chars()
            .next_back()
            .is_none_or(|c| !c.is_alphanumeric() && c != '$');
        rest = &rest[at..];
        let form = read_form(rest, notations, is_start);
        if let Some(form) = form.literal {
            result.literal.get_or_insert(form);
        }
        match form.variable {
            Some(name) => result.text.extend(["${", name, "}"]),
            None => result.text.push_str(&rest[..form.length]),
        }
        rest = &rest[form.length..];
    }
    result.text.push_str(rest);
    result
}

/// What stands at the start of a text.
struct ReadForm<'t> {
    length: usize,
    variable: Option<&'t str>,
    literal: Option<&'static str>,
}

/// Reads the form that `text` begins with: `is_start` says whether a word may begin here.
fn read_form<'t>(text: &'t str, notations: &[Notation], is_start: bool) -> ReadForm<'t> {
    let has = |notation| notations.contains(&notation);
    let variable = |length, name| ReadForm {
        length,
        variable: Some(name),
        literal: None,
    };
    let literal = |length, form| ReadForm {
        length,
        variable: None,
        literal: Some(form),
    };
    if let Some((inner, length)) = between(text, "${{", "}}") {
        let name = inner.trim();
        let name = name.strip_prefix("secrets.").unwrap_or(name);
        return match leading_name(name) {
            Some(all) if all == name && has(Notation::Secrets) => variable(length, name),
            _ => literal(length, "${{ ... }}"),
        };
    }
    if let Some((_, length)) = between(text, "${", "}") {
        return plain(length);
    }
    if let Some(name) = text.strip_prefix("$env:").and_then(leading_name) {
        let length = "$env:".len() + name.len();
        return if has(Notation::DollarEnv) {
            variable(length, name)
        } else {
            plain(length)
        };
    }
    if text.starts_with("$(") && is_start {
        return literal(2, "$(...)");
    }
    if let Some(name) = text.strip_prefix('$').and_then(leading_name) {
        let length = 1 + name.len();
        return if has(Notation::Dollar) {
            variable(length, name)
        } else if is_start && is_env_name(name) {
            literal(length, "$VARIABLE")
        } else {
            plain(length)
        };
    }
    read_braced_form(text, notations)
}

/// The forms that begin with a brace or `%`.
fn read_braced_form<'t>(text: &'t str, notations: &[Notation]) -> ReadForm<'t> {
    let literal = |length, form| ReadForm {
        length,
        variable: None,
        literal: Some(form),
    };
    if let Some((name, length)) = between(text, "{env:", "}") {
        return if notations.contains(&Notation::BracedEnv) {
            ReadForm {
                length,
                variable: Some(name),
                literal: None,
            }
        } else {
            literal(length, "{env:VARIABLE}")
        };
    }
    if let Some((_, length)) = between(text, "{file:", "}") {
        return literal(length, "{file:...}");
    }
    for (open, close, form) in [("{{", "}}", "{{...}}"), ("%", "%", "%VARIABLE%")] {
        if let Some((name, length)) = between(text, open, close)
            && leading_name(name) == Some(name)
            && (open != "%" || is_env_name(name))
        {
            return literal(length, form);
        }
    }
    plain(1)
}

fn plain<'t>(length: usize) -> ReadForm<'t> {
    ReadForm {
        length,
        variable: None,
        literal: None,
    }
}

/// What stands between `open`, with which `text` begins, and `close`; and the length of all of it.
fn between<'t>(text: &'t str, open: &str, close: &str) -> Option<(&'t str, usize)> {
    let inner = text.strip_prefix(open)?;
    let end = inner.find(close)?;
    Some((&inner[..end], open.len() + end + close.len()))
}

/// The name of a variable with which `text` begins.
fn leading_name(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let name = &text[..end.unwrap_or(text.len())];
    (!name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit())).then_some(name)
}

/// Whether `name` is most likely one of a variable of the environment.
fn is_env_name(name: &str) -> bool {
    let is_upper = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    name.len() > 1 && name.chars().all(is_upper)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_other_programs() {
        use Notation::{BracedEnv, Dollar, DollarEnv, Secrets};
        let check = |text: &str, notations: &[Notation], expect: &str, literal| {
            let expect = RewrittenText {
                text: expect.to_owned(),
                literal,
            };
            assert_eq!(rewrite(text, notations), expect, "{text}");
        };
        check("Bearer $TOKEN!", &[Dollar], "Bearer ${TOKEN}!", None);
        check("$a/$B_1", &[Dollar], "${a}/${B_1}", None);
        check("${A:-$B}", &[Dollar], "${A:-$B}", None);
        check("Bearer $TOKEN", &[], "Bearer $TOKEN", Some("$VARIABLE"));
        for plain in ["pa$$word", "x$ABC", "$1", "a$", "100%", "{}", "{\"a\": 1}"] {
            check(plain, &[], plain, None);
        }
        check("{env:HOME}/a", &[BracedEnv], "${HOME}/a", None);
        check("{env:HOME}", &[], "{env:HOME}", Some("{env:VARIABLE}"));
        check("{file:~/k}", &[BracedEnv], "{file:~/k}", Some("{file:...}"));
        check("$env:KEY", &[DollarEnv], "${KEY}", None);
        check("a ${{ secrets.DOCS }}", &[Secrets], "a ${DOCS}", None);
        check(
            "${{ inputs.a.b }}",
            &[Secrets],
            "${{ inputs.a.b }}",
            Some("${{ ... }}"),
        );
        check("$(gh token)", &[Dollar], "$(gh token)", Some("$(...)"));
        check(
            "{{LIBRECHAT_USER_ID}}",
            &[],
            "{{LIBRECHAT_USER_ID}}",
            Some("{{...}}"),
        );
        check("{{.Names}}", &[], "{{.Names}}", None);
        check("%MY_TOKEN%", &[], "%MY_TOKEN%", Some("%VARIABLE%"));
    }
}
