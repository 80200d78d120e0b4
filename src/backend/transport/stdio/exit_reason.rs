//! What a program said of why it ended, among all that it wrote to stderr.
//!
//! Asked by `child_output`. Package runners, runtimes and interpreters write much after the reason: where their
//! log is, stack traces, their version. Of whom nothing of that kind is known, the last line is taken.

use std::borrow::Cow;

/// What precedes the lines of npm, in each of its versions.
const NPM: [&str; 2] = ["npm error", "npm ERR!"];
/// What lines of npm begin with that say one detail of an error each, before its reason.
const NPM_DETAILS: [&str; 6] = ["code", "command", "dest", "errno", "path", "syscall"];
/// What lines begin with that say nothing of the reason: of npm, Node.js and Rust.
const NOISE_PREFIXES: [&str; 7] = [
    "- ",
    "A complete log of this run",
    "Caused by:",
    "Node.js v",
    "Require stack:",
    "note: run with `RUST_BACKTRACE",
    "npm notice",
];
/// What precedes the exception of a Python program, and the frames it was raised in.
const TRACEBACK: &str = "Traceback (most recent call last):";
/// What precedes what an error of uv came of, in each of its versions.
const CAUSE_PREFIXES: [&str; 2] = ["Caused by: ", "cause: "];
/// The same in its errors about packages, whose lines are broken, and what those begin with.
const UV_BRANCH: &str = "╰─▶ ";
const UV_NO_SOLUTION: &str = "× ";

/// What `lines` say of why their program ended; `None` where they say nothing.
pub fn reason_from_stderr<'l>(lines: &[&'l str]) -> Option<Cow<'l, str>> {
    let is_of_use = |line: &&str| !is_noise(line);
    let says_something = |line: &&str| !line.trim().is_empty();
    let last = lines.iter().rposition(is_of_use);
    let last = last.or_else(|| lines.iter().rposition(says_something))?;
    let headline = if npm_message(lines[last]).is_some() {
        npm_reason_line(&lines[..last]).unwrap_or(last)
    } else {
        python_exception(&lines[..last]).unwrap_or(last)
    };
    let line = lines[headline].trim();
    Some(match uv_cause(&lines[headline..]) {
        Some(cause) => format!("{}: {cause}", line.trim_end_matches(':')).into(),
        None => line.into(),
    })
}

/// Whether a line has nothing but what follows a reason.
fn is_noise(line: &str) -> bool {
    let line = npm_message(line).unwrap_or(line);
    let text = line.trim_start();
    let is_indented = text.len() < line.len() && !text.starts_with(UV_NO_SOLUTION);
    let has_words = text.contains(char::is_alphanumeric);
    is_indented || !has_words || NOISE_PREFIXES.iter().any(|it| text.starts_with(it))
}

/// What npm says in a line of its own.
fn npm_message(line: &str) -> Option<&str> {
    let rest = NPM.iter().find_map(|prefix| line.strip_prefix(prefix))?;
    Some(rest.strip_prefix(' ').unwrap_or(rest))
}

/// The first of the last lines of npm that says more than a detail, before the last of all.
fn npm_reason_line(lines: &[&str]) -> Option<usize> {
    let start = lines.iter().rposition(|line| npm_message(line).is_none());
    let start = start.map_or(0, |before| before + 1);
    let says_more = |line: &&str| {
        let word = npm_message(line).and_then(|said| said.split(' ').next());
        !is_noise(line) && word.is_some_and(|word| !NPM_DETAILS.contains(&word))
    };
    let at = lines[start..].iter().position(says_more)?;
    Some(start + at)
}

/// The exception at the end of the last traceback, where only what it says follows.
fn python_exception(lines: &[&str]) -> Option<usize> {
    let start = lines.iter().rposition(|line| line.contains(TRACEBACK))? + 1;
    let frames = |line: &&str| line.starts_with(char::is_whitespace) || line.is_empty();
    let at = start + lines[start..].iter().position(|line| !frames(line))?;
    lines[at..]
        .iter()
        .all(|line| !line.is_empty())
        .then_some(at)
}

