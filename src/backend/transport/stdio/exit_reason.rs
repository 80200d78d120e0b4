//! Why a program ended: the last lines that it wrote to stderr.

/// Lines of a reason.
const LINES_MAX: usize = 5;

/// Words of lines by which programs, runtimes and package runners report an error, in small letters.
const ERROR_WORDS: &[&str] = &[
    "caused by",
    "err!",
    "error",
    "exception",
    "fatal",
    "panic:",
    "panicked at",
];
/// Words by which people write of one, where no line has those above.
const PROBLEM_WORDS: &[&str] = &[
    "already in use",
    "cannot",
    "can't",
    "could not",
    "couldn't",
    "denied",
    "eacces",
    "eaddrinuse",
    "econnrefused",
    "enoent",
    "enotfound",
    "expired",
    "failed",
    "failure",
    "forbidden",
    "invalid",
    "missing",
    "must ",
    "no module named",
    "no such ",
    "not defined",
    "not found",
    "not installed",
    "not permitted",
    "not recognized",
    "not set",
    "not supported",
    "out of memory",
    "please ",
    "refused",
    "required",
    "requires",
    "segmentation fault",
    "timed out",
    "unable to",
    "unauthorized",
    "unexpected",
    "unknown",
    "unsupported",
    "usage:",
];
/// Words of lines after which programs go on.
const WARNING_WORDS: &[&str] = &["deprecat", "warn"];

/// What a program's last `lines` say of its end, on one line: from those that name an error, if there are
/// such, else the last; `None` if there are none with words.
pub(crate) fn reason_from_stderr(lines: &[&str]) -> Option<String> {
    let lines = lines_with_words(lines);
    let from = start_of_error(&lines).unwrap_or_else(|| lines.len().saturating_sub(LINES_MAX));
    to_reason(&lines[from..])
}

/// The same from lines that name an error alone.
pub(super) fn error_from_stderr(lines: &[&str]) -> Option<String> {
    let lines = lines_with_words(lines);
    to_reason(&lines[start_of_error(&lines)?..])
}

fn lines_with_words<'l>(lines: &[&'l str]) -> Vec<&'l str> {
    let says_something = |line: &&str| line.contains(char::is_alphanumeric) && !is_frame(line);
    let lines = lines.iter().copied().filter(says_something);
    lines.map(str::trim).collect()
}

fn to_reason(lines: &[&str]) -> Option<String> {
    let lines = &lines[..lines.len().min(LINES_MAX)];
    (!lines.is_empty()).then(|| lines.join(" | "))
}

/// Where the last of `lines` begin that name an error.
fn start_of_error(lines: &[&str]) -> Option<usize> {
    let reported = start_of_last(lines, |line| has_word(line, ERROR_WORDS));
    let is_problem = |line: &str| has_word(line, PROBLEM_WORDS) && !has_word(line, WARNING_WORDS);
    reported.or_else(|| start_of_last(lines, is_problem))
}

/// Where those `lines` begin that are the last which are `wanted`, one after the other.
fn start_of_last(lines: &[&str], wanted: impl Fn(&str) -> bool) -> Option<usize> {
    let last = lines.iter().rposition(|line| wanted(line))?;
    let before = lines[..last].iter().rposition(|line| !wanted(line));
    Some(before.map_or(0, |before| before + 1))
}

fn has_word(line: &str, words: &[&str]) -> bool {
    let line = line.to_lowercase();
    words.iter().any(|word| line.contains(word))
}

