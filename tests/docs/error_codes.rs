//! `reference/errors.md`: refusals, failures of servers, and codes of JSON-RPC.

use std::fmt::Write as _;

use tollbridge::{governance::REFUSALS, mcp::error};

use crate::markdown::wrap;

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
    for (reason, meaning) in error::reason::ALL {
        let code = reason.to_ascii_uppercase();
        out.push_str(&wrap(&format!("- `{code}`: "), meaning, 2));
    }
    out.push_str("\n## JSON-RPC codes\n\n");
    for (code, meaning) in error::CODES {
        out.push_str(&wrap(&format!("- `{code}`: "), meaning, 2));
    }
    out
}
