//! YAML 1.2 into the tree of `node`: anchors, aliases and merge keys are resolved, scalars are
//! read by the core schema, and a file holds one document.

use std::{collections::HashMap, ops::Range};

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span as YamlSpan, StrInput, Tag};

use crate::config::{
    diagnostics::report::{Diagnostic, Diagnostics},
    node::{ConfigTable, ConfigValue, Node, Span, TableEntry},
};

/// Deepest nesting of lists and mappings.
const DEPTH_MAX: usize = 64;

/// Most values in a document, aliases counted with all they stand for.
const VALUES_MAX: usize = 100_000;

/// Reads `text`, the source number `source`; what keeps it from being read, and keys that occur
/// twice, are reported.
pub(in crate::config) fn read(
    source: usize,
    text: &str,
    diagnostics: &mut Diagnostics,
) -> Option<Node> {
    let mut reader = YamlReader {
        parser: Parser::new_from_str(text),
        place: SpanMap {
            source,
            bytes: byte_offsets(text),
            text,
        },
        anchors: HashMap::new(),
        values: 0,
        findings: diagnostics,
    };
    match reader.read_document() {
        Ok(node) => Some(node),
        Err(finding) => {
            diagnostics.add(finding);
            None
        }
    }
}

/// Where the characters of `text` begin, and where the last one ends.
fn byte_offsets(text: &str) -> Vec<usize> {
    text.char_indices()
        .map(|(at, _)| at)
        .chain([text.len()])
        .collect()
}

/// Spans of the parser, which counts characters, as spans of a source.
struct SpanMap<'t> {
    source: usize,
    bytes: Vec<usize>,
    text: &'t str,
}

impl SpanMap<'_> {
    fn span(&self, span: YamlSpan) -> Span {
        let byte = |at: usize| self.bytes.get(at).copied().unwrap_or(self.text.len());
        let Range { start, end } = byte(span.start.index())..byte(span.end.index());
        let written = self.text.get(start..end).unwrap_or_default();
        Span::new(self.source, start..start + written.trim_end().len())
    }
}

struct YamlReader<'t, 'f> {
    parser: Parser<'t, StrInput<'t>>,
    place: SpanMap<'t>,
    anchors: HashMap<usize, Node>,
    values: usize,
    findings: &'f mut Diagnostics,
}

impl<'t> YamlReader<'t, '_> {
    fn read_document(&mut self) -> Result<Node, Diagnostic> {
        let mut document = None;
        loop {
            let (event, span) = self.next_event()?;
            if let Event::StreamEnd = event {
                break;
            }
            let is_content = matches!(
                event,
                Event::Alias(_)
                    | Event::Scalar(..)
                    | Event::SequenceStart(..)
                    | Event::MappingStart(..)
            );
            if is_content && document.is_some() {
                return Err(Diagnostic::error("a config must be a single YAML document")
                    .at(Some(self.place.span(span)), "a second document starts here"));
            }
            if is_content {
                document = Some(self.node(event, span, 0)?);
            }
        }
        let nothing = Node::new(
            Span::new(self.place.source, 0..0),
            ConfigValue::Table(ConfigTable::new()),
        );
        Ok(match document {
            // A file of comments alone configures nothing, as in TOML.
            None => nothing,
            Some(node) if matches!(node.value, ConfigValue::Null) => nothing,
            Some(node) => node,
        })
    }

    fn next_event(&mut self) -> Result<(Event<'t>, YamlSpan), Diagnostic> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(self.syntax_error(&error)),
            None => Ok((Event::StreamEnd, YamlSpan::default())),
        }
    }

    fn syntax_error(&self, error: &ScanError) -> Diagnostic {
        let mut span = self.place.span(YamlSpan::empty(*error.marker()));
        let end = self.place.text.trim_end().len();
        if span.start > end {
            span = Span::new(self.place.source, end..end);
        }
        Diagnostic::error(format!("invalid YAML: {}", error.info())).at(Some(span), "here")
    }

    fn node(&mut self, event: Event<'t>, span: YamlSpan, depth: usize) -> Result<Node, Diagnostic> {
        let at = self.place.span(span);
        self.values += 1;
        if depth > DEPTH_MAX || self.values > VALUES_MAX {
            let message = format!(
                "a config may have at most {VALUES_MAX} values, nested at most {DEPTH_MAX} deep"
            );
            return Err(Diagnostic::error(message).at(
                Some(at),
                "too many values or too deeply \
                nested",
            ));
        }
        let (anchor, value) = match event {
            Event::Alias(anchor) => return self.expand_alias(anchor, at),
            Event::Scalar(text, style, anchor, tag) => {
                check_tag(tag.as_deref(), at)?;
                (anchor, parse_scalar(&text, style, tag.as_deref()))
            }
            Event::SequenceStart(anchor, tag) => {
                check_tag(tag.as_deref(), at)?;
                (anchor, ConfigValue::List(self.read_sequence(depth)?))
            }
            Event::MappingStart(anchor, tag) => {
                check_tag(tag.as_deref(), at)?;
                (anchor, ConfigValue::Table(self.read_mapping(depth)?))
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => (0, ConfigValue::Null),
        };
        let node = Node::new(at, value);
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    /// What the anchor stands for; its values count again, so that aliases of aliases end.
    fn expand_alias(&mut self, anchor: usize, at: Span) -> Result<Node, Diagnostic> {
        let Some(node) = self.anchors.get(&anchor) else {
            return Err(Diagnostic::error("recursive alias").at(Some(at), "endless expansion"));
        };
        self.values += count_values(node);
        if self.values > VALUES_MAX {
            let message = format!("aliases expand to more than {VALUES_MAX} values");
            return Err(Diagnostic::error(message).at(Some(at), "here"));
        }
        Ok(node.clone())
    }

    fn read_sequence(&mut self, depth: usize) -> Result<Vec<Node>, Diagnostic> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next_event()?;
            if matches!(event, Event::SequenceEnd | Event::StreamEnd) {
                return Ok(items);
            }
            items.push(self.node(event, span, depth + 1)?);
        }
    }

    fn read_mapping(&mut self, depth: usize) -> Result<ConfigTable, Diagnostic> {
        let mut table = ConfigTable::new();
        let mut merged = Vec::new();
        loop {
            let (event, span) = self.next_event()?;
            if matches!(event, Event::MappingEnd | Event::StreamEnd) {
                break;
            }
            let key = self.place.span(span);
            let Event::Scalar(name, style, anchor, _) = event else {
                return Err(Diagnostic::error("a key must be a scalar").at(
                    Some(key),
                    "not a \
                    scalar",
                ));
            };
            if anchor > 0 {
                self.anchors
                    .insert(anchor, Node::new(key, ConfigValue::Text(name.to_string())));
            }
            let (event, span) = self.next_event()?;
            let node = self.node(event, span, depth + 1)?;
            if name == "<<" && style == ScalarStyle::Plain {
                merged.push(TableEntry { key, node });
            } else {
                self.findings
                    .insert_key(&mut table, name.into_owned(), TableEntry { key, node });
            }
        }
        for TableEntry { key, node } in merged {
            merge_mapping(&mut table, node).map_err(|()| {
                Diagnostic::error("`<<` merges mappings").at(Some(key), "not a mapping")
            })?;
        }
        Ok(table)
    }
}

