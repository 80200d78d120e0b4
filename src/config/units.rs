//! Durations, sizes and amounts of money as they are written: with a unit, or as a decimal string.
//!
//! [`Time`] and [`Size`], and the modules below, are also for `serde(with)`: the field is then a plain
//! [`Duration`] or number.

use std::{fmt, time::Duration};

use bytesize::ByteSize;
use indexmap::IndexMap;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::money::Micros;

/// The keyword of the schema that names the unit of a string: `"time"`, `"size"` or `"money"`.
pub(super) const UNIT_KEYWORD: &str = "x-unit";

/// The keywords of the schema for the least and the greatest time or size, at a field or else at its unit.
pub(super) const MIN_KEYWORD: &str = "x-min";
pub(super) const MAX_KEYWORD: &str = "x-max";

/// The value of [`MAX_KEYWORD`] at a field that has no greatest value, whatever its unit has.
pub(super) const UNBOUNDED: &str = "none";

/// The keyword of the schema that says that 0 is allowed too, and means no limit.
pub(super) const ZERO_KEYWORD: &str = "x-zero";

/// A length of time such as `"30s"`, `"1m30s"` or `"250ms"`; zero may be written `0`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, PartialOrd)]
pub(super) struct Time(pub(super) Duration);

impl Time {
    pub(super) const KEYWORD: &str = "time";

    pub(super) fn parse(text: &str) -> Option<Self> {
        humantime::parse_duration(text.trim()).ok().map(Self)
    }
}

const SECS_A_DAY: u64 = 24 * 60 * 60;

/// Days are the largest unit: months and years are not of one length.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let days = seconds / SECS_A_DAY;
        let rest = Duration::new(seconds % SECS_A_DAY, self.0.subsec_nanos());
        if days > 0 {
            write!(f, "{days}d")?;
        }
        if days > 0 && rest.is_zero() {
            return Ok(());
        }
        let text = humantime::format_duration(rest).to_string();
        f.write_str(&text.replace(' ', ""))
    }
}

/// For `serde(with)`.
impl Time {
    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&Self(*time))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        <Self as Deserialize>::deserialize(from).map(|time| time.0)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom("not a duration"))
    }
}

impl JsonSchema for Time {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number with a unit: ms, s, m, h, d; parts add up, as in \"1m30s\".",
            "type": ["string", "integer"],
            "pattern": r"^\s*([0-9]+\s*[a-zµ]+\s*)+$|\$\{",
            "minimum": 0,
            "maximum": 0,
            UNIT_KEYWORD: Self::KEYWORD,
            MIN_KEYWORD: "1ms",
            // What is longer is a slip of the unit.
            MAX_KEYWORD: "1d",
        })
    }
}

/// A number of bytes such as `"512KiB"` or `"4MiB"`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, PartialOrd)]
pub(super) struct Size(pub(super) u64);

impl Size {
    pub(super) const KEYWORD: &str = "size";
    pub(super) const KIB: u64 = 1 << 10;
    pub(super) const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    /// A bare number is refused: whether it means bytes is anybody's guess.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
        let size = has_unit.then(|| text.parse::<ByteSize>().ok()).flatten()?;
        Some(Self(size.as_u64()))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes > 0 && bytes % Self::GIB == 0 => write!(f, "{}GiB", bytes / Self::GIB),
            bytes if bytes > 0 && bytes % Self::MIB == 0 => write!(f, "{}MiB", bytes / Self::MIB),
            bytes if bytes > 0 && bytes % Self::KIB == 0 => write!(f, "{}KiB", bytes / Self::KIB),
            bytes => write!(f, "{bytes}B"),
        }
    }
}

/// For `serde(with)`.
impl Size {
    pub(super) fn serialize<N: Copy + TryInto<u64>, S: Serializer>(
        bytes: &N,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(&Self((*bytes).try_into().unwrap_or(u64::MAX)))
    }

    pub(super) fn deserialize<'de, N: TryFrom<u64>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<N, D::Error> {
        let Self(bytes) = <Self as Deserialize>::deserialize(from)?;
        N::try_from(bytes).map_err(|_| de::Error::custom("too large a size"))
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom("not a size"))
    }
}

