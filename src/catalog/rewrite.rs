//! URIs inside messages: every place where the protocol carries one, and no other.
//!
//! Called for messages that cross a merged route, after the envelope was read. The walkers only
//! collect where URIs stand, before anything is spliced. Free text, structured content, arguments,
//! icons, elicitation URLs, roots and the contents of files stay as they are. A message without a
//! change is returned as the same bytes.

use std::{borrow::Cow, ops::Range, sync::LazyLock};

use memchr::{memchr, memmem::Finder};

use super::uri_map::UriMap;
use crate::mcp::json::{self, Patch, Raw};

/// How deep tool results inside tool results are followed; the protocol nests them once.
const NESTED_RESULTS_MAX: usize = 4;

/// What every message has that holds a URI, except those about subscriptions.
static URI_KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"uri\""));

/// How letters can be hidden from a plain search.
static ESCAPE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(br"\u00"));

/// Members of a tool's `_meta` that hold a URI, beside `ui.resourceUri`.
const META_URIS: [&str; 2] = ["openai/outputTemplate", "ui/resourceUri"];

/// Rewrites the result of `method`, on its way from a server to a client.
pub fn rewrite_result(method: &str, result: &Raw, uris: &UriMap) -> Raw {
    outbound(result, uris, |spans| match method {
        "prompts/get" => spans.members(
            0,
            &[UriSpans::INPUT_REQUESTS, ("messages", UriSpans::messages)],
        ),
        "resources/directory/read" => {
            spans.members(0, &[("resources", UriSpans::objects_with_uri)]);
        }
        "resources/read" => spans.members(
            0,
            &[
                UriSpans::INPUT_REQUESTS,
                ("contents", UriSpans::objects_with_uri),
            ],
        ),
        "skills/get" => spans.members(0, &[("skill", UriSpans::skill)]),
        "skills/list" => spans.members(0, &[("skills", UriSpans::skills)]),
        "tasks/get" => spans.task(0),
        "tasks/result" | "tools/call" => {
            spans.members(0, &[UriSpans::INPUT_REQUESTS, UriSpans::CONTENT]);
        }
        _ => {}
    })
}

/// Rewrites an error object, on its way from a server to a client.
pub fn rewrite_error(error: &Raw, uris: &UriMap) -> Raw {
    outbound(error, uris, |spans| spans.error(0))
}

/// Rewrites the params of a server's request to a client.
pub fn rewrite_request(method: &str, params: &Raw, uris: &UriMap) -> Raw {
    outbound(params, uris, |spans| spans.request(method, 0))
}

/// Rewrites the params of a server's notification.
pub fn rewrite_notification(method: &str, params: &Raw, uris: &UriMap) -> Raw {
    match method {
        "notifications/resources/updated" => {
            outbound(params, uris, |spans| spans.object_with_uri(0))
        }
        "notifications/subscriptions/acknowledged" => {
            replace_spans(params, &subscriptions(params), |uri| Some(uris.expose(uri)))
        }
        "notifications/tasks" => outbound(params, uris, |spans| spans.task(0)),
        _ => params.clone(),
    }
}

/// Rewrites the answers to questions that a client's request carries (2026-07-28), on its way to
/// the server it was routed to. URIs that are not exposed ones of this server stay as they are.
pub fn rewrite_input_responses(params: &Raw, uris: &UriMap) -> Raw {
    inbound(params, uris, |spans| {
        spans.members(0, &[UriSpans::INPUT_RESPONSES]);
    })
}

/// Rewrites a client's answer to a request of a server.
pub fn rewrite_client_result(method: &str, result: &Raw, uris: &UriMap) -> Raw {
    inbound(result, uris, |spans| {
        if method == "sampling/createMessage" {
            spans.members(0, &[UriSpans::CONTENT]);
        }
    })
}

/// Where the URIs of a tool's `_meta` stand.
pub(super) fn meta_uris(json: &[u8], at: usize) -> Vec<Range<usize>> {
    let mut spans = UriSpans::new(json);
    for member in json::members(json, at) {
        if member.matches(json, "ui") {
            spans.strings(member.value.start, "resourceUri");
        }
    }
    for key in META_URIS {
        spans.strings(at, key);
    }
    spans.uris
}

