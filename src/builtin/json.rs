//! `json_query` and `json_diff`: values out of a JSON document, and the difference of two.
//!
//! Called through the tool table; [`super::jsonpath`] decides which JSONPaths are cheap enough to
//! run.

use json_patch::Patch;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::jsonpath;
use super::tools::{Mistake, check_length, quote};

/// Longest document as compact JSON text, in bytes: half a megabyte of JSON is more than a
/// conversation holds.
const DOCUMENT_BYTES_MAX: usize = 512 << 10;
/// Most values one query returns, and the default: what a reader can use.
const VALUES_MAX: usize = 1000;
const VALUES_DEFAULT: usize = 100;
/// Most JSON text one query returns, in bytes. Values can contain each other (`$..*`), so the
/// document's own length does not bound it.
const VALUES_BYTES_MAX: usize = 1 << 20;
/// Whole numbers from here on, up or down, may have had more digits than a float holds.
const LARGE: f64 = 9_223_372_036_854_775_808.0;
/// Most bytes of paths a patch may come to, in the worst case. An operation spells out its whole
/// path, so a document with one long key around many members would make a patch thousands of times
/// its size.
const PATCH_PATHS_BYTES_MAX: usize = 16 << 20;

/// Arguments of `json_query`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct JsonQuery {
    /// The document: any JSON value, or a string of JSON text.
    document: Value,
    /// JSONPath such as `$.items[?@.price < 10].name`, or JSON Pointer such as /items/0/name.
    query: String,
    /// Most values to return. Default: 100.
    #[schemars(range(min = 1, max = VALUES_MAX))]
    limit: Option<usize>,
}

/// Answer of `json_query`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Found {
    /// The values found, in the document's order.
    values: Vec<Value>,
    /// How many values the query selects altogether.
    total: usize,
    /// Whether values were left out, because of limit or because together they are too long.
    truncated: bool,
    /// What to know about large numbers in the document, if it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// Arguments of `json_diff`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct JsonDiff {
    /// The first document: any JSON value, or a string of JSON text.
    before: Value,
    /// The second document: any JSON value, or a string of JSON text.
    after: Value,
}

/// Answer of `json_diff`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Difference {
    /// Whether the documents are equal.
    equal: bool,
    /// The operations of the JSON Patch, in the order in which they apply.
    patch: Vec<Operation>,
    /// What to know about large numbers in the documents, if they have any.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// One operation of a JSON Patch.
