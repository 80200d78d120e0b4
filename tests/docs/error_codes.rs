//! `reference/errors.md`: refusals, failures of servers, and codes of JSON-RPC.

use std::{fmt::Write as _, path::Path};

use tollbridge::{
    governance::REFUSALS,
    mcp::error::{self, FailureReason},
};

use crate::markdown::{read, wrap};

pub(crate) fn page() -> String {
    let mut out = "## Refusals\n\n".to_owned();
    for row in REFUSALS {
        let mut codes = row.code.to_string();
        if row.portable != row.code {
            write!(codes, ", portable {}", row.portable).expect("a String takes all");
        }
        let mut text = format!("\"{}\". {}", row.message, row.meaning);
        if let Some(rule) = row.rule {
            write!(text, " Rule kind: `{}`.", rule.as_str()).expect("a String takes all");
        }
        out.push_str(&wrap(&format!("- `{}` ({codes}): ", row.name), &text, 2));
    }
    out.push_str("\n## Failures\n\n");
    for reason in FailureReason::ALL {
        out.push_str(&wrap(
            &format!("- `{}`: ", reason.code()),
            reason.meaning(),
            2,
        ));
    }
    out.push_str("\n## JSON-RPC codes\n\n");
    for (code, meaning) in error::CODES {
        out.push_str(&wrap(&format!("- `{code}`: "), meaning, 2));
    }
    out
}

/// Each constant is in its table.
#[test]
fn the_tables_have_every_code() {
    let check = |file: &str, declared: &str, expect: usize| {
        let code = read(Path::new(file));
        let lines = code
            .lines()
            .filter(|line| line.trim_start().starts_with("pub"));
        let lines = lines.chain(code.lines().filter(|line| line.starts_with("const")));
        let found = lines.filter(|line| line.contains(declared)).count();
        assert_eq!(found, expect, "{declared} in {file}");
    };
    let code = read(Path::new("src/mcp/error.rs"));
    let arms = code
        .lines()
        .filter(|line| line.starts_with("            Self::") && line.contains("=>"));
    assert_eq!(
        arms.count(),
        3 * FailureReason::ALL.len(),
        "code, text and meaning"
    );
    check("src/mcp/error.rs", ": i64 = ", error::CODES.len());
    let rows = ": RefusalDetails = RefusalDetails {";
    check("src/governance/refusal.rs", rows, REFUSALS.len());
}