/// What the error in the first of `lines` came of, where uv says so.
fn uv_cause(lines: &[&str]) -> Option<String> {
    let (first, rest) = lines.split_first()?;
    let rest = rest.iter().take_while(|line| line.starts_with(' '));
    let mut rest = rest.map(|line| line.trim());
    if first.trim_start().starts_with(UV_NO_SOLUTION) {
        let broken: Vec<_> = rest.collect();
        let because = broken.join(" ");
        return because.strip_prefix(UV_BRANCH).map(str::to_owned);
    }
    let said = |line: &str| {
        CAUSE_PREFIXES
            .iter()
            .find_map(|it| line.strip_prefix(it).map(str::to_owned))
    };
    let mut last = None;
    for line in rest.by_ref() {
        last = said(line).or(last);
    }
    last
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
    fn npm_says_last_where_its_log_is() {
        check(
            "npm error code E404\n\
             npm error 404 Not Found - GET https://registry.example/@none%2fserver\n\
             npm error 404\n\
             npm error 404  The requested resource '@none/server@*' could not be found or you do not have permission to access it.\n\
             npm error 404\n\
             npm error 404 Note that you can also install from a\n\
             npm error 404 tarball, folder, http url, or git url.\n\
             npm error A complete log of this run can be found in: /home/user/.npm/_logs/2026-11-25T18_14_24_747Z-debug-0.log\n",
            "npm error 404 Not Found - GET https://registry.example/@none%2fserver",
        );
        check(
            "npm warn exec The following package was not found and will be installed: some-server\n\
             npm error code ECONNREFUSED\n\
             npm error syscall connect\n\
             npm error errno ECONNREFUSED\n\
             npm error FetchError: request to http://127.0.0.1:9/some-server failed, reason: connect ECONNREFUSED 127.0.0.1:9\n\
             npm error     at ClientRequest.<anonymous> (/usr/lib/node_modules/npm/node_modules/minipass-fetch/lib/index.js:130:14)\n\
             npm error     at process.processTicksAndRejections (node:internal/process/task_queues:83:21) {\n\
             npm error   code: 'ECONNREFUSED',\n\
             npm error   type: 'system'\n\
             npm error }\n\
             npm error\n\
             npm error If you are behind a proxy, please make sure that the 'proxy' config is set properly.  See: 'npm help config'\n\
             npm error A complete log of this run can be found in: /home/user/.npm/_logs/2026-11-25T18_14_50_289Z-debug-0.log\n",
            "npm error FetchError: request to http://127.0.0.1:9/some-server failed, reason: connect ECONNREFUSED 127.0.0.1:9",
        );
        check(
            "npm ERR! could not determine executable to run\n\
             \n\
             npm ERR! A complete log of this run can be found in:\n\
             npm ERR!     /home/user/.npm/_logs/2026-11-25T18_14_51_504Z-debug-0.log\n",
            "npm ERR! could not determine executable to run",
        );
    }

    #[test]
    fn node_says_its_version_last() {
        check(
            "node:internal/modules/cjs/loader:1210\n  throw err;\n  ^\n\n\
             Error: Cannot find module '/no/such/module'\n\
             Require stack:\n\
             - /srv/server.js\n    \
                 at Module._resolveFilename (node:internal/modules/cjs/loader:1207:15)\n    \
                 at Function.executeUserEntryPoint [as runMain] (node:internal/modules/run_main:164:12) {\n  \
               code: 'MODULE_NOT_FOUND',\n  \
               requireStack: [ '/srv/server.js' ]\n\
             }\n\n\
             Node.js v20.20.2\n",
            "Error: Cannot find module '/no/such/module'",
        );
        check(
            "file:///srv/server.mjs:1\n\
             throw new Error(\"MISSING_KEY environment variable is required\");\n      ^\n\n\
             Error: MISSING_KEY environment variable is required\n    \
                 at file:///srv/server.mjs:1:7\n    \
                 at ModuleJob.run (node:internal/modules/esm/module_job:325:25)\n\n\
             Node.js v20.20.2\n",
            "Error: MISSING_KEY environment variable is required",
        );
    }

    #[test]
    fn uv_says_below_what_an_error_came_of() {
        check(
            "error: No solution found when resolving tool dependencies\n  \
               cause: Because no-such-server was not found in the package registry and you require no-such-server, we can conclude that your requirements are unsatisfiable.\n",
            "error: No solution found when resolving tool dependencies: Because no-such-server was not found in the package registry and you require no-such-server, we can conclude that your requirements are unsatisfiable.",
        );
        check(
            "  × No solution found when resolving tool dependencies:\n  \
               ╰─▶ Because no-such-server was not found in the package registry and you\n      \
                   require no-such-server, we can conclude that your requirements are\n      \
                   unsatisfiable.\n",
            "× No solution found when resolving tool dependencies: Because no-such-server was not found in the package registry and you require no-such-server, we can conclude that your requirements are unsatisfiable.",
        );
        check(
            "error: Failed to fetch: `http://127.0.0.1:9/simple/no-such-server/`\n  \
               Caused by: Request failed after 3 retries\n  \
               Caused by: client error (Connect)\n  \
               Caused by: Connection refused (os error 111)\n",
            "error: Failed to fetch: `http://127.0.0.1:9/simple/no-such-server/`: Connection refused (os error 111)",
        );
    }

    #[test]
    fn python_says_an_exception_last() {
        check(
            "Traceback (most recent call last):\n  \
               File \"/srv/server.py\", line 2, in <module>\n    \
                 {}[\"token\"]\n    \
                 ~~^^^^^^^^^\n\
             KeyError: 'token'\n\n\
             The above exception was the direct cause of the following exception:\n\n\
             Traceback (most recent call last):\n  \
               File \"/srv/server.py\", line 4, in <module>\n    \
                 raise RuntimeError(\"no token in the settings\") from error\n\
             RuntimeError: no token in the settings\n",
            "RuntimeError: no token in the settings",
        );
        check(
            "Traceback (most recent call last):\n  \
               File \"/srv/server.py\", line 5, in <module>\n    \
                 Settings()\n\
             pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings\n\
             api_key\n  \
               Field required [type=missing, input_value={}, input_type=dict]\n    \
                 For further information visit https://errors.pydantic.dev/2.11/v/missing\n",
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings",
        );
        check(
            "/usr/bin/python3: No module named no_such_server\n",
            "/usr/bin/python3: No module named no_such_server",
        );
    }

    #[test]
    fn others_say_the_reason_last() {
        check(
            "an error at first\nMISSING_KEY is not set\n\n",
            "MISSING_KEY is not set",
        );
        check("  all of it\n  is indented\n", "is indented");
        check("", "");
        check(" \n", "");
        let logged = "Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'a'\n\nno licence\n";
        check(logged, "no licence");
    }
}
