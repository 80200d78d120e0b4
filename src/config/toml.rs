//! TOML into the tree of `node`, through `toml_edit`, which knows where everything stands.

use toml_edit::{Document, Item, TableLike, Value as TomlValue};

use super::{
    node::{Entry, Node, Span, Table, Value},
    report::{Finding, Findings},
};

/// Reads `text`, the source number `source`; what keeps it from being read is reported.
pub(super) fn read(source: usize, text: &str, findings: &mut Findings) -> Option<Node> {
    match Document::parse(text) {
        Ok(document) => {
            let root = Value::Table(table(source, document.as_table(), 0..0));
            Some(Node::new(Span::new(source, 0..0), root))
        }
        Err(error) => {
            let span = Span::new(source, error.span().unwrap_or(0..0));
            let message = error.message().trim_end().replace('\n', ", ");
            let finding = Finding::mistake(format!("this is not TOML: {message}"));
            findings.add(finding.at(Some(span), "here"));
            None
        }
    }
}

/// The entries of `table`; `around` is marked for what has no span of its own.
fn table(source: usize, table: &dyn TableLike, around: std::ops::Range<usize>) -> Table {
    let mut entries = Table::new();
    for (name, item) in table.iter() {
        let key = table
            .key(name)
            .and_then(toml_edit::Key::span)
            .unwrap_or_else(|| around.clone());
        if let Some(node) = item_node(source, item, &key) {
            entries.insert(
                name.to_owned(),
                Entry {
                    key: Span::new(source, key),
                    node,
                },
            );
        }
    }
    entries
}

fn item_node(source: usize, item: &Item, key: &std::ops::Range<usize>) -> Option<Node> {
    let span = Span::new(source, item.span().unwrap_or_else(|| key.clone()));
    let value = match item {
        Item::None => return None,
        Item::Value(value) => return Some(value_node(source, value, key)),
        Item::Table(inner) => Value::Table(table(source, inner, key.clone())),
        Item::ArrayOfTables(tables) => Value::List(
            tables
                .iter()
                .map(|inner| {
                    let range = inner.span().unwrap_or_else(|| key.clone());
                    let entries = table(source, inner, range.clone());
                    Node::new(Span::new(source, range), Value::Table(entries))
                })
                .collect(),
        ),
    };
    Some(Node::new(span, value))
}

fn value_node(source: usize, value: &TomlValue, key: &std::ops::Range<usize>) -> Node {
    let span = Span::new(source, value.span().unwrap_or_else(|| key.clone()));
    let value = match value {
        TomlValue::String(text) => Value::Text(text.value().clone()),
        TomlValue::Integer(number) => Value::Integer(*number.value()),
        TomlValue::Float(number) => Value::Float(*number.value()),
        TomlValue::Boolean(boolean) => Value::Bool(*boolean.value()),
        // No key takes a date; as text it gets the same message as any other wrong string.
        TomlValue::Datetime(date) => Value::Text(date.value().to_string()),
        TomlValue::Array(items) => Value::List(
            items
                .iter()
                .map(|item| value_node(source, item, key))
                .collect(),
        ),
        TomlValue::InlineTable(inner) => Value::Table(table(source, inner, span.range())),
    };
    Node::new(span, value)
}
