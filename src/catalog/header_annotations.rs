//! `x-mcp-header`: which arguments of a tool a client repeats in `Mcp-Param-*` headers.
//!
//! Reads the annotations of an `inputSchema` and says which of them break the rules (Spec 2026-07-28
//! server/tools, basic/transports/streamable-http). What to do about those is the caller's choice.

use std::{borrow::Cow, collections::HashMap, ops::Range, sync::LazyLock};

use memchr::memmem::Finder;

use super::rewrite::may_contain_string;
use crate::mcp::{Raw, json};

/// The annotation's key in a schema.
const HEADER_ANNOTATION: &str = "x-mcp-header";

static ANNOTATION_FINDER: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new(HEADER_ANNOTATION));

/// How deep a schema is searched; deeper annotations are not seen. Real schemas stay far below, and
/// each level costs another pass over what lies in it.
const SCHEMA_DEPTH_MAX: usize = 32;

/// Keywords whose value is one schema or an array of schemas, none of them a plain property.
const SCHEMA_KEYWORDS: [&str; 16] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "oneOf",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// Keywords whose value is an object of schemas, none of them a plain property.
const SCHEMA_MAP_KEYWORDS: [&str; 5] = [
    "$defs",
    "definitions",
    "dependencies",
    "dependentSchemas",
    "patternProperties",
];

/// An argument that is repeated in a header.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HeaderParam {
    /// Property names from the root of the arguments to the value.
    pub path: Vec<String>,
    /// What follows `Mcp-Param-` in the header's name, as the server wrote it.
    pub header: String,
    /// The type of the value.
    pub kind: ParamKind,
}

impl HeaderParam {
    /// Those of a tool as its server lists it, where they keep the rules.
    pub fn of_tool(item: &Raw) -> Vec<Self> {
        let schema = item.member("inputSchema");
        let schema = schema.filter(|_| may_annotate(item.as_bytes()));
        schema.map_or_else(Vec::new, |span| {
            ToolHeaders::read(item.as_bytes(), span.start).params
        })
    }
}

/// Types whose values may be repeated in a header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ParamKind {
    /// `true` or `false`.
    Boolean,
    /// A decimal within 2^53 - 1 of zero.
    Integer,
    /// Text.
    String,
}

/// Which rule an annotation breaks; the authors of the server can mend it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum HeaderFault {
    /// Two properties ask for one header; letter case does not tell headers apart.
    #[error("x-mcp-header `{header}` is used more than once")]
    Duplicate {
        /// The header, as the annotation writes it.
        header: String,
    },
    /// The annotation is not a string, or holds what no header name holds (RFC 9110 section 5.6.2).
    #[error("x-mcp-header {found} is not a valid header name")]
    NotToken {
        /// The annotation as JSON.
        found: String,
    },
    /// The property is no string, integer or boolean.
    #[error(
        "x-mcp-header `{header}` annotates a property that is not a string, integer or \
        boolean"
    )]
    Type {
        /// The header, as the annotation writes it.
        header: String,
    },
    /// Something else than `visit_properties` lies between the root and the annotation.
    #[error("x-mcp-header `{header}` must be reachable through `properties` only")]
    Unreachable {
        /// The header, as the annotation writes it.
        header: String,
    },
}

/// The annotations of one tool.
#[derive(Clone, Debug, Default)]
pub(super) struct ToolHeaders {
    /// Those that keep the rules.
    pub(super) params: Vec<HeaderParam>,
    /// Those that do not: where the annotated schema begins in the text, and why.
    pub(super) faults: Vec<(usize, HeaderFault)>,
}

impl ToolHeaders {
    /// Reads the schema that begins at `at` in `json`.
    pub(super) fn read(json: &[u8], at: usize) -> Self {
        let mut search = HeaderSearch {
            json,
            path: Vec::new(),
            found: Vec::new(),
            faults: Vec::new(),
        };
        search.visit_schema(at, true, 0);
        search.finish()
    }
}

/// Whether `member` is an annotation.
pub(super) fn is_annotation(member: &json::Member, json: &[u8]) -> bool {
    member.matches(json, HEADER_ANNOTATION)
}

/// Whether `json` may hold an annotation at all; cheap, and never wrong about a no.
pub(super) fn may_annotate(json: &[u8]) -> bool {
    may_contain_string(json, &ANNOTATION_FINDER)
}

