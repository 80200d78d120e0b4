//! Records for other programs: JSON Lines and CSV.

use std::{collections::HashMap, io::Write};

use serde_json::value::RawValue;

use crate::{
    audit::{AuditError, FoundRecord},
    escape::escape_controls,
};

/// Form of an export.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExportFormat {
    /// RFC 4180, with a header line. A text that a spreadsheet would take for a formula has a `'`
    /// before it, and what would steer a terminal is escaped as in JSON.
    Csv,
    /// The lines of the log as they are, so that their hashes can still be checked.
    JsonLines,
}

/// Writes what a query finds, and says how many records that were.
///
/// # Errors
/// The first error of the query, or when `to` takes no more.
pub fn export(
    records: impl Iterator<Item = Result<FoundRecord, AuditError>>,
    format: ExportFormat,
    to: &mut impl Write,
) -> Result<u64, AuditError> {
    let cannot = |source| AuditError::Export { source };
    let mut count = 0;
    if format == ExportFormat::Csv {
        write!(to, "{}\r\n", COLUMNS.join(",")).map_err(cannot)?;
    }
    for found in records {
        let found = found?;
        let written = match format {
            ExportFormat::Csv => write_row(&found, to),
            ExportFormat::JsonLines => to
                .write_all(&found.entry.line)
                .and_then(|()| to.write_all(b"\n")),
        };
        written.map_err(cannot)?;
        count += 1;
    }
    to.flush().map_err(cannot)?;
    Ok(count)
}

/// Members of a record, with where it stands.
const COLUMNS: [&str; 33] = [
    "chain",
    "id",
    "ts",
    "agent_id",
    "agent_name",
    "team",
    "workspace",
    "view",
    "subject",
    "act",
    "client",
    "session_id",
    "client_revision",
    "server",
    "server_id",
    "server_revision",
    "method",
    "tool",
    "exposed",
    "arguments_digest",
    "arguments",
    "result",
    "decision",
    "code",
    "rule",
    "price_micros",
    "accounts",
    "execution_time_ms",
    "bytes_in",
    "bytes_out",
    "trace_id",
    "parent_id",
    "position",
];

fn write_row(found: &FoundRecord, to: &mut impl Write) -> std::io::Result<()> {
    let position = found.entry.position;
    let line: HashMap<&str, &RawValue> = serde_json::from_slice(&found.entry.line)?;
    for (n, column) in COLUMNS.into_iter().enumerate() {
        if n > 0 {
            to.write_all(b",")?;
        }
        let json = line.get(column).map_or("", |value| value.get());
        let value = match column {
            "chain" => position.chain.to_string(),
            "position" => format!("{}:{}", position.segment, position.offset),
            "accounts" => serde_json::from_str::<Vec<String>>(json)?.join(" "),
            "arguments" | "result" => json.to_owned(),
            _ if json.starts_with('"') => serde_json::from_str(json)?,
            _ => json.to_owned(),
        };
        to.write_all(csv_field(&value).as_bytes())?;
    }
    to.write_all(b"\r\n")
}

/// RFC 4180 §2, and OWASP's list of what begins a formula.
fn csv_field(value: &str) -> String {
    let formula = value.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
    let escaped = escape_controls(value, &[]);
    let safe = if formula {
        format!("'{escaped}")
    } else {
        escaped
    };
    if safe.contains(['"', ',']) {
        format!("\"{}\"", safe.replace('"', "\"\""))
    } else {
        safe
    }
}
