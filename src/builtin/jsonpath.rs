//! Runs a JSONPath (RFC 9535) that some other program wrote, within bounds.
//!
//! Called by `json_query`. The evaluator returns everything at once and cannot be interrupted, and
//! a short path can select more nodes than there is memory: `$[0,0][0,0]...` doubles at every step,
//! `$..*..*..*` multiplies by the depth. So the work is estimated from the path's text and the
//! document's shape before it runs.
//!
//! What must stay true: the estimate never falls below the number of nodes the evaluator visits or
//! holds.

use serde_json::Value;
use serde_json_path::JsonPath;

use super::tools::{Mistake, check_length, quote};

/// Longest path, in bytes: hand-written ones have a tenth of it.
const PATH_BYTES_MAX: usize = 1000;
/// Most filters in one path. Parsing tries several readings of each, those inside others for each
/// reading of the outer.
const FILTERS_MAX: usize = 4;
/// Deepest nesting of brackets and parentheses in a path, for the same reason.
const NESTING_MAX: usize = 8;
/// Most steps a query may take by the estimate: a fraction of a second, and at worst a hundred
/// megabytes of results under way.
const STEPS_MAX: u128 = 20_000_000;

/// The nodes of `document` that `path` selects, in its order.
pub(super) fn select<'d>(path: &str, document: &'d Value) -> Result<Vec<&'d Value>, Mistake> {
    check_length("query", path.len(), PATH_BYTES_MAX)?;
    let skeleton = Skeleton::of(path);
    skeleton.check()?;
    let parsed = JsonPath::parse(path).map_err(|error| {
        Mistake::new(
            "query",
            format_args!("{} is not a JSONPath: {error}", quote(path)),
            "Write it like $.items[0], $..name, $.items[?@.price < 10]",
        )
    })?;
    let steps = skeleton.steps(&Shape::of(document));
    if steps > STEPS_MAX {
        return Err(Mistake::new(
            "query",
            format_args!("may take {steps} steps over this document, more than {STEPS_MAX}"),
            "Use fewer .. and lists of selectors, or query a smaller part of the document",
        ));
    }
    Ok(parsed.query(document).all())
}

/// A path without white space and the contents of its string literals, so that counting its signs
/// means something.
struct Skeleton(String);

impl Skeleton {
    fn of(path: &str) -> Self {
        let mut skeleton = String::with_capacity(path.len());
        let mut inside = None;
        let mut chars = path.chars();
        while let Some(c) = chars.next() {
            match inside {
                None if c.is_whitespace() => {}
                None => {
                    skeleton.push(c);
                    inside = Some(c).filter(|c| matches!(c, '"' | '\''));
                }
                Some(_) if c == '\\' => {
                    chars.next();
                }
                Some(end) if c == end => {
                    skeleton.push(c);
                    inside = None;
                }
                Some(_) => {}
            }
        }
        Self(skeleton)
    }

    /// Refuses what is expensive to parse, or to run whatever the document.
    fn check(&self) -> Result<(), Mistake> {
        let filters = self.count("?");
        if filters > FILTERS_MAX {
            return Err(Mistake::new(
                "query",
                format_args!("{filters} filters, more than {FILTERS_MAX}"),
                "Join conditions with && and ||, or query in two calls",
            ));
        }
        if self.nesting() > NESTING_MAX {
            return Err(Mistake::new(
                "query",
                format_args!("brackets and parentheses nest deeper than {NESTING_MAX}"),
                "Leave out needless parentheses, or query in two calls",
            ));
        }
        // Each node would compile its own pattern, which may even come from the document.
        if ["match(", "search("]
            .iter()
            .any(|call| self.0.contains(call))
        {
            return Err(Mistake::new(
                "query",
                "the functions match and search are not available",
                "Query without them and filter the values with regex_test",
            ));
        }
        Ok(())
    }

