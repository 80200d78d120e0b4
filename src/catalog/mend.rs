//! Items that clients could not read, mended for routes where they stand beside those of others.
//!
//! Clients check a list as a whole: one tool without an input schema, or with `null` for a
//! description, and the official ones show no tool of any server. On the route of its own server an
//! item stays as it is.

use super::Kind;
use crate::mcp::json::{self, Member, Patch, Raw};

/// What a value begins with that has the type MCP says.
#[derive(Clone, Copy)]
enum Shape {
    Array,
    Number,
    Object,
    Text,
}

use Shape::{Array, Number, Object, Text};

/// Members that an item may have, and the types of their values (`schema.ts` of all revisions).
const fn optional(kind: Kind) -> &'static [(&'static str, Shape)] {
    match kind {
        Kind::Tools => &[
            ("_meta", Object),
            ("annotations", Object),
            ("description", Text),
            ("execution", Object),
            ("icons", Array),
            ("outputSchema", Object),
            ("title", Text),
        ],
        Kind::Resources | Kind::Templates => &[
            ("_meta", Object),
            ("annotations", Object),
            ("description", Text),
            ("icons", Array),
            ("mimeType", Text),
            ("size", Number),
            ("title", Text),
        ],
        Kind::Prompts => &[
            ("_meta", Object),
            ("arguments", Array),
            ("description", Text),
            ("icons", Array),
            ("title", Text),
        ],
    }
}

/// The input schema of a tool that takes whatever it is given.
const ANYTHING: &str = r#"{"type":"object"}"#;

/// `item` as every client can read it, and the members that were changed; `None` where it is such
/// already.
pub(super) fn mend(kind: Kind, item: &Raw) -> Option<(Raw, Vec<&'static str>)> {
    let json = item.as_bytes();
    let mut patch = Patch::new(json);
    let mut changed = Vec::new();
    let odd = |member: &Member| {
        let known = optional(kind).iter().find(|(key, _)| member.is(json, key));
        known.filter(|(_, shape)| !shape.is_of(json, member))
    };
    for member in json::members(json, 0) {
        changed.extend(odd(&member).map(|(key, _)| *key));
    }
    if !changed.is_empty() {
        patch.remove_members(0, |member| odd(member).is_some());
    }
    match kind {
        Kind::Tools => {
            if mend_input(&mut patch, json) {
                changed.push("inputSchema");
            }
            let output = json::find(json, 0, "outputSchema");
            if output.is_some_and(|output| mend_parts(&mut patch, json, output.start)) {
                changed.push("outputSchema");
            }
        }
        Kind::Resources | Kind::Templates => {
            if mend_name(&mut patch, json, kind) {
                changed.push("name");
            }
        }
        // The name is there, or it would not be an item.
        Kind::Prompts => {}
    }
    (!changed.is_empty()).then(|| (patch.finish(), changed))
}

/// `tool` as clients of legacy revisions can read it, where it is not such already: their output
/// schemas are of objects.
pub(super) fn legacy(tool: &Raw) -> Option<Raw> {
    let json = tool.as_bytes();
    let is_foreign = |member: &Member| {
        member.is(json, "outputSchema") && !is_of_objects(json, member.value.start)
    };
    if !json::members(json, 0).any(|member| is_foreign(&member)) {
        return None;
    }
    let mut patch = Patch::new(json);
    patch.remove_members(0, is_foreign);
    Some(patch.finish())
}

impl Shape {
    fn is_of(self, json: &[u8], member: &Member) -> bool {
        let first = json[member.value.start];
        match self {
            Array => first == b'[',
            Number => first == b'-' || first.is_ascii_digit(),
            Object => first == b'{',
            Text => first == b'"',
        }
    }
}

/// Whether the schema at `at` says that it is one of objects.
fn is_of_objects(json: &[u8], at: usize) -> bool {
    let said = json::find(json, at, "type").and_then(|said| json::text(&json[said]));
    said.is_some_and(|said| said == "object")
}

fn mend_input(patch: &mut Patch<'_>, json: &[u8]) -> bool {
    let mut has_one = false;
    let mut is_mended = false;
    for member in json::members(json, 0) {
        if !member.is(json, "inputSchema") {
            continue;
        }
        has_one = true;
        let at = member.value.start;
        if json[at] != b'{' {
            patch.replace(member.value, ANYTHING.as_bytes());
            is_mended = true;
            continue;
        }
        is_mended |= mend_parts(patch, json, at);
        if is_of_objects(json, at) {
            continue;
        }
        match json::find(json, at, "type") {
            Some(said) => patch.replace(said, &br#""object""#[..]),
            None => patch.insert_members(at, r#""type":"object""#),
        }
        is_mended = true;
    }
    if !has_one {
        patch.insert_members(0, &format!(r#""inputSchema":{ANYTHING}"#));
    }
    is_mended || !has_one
}

/// Mends what a schema says of properties; servers in Go write `null` for a list without items.
fn mend_parts(patch: &mut Patch<'_>, json: &[u8], schema: usize) -> bool {
    let mut is_mended = false;
    for member in json::members(json, schema) {
        let (shape, empty) = if member.is(json, "properties") {
            (Object, "{}")
        } else if member.is(json, "required") {
            (Array, "[]")
        } else {
            continue;
        };
        if !shape.is_of(json, &member) {
            patch.replace(member.value, empty.as_bytes());
            is_mended = true;
        }
    }
    is_mended
}

/// Gives a resource its URI for a name where it has none.
fn mend_name(patch: &mut Patch<'_>, json: &[u8], kind: Kind) -> bool {
    let Some(uri) = json::find(json, 0, kind.key()) else {
        return false;
    };
    let uri = &json[uri];
    let mut has_one = false;
    let mut is_mended = false;
    for member in json::members(json, 0) {
        if !member.is(json, "name") {
            continue;
        }
        has_one = true;
        if !Text.is_of(json, &member) {
            patch.replace(member.value, uri.to_vec());
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
            let (mended, changed) = mend(kind, &raw(item)).expect(item);
            assert_eq!(mended.as_str(), expect, "{item}");
            assert_eq!(changed, members, "{item}");
            assert!(mend(kind, &mended).is_none(), "{item}");
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
    fn what_clients_can_read_stays() {
        let tool = r#"{"name":"a","inputSchema":{"type":"object","required":[],"x":null},"outputSchema":{"type":"array"},"x":null}"#;
        let resource = r#"{"uri":"a:b","name":"","size":-1,"annotations":{"audience":null}}"#;
        for (kind, item) in [
            (Kind::Tools, tool),
            (Kind::Resources, resource),
            (Kind::Prompts, r#"{"name":"a"}"#),
        ] {
            assert!(mend(kind, &raw(item)).is_none(), "{item}");
        }
    }

    #[test]
    fn legacy_tools_give_objects() {
        for odd in ["{\"type\":\"array\"}", "{}", "true", "{\"type\":null}"] {
            let tool = raw(&format!(r#"{{"name":"a","outputSchema":{odd},"x":1}}"#));
            let legacy = legacy(&tool).expect(odd);
            assert_eq!(legacy.as_str(), r#"{"name":"a","x":1}"#);
        }
        let kept = r#"{"name":"a","outputSchema":{"type":"object"}}"#;
        assert!(legacy(&raw(kept)).is_none());
        assert!(legacy(&raw(r#"{"name":"a"}"#)).is_none());
    }
}