/// Tags of the core schema are; what others stand for nobody knows.
fn check_tag(tag: Option<&Tag>, at: Span) -> Result<(), Diagnostic> {
    match tag {
        Some(tag) if !tag.is_yaml_core_schema() => Err(Diagnostic::error(format!(
            "unknown tag `{}{}`",
            tag.handle, tag.suffix
        ))
        .at(Some(at), "after this tag")
        .help("remove the tag; use `${VAR}` for variables")),
        _ => Ok(()),
    }
}

/// Adds the entries of a mapping, or of a list of them, that `table` does not have.
fn merge_mapping(table: &mut ConfigTable, node: Node) -> Result<(), ()> {
    match node.value {
        ConfigValue::Table(entries) => {
            for (name, entry) in entries {
                table.entry(name).or_insert(entry);
            }
            Ok(())
        }
        ConfigValue::List(items) => items
            .into_iter()
            .try_for_each(|item| merge_mapping(table, item)),
        ConfigValue::Bool(_)
        | ConfigValue::Float(_)
        | ConfigValue::Integer(_)
        | ConfigValue::Null
        | ConfigValue::Text(_) => Err(()),
    }
}

fn count_values(node: &Node) -> usize {
    1 + node.children().map(count_values).sum::<usize>()
}

/// The value of a scalar by the core schema (YAML 1.2.2 chapter 10.3).
fn parse_scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> ConfigValue {
    if style != ScalarStyle::Plain || tag.is_some_and(|tag| tag.suffix == "str") {
        return ConfigValue::Text(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => ConfigValue::Null,
        "true" | "True" | "TRUE" => ConfigValue::Bool(true),
        "false" | "False" | "FALSE" => ConfigValue::Bool(false),
        _ => parse_number(text).unwrap_or_else(|| ConfigValue::Text(text.to_owned())),
    }
}

fn parse_number(text: &str) -> Option<ConfigValue> {
    for (prefix, radix) in [("0o", 8), ("0x", 16)] {
        if let Some(digits) = text.strip_prefix(prefix) {
            // `from_str_radix` would take a sign here, after which it is a string in YAML.
            let is_number = digits.chars().all(|c| c.is_digit(radix));
            let integer = i64::from_str_radix(digits, radix).ok();
            return integer.filter(|_| is_number).map(ConfigValue::Integer);
        }
    }
    // Rust also reads words such as `inf` and `nan`, which are strings in YAML.
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'))
        || !text.contains(|c: char| c.is_ascii_digit())
    {
        return None;
    }
    let integer = text.parse().ok().map(ConfigValue::Integer);
    integer.or_else(|| text.parse().ok().map(ConfigValue::Float))
}
