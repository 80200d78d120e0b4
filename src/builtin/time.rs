//! `current_time` and `convert_time`: civil time in any zone of the IANA database.
//!
//! Called through the tool table, and by the guide for its time resource. Zones come from the
//! operating system's database, so their rules are as current as the machine.

use std::sync::LazyLock;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::fmt::temporal::Pieces;
use jiff::tz::{AmbiguousOffset, TimeZone};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::tools::{Mistake, quote};

/// Arguments of `current_time`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CurrentTime {
    /// IANA time zone such as Europe/Berlin. Default: UTC.
    zone: Option<String>,
}

/// Arguments of `convert_time`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ConvertTime {
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
pub(super) struct Moment {
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
pub(super) struct Converted {
    /// The time in the zone `from`.
    from: Moment,
    /// The same time in the zone `to`.
    to: Moment,
    /// How a local time was read that the clocks of its zone skip or show twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

pub(super) fn current_time(CurrentTime { zone }: CurrentTime) -> Result<Moment, Mistake> {
    now_in(zone.as_deref().unwrap_or("UTC"))
}

pub(super) fn convert_time(arguments: ConvertTime) -> Result<Converted, Mistake> {
    let ConvertTime {
        time,
        unix_seconds,
        from,
        to,
    } = arguments;
    let from = from.as_deref();
    let from_zone = zone("from", from.unwrap_or("UTC"))?;
    let to_zone = zone("to", &to)?;
    let (place, at, note) = match (time, unix_seconds) {
        (Some(time), None) => {
            let (at, note) = read_time(&time, &from_zone, from)?;
            ("time", at, note)
        }
        (None, Some(seconds)) => {
            let at = Timestamp::from_second(seconds).map_err(|_| out_of_range("unix_seconds"))?;
            ("unix_seconds", at, None)
        }
        (None, None) | (Some(_), Some(_)) => {
            return Err(Mistake::new(
                "arguments",
                "exactly one of time and unix_seconds is needed",
                "Send time for a date, or unix_seconds for a count of seconds",
            ));
        }
    };
    Ok(Converted {
        from: moment(place, at, from_zone)?,
        to: moment(place, at, to_zone)?,
        note,
    })
}

/// The time now, cut to milliseconds. Nothing else in the toolbox reads the clock.
pub(super) fn now() -> Timestamp {
    Timestamp::from_millisecond(Timestamp::now().as_millisecond())
        .expect("a timestamp without its fraction stays in range")
}

/// The current time in the zone of this name.
pub(super) fn now_in(name: &str) -> Result<Moment, Mistake> {
    moment("zone", now(), zone("zone", name)?)
}

/// The names of all known zones, sorted.
pub(super) fn zone_names() -> &'static [String] {
    static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
        let mut names: Vec<String> = jiff::tz::db().available().map(|n| n.to_string()).collect();
        if !names.iter().any(|name| name == "UTC") {
            names.push("UTC".to_owned());
        }
        names.sort_unstable();
        names
    });
    &NAMES
}

/// Zones that an error message proposes; more would read as a list.
const SUGGESTIONS_MAX: usize = 3;

fn zone(place: &str, name: &str) -> Result<TimeZone, Mistake> {
    TimeZone::get(name).map_err(|_| {
        let wanted = name.trim().replace(' ', "_").to_lowercase();
        let similar: Vec<&str> = zone_names()
            .iter()
            .filter(|known| !wanted.is_empty() && known.to_lowercase().contains(&wanted))
            .map(String::as_str)
            .take(SUGGESTIONS_MAX)
            .collect();
        let remedy = if similar.is_empty() {
            "Send an IANA name such as Europe/Berlin, America/New_York or UTC".to_owned()
        } else {
            format!("Did you mean {}", similar.join(" or "))
        };
        Mistake::new(
            place,
            format_args!("{} is not a known time zone", quote(name)),
            remedy,
        )
    })
}