/// Whether a line is one of a stack trace of Node.js or Python.
fn is_frame(line: &str) -> bool {
    line.contains("    at ") || line.starts_with("  File \"") || line.starts_with("    ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(wrote: &str, expect: &str) {
        let lines: Vec<_> = wrote.lines().collect();
        assert_eq!(
            reason_from_stderr(&lines).as_deref().unwrap_or_default(),
            expect
        );
    }

    #[test]
    fn a_reason_is_what_came_last() {
        check("MISSING_KEY is not set\n\n", "MISSING_KEY is not set");
        check("1\n2\n3\n4\n\n5\n6\n", "2 | 3 | 4 | 5 | 6");
        check("  all of it\n  is indented\n", "all of it | is indented");
        check(
            "connecting\nfatal: no route\nbye\n",
            "fatal: no route | bye",
        );
        check("", "");
        check(" \n }\n", "");
    }

    /// What people write of what is missing or wrong counts where nothing says "error".
    #[test]
    fn a_reason_begins_where_something_is_missing() {
        let lines = [
            "API key missing",
            "Missing required environment variable: GITHUB_TOKEN",
            "The GITHUB_TOKEN environment variable must be set",
            "Please set GITHUB_TOKEN",
            "ENOENT: mkdir '/srv/data'",
            "sh: 1: no-such-program: not found",
            "cat: /srv/a: No such file or directory",
            "/usr/bin/python3: No module named server",
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.",
            "listen tcp :3000: bind: address already in use",
            "flag provided but not defined: -x",
            "Usage: server-files DIRECTORY",
            "panic: no config",
        ];
        for line in lines {
            let expect = format!("{line} | bye");
            check(&format!("starting up\nlistening\n{line}\nbye\n"), &expect);
        }
        check(
            "Error: no key\nPlease read the manual\n",
            "Error: no key | Please read the manual",
        );
        check(
            "API key missing\n(node:1) DeprecationWarning: deprecated. Please use another\n",
            "API key missing | (node:1) DeprecationWarning: deprecated. Please use another",
        );
        check(
            "one\n(node:1) UnhandledPromiseRejectionWarning: Error: no key\n",
            "(node:1) UnhandledPromiseRejectionWarning: Error: no key",
        );
    }

    /// What package runners and runtimes write after the reason does not hide it.
    #[test]
    fn frames_of_a_stack_are_left_out() {
        check(
            "node:internal/modules/cjs/loader:1210\n  throw err;\n  ^\n\n\
             Error: Cannot find module '/no/such/module'\n\
             Require stack:\n\
             - /srv/server.js\n    \
                 at Module._resolveFilename (node:internal/modules/cjs/loader:1207:15)\n    \
                 at Function.executeUserEntryPoint [as runMain] (node:internal/modules/run_main:164:12)\n\n\
             Node.js v20.20.2\n",
            "Error: Cannot find module '/no/such/module' | Require stack: | - /srv/server.js | \
             Node.js v20.20.2",
        );
        check(
            "Traceback (most recent call last):\n  \
               File \"/srv/server.py\", line 4, in <module>\n    \
                 raise RuntimeError(\"no token in the settings\")\n\
             RuntimeError: no token in the settings\n",
            "RuntimeError: no token in the settings",
        );
        check(
            "npm error code E404\n\
             npm error 404 Not Found - GET http://127.0.0.1:9/no-such-server\n\
             npm error 404\n\
             npm error 404  The requested resource 'no-such-server@*' could not be found\n\
             npm error 404 Note that you can also install from a\n\
             npm error 404 tarball, folder, http url, or git folder.\n\
             npm error A complete log of this run can be found in: /tmp/debug.log\n",
            "npm error code E404 | npm error 404 Not Found - GET http://127.0.0.1:9/no-such-server | \
             npm error 404 | npm error 404  The requested resource 'no-such-server@*' could not be found | \
             npm error 404 Note that you can also install from a",
        );
        check(
            "starting\npydantic_core.ValidationError: 1 validation error for Settings\napi_key\n  \
               Field required\n",
            "pydantic_core.ValidationError: 1 validation error for Settings | api_key | Field required",
        );
        check(
            "error: Failed to fetch: `http://127.0.0.1:9/simple/no-such-server/`\n  \
               Caused by: Request failed after 3 retries\n  \
               Caused by: Connection refused (os error 111)\n",
            "error: Failed to fetch: `http://127.0.0.1:9/simple/no-such-server/` | \
             Caused by: Request failed after 3 retries | Caused by: Connection refused (os error 111)",
        );
    }
}
