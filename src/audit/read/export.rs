//! Records for other programs: JSON Lines and CSV.

use std::io::Write;

use serde_json::value::RawValue;

use crate::{
    audit::{AuditError, FoundRecord, Record},
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

const COLUMNS: [&str; 27] = [
    "chain",
    "id",
    "ts",
    "agent_id",
    "agent_name",
    "team",
    "client",
    "session_id",
    "client_revision",
    "server",
    "server_revision",
    "method",
    "tool",
    "exposed",
    "arguments_digest",
    "arguments",
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
    for (n, value) in row_values(found).iter().enumerate() {
        if n > 0 {
            to.write_all(b",")?;
        }
        to.write_all(csv_field(value).as_bytes())?;
    }
    to.write_all(b"\r\n")
}

fn row_values(found: &FoundRecord) -> [String; COLUMNS.len()] {
    let record: &Record<'_> = &found.record;
    let position = found.entry.position;
    let text = |text: &Option<std::borrow::Cow<'_, str>>| text.as_deref().unwrap_or("").to_owned();
    let digest = record.arguments_digest.map(|digest| digest.to_string());
    let arguments = record.arguments.as_deref().map(RawValue::get);
    [
        position.chain.to_string(),
        record.id.to_string(),
        format!("{:.6}", record.ts),
        record.agent_id.to_string(),
        record.agent_name.to_string(),
        text(&record.team),
        text(&record.client),
        text(&record.session_id),
        text(&record.client_revision),
        text(&record.server),
        text(&record.server_revision),
        record.method.to_string(),
        text(&record.tool),
        text(&record.exposed),
        digest.unwrap_or_default(),
        arguments.unwrap_or_default().to_owned(),
        record.decision.to_string(),
        text(&record.code),
        text(&record.rule),
        record.price.get().to_string(),
        record.accounts.join(" "),
        millis(record.execution_time),
        record.bytes_in.to_string(),
        record.bytes_out.to_string(),
        text(&record.trace_id),
        text(&record.parent_id),
        format!("{}:{}", position.segment, position.offset),
    ]
}

fn millis(time: std::time::Duration) -> String {
    format!("{}.{:03}", time.as_millis(), time.subsec_micros() % 1000)
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