struct HeaderSearch<'a> {
    json: &'a [u8],
    path: Vec<String>,
    found: Vec<(usize, HeaderParam)>,
    faults: Vec<(usize, HeaderFault)>,
}

impl HeaderSearch<'_> {
    fn visit_schema(&mut self, at: usize, reachable: bool, depth: usize) {
        if depth > SCHEMA_DEPTH_MAX {
            return;
        }
        let (mut annotation, mut kind) = (None, None);
        for member in json::members(self.json, at) {
            let Some(key) = json::decode_string(&self.json[member.key]) else {
                continue;
            };
            let start = member.value.start;
            match key.as_ref() {
                HEADER_ANNOTATION => annotation = Some(member.value),
                "type" => kind = Some(member.value),
                "properties" => self.visit_properties(start, reachable, depth),
                key if SCHEMA_MAP_KEYWORDS.contains(&key) => {
                    self.visit_properties(start, false, depth);
                }
                key if SCHEMA_KEYWORDS.contains(&key) => self.visit_schemas(start, depth),
                _ => {}
            }
        }
        if let Some(annotation) = annotation {
            match self.check_annotation(annotation, kind, reachable) {
                Ok(param) => self.found.push((at, param)),
                Err(fault) => self.faults.push((at, fault)),
            }
        }
    }

    fn visit_properties(&mut self, at: usize, reachable: bool, depth: usize) {
        for member in json::members(self.json, at) {
            let name = json::decode_string(&self.json[member.key]);
            let reachable = reachable && name.is_some();
            self.path.push(name.unwrap_or_default().into_owned());
            self.visit_schema(member.value.start, reachable, depth + 1);
            self.path.pop();
        }
    }

    /// A schema or an array of them, out of the reach of plain `visit_properties`.
    fn visit_schemas(&mut self, at: usize, depth: usize) {
        self.visit_schema(at, false, depth + 1);
        for element in json::elements(self.json, at) {
            self.visit_schema(element.start, false, depth + 1);
        }
    }

    fn check_annotation(
        &self,
        annotation: Range<usize>,
        kind: Option<Range<usize>>,
        reachable: bool,
    ) -> Result<HeaderParam, HeaderFault> {
        let written = &self.json[annotation];
        let header = json::decode_string(written)
            .filter(|header| is_token(header))
            .map(Cow::into_owned)
            .ok_or_else(|| HeaderFault::NotToken {
                found: String::from_utf8_lossy(written).chars().take(80).collect(),
            })?;
        if !reachable || self.path.is_empty() {
            return Err(HeaderFault::Unreachable { header });
        }
        let Some(kind) = kind.and_then(|span| param_kind(&self.json[span])) else {
            return Err(HeaderFault::Type { header });
        };
        Ok(HeaderParam {
            path: self.path.clone(),
            header,
            kind,
        })
    }

    /// Headers that are used twice are faults wherever they are used: keeping one of them would
    /// make the meaning depend on the order of members.
    fn finish(mut self) -> ToolHeaders {
        let mut uses: HashMap<String, usize> = HashMap::new();
        for (_, param) in &self.found {
            *uses.entry(param.header.to_ascii_lowercase()).or_default() += 1;
        }
        let mut params = Vec::with_capacity(self.found.len());
        for (at, param) in self.found {
            if uses[&param.header.to_ascii_lowercase()] > 1 {
                let header = param.header;
                self.faults.push((at, HeaderFault::Duplicate { header }));
            } else {
                params.push(param);
            }
        }
        ToolHeaders {
            params,
            faults: self.faults,
        }
    }
}

fn param_kind(written: &[u8]) -> Option<ParamKind> {
    match json::decode_string(written)?.as_ref() {
        "boolean" => Some(ParamKind::Boolean),
        "integer" => Some(ParamKind::Integer),
        "string" => Some(ParamKind::String),
        _ => None,
    }
}

