//! Why a program ended: the last lines that it wrote to stderr.

/// Lines of a reason.
const LINES_MAX: usize = 5;

/// What a program's last `lines` say of its end, on one line: from those that name an error, if there are
/// such, else the last; `None` if there are none with words.
pub(crate) fn reason_from_stderr(lines: &[&str]) -> Option<String> {
    let says_something = |line: &&str| line.contains(char::is_alphanumeric) && !is_frame(line);
    let lines = lines.iter().copied().filter(says_something).map(str::trim);
    let lines: Vec<_> = lines.collect();
    let from = match lines.iter().rposition(|line| names_error(line)) {
        Some(last) => {
            let before = lines[..last].iter().rposition(|line| !names_error(line));
            before.map_or(0, |before| before + 1)
        }
        None => lines.len().saturating_sub(LINES_MAX),
    };
    let reason: Vec<_> = lines[from..].iter().copied().take(LINES_MAX).collect();
    (!reason.is_empty()).then(|| reason.join(" | "))
}

/// Whether a line is how programs, runtimes and package runners report what went wrong.
fn names_error(line: &str) -> bool {
    let line = line.to_lowercase();
    let words = ["caused by", "error", "exception", "fatal", "panicked at"];
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
