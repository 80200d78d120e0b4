//! `uuid`: new identifiers of versions 4, 5 and 7 (RFC 9562).
//!
//! Called through the tool table. Version 7 takes its time from the toolbox's one clock and keeps
//! the order of everything this process has made, across calls and connections.

use std::sync::Mutex;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;
use uuid::{ContextV7, Timestamp, Uuid};

use super::time;
use super::tools::{Mistake, quote};

/// Identifiers one call makes: what a result of some 40 kB holds. More belong into a program, not
/// into a conversation.
const COUNT_MAX: u32 = 1000;

/// Arguments of `uuid`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MakeUuid {
    /// v4 random, v7 ordered by time, v5 computed from namespace and name. Default: v4.
    #[serde(default)]
    version: Version,
    /// How many to make, for v4 and v7. Default: 1.
    #[schemars(range(min = 1, max = COUNT_MAX))]
    count: Option<u32>,
    /// For v5: dns, url, oid, x500 or a UUID.
    namespace: Option<String>,
    /// For v5: the name within the namespace, such as example.com within dns.
    name: Option<String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "lowercase")]
enum Version {
    #[default]
    V4,
    V5,
    V7,
}

/// Also from a bare 4, 5 or 7, which models like to write.
impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = match Value::deserialize(deserializer)? {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            Value::Array(_) | Value::Bool(_) | Value::Null | Value::Object(_) => {
                return Err(D::Error::custom(
                    "the version is neither a string nor a number",
                ));
            }
        };
        match written.strip_prefix('v').unwrap_or(&written) {
            "4" => Ok(Self::V4),
            "5" => Ok(Self::V5),
            "7" => Ok(Self::V7),
            _ => Err(D::Error::unknown_variant(&written, &["v4", "v5", "v7"])),
        }
    }
}

/// Answer of `uuid`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Uuids {
    /// In the usual form of 36 characters; version 7 in ascending order.
    uuids: Vec<String>,
}

pub(super) fn uuid(arguments: MakeUuid) -> Result<Uuids, Mistake> {
    let made = match (arguments.version, arguments.namespace, arguments.name) {
        (Version::V4, None, None) => many(arguments.count, Uuid::new_v4)?,
        (Version::V7, None, None) => many(arguments.count, new_v7)?,
        (Version::V5, Some(namespace), Some(name)) => {
            if arguments.count.is_some_and(|count| count != 1) {
                return Err(Mistake::new(
                    "count",
                    "version 5 gives the same UUID every time",
                    "Leave out count, or use v4 or v7",
                ));
            }
            vec![Uuid::new_v5(&read_namespace(&namespace)?, name.as_bytes())]
        }
        (Version::V5, None, _) => return Err(missing_for_v5("namespace")),
        (Version::V5, Some(_), None) => return Err(missing_for_v5("name")),
        (Version::V4 | Version::V7, Some(_), _) => return Err(only_for_v5("namespace")),
        (Version::V4 | Version::V7, None, Some(_)) => return Err(only_for_v5("name")),
    };
    Ok(Uuids {
        uuids: made.iter().map(Uuid::to_string).collect(),
    })
}

fn many(count: Option<u32>, make: fn() -> Uuid) -> Result<Vec<Uuid>, Mistake> {
    let count = count.unwrap_or(1);
    if !(1..=COUNT_MAX).contains(&count) {
        return Err(Mistake::new(
            "count",
            format_args!("{count} is not between 1 and {COUNT_MAX}"),
            "Send a count within these bounds",
        ));
    }
    Ok((0..count).map(|_| make()).collect())
}

fn new_v7() -> Uuid {
    static ORDER: Mutex<ContextV7> = Mutex::new(ContextV7::new());
    let now = time::now();
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    let nanoseconds = u32::try_from(now.subsec_nanosecond()).unwrap_or_default();
    Uuid::new_v7(Timestamp::from_unix(&ORDER, seconds, nanoseconds))
}

fn read_namespace(namespace: &str) -> Result<Uuid, Mistake> {
    match namespace {
        "dns" => Ok(Uuid::NAMESPACE_DNS),
        "url" => Ok(Uuid::NAMESPACE_URL),
        "oid" => Ok(Uuid::NAMESPACE_OID),
        "x500" => Ok(Uuid::NAMESPACE_X500),
        other => Uuid::parse_str(other).map_err(|_| {
            Mistake::new(
                "namespace",
                format_args!("{} is neither a known namespace nor a UUID", quote(other)),
                "Send dns, url, oid, x500 or a UUID",
            )
        }),
    }
}