/// A timestamp, or a local time in `zone`, with a note when the zone's clocks do not show it
/// exactly once.
///
/// `from` is the zone's name if the caller gave one: an offset in the text must then agree with it.
fn read_time(
    time: &str,
    zone: &TimeZone,
    from: Option<&str>,
) -> Result<(Timestamp, Option<&'static str>), Mistake> {
    let pieces = Pieces::parse(time).map_err(|_| unreadable(time))?;
    if pieces.time_zone_annotation().is_some() {
        return Err(Mistake::new(
            "time",
            format_args!("{} names a zone in brackets", quote(time)),
            "Leave out the brackets and send the zone as from",
        ));
    }
    if let Some(offset) = pieces.to_numeric_offset() {
        let at: Timestamp = time.parse().map_err(|_| unreadable(time))?;
        return match from {
            Some(from) if zone.to_offset(at) != offset => Err(Mistake::new(
                "from",
                format_args!("{} is not at the offset that time carries", quote(from)),
                "Leave out from, or the offset in time",
            )),
            Some(_) | None => Ok((at, None)),
        };
    }
    let local: DateTime = time.parse().map_err(|_| unreadable(time))?;
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
    let at = ambiguous.compatible().map_err(|_| out_of_range("time"))?;
    Ok((at, note))
}

fn unreadable(time: &str) -> Mistake {
    Mistake::new(
        "time",
        format_args!("{} is neither a timestamp nor a date and time", quote(time)),
        "Write it like 2026-03-01T12:00:00Z, 2026-03-01T12:00:00+01:00 or 2026-03-01T12:00",
    )
}

/// What `at` looks like in `zone`; `place` is the argument to blame when RFC 3339 cannot write it.
fn moment(place: &str, at: Timestamp, zone: TimeZone) -> Result<Moment, Mistake> {
    let name = zone.iana_name().unwrap_or("UTC").to_owned();
    let info = zone.to_offset_info(at);
    let daylight_saving = info.dst().is_dst();
    let abbreviation = info.abbreviation().to_owned();
    let zoned = at.to_zoned(zone);
    if zoned.year() < 0 {
        return Err(out_of_range(place));
    }
    Ok(Moment {
        time: zoned.strftime("%Y-%m-%dT%H:%M:%S%.f%:z").to_string(),
        zone: name,
        offset: zoned.strftime("%:z").to_string(),
        abbreviation,
        daylight_saving,
        unix_seconds: at.as_millisecond().div_euclid(1000),
        weekday: zoned.strftime("%A").to_string(),
    })
}

