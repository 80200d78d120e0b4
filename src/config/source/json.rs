//! JSON into the tree of `node`, with the comments and trailing commas that editors write.

use jsonc_parser::{
    CollectOptions, CommentCollectionStrategy, ParseOptions,
    ast::{Object, ObjectProp, Value as JsonValue},
    common::{Range, Ranged},
    errors::{ParseError, ParseErrorKind},
    parse_to_ast,
};

use crate::config::{
    diagnostics::report::{Diagnostic, Diagnostics},
    node::{ConfigTable, ConfigValue, Node, Span, TableEntry},
};

/// Reads `text`, the source number `source`; what keeps it from being read, and keys that occur
/// twice, are reported.
pub(in crate::config) fn read(
    source: usize,
    text: &str,
    diagnostics: &mut Diagnostics,
) -> Option<Node> {
    let collect = CollectOptions {
        comments: CommentCollectionStrategy::Off,
        tokens: false,
    };
    let problem = match parse_to_ast(text, &collect, &parse_options()) {
        Ok(parsed) => {
            if let Some(value) = parsed.value {
                return Some(
                    JsonReader {
                        source,
                        findings: diagnostics,
                    }
                    .value(value),
                );
            }
            Diagnostic::error("invalid JSON: no value")
                .at(Some(Span::new(source, 0..0)), "expected `{`")
        }
        Err(error) => syntax_error(source, text, &error),
    };
    diagnostics.add(problem);
    None
}

/// What keeps `text` from being read. What is open at its end is found there: the bracket may stand
/// anywhere before.
fn syntax_error(source: usize, text: &str, error: &ParseError) -> Diagnostic {
    let kind = lowercase_first(&error.kind().to_string());
    let diagnostic = Diagnostic::error(format!("invalid JSON: {kind}"));
    let range = error.range();
    let is_open = matches!(
        error.kind(),
        ParseErrorKind::UnterminatedArray | ParseErrorKind::UnterminatedObject
    );
    if !is_open {
        return diagnostic.at(Some(span(source, range)), "here");
    }
    let end = text.trim_end().len();
    let bracket = range.start..range.start + 1;
    diagnostic
        .at(Some(Span::new(source, end..end)), "the file ends here")
        .at(Some(Span::new(source, bracket)), "not closed")
}

/// JSON, comments and trailing commas; nothing else of what the parser can take.
fn parse_options() -> ParseOptions {
    ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    }
}

struct JsonReader<'r> {
    source: usize,
    findings: &'r mut Diagnostics,
}

impl JsonReader<'_> {
    fn value(&mut self, value: JsonValue<'_>) -> Node {
        let span = span(self.source, value.range());
        let value = match value {
            JsonValue::Array(array) => ConfigValue::List(
                array
                    .elements
                    .into_iter()
                    .map(|item| self.value(item))
                    .collect(),
            ),
            JsonValue::BooleanLit(literal) => ConfigValue::Bool(literal.value),
            JsonValue::NullKeyword(_) => ConfigValue::Null,
            JsonValue::NumberLit(literal) => number(literal.value),
            JsonValue::Object(object) => ConfigValue::Table(self.object(object)),
            JsonValue::StringLit(literal) => ConfigValue::Text(literal.value.into_owned()),
        };
        Node::new(span, value)
    }

    fn object(&mut self, object: Object<'_>) -> ConfigTable {
        let mut table = ConfigTable::new();
        for ObjectProp { name, value, .. } in object.properties {
            let key = span(self.source, name.range());
            let name = name.into_string();
            let entry = TableEntry {
                key,
                node: self.value(value),
            };
            self.findings.insert_key(&mut table, name, entry);
        }
        table
    }
}

fn span(source: usize, range: Range) -> Span {
    Span::new(source, range.start..range.end)
}

fn number(written: &str) -> ConfigValue {
    match written.parse() {
        Ok(integer) => ConfigValue::Integer(integer),
        Err(_) => ConfigValue::Float(written.parse().unwrap_or(f64::NAN)),
    }
}

fn lowercase_first(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_lowercase().chain(chars).collect()
    })
}