#[derive(Debug, Serialize, JsonSchema)]
struct Operation {
    /// What it does: add, remove or replace.
    op: Verb,
    /// JSON Pointer to the place.
    path: String,
    /// The new value; absent for remove.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "lowercase")]
enum Verb {
    Add,
    Remove,
    Replace,
}

pub(super) fn query(arguments: JsonQuery) -> Result<Found, Mistake> {
    let limit = arguments.limit.unwrap_or(VALUES_DEFAULT);
    if !(1..=VALUES_MAX).contains(&limit) {
        return Err(Mistake::new(
            "limit",
            format_args!("{limit} is not between 1 and {VALUES_MAX}"),
            "Send a limit within these bounds",
        ));
    }
    let document = read_document("document", arguments.document)?;
    let query = arguments.query.as_str();
    let nodes = if query.starts_with('$') {
        jsonpath::select(query, &document)?
    } else if query.is_empty() || query.starts_with('/') {
        vec![resolve(query, &document)?]
    } else {
        return Err(Mistake::new(
            "query",
            format_args!("{} is neither a JSONPath nor a JSON Pointer", quote(query)),
            "Start a JSONPath with $ ($.items[0].name) or a JSON Pointer with / (/items/0/name)",
        ));
    };
    Ok(Found {
        note: rounding(&document),
        ..take(&nodes, limit)
    })
}

pub(super) fn diff(arguments: JsonDiff) -> Result<Difference, Mistake> {
    let before = read_document("before", arguments.before)?;
    let after = read_document("after", arguments.after)?;
    let paths = path_bytes(&before, 0).saturating_add(path_bytes(&after, 0));
    if paths > PATCH_PATHS_BYTES_MAX {
        return Err(Mistake::new(
            "arguments",
            "the keys are so long and nested that the patch could become enormous",
            "Compare the parts that matter, taken out with json_query",
        ));
    }
    let Patch(operations) = json_patch::diff(&before, &after);
    Ok(Difference {
        note: rounding(&before).or_else(|| rounding(&after)),
        equal: operations.is_empty(),
        patch: operations.into_iter().map(Operation::from).collect(),
    })
}

impl From<json_patch::PatchOperation> for Operation {
    fn from(operation: json_patch::PatchOperation) -> Self {
        use json_patch::PatchOperation as Theirs;
        let (op, path, value) = match operation {
            Theirs::Add(add) => (Verb::Add, add.path, Some(add.value)),
            Theirs::Remove(remove) => (Verb::Remove, remove.path, None),
            Theirs::Replace(replace) => (Verb::Replace, replace.path, Some(replace.value)),
            Theirs::Copy(_) | Theirs::Move(_) | Theirs::Test(_) => {
                unreachable!("a difference is made of additions, removals and replacements")
            }
        };
        Self {
            op,
            path: path.to_string(),
            value,
        }
    }
}

/// The document itself, or the one that a string spells.
fn read_document(place: &str, value: Value) -> Result<Value, Mistake> {
    if let Value::String(text) = &value {
        check_length(place, text.len(), DOCUMENT_BYTES_MAX)?;
        return serde_json::from_str(text).map_err(|error| {
            Mistake::new(
                place,
                format_args!("the string is not JSON text: {error}"),
                "Send the JSON value itself, or correct the text",
            )
        });
    }
    check_length(place, json_bytes(&value), DOCUMENT_BYTES_MAX)?;
    Ok(value)
}

/// Follows a JSON Pointer, naming the first step that leads nowhere.
fn resolve<'d>(pointer: &str, document: &'d Value) -> Result<&'d Value, Mistake> {
    document.pointer(pointer).ok_or_else(|| {
        let ends = pointer.match_indices('/').map(|(at, _)| at).skip(1);
        let missing = ends
            .chain([pointer.len()])
            .map(|end| &pointer[..end])
            .find(|prefix| document.pointer(prefix).is_none())
            .unwrap_or(pointer);
        Mistake::new(
            "query",
            format_args!("the document has nothing at {}", quote(missing)),
            "Check the names, count array elements from 0, write / in a name as ~1 and ~ as ~0",
        )
    })
}

/// What is said where a document has whole numbers that 64 bits do not hold: those are read as floats.
fn rounding(document: &Value) -> Option<String> {
    match document {
        Value::Number(number) if number.is_f64() => {
            let read = number.as_f64()?;
            (read.fract() == 0.0 && read.abs() >= LARGE).then(|| {
                format!(
                    "whole numbers of more than 64 bits, such as the one read as {read:e}, keep some 15 digits \
                     here: two that differ in others may count as equal. Send them as strings where that matters"
                )
            })
        }
        Value::Array(items) => items.iter().find_map(rounding),
        Value::Object(members) => members.values().find_map(rounding),
        Value::Bool(_) | Value::Null | Value::Number(_) | Value::String(_) => None,
    }
}

fn take(nodes: &[&Value], limit: usize) -> Found {
    let mut bytes = 0;
    let values: Vec<Value> = nodes
        .iter()
        .take(limit)
        .take_while(|node| {
            bytes += json_bytes(node);
            bytes <= VALUES_BYTES_MAX
        })
        .map(|node| (*node).clone())
        .collect();
    Found {
        note: None,
        truncated: values.len() < nodes.len(),
        total: nodes.len(),
        values,
    }
}

/// Length of a value as compact JSON text.
fn json_bytes(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, value).expect("a JSON value always serialises");
    count.0
}

