//! Tasks: calls of which a server says at once that it has begun them, and later what came of them.
//!
//! Only the route of one server declares them. On any other what a server may answer so is taken out
//! of the call, and the server answers the call itself (Spec 2025-11-25 basic/utilities/tasks; the
//! extension `io.modelcontextprotocol/tasks` from 2026-07-28 on). This knows where tasks are named;
//! `governance` knows whose they are.

use std::{borrow::Cow, ops::Range, sync::LazyLock};

use memchr::memmem::Finder;

use super::{
    error,
    json::{self, Patch, Raw},
    meta,
    method::Method,
    params::Params,
    revision::Revision,
};

/// The extension by which a client of 2026-07-28 says that it takes tasks.
const EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// The member by which a call of 2025-11-25 asks for a task.
const TASK_MEMBER: &str = "task";
/// What names a task, in whatever has to do with it.
const TASK_ID: &str = "taskId";
/// The member of `_meta` that relates a message to a task (2025-11-25).
const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";
/// How the methods begin that are about tasks.
const PREFIX: &str = "tasks/";
/// The one of them that names none (2025-11-25).
const LIST: &str = "tasks/list";
/// What it lists.
const TASKS_MEMBER: &str = "tasks";
/// How the notifications begin that are about a task.
const NOTIFICATION_PREFIX: &str = "notifications/tasks";

/// Finds [`TASK_MEMBER`] in a text.
static FIND_TASK: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(TASK_MEMBER));
/// Finds [`TASK_ID`] in a text.
static FIND_ID: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(TASK_ID));

/// Whether a server may find a wish for a task in the params of a call, so that [`without_task_request`] is worth the
/// walk through them.
pub fn may_request_task(params: &Params) -> bool {
    let capabilities = params.meta().client_capabilities.as_ref();
    let declares =
        |at: &Range<usize>| matching_values(params.as_bytes(), at.start, "extensions").count() > 0;
    !params.is_standard() || capabilities.is_some_and(declares)
}

/// The params of a call without all that a server may take for a wish for a task, be it doubled or in
/// letters of another case.
pub fn without_task_request(params: &Raw) -> Cow<'_, Raw> {
    let json = params.as_bytes();
    let mut patch = Patch::new(json);
    let mut has_task = false;
    // Arguments may be long: the members are gone through once where there is nothing to remove.
    for member in json::members(json, 0) {
        has_task |= member.matches_ignoring_case(json, TASK_MEMBER);
        if member.matches_ignoring_case(json, "_meta") {
            remove_extension(json, member.value.start, &mut patch);
        }
    }
    if has_task {
        patch.remove_members(0, |member| member.matches_ignoring_case(json, TASK_MEMBER));
    }
    if patch.is_empty() {
        return Cow::Borrowed(params);
    }
    Cow::Owned(patch.finish())
}

/// Takes the extension out of the capabilities in the `_meta` at `meta`.
fn remove_extension(json: &[u8], meta: usize, patch: &mut Patch<'_>) {
    let extensions = matching_values(json, meta, meta::CLIENT_CAPABILITIES)
        .flat_map(|at| matching_values(json, at, "extensions"));
    for at in extensions {
        patch.remove_members(at, |member| member.matches_ignoring_case(json, EXTENSION));
    }
}

/// Where the values begin of whatever may be taken for the member `key` of the object at `at`.
fn matching_values<'a>(
    json: &'a [u8],
    at: usize,
    key: &'a str,
) -> impl Iterator<Item = usize> + 'a {
    let alike =
        json::members(json, at).filter(move |member| member.matches_ignoring_case(json, key));
    alike.map(|member| member.value.start)
}