    /// An upper bound of the nodes visited.
    ///
    /// Every segment visits each node of the document once for each way that leads to it. A list of
    /// selectors may double the ways; a second `..`, or a filter that looks below its node, finds a
    /// node once from each of its ancestors; a query from the root inside a filter runs for every
    /// node that the filter tries.
    fn steps(&self, document: &Shape) -> u128 {
        let ways = 2_u128.saturating_pow(self.count32(","));
        let again = (self.count32("..") + self.count32("?")).saturating_sub(1);
        let ancestors = document.depth.saturating_pow(again);
        let roots = document.nodes.saturating_pow(self.wide_root_queries());
        let segments = self.count(".") + self.count("[");
        let queries = self.count("@") + self.count("$");
        [
            document.nodes,
            ways,
            ancestors,
            roots,
            segments.max(1) as u128,
            queries.max(1) as u128,
        ]
        .into_iter()
        .fold(1, u128::saturating_mul)
    }

    /// How many queries from the root are inside filters and can select more than one node.
    fn wide_root_queries(&self) -> u32 {
        let inner = self.0.split('$').skip(2);
        inner.map(|rest| u32::from(!is_singular(rest))).sum()
    }

    fn nesting(&self) -> usize {
        let mut depth = 0_usize;
        let mut deepest = 0;
        for c in self.0.chars() {
            match c {
                '(' | '[' => depth += 1,
                ')' | ']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            deepest = deepest.max(depth);
        }
        deepest
    }

    fn count(&self, sign: &str) -> usize {
        self.0.matches(sign).count()
    }

    fn count32(&self, sign: &str) -> u32 {
        u32::try_from(self.count(sign)).unwrap_or(u32::MAX)
    }
}

/// Whether the query that `rest` begins with (its `$` taken off) has only single names and indexes
/// for segments.
fn is_singular(rest: &str) -> bool {
    let end = rest
        .find(|c: char| "()&|=!<>,?*:".contains(c))
        .unwrap_or(rest.len());
    let stop = rest[end..].chars().next();
    !rest[..end].contains("..") && !matches!(stop, Some('?' | '*' | ':' | ','))
}

/// What the estimate needs to know of a document.
struct Shape {
    nodes: u128,
    depth: u128,
}

impl Shape {
    fn of(value: &Value) -> Self {
        let children: Vec<Self> = match value {
            Value::Array(items) => items.iter().map(Self::of).collect(),
            Value::Object(members) => members.values().map(Self::of).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
        };
        Self {
            nodes: 1 + children.iter().map(|child| child.nodes).sum::<u128>(),
            depth: 1 + children.iter().map(|child| child.depth).max().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selects_what_the_standard_says() {
        let document = json!({
            "store": {
                "book": [{"t": "x, y", "p": 8}, {"t": "$..?", "p": 12, "i": "n"}],
                "bike": {"p": 399},
            },
            "cheap": 10,
        });
        let check = |path, expected: Value| {
            let nodes: Value = select(path, &document)
                .unwrap()
                .into_iter()
                .cloned()
                .collect();
            assert_eq!(nodes, expected, "{path}");
        };
        check("$.store.book[*].p", json!([8, 12]));
        check("$..p", json!([399, 8, 12]));
        check("$.store.book[-1].i", json!(["n"]));
        check("$.store.book[0:9007199254740991].p", json!([8, 12]));
        check("$..book[?@.i].t", json!(["$..?"]));
        check("$..book[?@.p < $.cheap].t", json!(["x, y"]));
        check(
            "$.store.book[?@.t == 'x, y' || @.t == \"\\u0024..?\"].p",
            json!([8, 12]),
        );
        check("$.store.book[?length(@.t) == 4].p", json!([8, 12]));
        check("$.store[?count(@.*) == 1]", json!([{"p": 399}]));
    }

    #[test]
    fn says_where_a_path_is_wrong() {
        let refused = |path| select(path, &json!({})).unwrap_err().to_string();
        assert_eq!(
            refused("$.a[?@.b ="),
            "query: \"$.a[?@.b =\" is not a JSONPath: at position 9, in long-hand segment, \
             expected closing ']'. Write it like $.items[0], $..name, $.items[?@.price < 10]."
        );
        for path in ["$[?match(@.a, 'b')]", "$[?search (@.a, @.b)]"] {
            assert_eq!(
                refused(path),
                "query: the functions match and search are not available. Query without them and \
                 filter the values with regex_test."
            );
        }
        assert!(select("$['match(']", &json!({})).is_ok());
    }

    #[test]
    fn the_path_has_limits() {
        let document = json!([]);
        let fits = |path: String| {
            let nodes = select(&path, &document).map(|nodes| nodes.len());
            nodes.map_err(|mistake| mistake.to_string())
        };
        let long = |bytes: usize| format!("$.{}", "a".repeat(bytes - 2));
        assert!(fits(long(PATH_BYTES_MAX)).is_ok());
        assert!(
            fits(long(PATH_BYTES_MAX + 1))
                .unwrap_err()
                .starts_with("query: 1001 bytes")
        );
        assert!(fits(long(PATH_BYTES_MAX - 1)).is_ok());

        let filters = |count| format!("${}", "[?@.a]".repeat(count));
        assert!(fits(filters(FILTERS_MAX)).is_ok());
        assert!(
            fits(filters(FILTERS_MAX + 1))
                .unwrap_err()
                .starts_with("query: 5 filters, more than 4.")
        );
        assert!(fits(filters(FILTERS_MAX - 1)).is_ok());

        let nested = |depth| format!("$[?{}@.a{}]", "(".repeat(depth - 1), ")".repeat(depth - 1));
        assert!(fits(nested(NESTING_MAX)).is_ok());
        assert!(
            fits(nested(NESTING_MAX + 1))
                .unwrap_err()
                .contains("nest deeper than 8")
        );
        assert!(fits(nested(NESTING_MAX - 1)).is_ok());
    }

    #[test]
    fn the_work_has_a_limit() {
        // A flat array of n zeros and `$[*]`: n + 1 nodes, one segment, one query.
        let zeros = |count: usize| Value::from(vec![0; count]);
        let document = zeros(9_999);
        let steps = |path| Skeleton::of(path).steps(&Shape::of(&document));
        assert_eq!(steps("$[*]"), 10_000);
        // Ten selectors double the ways nine times, and one more is over.
        let list = |selectors: usize| format!("$[{}]", vec!["0"; selectors].join(","));
        assert_eq!(steps(&list(11)), 10_240_000);
        assert!(select(&list(11), &document).is_ok());
        let refused = select(&list(12), &document).unwrap_err().to_string();
        assert_eq!(
            refused,
            "query: may take 20480000 steps over this document, more than 20000000. Use fewer .. \
             and lists of selectors, or query a smaller part of the document."
        );
        assert!(select(&list(10), &document).is_ok());
        assert!(select(&list(12), &zeros(9_764)).is_ok());
    }

    #[test]
    fn no_path_selects_more_than_was_estimated() {
        let mut document = json!([0, {"a": 1, "b": "x"}]);
        for _ in 0..7 {
            document = json!([document, {"a": document["nothing"], "b": [1, 2]}]);
        }
        let shape = Shape::of(&document);
        let mut checked = 0;
        for path in [
            "$..*",
            "$..*..*",
            "$..*..*..*",
            "$..[*,*]",
            "$[*,*][*,*][*,*]",
            "$..[0,0,0]",
            "$..['a','b','a']",
            "$..[?@..a]",
            "$..[?@.*]",
            "$[?$..a]..*",
            "$..[?@ == $[0]]",
            "$..[::1, ::-1]",
            "$..[?@[?@.*]]",
            "$..*[?$[*]][*,*]",
        ] {
            let estimate = Skeleton::of(path).steps(&shape);
            let nodes = JsonPath::parse(path).unwrap().query(&document).len();
            assert!(nodes as u128 <= estimate, "{path}: {nodes} > {estimate}");
            checked += usize::from(nodes > 0);
        }
        assert!(checked > 12, "most paths must select something");
    }

    #[test]
    fn costly_paths_are_refused_over_large_documents() {
        let document: Value = (0..30_000).map(|n| json!({"a": n, "b": [n]})).collect();
        for path in [
            "$[?$[*].a]",
            "$..[?count($..*) > 1]",
            "$[?@.a == 1 && $ .*]",
            "$..*..*..*..*..*",
        ] {
            let refused = select(path, &document)
                .map(|nodes| nodes.len())
                .unwrap_err()
                .to_string();
            assert!(
                refused.contains("steps over this document"),
                "{path}: {refused}"
            );
        }
        for path in [
            "$[?@.a < $[5].a].b",
            "$..b",
            "$[*].b[0]",
            "$[?@.a == 7 || @.b[0] == 9]",
        ] {
            assert!(!select(path, &document).unwrap().is_empty(), "{path}");
        }
    }
}
