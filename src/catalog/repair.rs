//! Items that clients could not read, mended for routes where they stand beside those of others.
//!
//! Clients check a list as a whole: one tool without an input schema, or with `null` for a
//! description, and the official ones show no tool of any server. On the route of its own server an
//! item stays as it is, but for output schemas that legacy revisions do not have.

use std::ops::Range;

use jiff::Timestamp;

use super::Kind;
use crate::mcp::json::{self, Member, Patch, Raw};

/// What clients want a value to be.
#[derive(Clone, Copy)]
enum JsonShape {
    /// Of which each element is this.
    Array(&'static JsonShape),
    Bool,
    /// A point in time with its offset.
    DateTime,
    /// From 0 to 1.
    Fraction,
    Integer,
    /// The members that it must have, and those that it may have.
    Object(RepairedMembers, RepairedMembers),
    Text,
    Word(&'static [&'static str]),
}

use JsonShape::{Array, Bool, DateTime, Fraction, Integer, Object, Text, Word};

type RepairedMembers = &'static [(&'static str, JsonShape)];

const ANY_OBJECT: JsonShape = Object(&[], &[]);

const ICONS: JsonShape = Array(&Object(
    &[("src", Text)],
    &[
        ("mimeType", Text),
        ("sizes", Array(&Text)),
        ("theme", Word(&["light", "dark"])),
    ],
));

const HINTS: JsonShape = Object(
    &[],
    &[
        ("destructiveHint", Bool),
        ("idempotentHint", Bool),
        ("openWorldHint", Bool),
        ("readOnlyHint", Bool),
        ("title", Text),
    ],
);

const ANNOTATIONS: JsonShape = Object(
    &[],
    &[
        ("audience", Array(&Word(&["assistant", "user"]))),
        ("lastModified", DateTime),
        ("priority", Fraction),
    ],
);

const EXECUTION: JsonShape = Object(
    &[],
    &[("taskSupport", Word(&["forbidden", "optional", "required"]))],
);

const ARGUMENTS: JsonShape = Array(&Object(
    &[("name", Text)],
    &[("description", Text), ("required", Bool), ("title", Text)],
));

/// Members that an item may have (`schema.ts` of all revisions).
const fn optional_members(kind: Kind) -> RepairedMembers {
    match kind {
        Kind::Tools => &[
            ("_meta", ANY_OBJECT),
            ("annotations", HINTS),
            ("description", Text),
            ("execution", EXECUTION),
            ("icons", ICONS),
            ("outputSchema", ANY_OBJECT),
            ("title", Text),
        ],
        Kind::Resources | Kind::Templates => &[
            ("_meta", ANY_OBJECT),
            ("annotations", ANNOTATIONS),
            ("description", Text),
            ("icons", ICONS),
            ("mimeType", Text),
            ("size", Integer),
            ("title", Text),
        ],
        Kind::Prompts => &[
            ("_meta", ANY_OBJECT),
            ("arguments", ARGUMENTS),
            ("description", Text),
            ("icons", ICONS),
            ("title", Text),
        ],
    }
}

/// The input schema of a tool that takes whatever it is given.
const ANY_OBJECT_SCHEMA: &str = r#"{"type":"object"}"#;

/// `item` as every client can read it, and the members that were changed; `None` where it is such
/// already.
pub(super) fn repair(kind: Kind, item: &Raw) -> Option<(Raw, Vec<&'static str>)> {
    let json = item.as_bytes();
    let mut patch = Patch::new(json);
    let members: Vec<Member> = json::members(json, 0).collect();
    let mut changed = repair_members(&mut patch, json, &members, optional_members(kind));
    match kind {
        Kind::Tools => {
            if repair_input_schema(&mut patch, json, &members) {
                changed.push("inputSchema");
            }
            let output = members.iter().rfind(|it| it.matches(json, "outputSchema"));
            if output.is_some_and(|it| repair_schema(&mut patch, json, it.value.start)) {
                changed.push("outputSchema");
            }
        }
        Kind::Resources | Kind::Templates => {
            if repair_name(&mut patch, json, &members, kind) {
                changed.push("name");
            }
        }
        // The name is there, or it would not be an item.
        Kind::Prompts => {}
    }
    (!changed.is_empty()).then(|| (patch.finish(), changed))
}

