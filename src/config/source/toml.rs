//! TOML into the tree of `node`, through `toml`, which knows where everything stands and reads on
//! behind a mistake.

use toml::{
    Spanned,
    de::{DeFloat, DeInteger, DeTable, DeValue, Error},
};

use crate::config::{
    diagnostics::report::{Diagnostic, Diagnostics},
    node::{ConfigTable, ConfigValue, Node, Span, TableEntry, ValueOrigin},
};

/// Reads `text`, the source number `source`; all that keeps it from being read is reported.
pub(in crate::config) fn read(
    source: usize,
    text: &str,
    diagnostics: &mut Diagnostics,
) -> Option<Node> {
    let (document, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        let root = TomlReader {
            source,
            findings: diagnostics,
        }
        .table(document.get_ref());
        return Some(Node::new(Span::new(source, 0..0), ConfigValue::Table(root)));
    }
    for error in root_errors(errors) {
        let span = Span::new(source, error.span().unwrap_or(0..0));
        diagnostics.add(syntax_error(&error).at(Some(span), "here"));
    }
    None
}

/// Those of `errors` that do not follow from others. Where a bracket stays open, the rest of the text was
/// read as what stands in it, so that nothing is certain but the first and that.
fn root_errors(mut errors: Vec<Error>) -> Vec<Error> {
    let start = |error: &Error| error.span().map(|span| span.start);
    errors.sort_by_key(start);
    errors.dedup_by_key(|error| start(error));
    let is_open = |error: &Error| {
        let kinds = ["unclosed array,", "unclosed inline table,"];
        kinds.iter().any(|kind| error.message().starts_with(kind))
    };
    if let Some(open) = errors.iter().position(is_open) {
        errors.truncate(open + 1);
        errors.drain(1..open.max(1));
    }
    errors
}

fn syntax_error(error: &Error) -> Diagnostic {
    let message = error.message().trim_end().replace('\n', ", ");
    Diagnostic::error(format!("invalid TOML: {message}"))
}

struct TomlReader<'f> {
    source: usize,
    findings: &'f mut Diagnostics,
}

impl TomlReader<'_> {
    fn table(&mut self, table: &DeTable<'_>) -> ConfigTable {
        let mut entries = ConfigTable::new();
        for (key, value) in table {
            let entry = TableEntry {
                key: Span::new(self.source, key.span()),
                node: self.node(value),
            };
            entries.insert(key.get_ref().to_string(), entry);
        }
        entries
    }

    fn node(&mut self, value: &Spanned<DeValue<'_>>) -> Node {
        let span = Span::new(self.source, value.span());
        let value = match value.get_ref() {
            DeValue::String(text) => ConfigValue::Text(text.to_string()),
            DeValue::Integer(number) => match integer(number) {
                Some(number) => ConfigValue::Integer(number),
                None => return self.report_out_of_range(span),
            },
            DeValue::Float(number) => match float(number) {
                Some(number) => ConfigValue::Float(number),
                None => return self.report_out_of_range(span),
            },
            DeValue::Boolean(boolean) => ConfigValue::Bool(*boolean),
            // No key takes a date; as text it gets the same message as any other wrong string.
            DeValue::Datetime(date) => ConfigValue::Text(date.to_string()),
            DeValue::Array(items) => {
                ConfigValue::List(items.iter().map(|item| self.node(item)).collect())
            }
            DeValue::Table(inner) => ConfigValue::Table(self.table(inner)),
        };
        Node::new(span, value)
    }

    /// Stands for a number that is none here, once that is reported.
    fn report_out_of_range(&mut self, span: Span) -> Node {
        let diagnostic = Diagnostic::error("number out of range");
        self.findings
            .add(diagnostic.at(Some(span), "does not fit into 64 bits"));
        Node {
            origin: ValueOrigin::Invalid,
            ..Node::new(span, ConfigValue::Null)
        }
    }
}

fn integer(written: &DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(written.as_str(), written.radix()).ok()
}

fn float(written: &DeFloat<'_>) -> Option<f64> {
    let number: f64 = written.as_str().parse().ok()?;
    let is_meant = number.is_finite() || !written.as_str().contains(|c: char| c.is_ascii_digit());
    is_meant.then_some(number)
}