fn missing_for_v5(argument: &str) -> Mistake {
    Mistake::new(
        argument,
        "version 5 is computed from a namespace and a name",
        "Send both namespace and name",
    )
}

fn only_for_v5(argument: &str) -> Mistake {
    Mistake::new(
        argument,
        "only version 5 uses it",
        "Leave it out, or set version to v5",
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;
    use crate::builtin::testing::{call, check, connected, eras, outcome};

    #[tokio::test]
    async fn version_5_is_the_published_one() {
        check(
            "uuid",
            &[
                (
                    "RFC 9562, appendix A.4",
                    json!({"version": "v5", "namespace": "dns", "name": "www.example.com"}),
                    Ok(json!({"uuids": ["2ed6657d-e927-568b-95e1-2665a8aea6a2"]})),
                ),
                (
                    "a namespace of one's own",
                    json!({
                        "version": "v5", "count": 1, "name": "www.example.com",
                        "namespace": "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
                    }),
                    Ok(json!({"uuids": ["2ed6657d-e927-568b-95e1-2665a8aea6a2"]})),
                ),
            ],
        )
        .await;
    }

    #[tokio::test]
    async fn refuses_what_a_version_cannot_use() {
        check(
            "uuid",
            &[
                (
                    "an unknown namespace",
                    json!({"version": "v5", "namespace": "web", "name": "a"}),
                    Err(
                        "namespace: \"web\" is neither a known namespace nor a UUID. Send dns, \
                         url, oid, x500 or a UUID.",
                    ),
                ),
                (
                    "v5 without a name",
                    json!({"version": "v5", "namespace": "dns"}),
                    Err(
                        "name: version 5 is computed from a namespace and a name. Send both \
                         namespace and name.",
                    ),
                ),
                (
                    "v5 without a namespace",
                    json!({"version": "v5", "name": "a"}),
                    Err(
                        "namespace: version 5 is computed from a namespace and a name. Send both \
                         namespace and name.",
                    ),
                ),
                (
                    "v5 in numbers",
                    json!({"version": "v5", "namespace": "dns", "name": "a", "count": 2}),
                    Err(
                        "count: version 5 gives the same UUID every time. Leave out count, or use \
                         v4 or v7.",
                    ),
                ),
                (
                    "v4 with a name",
                    json!({"name": "a"}),
                    Err("name: only version 5 uses it. Leave it out, or set version to v5."),
                ),
                (
                    "v7 with a namespace",
                    json!({"version": "v7", "namespace": "dns"}),
                    Err("namespace: only version 5 uses it. Leave it out, or set version to v5."),
                ),
                (
                    "an unknown version",
                    json!({"version": "v6"}),
                    Err(
                        "version: unknown variant `v6`, expected one of `v4`, `v5`, `v7`. Send the \
                         arguments that the tool's input schema describes.",
                    ),
                ),
                (
                    "a negative count",
                    json!({"version": "v7", "count": -1}),
                    Err(
                        "count: invalid value: integer `-1`, expected u32. Send the arguments that \
                         the tool's input schema describes.",
                    ),
                ),
            ],
        )
        .await;
    }

    #[tokio::test]
    async fn versions_4_and_7_are_new_each_time_and_7_ascends() {
        for era in eras() {
            connected(era, async |client| {
                for (version, number) in [
                    (json!("v4"), 4),
                    (json!("v7"), 7),
                    (json!(4), 4),
                    (json!("7"), 7),
                ] {
                    let mut all: Vec<Uuid> = Vec::new();
                    for count in [1, 50] {
                        let arguments = json!({"version": version, "count": count});
                        let answer = outcome(&call(client, "uuid", arguments).await).unwrap();
                        all.extend(answer["uuids"].as_array().unwrap().iter().map(read));
                    }
                    assert_eq!(all.len(), 51);
                    assert!(all.iter().all(|id| id.get_version_num() == number));
                    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 51);
                    assert!(number == 4 || all.is_sorted(), "{all:?}");
                }
            })
            .await;
        }
    }

    #[test]
    fn count_has_a_limit() {
        let made = |count| many(Some(count), new_v7).map(|all| all.len());
        assert_eq!(made(COUNT_MAX), Ok(1000));
        let refused = made(COUNT_MAX + 1).unwrap_err().to_string();
        assert_eq!(
            refused,
            "count: 1001 is not between 1 and 1000. Send a count within these bounds."
        );
        assert!(made(0).is_err());
        assert_eq!(made(1), Ok(1));
    }

    fn read(id: &Value) -> Uuid {
        id.as_str().unwrap().parse().unwrap()
    }
}
