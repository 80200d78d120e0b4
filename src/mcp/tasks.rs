//! Tasks: calls of which a server says at once that it has begun them, and later what came of them.
//!
//! Only the route of one server declares them. On any other what a server may answer so is taken out
//! of the call, and the server answers the call itself (Spec 2025-11-25 basic/utilities/tasks; the
//! extension `io.modelcontextprotocol/tasks` from 2026-07-28 on).

use std::borrow::Cow;

use super::{
    error,
    json::{self, Patch, Raw},
    meta,
};

/// The extension by which a client of 2026-07-28 says that it takes tasks.
const EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// The member by which a call of 2025-11-25 asks for a task.
const TASK: &str = "task";

/// The params of a call without all that a server may take for a wish for a task, be it doubled or in
/// letters of another case.
pub fn without(params: &Raw) -> Cow<'_, Raw> {
    let json = params.as_bytes();
    let mut patch = Patch::new(json);
    let mut has_task = false;
    // Arguments may be long: the members are gone through once where there is nothing to remove.
    for member in json::members(json, 0) {
        has_task |= member.is_alike(json, TASK);
        if member.is_alike(json, "_meta") {
            remove_extension(json, member.value.start, &mut patch);
        }
    }
    if has_task {
        patch.remove_members(0, |member| member.is_alike(json, TASK));
    }
    if patch.is_empty() {
        return Cow::Borrowed(params);
    }
    Cow::Owned(patch.finish())
}

/// Takes the extension out of the capabilities in the `_meta` at `meta`.
fn remove_extension(json: &[u8], meta: usize, patch: &mut Patch<'_>) {
    let extensions =
        values(json, meta, meta::CLIENT_CAPABILITIES).flat_map(|at| values(json, at, "extensions"));
    for at in extensions {
        patch.remove_members(at, |member| member.is_alike(json, EXTENSION));
    }
}

/// Where the values begin of whatever may be taken for the member `key` of the object at `at`.
fn values<'a>(json: &'a [u8], at: usize, key: &'a str) -> impl Iterator<Item = usize> + 'a {
    let alike = json::members(json, at).filter(move |member| member.is_alike(json, key));
    alike.map(|member| member.value.start)
}

/// Whether `refusal`, which a server gave to a call of `tool`, is for want of a task: of a tool that
/// is said to need one, or since the client does not declare the extension.
pub fn are_missed(refusal: &Raw, tool: &Raw) -> bool {
    match error::code(refusal) {
        // The tool's rule says the one, the general rule the other.
        Some(error::METHOD_NOT_FOUND | error::INVALID_REQUEST) => {
            let support = at(tool, &["execution", "taskSupport"]);
            support.is_some_and(|it| it.as_text().as_deref() == Some("required"))
        }
        Some(error::MISSING_CAPABILITY) => {
            let needed = ["data", "requiredCapabilities", "extensions", EXTENSION];
            at(refusal, &needed).is_some()
        }
        Some(_) | None => false,
    }
}

fn at(raw: &Raw, path: &[&str]) -> Option<Raw> {
    path.iter().try_fold(raw.clone(), |raw, key| raw.get(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wish_for_a_task_is_left() {
        let check = |params: &str, left: &str| {
            let params = Raw::parse(params.to_owned()).unwrap();
            assert_eq!(without(&params).as_str(), left);
        };
        let same = |params: &str| check(params, params);
        same("{}");
        same(r#"{ "name":"a","arguments":{"task":{}},"_meta":{"task":1,"extensions":{}} }"#);
        check(
            r#"{"task":{"ttl":1}, "name":"a","t\u0061sk":2,"TASK":3}"#,
            r#"{"name":"a"}"#,
        );
        let modern = |extensions: &str| {
            let key = meta::CLIENT_CAPABILITIES;
            format!(r#"{{"_meta":{{"x":1,"{key}":{{"extensions":{extensions}}}}},"name":"a"}}"#)
        };
        same(&modern(r#"{"a/tasks":{}}"#));
        same(&modern("5"));
        let declared = r#"{"a/b":{}, "io.modelcontextprotocol/tasks":{} }"#;
        check(&modern(declared), &modern(r#"{"a/b":{} }"#));
        let odd = r#"{"io.modelcontextprotocol\/ta\u017fks":1,"a/b":{}}"#;
        check(&modern(odd), &modern(r#"{"a/b":{}}"#));
    }
}
