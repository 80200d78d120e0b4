//! Why a program ended: the last lines that it wrote to stderr.

/// Lines of a reason.
const LINES_MAX: usize = 5;

/// The last `lines` that have words and are no frames of a stack, on one line; `None` if there are none.
pub(crate) fn reason_from_stderr(lines: &[&str]) -> Option<String> {
    let says_something = |line: &&&str| line.contains(char::is_alphanumeric) && !is_frame(line);
    let last = lines.iter().rev().filter(says_something).take(LINES_MAX);
    let mut last: Vec<_> = last.map(|line| line.trim()).collect();
    last.reverse();
    (!last.is_empty()).then(|| last.join(" | "))
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
            "throw err; | Error: Cannot find module '/no/such/module' | Require stack: | \
             - /srv/server.js | Node.js v20.20.2",
        );
        check(
            "Traceback (most recent call last):\n  \
               File \"/srv/server.py\", line 4, in <module>\n    \
                 raise RuntimeError(\"no token in the settings\")\n\
             RuntimeError: no token in the settings\n",
            "Traceback (most recent call last): | RuntimeError: no token in the settings",
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