impl JsonSchema for Size {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number of bytes with a unit: B, KiB, MiB, GiB (or kB, MB, GB).",
            "type": "string",
            "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*([kKmMgG][iI]?[bB]?|[bB])\s*$|\$\{",
            UNIT_KEYWORD: Self::KEYWORD,
            MIN_KEYWORD: "1KiB",
            MAX_KEYWORD: "1GiB",
        })
    }
}

/// The value of [`UNIT_KEYWORD`] of amounts of money.
pub(super) const MONEY_KEYWORD: &str = "money";

impl JsonSchema for Micros {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "US dollars, a decimal number or string with up to six digits after the point.",
            "type": ["number", "string"],
            "minimum": 0,
            "pattern": r"^\s*[0-9]+(\.[0-9]{1,6})?\s*$|\$\{",
            UNIT_KEYWORD: MONEY_KEYWORD,
        })
    }
}

/// Times by name; in the schema `IndexMap<String, Time>`.
pub(super) mod times {
    use super::{Deserialize, Deserializer, Duration, IndexMap, Serializer, Time};

    pub(in crate::config) fn serialize<S: Serializer>(
        times: &IndexMap<String, Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_map(times.iter().map(|(name, time)| (name, Time(*time))))
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<IndexMap<String, Duration>, D::Error> {
        let times = IndexMap::<String, Time>::deserialize(from)?.into_iter();
        Ok(times.map(|(name, time)| (name, time.0)).collect())
    }
}

/// A time of which 0 is no limit; in the schema a [`Time`] with [`ZERO_KEYWORD`].
pub(super) mod unlimited_time {
    use super::{Deserializer, Duration, Serializer, Time};

    #[expect(clippy::ref_option, reason = "serde asks so")]
    pub(in crate::config) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        Time::serialize(&time.unwrap_or_default(), to)
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let time = Time::deserialize(from)?;
        Ok(Some(time).filter(|time| !time.is_zero()))
    }
}

/// A size that need not be given; in the schema `Option<Size>`.
pub(super) mod optional_size {
    use super::{Deserializer, Serializer, Size};

    #[expect(clippy::ref_option, reason = "serde asks so")]
    pub(in crate::config) fn serialize<N: Copy + TryInto<u64>, S: Serializer>(
        bytes: &Option<N>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => Size::serialize(bytes, to),
            None => to.serialize_none(),
        }
    }

    pub(in crate::config) fn deserialize<'de, N: TryFrom<u64>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<N>, D::Error> {
        Size::deserialize(from).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// A bound that is no time or size would silently be none.
    #[test]
    fn every_bound_is_one() {
        fn check(root: &Value, schema: &Value, count: &mut usize) {
            let name = schema["$ref"].as_str().unwrap_or_default();
            let of_type = &root["$defs"][name.trim_start_matches("#/$defs/")];
            for keyword in [MIN_KEYWORD, MAX_KEYWORD] {
                let Some(bound) = schema[keyword].as_str() else {
                    continue;
                };
                let unit = [schema, of_type].map(|it| it[UNIT_KEYWORD].as_str());
                let is_bound = match unit[0].or(unit[1]) {
                    Some(Time::KEYWORD) => Time::parse(bound).is_some(),
                    Some(Size::KEYWORD) => Size::parse(bound).is_some(),
                    _ => false,
                };
                assert!(is_bound || bound == UNBOUNDED, "{schema}");
                *count += 1;
            }
            let items = schema.as_array().into_iter().flatten();
            let entries = schema.as_object().into_iter().flat_map(|it| it.values());
            items.chain(entries).for_each(|it| check(root, it, count));
        }
        let (schema, mut count) = (crate::config::schema(), 0);
        check(&schema, &schema, &mut count);
        assert!(count > 20, "{count}");
    }

    #[test]
    fn bounds_of_rates_are_those_of_the_command_line() {
        let per = &crate::config::schema()["$defs"]["RateTable"]["properties"]["per"];
        let min = per[MIN_KEYWORD].as_str().and_then(Time::parse).unwrap();
        assert_eq!(min.0, crate::config::Rate::PER_MIN);
        let longest = Time::json_schema(&mut SchemaGenerator::default());
        let longest = longest.get(MAX_KEYWORD).and_then(Value::as_str).unwrap();
        let longest = Time::parse(longest).unwrap();
        assert_eq!(longest.0, crate::config::Rate::PER_MAX);
    }
}