/// Whether a string of `json` may hold `word`, which is ASCII; wrong only in saying yes. A plain
/// search finds the word unless one of its characters is escaped.
pub(super) fn may_contain_string(json: &[u8], word: &Finder<'_>) -> bool {
    let escaped = |at: usize| {
        let digits = json
            .get(at + 4..at + 6)
            .and_then(|pair| std::str::from_utf8(pair).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        byte.is_some_and(|byte| byte != b'"' && word.needle().contains(&byte))
    };
    // Most texts have no escape at all.
    word.find(json).is_some()
        || (memchr(b'\\', json).is_some() && ESCAPE.find_iter(json).any(escaped))
}

/// Replaces the strings at `spans` by what `map` makes of them.
fn replace_spans(
    raw: &Raw,
    spans: &[Range<usize>],
    map: impl Fn(&str) -> Option<Cow<'_, str>>,
) -> Raw {
    let json = raw.as_bytes();
    let mut patch = Patch::new(json);
    for span in spans {
        let Some(old) = json::decode_string(&json[span.clone()]) else {
            continue;
        };
        if let Some(new) = map(&old).filter(|new| *new != old) {
            patch.replace(span.clone(), Raw::string(&new).as_bytes().to_vec());
        }
    }
    if patch.is_empty() {
        return raw.clone();
    }
    patch.finish()
}

fn outbound(raw: &Raw, uris: &UriMap, walk: impl FnOnce(&mut UriSpans<'_>)) -> Raw {
    rewrite(raw, uris, walk, |uri| Some(uris.expose(uri)))
}

fn inbound(raw: &Raw, uris: &UriMap, walk: impl FnOnce(&mut UriSpans<'_>)) -> Raw {
    rewrite(raw, uris, walk, |uri| uris.original(uri))
}

fn rewrite(
    raw: &Raw,
    uris: &UriMap,
    walk: impl FnOnce(&mut UriSpans<'_>),
    map: impl Fn(&str) -> Option<Cow<'_, str>>,
) -> Raw {
    let json = raw.as_bytes();
    // Most messages carry no URI at all, and a search costs far less than a walk.
    if uris.is_identity() || !may_contain_string(json, &URI_KEY) {
        return raw.clone();
    }
    let mut spans = UriSpans::new(json);
    walk(&mut spans);
    replace_spans(raw, &spans.uris, map)
}

/// Collects where URIs stand. Each method takes the offset of the value it looks at, and finds
/// nothing where the value is of another shape than expected.
struct UriSpans<'a> {
    json: &'a [u8],
    uris: Vec<Range<usize>>,
}

/// A member's key, and what looks at its value.
type MemberVisitor<'a> = (&'static str, fn(&mut UriSpans<'a>, usize));

impl<'a> UriSpans<'a> {
    /// What a client answers to [`INPUT_REQUESTS`](Self::INPUT_REQUESTS).
    const INPUT_RESPONSES: MemberVisitor<'a> = ("inputResponses", Self::input_responses);
    /// What a server asks of a client before it goes on.
    const INPUT_REQUESTS: MemberVisitor<'a> = ("inputRequests", Self::input_requests);
    /// Content blocks of a result or a message.
    const CONTENT: MemberVisitor<'a> = ("content", Self::content);

    fn new(json: &'a [u8]) -> Self {
        Self {
            json,
            uris: Vec::new(),
        }
    }

    /// Looks at the members of the object at `at` that are named in `looks`; a repeated key must not
    /// hide one.
    fn members(&mut self, at: usize, looks: &[MemberVisitor<'a>]) {
        for member in json::members(self.json, at) {
            for (key, look) in looks {
                if member.matches(self.json, key) {
                    look(self, member.value.start);
                }
            }
        }
    }

    /// The string members `key` of the object at `at`.
    fn strings(&mut self, at: usize, key: &str) {
        for member in json::members(self.json, at) {
            if member.matches(self.json, key) && self.json[member.value.start] == b'"' {
                self.uris.push(member.value);
            }
        }
    }

    /// An object with a member `uri`.
    fn object_with_uri(&mut self, at: usize) {
        self.strings(at, "uri");
    }

    fn objects_with_uri(&mut self, at: usize) {
        self.each_element(at, Self::object_with_uri);
    }

    fn each_element(&mut self, at: usize, look: impl Fn(&mut Self, usize)) {
        for element in json::elements(self.json, at) {
            look(self, element.start);
        }
    }

    fn messages(&mut self, at: usize) {
        self.each_element(at, |spans, at| spans.members(at, &[UriSpans::CONTENT]));
    }

    /// One content block, or an array of them.
    fn content(&mut self, at: usize) {
        self.blocks(at, 0);
    }

    fn blocks(&mut self, at: usize, depth: usize) {
        self.block(at, depth);
        self.each_element(at, |spans, at| spans.block(at, depth));
    }

    fn block(&mut self, at: usize, depth: usize) {
        let (mut kind, mut uris, mut resources, mut contents) = (None, vec![], vec![], vec![]);
        for member in json::members(self.json, at) {
            if member.matches(self.json, "type") {
                kind = json::decode_string(&self.json[member.value]);
            } else if member.matches(self.json, "uri") {
                uris.push(member.value);
            } else if member.matches(self.json, "resource") {
                resources.push(member.value.start);
            } else if member.matches(self.json, "content") {
                contents.push(member.value.start);
            }
        }
        match kind.as_deref() {
            Some("resource") => {
                for at in resources {
                    self.object_with_uri(at);
                }
            }
            Some("resource_link") => self.uris.append(&mut uris),
            Some("tool_result") if depth < NESTED_RESULTS_MAX => {
                for at in contents {
                    self.blocks(at, depth + 1);
                }
            }
            _ => {}
        }
    }

    fn request(&mut self, method: &str, params: usize) {
        if method == "sampling/createMessage" {
            self.members(params, &[("messages", Self::messages)]);
        }
    }

    /// The requests of an `input_required` result, by key.
    fn input_requests(&mut self, at: usize) {
        for entry in json::members(self.json, at) {
            let at = entry.value.start;
            let method = json::find_member(self.json, at, "method");
            let Some(method) = method.and_then(|span| json::decode_string(&self.json[span])) else {
                continue;
            };
            if let Some(params) = json::find_member(self.json, at, "params") {
                self.request(&method, params.start);
            }
        }
    }

    /// A client's answers to such requests, by key. An elicitation's content is a form, not blocks.
    fn input_responses(&mut self, at: usize) {
        for entry in json::members(self.json, at) {
            let at = entry.value.start;
            if json::find_member(self.json, at, "action").is_none() {
                self.members(at, &[UriSpans::CONTENT]);
            }
        }
    }

    /// The state of a task, with whatever it carries of the call's end.
    fn task(&mut self, at: usize) {
        let result: MemberVisitor<'a> = ("result", |spans, at| {
            spans.members(at, &[UriSpans::CONTENT]);
        });
        self.members(
            at,
            &[UriSpans::INPUT_REQUESTS, ("error", Self::error), result],
        );
    }

    fn error(&mut self, at: usize) {
        self.members(at, &[("data", Self::object_with_uri)]);
    }

    fn skill(&mut self, at: usize) {
        self.object_with_uri(at);
        self.members(at, &[("resources", Self::objects_with_uri)]);
    }

    fn skills(&mut self, at: usize) {
        self.each_element(at, Self::skill);
    }

    fn subscriptions(&mut self, at: usize) {
        for element in json::elements(self.json, at) {
            if self.json[element.start] == b'"' {
                self.uris.push(element);
            }
        }
    }
}

/// The URIs of a filter of subscriptions, as asked for and as acknowledged.
fn subscriptions(params: &Raw) -> Vec<Range<usize>> {
    let mut spans = UriSpans::new(params.as_bytes());
    let filter: MemberVisitor<'_> = ("notifications", |spans, at| {
        spans.members(at, &[("resourceSubscriptions", UriSpans::subscriptions)]);
    });
    spans.members(0, &[filter]);
    spans.uris
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn raw(text: &str) -> Raw {
        Raw::parse(text.to_owned()).unwrap()
    }

    fn map() -> UriMap {
        UriMap::prefixed("gh".to_owned())
    }

    /// `text` with `@` for the server's URI and for the exposed one.
    fn both(text: &str) -> (Raw, Raw) {
        let fill = |uri: &str| raw(&text.replace('@', uri));
        (fill(r#""file:\/\/\/a""#), fill(r#""gh+file:///a""#))
    }

    fn check_outbound(rewrite: &dyn Fn(&Raw) -> Raw, text: &str) {
        let (server, client) = both(text);
        assert_eq!(rewrite(&server), client);
    }

    #[test]
    fn every_place_in_results_is_rewritten() {
        let (check, map) = (check_outbound, map());
        for method in ["tools/call", "tasks/result"] {
            let call = |raw: &Raw| rewrite_result(method, raw, &map);
            check(
                &call,
                r#"{"content":[{"type":"resource_link","uri":@,"name":"n"}]}"#,
            );
            check(
                &call,
                r#"{"content":[{"type":"resource","resource":{"text":"t","uri":@}}]}"#,
            );
            check(
                &call,
                r#"{"content":{"\u0075ri":@,"type":"resource_link"}}"#,
            );
            check(
                &call,
                r#"{ "x":1, "content":[ {"type":"text","text":"\"uri\""}, {"uri":@ , "type":"resource_link"} ] }"#,
            );
            check(
                &call,
                r#"{"resultType":"input_required","inputRequests":{"k":{"method":"sampling/createMessage",
                    "params":{"messages":[{"role":"user","content":{"type":"resource_link","uri":@}}]}}}}"#,
            );
        }
        let read = |raw: &Raw| rewrite_result("resources/read", raw, &map);
        check(
            &read,
            r#"{"contents":[{"uri":@,"text":"x"},{"uri":@,"blob":""}],"ttlMs":5}"#,
        );
        check(&read, r#"{"contents":[{"uri":@,"uri":@}]}"#);
        let prompt = |raw: &Raw| rewrite_result("prompts/get", raw, &map);
        check(
            &prompt,
            r#"{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":@}}},
                {"role":"user","content":[{"type":"resource_link","uri":@}]}]}"#,
        );
        let task = |raw: &Raw| rewrite_result("tasks/get", raw, &map);
        check(
            &task,
            r#"{"taskId":"t","result":{"content":[{"type":"resource_link","uri":@}]},
                "error":{"data":{"uri":@}},"inputRequests":{"k":{"method":"sampling/createMessage",
                "params":{"messages":[{"content":{"type":"resource_link","uri":@}}]}}}}"#,
        );
        let entry = r#"{"uri":@,"frontmatter":{"uri":"x"},"resources":[{"uri":@,"size":1}]}"#;
        check(
            &|raw| rewrite_result("skills/get", raw, &map),
            &format!(r#"{{"skill":{entry}}}"#),
        );
        check(
            &|raw| rewrite_result("skills/list", raw, &map),
            &format!(r#"{{"skills":[{entry}]}}"#),
        );
        let directory = |raw: &Raw| rewrite_result("resources/directory/read", raw, &map);
        check(&directory, r#"{"resources":[{"uri":@,"name":"n"}]}"#);
    }

    #[test]
    fn every_place_in_other_messages_is_rewritten() {
        let (check, map) = (check_outbound, map());
        let rewritten = |raw: &Raw| rewrite_notification("notifications/tasks", raw, &map);
        check(
            &rewritten,
            r#"{"result":{"content":[{"type":"resource_link","uri":@}]}}"#,
        );
        let updated =
            |raw: &Raw| rewrite_notification("notifications/resources/updated", raw, &map);
        check(&updated, r#"{"_meta":{},"uri":@}"#);
        let acknowledged =
            |raw: &Raw| rewrite_notification("notifications/subscriptions/acknowledged", raw, &map);
        check(
            &acknowledged,
            r#"{"notifications":{"resourceSubscriptions":[@,@]}}"#,
        );
        check(
            &|raw| rewrite_error(raw, &map),
            r#"{"code":-32002,"message":"m","data":{"uri":@}}"#,
        );
        let sampling = |raw: &Raw| rewrite_request("sampling/createMessage", raw, &map);
        check(
            &sampling,
            r#"{"messages":[{"content":{"type":"tool_result","content":[{"type":"resource_link","uri":@},
                {"type":"resource","resource":{"uri":@}}]}}],"maxTokens":1}"#,
        );
    }

    #[test]
    fn every_place_is_rewritten_inbound() {
        let check = |rewrite: &dyn Fn(&Raw) -> Raw, text: &str| {
            let client = raw(&text.replace('@', r#""gh+file:\/\/\/a""#));
            let server = raw(&text.replace('@', r#""file:///a""#));
            assert_eq!(rewrite(&client), server);
        };
        let map = map();
        let sampled =
            r#"{"role":"assistant","content":[{"type":"resource","resource":{"uri":@}}]}"#;
        check(
            &|raw| rewrite_client_result("sampling/createMessage", raw, &map),
            sampled,
        );
        let text = format!(r#"{{"name":"t","inputResponses":{{"k":{sampled}}}}}"#);
        check(&|raw| rewrite_input_responses(raw, &map), &text);
    }

    fn check_untouched(rewrite: &dyn Fn(&Raw) -> Raw, text: &str) {
        let message = raw(text);
        let rewritten = rewrite(&message);
        assert_eq!(rewritten.as_str(), text);
        assert_eq!(
            rewritten.as_bytes().as_ptr(),
            message.as_bytes().as_ptr(),
            "copied: {text}"
        );
    }

    #[test]
    fn other_places_of_a_call_stay_as_they_are() {
        let (check, map) = (check_untouched, map());
        let call = |raw: &Raw| rewrite_result("tools/call", raw, &map);
        check(
            &call,
            r#"{"content":[{"type":"text","text":"see file:///a","uri":"file:///a"}]}"#,
        );
        check(
            &call,
            r#"{"content":[],"structuredContent":{"type":"resource_link","uri":"file:///a"}}"#,
        );
        check(
            &call,
            r#"{"content":[{"type":"image","data":"","mimeType":"uri","uri":"file:///a"}]}"#,
        );
        check(
            &call,
            r#"{"content":[{"type":"future","uri":"file:///a"}]}"#,
        );
        check(
            &call,
            r#"{"content":[{"type":"resource_link","uri":7},{"type":"resource_link","uri":"\ud800"}]}"#,
        );
        check(
            &call,
            r#"{"content":[{"type":"resource_link","icons":[{"src":"https://a","uri":"b:c"}]}]}"#,
        );
        check(
            &call,
            r#"{"content":[],"_meta":{"ui":{"resourceUri":"ui://x"},"uri":"file:///a"}}"#,
        );
        check(
            &call,
            r#"{"content":[{"type":"resource","resource":"file:///a","uri":"file:///a"}]}"#,
        );
        check(
            &call,
            r#"{"inputRequests":{"k":{"method":"elicitation/create","params":{"mode":"url","url":"https://a","uri":"b:c"}},
                "r":{"method":"roots/list","params":{"messages":[{"content":{"type":"resource_link","uri":"a:b"}}]}}}}"#,
        );
        for odd in [
            "null",
            "[]",
            r#""uri""#,
            r#"{"content":"uri"}"#,
            r#"{"content":[["uri"]],"uri":1}"#,
        ] {
            check(&call, odd);
        }
    }

    #[test]
    fn other_places_of_other_messages_stay_as_they_are() {
        let (check, map) = (check_untouched, map());
        let read = |raw: &Raw| rewrite_result("resources/read", raw, &map);
        check(
            &read,
            r#"{"contents":[{"text":"{\"uri\":\"file:///a\"}","_meta":{"uri":"file:///a"}}]}"#,
        );
        let vendor = |raw: &Raw| rewrite_result("vendor/x", raw, &map);
        check(&vendor, r#"{"contents":[{"uri":"file:///a"}]}"#);
        let complete = |raw: &Raw| rewrite_result("completion/complete", raw, &map);
        check(
            &complete,
            r#"{"completion":{"values":["file:///a"]},"uri":"file:///a"}"#,
        );
        let elicit = |raw: &Raw| rewrite_request("elicitation/create", raw, &map);
        check(
            &elicit,
            r#"{"mode":"url","url":"https://a","uri":"file:///a"}"#,
        );
        let answered = |raw: &Raw| rewrite_input_responses(raw, &map);
        check(
            &answered,
            r#"{"name":"t","arguments":{"uri":"gh+file:///a"}}"#,
        );
        let form = r#"{"inputResponses":{"k":{"action":"accept","content":{"type":"resource_link","uri":"gh+a:b"}}}}"#;
        check(&answered, form);
        let foreign = r#"{"inputResponses":{"k":{"role":"user","content":{"type":"resource_link","uri":"other+file:///a"}}}}"#;
        check(&answered, foreign);
        let roots = |raw: &Raw| rewrite_client_result("roots/list", raw, &map);
        check(&roots, r#"{"roots":[{"uri":"gh+file:///a"}]}"#);
        let identity = |raw: &Raw| rewrite_result("resources/read", raw, &UriMap::identity());
        check(&identity, r#"{"contents":[{"uri":"file:///a"}]}"#);
    }

    #[test]
    fn nested_tool_results_are_followed_to_a_limit() {
        let nested = |depth: usize, uri: &str| {
            let link = format!(r#"{{"type":"resource_link","uri":"{uri}"}}"#);
            let block = (0..depth).fold(link, |inner, _| {
                format!(r#"{{"type":"tool_result","content":[{inner}]}}"#)
            });
            raw(&format!(r#"{{"messages":[{{"content":{block}}}]}}"#))
        };
        let sample = |raw: &Raw| rewrite_request("sampling/createMessage", raw, &map());
        let limit = NESTED_RESULTS_MAX;
        assert_eq!(sample(&nested(limit, "a:b")), nested(limit, "gh+a:b"));
        assert_eq!(sample(&nested(limit + 1, "a:b")), nested(limit + 1, "a:b"));
    }

    /// JSON text with unusual spacing, whose strings hold what could be taken for a URI.
    fn noise() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("null".to_owned()),
            Just("1.50e+7".to_owned()),
            Just(r#""file:///a""#.to_owned()),
            Just(r#"" \"uri\" : \u0022""#.to_owned()),
            ".{0,6}".prop_map(|text| serde_json::to_string(&text).unwrap()),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            let key = prop::sample::select(vec!["text", "src", "x\\u0041", "data", "url", "Uri"]);
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3)
                    .prop_map(|items| format!("[ {} ]", items.join(" ,\n"))),
                prop::collection::vec((key, inner), 0..3).prop_map(|members| {
                    let each = members
                        .iter()
                        .map(|(key, value)| format!("\"{key}\"\t: {value}"));
                    format!("{{{} }}", each.collect::<Vec<_>>().join(","))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn only_uris_change(blocks in prop::collection::vec((0..4u8, ".{0,12}", noise()), 0..6), noise in noise()) {
            let map = map();
            let render = |uri: &dyn Fn(&str) -> String| {
                let each = blocks.iter().map(|(kind, text, noise)| {
                    let uri = serde_json::to_string(&uri(text)).unwrap();
                    match kind {
                        0 => format!(r#"{{"v":{noise}, "type":"resource_link" ,"uri" : {uri}}}"#),
                        1 => format!(r#"{{"resource":{{"uri":{uri},"text":{noise}}},"type":"resource"}}"#),
                        2 => format!(r#"{{"type":"text","text":"t","v":{noise}}}"#),
                        _ => noise.clone(),
                    }
                });
                let blocks = each.collect::<Vec<_>>().join(" , ");
                raw(&format!(r#"{{ "structuredContent" : {noise},"content":[{blocks}], "v":{noise} }}"#))
            };
            let before = render(&|uri| uri.to_owned());
            let after = render(&|uri| map.expose(uri).into_owned());
            prop_assert_eq!(rewrite_result("tools/call", &before, &map), after.clone());
            let back = inbound(&after, &map, |spans| spans.members(0, &[UriSpans::CONTENT]));
            prop_assert_eq!(back, before);
        }
    }
}