/// Removes those of the `members` of an object that are not what `optional` says, and such parts of
/// the others; which these are.
fn repair_members(
    patch: &mut Patch<'_>,
    json: &[u8],
    members: &[Member],
    optional: RepairedMembers,
) -> Vec<&'static str> {
    let known = |member: &Member| optional.iter().find(|(key, _)| member.matches(json, key));
    let is_odd = |member: &Member| {
        known(member).is_some_and(|(_, shape)| !shape.is_acceptable(json, &member.value))
    };
    let mut changed = Vec::new();
    for member in members {
        if let Some((key, shape)) = known(member)
            && (is_odd(member) || shape.repair_parts(patch, json, member.value.start))
        {
            changed.push(*key);
        }
    }
    if !changed.is_empty() {
        patch.remove_from(members, is_odd);
    }
    changed
}

/// `tool` as clients of legacy revisions can read it, where it is not such already: their output
/// schemas are of objects.
pub(super) fn without_output_schema(tool: &Raw) -> Option<Raw> {
    let json = tool.as_bytes();
    let is_foreign = |member: &Member| {
        member.matches(json, "outputSchema") && !is_object_schema(json, member.value.start)
    };
    if !json::members(json, 0).any(|member| is_foreign(&member)) {
        return None;
    }
    let mut patch = Patch::new(json);
    patch.remove_members(0, is_foreign);
    Some(patch.finish())
}

impl JsonShape {
    /// Whether a value is this, but for members that it need not have.
    fn is_acceptable(self, json: &[u8], value: &Range<usize>) -> bool {
        let text = || json::decode_string(&json[value.clone()]);
        let written = || std::str::from_utf8(&json[value.clone()]).unwrap_or_default();
        match self {
            Array(shape) => {
                json[value.start] == b'['
                    && json::elements(json, value.start).all(|it| shape.is_acceptable(json, &it))
            }
            Bool => matches!(json[value.start], b't' | b'f'),
            DateTime => text().is_some_and(|text| text.parse::<Timestamp>().is_ok()),
            Fraction => matches!(written().parse(), Ok(0.0..=1.0)),
            Integer => written()
                .parse()
                .is_ok_and(|number: i64| number.abs() < 1 << 53),
            Object(required, _) => {
                let has = |(key, shape): &(&str, JsonShape)| {
                    let found = json::find_member(json, value.start, key);
                    found.is_some_and(|found| shape.is_acceptable(json, &found))
                };
                json[value.start] == b'{' && required.iter().all(has)
            }
            Text => json[value.start] == b'"',
            Word(words) => text().is_some_and(|text| words.contains(&&*text)),
        }
    }

    /// Mends what is within a value at `at` that may stay; whether there was something.
    fn repair_parts(self, patch: &mut Patch<'_>, json: &[u8], at: usize) -> bool {
        match self {
            Array(shape) => {
                let mut is_mended = false;
                for element in json::elements(json, at) {
                    is_mended |= shape.repair_parts(patch, json, element.start);
                }
                is_mended
            }
            Object(_, optional) => {
                let members: Vec<Member> = json::members(json, at).collect();
                !repair_members(patch, json, &members, optional).is_empty()
            }
            Bool | DateTime | Fraction | Integer | Text | Word(_) => false,
        }
    }
}

/// Whether the schema at `at` says that it is one of objects.
fn is_object_schema(json: &[u8], at: usize) -> bool {
    let said =
        json::find_member(json, at, "type").and_then(|said| json::decode_string(&json[said]));
    said.is_some_and(|said| said == "object")
}

