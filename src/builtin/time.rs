//! `current_time` and `convert_time`: civil time in any zone of the IANA database.
//!
//! Zones come from the database of the operating system, so their rules are as current as the machine.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::fmt::temporal::Pieces;
use jiff::tz::{AmbiguousOffset, TimeZone};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::input_error::InputError;
use crate::clock;

/// Arguments of `current_time`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CurrentTimeInput {
    /// IANA time zone such as Europe/Berlin. Default: UTC.
    zone: Option<String>,
}

/// Arguments of `convert_time`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ConvertTimeInput {
    /// 2026-03-01T12:00:00+01:00 (RFC 3339) or 2026-03-01T12:00 (local). Or send unix_seconds.
    time: Option<String>,
    /// Seconds since 1970-01-01T00:00:00Z, may be negative. Or send time.
    unix_seconds: Option<i64>,
    /// IANA time zone that a local time is meant in. Default: UTC.
    from: Option<String>,
    /// IANA time zone to convert to.
    to: String,
}

/// One point in time as one zone shows it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ZonedTime {
    /// RFC 3339 with the zone's offset.
    time: String,
    /// IANA name of the zone.
    zone: String,
    /// Difference to UTC, such as +02:00.
    offset: String,
    /// The zone's abbreviation at that time, such as CEST.
    abbreviation: String,
    /// Whether daylight saving time is in force.
    daylight_saving: bool,
    /// Seconds since 1970-01-01T00:00:00Z, fractions cut off towards the past.
    unix_seconds: i64,
    /// English name of the day of the week.
    weekday: String,
}

/// Answer of `convert_time`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ConvertTimeOutput {
    /// The time in the zone `from`.
    from: ZonedTime,
    /// The same time in the zone `to`.
    to: ZonedTime,
    /// How a local time was read that the clocks of its zone skip or show twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

/// A point in time, and how a local time was read that is not one.
type ReadTime = (Timestamp, Option<&'static str>);

pub(super) fn current_time(input: CurrentTimeInput) -> Result<ZonedTime, InputError> {
    let name = input.zone.unwrap_or_else(|| "UTC".to_owned());
    let zone = zone("zone", &name)?;
    let now = Timestamp::from_millisecond(clock::now().as_millisecond());
    in_zone(now.map_err(|_| out_of_range())?, zone)
}

pub(super) fn convert_time(input: ConvertTimeInput) -> Result<ConvertTimeOutput, InputError> {
    let from_zone = zone("from", input.from.as_deref().unwrap_or("UTC"))?;
    let to_zone = zone("to", &input.to)?;
    let (at, note) = match (input.time, input.unix_seconds) {
        (Some(time), None) => read_time(&time, &from_zone, input.from.is_some())?,
        (None, Some(seconds)) => (
            Timestamp::from_second(seconds).map_err(|_| out_of_range())?,
            None,
        ),
        (None, None) | (Some(_), Some(_)) => {
            let problem = "exactly one of time and unix_seconds is needed";
            let remedy = "Send time for a date, or unix_seconds for a count of seconds";
            return Err(InputError::new("arguments", problem, remedy));
        }
    };
    Ok(ConvertTimeOutput {
        from: in_zone(at, from_zone)?,
        to: in_zone(at, to_zone)?,
        note,
    })
}

fn zone(argument: &str, name: &str) -> Result<TimeZone, InputError> {
    TimeZone::get(name).map_err(|_| {
        let problem = format_args!("{name:?} is not a known time zone");
        let remedy = "Send an IANA name such as Europe/Berlin, America/New_York or UTC";
        InputError::new(argument, problem, remedy)
    })
}

/// A timestamp, or a local time in `zone`. If the caller named the zone, an offset in `time` must agree with it.
fn read_time(time: &str, zone: &TimeZone, zone_is_named: bool) -> Result<ReadTime, InputError> {
    let unreadable = |_| {
        let problem = format_args!("{time:?} is neither a timestamp nor a date and time");
        let remedy = "Write it like 2026-03-01T12:00:00Z, 2026-03-01T12:00:00+01:00 or \
                      2026-03-01T12:00";
        InputError::new("time", problem, remedy)
    };
    let pieces = Pieces::parse(time).map_err(unreadable)?;
    if pieces.time_zone_annotation().is_some() {
        let problem = format_args!("{time:?} names a zone in brackets");
        let remedy = "Leave out the brackets and send the zone as from";
        return Err(InputError::new("time", problem, remedy));
    }
    if let Some(offset) = pieces.to_numeric_offset() {
        let at: Timestamp = time.parse().map_err(unreadable)?;
        if zone_is_named && zone.to_offset(at) != offset {
            let problem = "the zone is not at the offset that time carries";
            let remedy = "Leave out from, or the offset in time";
            return Err(InputError::new("from", problem, remedy));
        }
        return Ok((at, None));
    }
    let local: DateTime = time.parse().map_err(unreadable)?;
    let ambiguous = zone.to_ambiguous_timestamp(local);
    let note = match ambiguous.offset() {
        AmbiguousOffset::Unambiguous { .. } => None,
        AmbiguousOffset::Gap { .. } => {
            Some("the clocks skip this local time; read as if they had not been set forward yet")
        }
        AmbiguousOffset::Fold { .. } => {
            Some("the clocks show this local time twice; read as the first of the two")
        }
    };
    let at = ambiguous.compatible().map_err(|_| out_of_range())?;
    Ok((at, note))
}

/// What `at` looks like in `zone`.
fn in_zone(at: Timestamp, zone: TimeZone) -> Result<ZonedTime, InputError> {
    let name = zone.iana_name().unwrap_or("UTC").to_owned();
    let info = zone.to_offset_info(at);
    let daylight_saving = info.dst().is_dst();
    let abbreviation = info.abbreviation().to_owned();
    let zoned = at.to_zoned(zone);
    if zoned.year() < 0 {
        return Err(out_of_range());
    }
    Ok(ZonedTime {
        time: zoned.strftime("%Y-%m-%dT%H:%M:%S%.f%:z").to_string(),
        zone: name,
        offset: zoned.strftime("%:z").to_string(),
        abbreviation,
        daylight_saving,
        unix_seconds: at.as_millisecond().div_euclid(1000),
        weekday: zoned.strftime("%A").to_string(),
    })
}

fn out_of_range() -> InputError {
    let problem = "the time lies outside the years 0000 to 9999 that RFC 3339 can write";
    InputError::new("arguments", problem, "Send a time within them")
}