fn out_of_range(place: &str) -> Mistake {
    Mistake::new(
        place,
        "the time lies outside the years 0000 to 9999 that RFC 3339 can write",
        "Send a time within them",
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::builtin::testing::{call, check, connected, eras, outcome};

    #[tokio::test]
    async fn converts_times() {
        check(
            "convert_time",
            &[
                (
                    "timestamp in summer",
                    json!({"time": "2026-07-01T12:00:00Z", "to": "Europe/Berlin"}),
                    Ok(json!({
                        "from": {"time": "2026-07-01T12:00:00+00:00", "zone": "UTC"},
                        "to": {
                            "time": "2026-07-01T14:00:00+02:00", "zone": "Europe/Berlin",
                            "offset": "+02:00", "abbreviation": "CEST", "daylight_saving": true,
                            "unix_seconds": 1_782_907_200, "weekday": "Wednesday",
                        },
                    })),
                ),
                (
                    "local time over midnight",
                    json!({
                        "time": "2026-03-01T20:30",
                        "from": "America/New_York",
                        "to": "Asia/Kolkata",
                    }),
                    Ok(json!({
                        "from": {"time": "2026-03-01T20:30:00-05:00"},
                        "to": {"time": "2026-03-02T07:00:00+05:30", "weekday": "Monday"},
                    })),
                ),
                (
                    "unix seconds before the epoch",
                    json!({"unix_seconds": -1, "to": "UTC"}),
                    Ok(json!({"to": {"time": "1969-12-31T23:59:59+00:00", "unix_seconds": -1}})),
                ),
                (
                    "an offset that agrees with from",
                    json!({
                        "time": "2026-07-01T12:00:00+02:00",
                        "from": "Europe/Berlin",
                        "to": "UTC",
                    }),
                    Ok(json!({"to": {"time": "2026-07-01T10:00:00+00:00"}})),
                ),
                (
                    "a skipped local time",
                    json!({"time": "2026-03-29T02:30", "from": "Europe/Berlin", "to": "UTC"}),
                    Ok(json!({
                        "from": {"time": "2026-03-29T03:30:00+02:00"},
                        "note": "the clocks skip this local time; read as if they had not been set \
                                 forward yet",
                    })),
                ),
                (
                    "a repeated local time",
                    json!({"time": "2026-10-25T02:30", "from": "Europe/Berlin", "to": "UTC"}),
                    Ok(json!({
                        "to": {"time": "2026-10-25T00:30:00+00:00"},
                        "note": "the clocks show this local time twice; read as the first of the \
                                 two",
                    })),
                ),
            ],
        )
        .await;
    }

    #[tokio::test]
    async fn refuses_what_is_not_a_time() {
        check(
            "convert_time",
            &[
                (
                    "neither",
                    json!({"to": "UTC"}),
                    Err(
                        "arguments: exactly one of time and unix_seconds is needed. Send time for \
                         a date, or unix_seconds for a count of seconds.",
                    ),
                ),
                (
                    "prose",
                    json!({"time": "tomorrow\nnoon", "to": "UTC"}),
                    Err(
                        "time: \"tomorrow\\nnoon\" is neither a timestamp nor a date and time. \
                         Write it like 2026-03-01T12:00:00Z, 2026-03-01T12:00:00+01:00 or \
                         2026-03-01T12:00.",
                    ),
                ),
                (
                    "an offset that contradicts from",
                    json!({"time": "2026-07-01T12:00:00Z", "from": "Europe/Berlin", "to": "UTC"}),
                    Err(
                        "from: \"Europe/Berlin\" is not at the offset that time carries. Leave out \
                         from, or the offset in time.",
                    ),
                ),
                (
                    "a zone in brackets",
                    json!({"time": "2026-07-01T12:00[Europe/Berlin]", "to": "UTC"}),
                    Err(
                        "time: \"2026-07-01T12:00[Europe/Berlin]\" names a zone in brackets. Leave \
                         out the brackets and send the zone as from.",
                    ),
                ),
                (
                    "before the year 0",
                    json!({"unix_seconds": -99_999_999_999_i64, "to": "UTC"}),
                    Err(
                        "unix_seconds: the time lies outside the years 0000 to 9999 that RFC 3339 \
                         can write. Send a time within them.",
                    ),
                ),
                (
                    "after the year 9999",
                    json!({"unix_seconds": i64::MAX, "to": "UTC"}),
                    Err(
                        "unix_seconds: the time lies outside the years 0000 to 9999 that RFC 3339 \
                         can write. Send a time within them.",
                    ),
                ),
                (
                    "no target",
                    json!({"time": "2026-07-01T12:00Z"}),
                    Err(
                        "to: missing field `to`. Send the arguments that the tool's input schema \
                         describes.",
                    ),
                ),
            ],
        )
        .await;
    }

    #[tokio::test]
    async fn refuses_what_is_not_a_zone() {
        check(
            "current_time",
            &[
                (
                    "a city",
                    json!({"zone": "berlin"}),
                    Err("zone: \"berlin\" is not a known time zone. Did you mean Europe/Berlin."),
                ),
                (
                    "a part of many names",
                    json!({"zone": "america"}),
                    Err(
                        "zone: \"america\" is not a known time zone. Did you mean America/Adak or \
                         America/Anchorage or America/Anguilla.",
                    ),
                ),
                (
                    "a path",
                    json!({"zone": "../../etc/passwd"}),
                    Err(
                        "zone: \"../../etc/passwd\" is not a known time zone. Send an IANA name \
                         such as Europe/Berlin, America/New_York or UTC.",
                    ),
                ),
                (
                    "nothing",
                    json!({"zone": ""}),
                    Err(
                        "zone: \"\" is not a known time zone. Send an IANA name such as \
                         Europe/Berlin, America/New_York or UTC.",
                    ),
                ),
                (
                    "a number",
                    json!({"zone": 2}),
                    Err(
                        "zone: invalid type: integer `2`, expected a string. Send the arguments \
                         that the tool's input schema describes.",
                    ),
                ),
                (
                    "another argument",
                    json!({"timezone": "UTC"}),
                    Err(
                        "timezone: unknown field `timezone`, expected `zone`. Send the arguments \
                         that the tool's input schema describes.",
                    ),
                ),
            ],
        )
        .await;
    }

    #[tokio::test]
    async fn tells_the_time() {
        for era in eras() {
            let answer = connected(era, async |client| {
                outcome(&call(client, "current_time", json!({"zone": "asia/tokyo"})).await).unwrap()
            })
            .await;
            assert_eq!(answer["zone"], "Asia/Tokyo");
            assert_eq!(answer["offset"], "+09:00");
            let shown: Timestamp = answer["time"].as_str().unwrap().parse().unwrap();
            assert_eq!(answer["unix_seconds"], shown.as_second());
            let age = now().as_second() - shown.as_second();
            assert!((0..60).contains(&age), "{answer}");
        }
        assert_eq!(
            current_time(CurrentTime { zone: None }).unwrap().zone,
            "UTC"
        );
    }
}
