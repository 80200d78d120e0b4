//! Times in sealed JSON: milliseconds since 1970. For `serde(with)`.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serializer, de};

pub(super) fn serialize<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_i64(time.as_millisecond())
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
    let millis = i64::deserialize(from)?;
    Timestamp::from_millisecond(millis).map_err(de::Error::custom)
}