fn repair_input_schema(patch: &mut Patch<'_>, json: &[u8], members: &[Member]) -> bool {
    let mut has_one = false;
    let mut is_mended = false;
    for member in members.iter().filter(|it| it.matches(json, "inputSchema")) {
        has_one = true;
        let at = member.value.start;
        if json[at] != b'{' {
            patch.replace(member.value.clone(), ANY_OBJECT_SCHEMA.as_bytes());
            is_mended = true;
            continue;
        }
        is_mended |= repair_schema(patch, json, at);
        if is_object_schema(json, at) {
            continue;
        }
        match json::find_member(json, at, "type") {
            Some(said) => patch.replace(said, &br#""object""#[..]),
            None => patch.insert_members(at, r#""type":"object""#),
        }
        is_mended = true;
    }
    if !has_one {
        patch.insert_members(0, &format!(r#""inputSchema":{ANY_OBJECT_SCHEMA}"#));
    }
    is_mended || !has_one
}

/// Mends what a schema says of properties. Servers in Go write `null` for a list without items, and
/// those in Rust `true` for a property that may be anything, which clients take for no schema.
fn repair_schema(patch: &mut Patch<'_>, json: &[u8], schema: usize) -> bool {
    let mut is_mended = false;
    for member in json::members(json, schema) {
        if member.matches(json, "required") {
            if !Array(&Text).is_acceptable(json, &member.value) {
                patch.replace(member.value, &b"[]"[..]);
                is_mended = true;
            }
        } else if member.matches(json, "properties") {
            if json[member.value.start] == b'{' {
                is_mended |= repair_properties(patch, json, member.value.start);
            } else {
                patch.replace(member.value, &b"{}"[..]);
                is_mended = true;
            }
        }
    }
    is_mended
}

fn repair_properties(patch: &mut Patch<'_>, json: &[u8], properties: usize) -> bool {
    let mut is_mended = false;
    for property in json::members(json, properties) {
        let schema: &[u8] = match json[property.value.start] {
            b'{' => continue,
            b'f' => br#"{"not":{}}"#,
            _ => b"{}",
        };
        patch.replace(property.value, schema);
        is_mended = true;
    }
    is_mended
}

/// Gives a resource its URI for a name where it has none.
fn repair_name(patch: &mut Patch<'_>, json: &[u8], members: &[Member], kind: Kind) -> bool {
    let Some(uri) = members.iter().rfind(|it| it.matches(json, kind.key())) else {
        return false;
    };
    let uri = &json[uri.value.clone()];
    let mut has_one = false;
    let mut is_mended = false;
    for member in members.iter().filter(|it| it.matches(json, "name")) {
        has_one = true;
        if !Text.is_acceptable(json, &member.value) {
            patch.replace(member.value.clone(), uri.to_vec());
            is_mended = true;
        }
    }
    if !has_one {
        let uri = String::from_utf8_lossy(uri);
        patch.insert_members(0, &format!(r#""name":{uri}"#));
    }
    is_mended || !has_one
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Raw {
        Raw::parse(text.to_owned()).unwrap()
    }

    #[test]
    fn what_clients_refuse_is_mended_and_told() {
        let check = |kind, item: &str, expect: &str, members: &[&str]| {
            let (mended, changed) = repair(kind, &raw(item)).expect(item);
            assert_eq!(mended.as_str(), expect, "{item}");
            assert_eq!(changed, members, "{item}");
            assert!(repair(kind, &mended).is_none(), "{item}");
            let value: serde_json::Value = mended.read().expect(expect);
            assert!(value.is_object());
        };
        let tool = |item: &str, expect: &str, members: &[&str]| {
            check(Kind::Tools, item, expect, members);
        };
        let input = r#""inputSchema":{"type":"object"}"#;
        tool(
            r#"{"name":"a"}"#,
            &format!(r#"{{{input},"name":"a"}}"#),
            &["inputSchema"],
        );
        for odd in ["null", "true", "[]", "\"object\"", "7"] {
            tool(
                &format!(r#"{{"name":"a","inputSchema":{odd} }}"#),
                &format!(r#"{{"name":"a",{input} }}"#),
                &["inputSchema"],
            );
        }
        tool(
            r#"{"name":"a","inputSchema":{}}"#,
            &format!(r#"{{"name":"a",{input}}}"#),
            &["inputSchema"],
        );
        tool(
            r#"{"name":"a","inputSchema":{"type":["object"], "properties":null,"required":null}}"#,
            r#"{"name":"a","inputSchema":{"type":"object", "properties":{},"required":[]}}"#,
            &["inputSchema"],
        );
        tool(
            r#"{"description":null, "name":"a","title":1,"outputSchema":null,"x":null}"#,
            &format!(r#"{{{input},"name":"a","x":null}}"#),
            &["description", "title", "outputSchema", "inputSchema"],
        );
        tool(
            &format!(r#"{{"name":"a",{input},"outputSchema":{{"required":null}}}}"#),
            &format!(r#"{{"name":"a",{input},"outputSchema":{{"required":[]}}}}"#),
            &["outputSchema"],
        );
        let resource = r#"{"uri":"a:\/\/b","size":"1","name":7}"#;
        let mended = r#"{"uri":"a:\/\/b","name":"a:\/\/b"}"#;
        check(Kind::Resources, resource, mended, &["size", "name"]);
        let template = r#"{"uriTemplate":"a:{b}","mimeType":null}"#;
        let mended = r#"{"name":"a:{b}","uriTemplate":"a:{b}"}"#;
        check(Kind::Templates, template, mended, &["mimeType", "name"]);
        let prompt = r#"{"name":"a","arguments":null,"icons":{}}"#;
        let mended = r#"{"name":"a"}"#;
        check(Kind::Prompts, prompt, mended, &["arguments", "icons"]);
    }

    #[test]
    fn parts_are_mended_where_they_are() {
        let check = |kind, with: &str, expect: &str| {
            let whole = |part: &str| match kind {
                Kind::Tools => format!(r#"{{"name":"a","inputSchema":{{"type":"object"}}{part}}}"#),
                Kind::Prompts => format!(r#"{{"name":"a"{part}}}"#),
                Kind::Resources | Kind::Templates => {
                    format!(r#"{{"uri":"a:b","uriTemplate":"a:b","name":"a"{part}}}"#)
                }
            };
            let mended = repair(kind, &raw(&whole(with)));
            let (mended, _) = mended.unwrap_or_else(|| panic!("{with} stays"));
            assert_eq!(mended.as_str(), whole(expect));
            assert!(repair(kind, &mended).is_none(), "{expect}");
        };
        for (annotations, expect) in [
            (r#"{"readOnlyHint":null,"x":null}"#, r#"{"x":null}"#),
            (
                r#"{"title":"a","idempotentHint":"yes"}"#,
                r#"{"title":"a"}"#,
            ),
        ] {
            let member = |value: &str| format!(r#","annotations":{value}"#);
            check(Kind::Tools, &member(annotations), &member(expect));
        }
        let support = r#","execution":{"taskSupport":"never"}"#;
        check(Kind::Tools, support, r#","execution":{}"#);
        check(Kind::Tools, r#","icons":[{"src":"a"},{}]"#, "");
        let icon = r#","icons":[{"src":"a","sizes":"48x48","mimeType":null}]"#;
        check(Kind::Tools, icon, r#","icons":[{"src":"a"}]"#);
        for (odd, expect) in [("true", "{}"), ("null", "{}"), ("false", r#"{"not":{}}"#)] {
            let output = |p: &str| {
                format!(r#","outputSchema":{{"properties":{{"q":{{"x":true}},"p":{p}}}}}"#)
            };
            check(Kind::Tools, &output(odd), &output(expect));
        }
        let required = |names: &str| format!(r#","outputSchema":{{"required":{names}}}"#);
        check(Kind::Tools, &required("[1]"), &required("[]"));
        for odd in [
            r#""audience":["user","all"]"#,
            r#""priority":7"#,
            r#""priority":null"#,
            r#""lastModified":"yesterday""#,
        ] {
            let annotations = format!(r#","annotations":{{{odd}}}"#);
            for kind in [Kind::Resources, Kind::Templates] {
                check(kind, &annotations, r#","annotations":{}"#);
            }
        }
        for size in ["1.5", "1e3", "\"1\""] {
            check(Kind::Resources, &format!(r#","size":{size}"#), "");
        }
        let argument = r#","arguments":[{"name":"x","required":null},{"name":"y"}]"#;
        let expect = r#","arguments":[{"name":"x"},{"name":"y"}]"#;
        check(Kind::Prompts, argument, expect);
        check(Kind::Prompts, r#","arguments":[{"name":"x"},{}]"#, "");
    }

    #[test]
    fn what_clients_can_read_stays() {
        let tool = r#"{"name":"a","inputSchema":{"type":"object","required":[],"x":null},"outputSchema":{"type":"array"},"x":null}"#;
        let resource = r#"{"uri":"a:b","name":"","size":-1,"annotations":{"audience":[],"priority":0.5,"lastModified":"2026-01-12T15:00:58+01:00","x":null},"icons":[{"src":"a","theme":"dark","sizes":["any"]}]}"#;
        for (kind, item) in [
            (Kind::Tools, tool),
            (Kind::Resources, resource),
            (Kind::Prompts, r#"{"name":"a"}"#),
        ] {
            assert!(repair(kind, &raw(item)).is_none(), "{item}");
        }
    }

    #[test]
    fn legacy_tools_give_objects() {
        for odd in ["{\"type\":\"array\"}", "{}", "true", "{\"type\":null}"] {
            let tool = raw(&format!(r#"{{"name":"a","outputSchema":{odd},"x":1}}"#));
            let legacy = without_output_schema(&tool).expect(odd);
            assert_eq!(legacy.as_str(), r#"{"name":"a","x":1}"#);
        }
        let kept = r#"{"name":"a","outputSchema":{"type":"object"}}"#;
        assert!(without_output_schema(&raw(kept)).is_none());
        assert!(without_output_schema(&raw(r#"{"name":"a"}"#)).is_none());
    }
}