/// Whether `refusal`, which a server gave to a call of `tool`, is for want of a task: of a tool that
/// is said to need one, or since the client does not declare the extension.
pub fn is_task_required_error(refusal: &Raw, tool: &Raw) -> bool {
    match error::code(refusal) {
        // The tool's rule says the one, the general rule the other.
        Some(error::METHOD_NOT_FOUND | error::INVALID_REQUEST) => {
            let support = value_at(tool, &["execution", "taskSupport"]);
            support.is_some_and(|it| it.as_text().as_deref() == Some("required"))
        }
        Some(error::MISSING_CAPABILITY) => {
            let needed = ["data", "requiredCapabilities", "extensions", EXTENSION];
            value_at(refusal, &needed).is_some()
        }
        Some(_) | None => false,
    }
}

/// Whether requests of `method` are about tasks.
pub fn is_method(method: &Method) -> bool {
    method.as_str().starts_with(PREFIX)
}

/// Whether requests of `method` are about one task.
pub fn names_one_task(method: &Method) -> bool {
    is_method(method) && !is_list(method)
}

/// Whether `method` lists tasks.
pub fn is_list(method: &Method) -> bool {
    method.as_str() == LIST
}

/// Whether the notification `method` is about one task.
pub fn is_task_notification(method: &str) -> bool {
    method.starts_with(NOTIFICATION_PREFIX)
}

/// What an object says of the task it is about.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TaskReference {
    /// Nothing.
    Nothing,
    /// Its id.
    One(String),
    /// What readers may take for different ids, or for none.
    Ambiguous,
}

/// The task that the object at `at` of `json` is about.
pub fn referenced_task(json: &[u8], at: usize) -> TaskReference {
    let mut alike =
        json::members(json, at).filter(|member| member.matches_ignoring_case(json, TASK_ID));
    match (alike.next(), alike.next()) {
        (None, _) => TaskReference::Nothing,
        (Some(only), None) if only.matches(json, TASK_ID) => {
            match json::decode_string(&json[only.value]) {
                Some(id) => TaskReference::One(id.into_owned()),
                None => TaskReference::Ambiguous,
            }
        }
        (Some(_), _) => TaskReference::Ambiguous,
    }
}

/// The task that a server's message is about: a state of it, or what is related to it by its `_meta`.
pub fn task_of_notification(method: &str, params: &Raw) -> TaskReference {
    let json = params.as_bytes();
    if is_task_notification(method) {
        return referenced_task(json, 0);
    }
    let related = params.get("_meta").and_then(|meta| meta.get(RELATED_TASK));
    related.map_or(TaskReference::Nothing, |related| {
        referenced_task(related.as_bytes(), 0)
    })
}

/// Whether `params` of a call ask for a task, as they do up to 2025-11-25. Later nobody has to ask: the
/// server decides by itself.
pub fn requests_task(params: &Raw) -> bool {
    let json = params.as_bytes();
    // Arguments may be long. Who spells the key in another way than everybody is given no task.
    FIND_TASK.find(json).is_some() && params.member(TASK_MEMBER).is_some()
}

/// Whether a call may have begun a task at a server that speaks `revision`; `is_asked_for` tells whether
/// it asked for one.
pub fn may_have_created_task(is_asked_for: bool, revision: Option<&str>) -> bool {
    is_asked_for || revision == Some(Revision::MODERN.as_str())
}

/// Whether a task may be named in `result`, found out without a walk through it.
pub fn may_reference_task(result: &Raw) -> bool {
    FIND_ID.find(result.as_bytes()).is_some()
}

/// The id of the task that a call has begun, when its server, which speaks `revision`, answers so.
pub fn created_task(result: &Raw, revision: Option<&str>) -> Option<String> {
    let json = result.as_bytes();
    let is_modern = revision == Some(Revision::MODERN.as_str());
    if is_modern {
        let kind = result.get("resultType")?;
        kind.as_text().filter(|kind| kind == TASK_MEMBER)?;
    }
    let flat = if is_modern {
        referenced_task(json, 0)
    } else {
        TaskReference::Nothing
    };
    match (flat, result.member(TASK_MEMBER)) {
        (TaskReference::Nothing, Some(task)) => match referenced_task(json, task.start) {
            TaskReference::One(id) => Some(id),
            TaskReference::Nothing | TaskReference::Ambiguous => None,
        },
        (TaskReference::One(id), _) => Some(id),
        (TaskReference::Nothing | TaskReference::Ambiguous, _) => None,
    }
}

