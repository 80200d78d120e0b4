//! `uuid`: identifiers of versions 4, 5 and 7 (RFC 9562).

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;
use uuid::Uuid;

use super::input_error::InputError;

/// Identifiers of one call: a result of some 40 kB. More belong into a program, not into a conversation.
const UUIDS_MAX: u32 = 1000;

/// Arguments of `uuid`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UuidInput {
    /// v4 random, v7 ordered by time, v5 computed from namespace and name. Default: v4.
    #[serde(default)]
    version: UuidVersion,
    /// How many to make, for v4 and v7. Default: 1.
    #[schemars(range(min = 1, max = UUIDS_MAX))]
    count: Option<u32>,
    /// For v5: dns, url, oid, x500 or a UUID.
    namespace: Option<String>,
    /// For v5: the name within the namespace, such as example.com within dns.
    name: Option<String>,
}

#[derive(Debug, Default, Clone, Copy, Serialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "lowercase")]
enum UuidVersion {
    #[default]
    V4,
    V5,
    V7,
}

/// Also from a bare 4, 5 or 7, which models like to write.
impl<'de> Deserialize<'de> for UuidVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let written = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
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
pub(super) struct UuidOutput {
    /// In the usual form of 36 characters; version 7 in ascending order.
    uuids: Vec<String>,
}

pub(super) fn uuid(input: UuidInput) -> Result<UuidOutput, InputError> {
    let count = input.count.unwrap_or(1);
    if !(1..=UUIDS_MAX).contains(&count) {
        let problem = format_args!("{count} is not between 1 and {UUIDS_MAX}");
        let remedy = "Send a count within these bounds";
        return Err(InputError::new("count", problem, remedy));
    }
    let make: fn() -> Uuid = match (input.version, input.namespace, input.name) {
        (UuidVersion::V4, None, None) => Uuid::new_v4,
        (UuidVersion::V7, None, None) => Uuid::now_v7,
        (UuidVersion::V5, Some(namespace), Some(name)) if count == 1 => {
            let id = Uuid::new_v5(&read_namespace(&namespace)?, name.as_bytes());
            let uuids = vec![id.to_string()];
            return Ok(UuidOutput { uuids });
        }
        (UuidVersion::V4 | UuidVersion::V5 | UuidVersion::V7, _, _) => {
            return Err(InputError::new(
                "arguments",
                "version 5 is the one UUID of a namespace and a name, other versions have neither",
                "Send namespace and name with v5, or a count with v4 or v7",
            ));
        }
    };
    let uuids = (0..count).map(|_| make().to_string()).collect();
    Ok(UuidOutput { uuids })
}

fn read_namespace(namespace: &str) -> Result<Uuid, InputError> {
    Ok(match namespace {
        "dns" => Uuid::NAMESPACE_DNS,
        "url" => Uuid::NAMESPACE_URL,
        "oid" => Uuid::NAMESPACE_OID,
        "x500" => Uuid::NAMESPACE_X500,
        other => Uuid::parse_str(other).map_err(|_| {
            let problem = format_args!("{other:?} is neither a known namespace nor a UUID");
            InputError::new("namespace", problem, "Send dns, url, oid, x500 or a UUID")
        })?,
    })
}