/// Bytes of the JSON Pointers to everything in `value`, itself at a pointer of `depth_bytes`.
fn path_bytes(value: &Value, depth_bytes: usize) -> usize {
    // An index or an escaped key costs at most this much more than the key's own length.
    const STEP_BYTES: usize = 8;
    let below = |key: usize, child: &Value| path_bytes(child, depth_bytes + key + STEP_BYTES);
    let children: usize = match value {
        Value::Array(items) => items.iter().map(|item| below(0, item)).sum(),
        Value::Object(members) => members.iter().map(|(k, v)| below(2 * k.len(), v)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    };
    depth_bytes + children
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::builtin::testing::check;

    #[tokio::test]
    async fn queries() {
        let document =
            json!({"items": [{"name": "a/b", "price": 5}, {"name": "c", "price": 20}], "": 0});
        let row = |query| json!({"document": document, "query": query});
        check(
            "json_query",
            &[
                (
                    "JSONPath with a filter",
                    row("$.items[?@.price < 10].name"),
                    Ok(json!({"values": ["a/b"], "total": 1, "truncated": false})),
                ),
                (
                    "JSONPath that selects nothing",
                    row("$.nothing"),
                    Ok(json!({"values": [], "total": 0})),
                ),
                (
                    "JSON Pointer",
                    row("/items/1/price"),
                    Ok(json!({"values": [20], "total": 1})),
                ),
                (
                    "JSON Pointer to the whole",
                    row(""),
                    Ok(json!({"values": [document]})),
                ),
                (
                    "JSON Pointer to the empty name",
                    row("/"),
                    Ok(json!({"values": [0]})),
                ),
                (
                    "a document as text",
                    json!({"document": "[1, {\"a\": 2}]", "query": "$..a"}),
                    Ok(json!({"values": [2]})),
                ),
                (
                    "more than limit",
                    json!({"document": [1, 2, 3], "query": "$[*]", "limit": 2}),
                    Ok(json!({"values": [1, 2], "total": 3, "truncated": true})),
                ),
            ],
        )
        .await;
    }

    #[tokio::test]
    async fn refuses_queries_that_lead_nowhere() {
        let row = |query| json!({"document": {"items": [{}, {}]}, "query": query});
        check(
            "json_query",
            &[
                (
                    "a query of neither kind",
                    row("items[0]"),
                    Err(
                        "query: \"items[0]\" is neither a JSONPath nor a JSON Pointer. Start a \
                         JSONPath with $ ($.items[0].name) or a JSON Pointer with / \
                         (/items/0/name).",
                    ),
                ),
                (
                    "a pointer that leads nowhere",
                    row("/items/2/name"),
                    Err(
                        "query: the document has nothing at \"/items/2\". Check the names, count \
                         array elements from 0, write / in a name as ~1 and ~ as ~0.",
                    ),
                ),
                (
                    "a document that is not JSON",
                    json!({"document": "{'a': 1}", "query": "$"}),
                    Err(
                        "document: the string is not JSON text: key must be a string at line 1 \
                         column 2. Send the JSON value itself, or correct the text.",
                    ),
                ),
                (
                    "no document",
                    json!({"query": "$"}),
                    Err(
                        "document: missing field `document`. Send the arguments that the tool's \
                         input schema describes.",
                    ),
                ),
            ],
        )
        .await;
    }

    #[tokio::test]
    async fn compares() {
        check(
            "json_diff",
            &[
                (
                    "equal",
                    json!({"before": {"a": 1}, "after": {"a": 1}}),
                    Ok(json!({"equal": true, "patch": []})),
                ),
                (
                    "all three operations",
                    json!({
                        "before": {"a": 1, "b/c": [1, 2]},
                        "after": {"a": null, "b/c": [1], "d": true},
                    }),
                    Ok(json!({"equal": false, "patch": [
                        {"op": "replace", "path": "/a", "value": null},
                        {"op": "remove", "path": "/b~1c/1"},
                        {"op": "add", "path": "/d", "value": true},
                    ]})),
                ),
                (
                    "as text",
                    json!({"before": "[1]", "after": "[1, null]"}),
                    Ok(json!({"patch": [{"op": "add", "path": "/1", "value": null}]})),
                ),
                (
                    "text that is not JSON",
                    json!({"before": [], "after": "[1"}),
                    Err(
                        "after: the string is not JSON text: EOF while parsing a list at line 1 \
                         column 2. Send the JSON value itself, or correct the text.",
                    ),
                ),
                (
                    "one document",
                    json!({"before": []}),
                    Err(
                        "after: missing field `after`. Send the arguments that the tool's input \
                         schema describes.",
                    ),
                ),
            ],
        )
        .await;
    }

    #[test]
    fn a_patch_turns_the_first_document_into_the_second() {
        let before = json!({"a": [1, {"b": 2}, 3], "c": "x", "é~/": {}});
        let after = json!({"a": [{"b": 2}], "d": [null], "é~/": {"": 1}});
        let difference = diff(JsonDiff {
            before: before.clone(),
            after: after.clone(),
        })
        .unwrap();
        let patch: Patch =
            serde_json::from_value(serde_json::to_value(difference.patch).unwrap()).unwrap();
        let mut patched = before;
        json_patch::patch(&mut patched, &patch).unwrap();
        assert_eq!(patched, after);
    }

    #[test]
    fn documents_have_a_limit() {
        let value = |bytes: usize| json!(["a".repeat(bytes - 4)]);
        let total = |document| found(document, "$", None).map(|found| found.total);
        for as_text in [false, true] {
            let document = |bytes| {
                let value = value(bytes);
                if as_text {
                    Value::String(value.to_string())
                } else {
                    value
                }
            };
            assert_eq!(total(document(DOCUMENT_BYTES_MAX)), Ok(1));
            assert_eq!(
                total(document(DOCUMENT_BYTES_MAX + 1))
                    .unwrap_err()
                    .to_string(),
                "document: 524289 bytes, more than the 524288 this tool takes. Send a shorter one \
                 or split it."
            );
            assert_eq!(total(document(DOCUMENT_BYTES_MAX - 1)), Ok(1));
        }
        let differs = |before, after| diff(JsonDiff { before, after }).map(|d| !d.equal);
        assert_eq!(differs(value(DOCUMENT_BYTES_MAX), json!(1)), Ok(true));
        assert!(differs(json!(1), value(DOCUMENT_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn numbers_that_are_rounded_are_told() {
        let told = |before: &str, after: &str| {
            let [before, after] = [before, after].map(|text| json!(text));
            let note = diff(JsonDiff { before, after }).map(|found| found.note);
            note.unwrap().is_some_and(|note| note.contains("strings"))
        };
        let (large, less) = ("[18446744073709551616]", "[18446744073709551615]");
        assert!(told(large, "1") && told("1", large));
        assert!(told(r#"{"a":-9223372036854775809}"#, "1"));
        assert!(!told(less, "[-9223372036854775808, 1.5, 1e9]"));
        let note = |text: &str| found(json!(text), "$", None).map(|found| found.note);
        assert!(note(large).unwrap().is_some());
        assert_eq!(note(less).unwrap(), None);
    }

    #[test]
    fn values_have_a_limit() {
        let numbers: Value = (0..2 * VALUES_MAX).collect();
        let count =
            |limit| found(numbers.clone(), "$[*]", limit).map(|f| (f.values.len(), f.truncated));
        assert_eq!(count(None), Ok((VALUES_DEFAULT, true)));
        assert_eq!(count(Some(VALUES_MAX)), Ok((VALUES_MAX, true)));
        assert_eq!(
            count(Some(VALUES_MAX + 1)).unwrap_err().to_string(),
            "limit: 1001 is not between 1 and 1000. Send a limit within these bounds."
        );
        assert!(count(Some(0)).is_err());
        assert_eq!(count(Some(1)), Ok((1, true)));
    }

    #[test]
    fn the_length_of_values_has_a_limit() {
        // Four values of a quarter each are exactly at the limit.
        let quarter = |more: usize| Value::String("a".repeat(VALUES_BYTES_MAX / 4 - 2 + more));
        let shown = |nodes: &[&Value]| {
            let found = take(nodes, VALUES_MAX);
            (found.values.len(), found.total, found.truncated)
        };
        let (fits, longer) = (quarter(0), quarter(1));
        assert_eq!(shown(&[&fits, &fits, &fits, &fits]), (4, 4, false));
        assert_eq!(shown(&[&fits, &fits, &fits, &longer]), (3, 4, true));
        assert_eq!(shown(&[&fits, &longer, &fits]), (3, 3, false));
    }

    #[test]
    fn paths_of_a_patch_have_a_limit() {
        let members = 1000;
        let nested = |key: usize| {
            let inner: Value = vec![0; members].into();
            json!({"k".repeat(key): inner})
        };
        // Each member repeats the key, counted twice for escapes, and two steps.
        let fixed = path_bytes(&nested(0), 0);
        let key = (PATCH_PATHS_BYTES_MAX - fixed - 1) / (2 * (members + 1));
        let differs = |key| {
            diff(JsonDiff {
                before: nested(key),
                after: json!(0),
            })
            .map(|d| !d.equal)
        };
        assert_eq!(differs(key), Ok(true));
        assert_eq!(
            differs(key + 1).unwrap_err().to_string(),
            "arguments: the keys are so long and nested that the patch could become enormous. \
             Compare the parts that matter, taken out with json_query."
        );
        assert_eq!(differs(key - 1), Ok(true));
    }

    fn found(document: Value, query: &str, limit: Option<usize>) -> Result<Found, Mistake> {
        super::query(JsonQuery {
            document,
            query: query.to_owned(),
            limit,
        })
    }
}