/// Where whatever may be taken for the list of a list of tasks stands.
pub fn task_lists(json: &[u8]) -> impl Iterator<Item = Range<usize>> + '_ {
    let alike =
        json::members(json, 0).filter(|member| member.matches_ignoring_case(json, TASKS_MEMBER));
    alike.map(|member| member.value)
}

fn value_at(raw: &Raw, path: &[&str]) -> Option<Raw> {
    path.iter().try_fold(raw.clone(), |raw, key| raw.get(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_named_in_one_way() {
        let check = |object: &str, expect: TaskReference| {
            assert_eq!(referenced_task(object.as_bytes(), 0), expect, "{object}");
        };
        let one = |id: &str| TaskReference::One(id.to_owned());
        check("{}", TaskReference::Nothing);
        check("[]", TaskReference::Nothing);
        check(r#"{"a":{"taskId":"t"}}"#, TaskReference::Nothing);
        check(r#"{"a":1,"taskId":"t"}"#, one("t"));
        check(r#"{"t\u0061skId":"\u0074"}"#, one("t"));
        for unclear in [
            r#"{"taskId":1}"#,
            r#"{"taskId":"\ud800"}"#,
            r#"{"taskid":"t"}"#,
            r#"{"taskId":"t","taskId":"t"}"#,
            r#"{"TaskID":"u","taskId":"t"}"#,
            r#"{"taskId":"t","ta\u017fkId":"u"}"#,
        ] {
            check(unclear, TaskReference::Ambiguous);
        }
    }

    #[test]
    fn a_task_has_begun_in_the_words_of_its_era() {
        let (legacy, modern) = (None, Some(Revision::MODERN.as_str()));
        let check = |revision, result: &str, expect: Option<&str>| {
            let raw = Raw::parse(result.to_owned()).unwrap();
            assert_eq!(created_task(&raw, revision).as_deref(), expect, "{result}");
        };
        check(legacy, r#"{"task":{"taskId":"t"}}"#, Some("t"));
        check(legacy, r#"{"taskId":"t","resultType":"task"}"#, None);
        check(legacy, r#"{"content":[{"task":{"taskId":"t"}}]}"#, None);
        check(modern, r#"{"taskId":"t","resultType":"task"}"#, Some("t"));
        check(
            modern,
            r#"{"task":{"taskId":"t"},"resultType":"task"}"#,
            Some("t"),
        );
        check(modern, r#"{"taskId":"t","resultType":"complete"}"#, None);
        check(modern, r#"{"task":{"taskId":"t"}}"#, None);
    }

    #[test]
    fn a_task_is_asked_for_by_a_member_of_the_params() {
        let check = |params: &str, expect: bool| {
            let raw = Raw::parse(params.to_owned()).unwrap();
            assert_eq!(requests_task(&raw), expect, "{params}");
        };
        check(r#"{"name":"a","task":{}}"#, true);
        check(r#"{"name":"task","arguments":{"task":{}}}"#, false);
        check(r#"{"name":"a"}"#, false);
        let modern = Some(Revision::MODERN.as_str());
        assert!(may_have_created_task(true, None) && may_have_created_task(false, modern));
        assert!(
            !may_have_created_task(false, None)
                && !may_have_created_task(false, Some("2025-11-25"))
        );
    }

    #[test]
    fn no_wish_for_a_task_is_left() {
        let check = |params: &str, left: &str| {
            let params = Raw::parse(params.to_owned()).unwrap();
            assert_eq!(without_task_request(&params).as_str(), left);
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