fn is_token(text: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.bytes().all(legal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(schema: &str) -> ToolHeaders {
        ToolHeaders::read(schema.as_bytes(), 0)
    }

    #[test]
    fn annotations_that_keep_the_rules_are_found() {
        let headers = read(
            r#"{"type":"object","properties":{
                "region":{"type":"string","x-mcp-header":"Region"},
                "page":{"x-mcp-header":"X.Page~1","type":"integer"},
                "filter":{"type":"object","properties":{
                    "dry":{"type":"boolean","\u0078-mcp-header":"Dry"}}},
                "x-mcp-header":{"type":"string"},
                "free":{"default":{"x-mcp-header":"data, not schema"}}}}"#,
        );
        let param = |path: &[&str], header: &str, kind| HeaderParam {
            path: path.iter().map(|name| (*name).to_owned()).collect(),
            header: header.to_owned(),
            kind,
        };
        let expect = [
            param(&["region"], "Region", ParamKind::String),
            param(&["page"], "X.Page~1", ParamKind::Integer),
            param(&["filter", "dry"], "Dry", ParamKind::Boolean),
        ];
        assert_eq!(headers.params, expect);
        assert_eq!(headers.faults, []);
    }

    #[test]
    fn annotations_that_break_a_rule_are_faults() {
        let check = |schema: &str, expect: HeaderFault| {
            let headers = read(schema);
            let faults: Vec<_> = headers.faults.into_iter().map(|(_, fault)| fault).collect();
            assert_eq!(faults, [expect], "{schema}");
            assert_eq!(headers.params, [], "{schema}");
        };
        let property = |inner: &str| format!(r#"{{"properties":{{"p":{inner}}}}}"#);
        let header = || "H".to_owned();
        let not_token = |found: &str| HeaderFault::NotToken {
            found: found.to_owned(),
        };
        let annotated = r#"{"type":"string","x-mcp-header":"H"}"#;
        for kind in [r#""number""#, r#""object""#, r#"["string","null"]"#, "null"] {
            let schema = format!(r#"{{"type":{kind},"x-mcp-header":"H"}}"#);
            check(&property(&schema), HeaderFault::Type { header: header() });
        }
        let untyped = r#"{"x-mcp-header":"H"}"#;
        check(&property(untyped), HeaderFault::Type { header: header() });
        for found in [
            r#""""#,
            r#""a b""#,
            r#""a:b""#,
            r#""ü""#,
            "7",
            "{}",
            r#""a\nb""#,
        ] {
            let schema = format!(r#"{{"type":"string","x-mcp-header":{found}}}"#);
            check(&property(&schema), not_token(found));
        }
        for keyword in [
            "items",
            "not",
            "if",
            "additionalProperties",
            "contains",
            "prefixItems",
        ] {
            let schema = property(&format!(r#"{{"{keyword}":{annotated}}}"#));
            check(&schema, HeaderFault::Unreachable { header: header() });
            let schema = property(&format!(r#"{{"{keyword}":[true,{annotated}]}}"#));
            check(&schema, HeaderFault::Unreachable { header: header() });
        }
        for keyword in ["$defs", "patternProperties", "dependentSchemas"] {
            let schema = format!(r#"{{"{keyword}":{{"p":{annotated}}}}}"#);
            check(&schema, HeaderFault::Unreachable { header: header() });
        }
        let below = format!(r#"{{"anyOf":[{{"properties":{{"p":{annotated}}}}}]}}"#);
        check(&below, HeaderFault::Unreachable { header: header() });
        check(annotated, HeaderFault::Unreachable { header: header() });
    }

    #[test]
    fn repeated_headers_are_all_faults() {
        let headers = read(
            r#"{"properties":{"a":{"type":"string","x-mcp-header":"Same"},
                "b":{"type":"string","x-mcp-header":"sAME"},
                "c":{"type":"string","x-mcp-header":"Other"}}}"#,
        );
        assert_eq!(headers.faults.len(), 2);
        assert_eq!(headers.params.len(), 1);
        assert_eq!(headers.params[0].header, "Other");
    }

    #[test]
    fn nesting_is_followed_to_a_limit() {
        let nested = |depth: usize| {
            let inner = r#"{"type":"string","x-mcp-header":"H"}"#;
            let (open, close) = (r#"{"properties":{"p":"#, "}}");
            format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
        };
        assert_eq!(read(&nested(SCHEMA_DEPTH_MAX)).params.len(), 1);
        assert_eq!(read(&nested(SCHEMA_DEPTH_MAX + 1)).params.len(), 0);
        assert_eq!(read(&nested(SCHEMA_DEPTH_MAX + 1)).faults, []);
        assert_eq!(read(&nested(10_000)).faults, []);
    }
}
