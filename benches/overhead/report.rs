//! The figures laid out: a table for people, JSON for machines.

use serde_json::{Value, json};

use crate::{
    cell::Sample,
    figures::{Fact, Figures, Group, Row, Spread},
    plan::BARE,
};

/// How many wrong answers are shown; all of them are counted.
const FAULTS_SHOWN: usize = 5;

/// `least` is there for busy machines: what disturbs a process only ever adds to its CPU time.
const LEGEND: &str = "\
median [least..greatest] of the rounds; x = times the bare proxy in the same round
least = least CPU time of all rounds, times that of the bare proxy
";

/// The table; it ends in a line break.
pub(crate) fn table(figures: &Figures) -> String {
    let mut out = format!("{}\n{}\n", figures.machine, figures.settings);
    if !figures.groups.is_empty() {
        out.push_str(LEGEND);
    }
    for group in &figures.groups {
        table_of_group(group, &mut out);
    }
    out.push('\n');
    for fact in &figures.facts {
        line(&mut out, &line_of_fact(fact));
    }
    line(&mut out, &format!("errors: {}", figures.faults.len()));
    for fault in figures.faults.iter().take(FAULTS_SHOWN) {
        line(&mut out, &format!("  {fault}"));
    }
    out
}

fn table_of_group(group: &Group, out: &mut String) {
    let Group {
        era,
        connections,
        rows,
    } = group;
    let plural = if *connections == 1 { "" } else { "s" };
    line(
        out,
        &format!("\n{} calls, {connections} connection{plural}", era.name()),
    );
    line(
        out,
        &format!(
            "{:<13}{:>22}{:>19}{:>7}{:>12}{:>11}{:>7}{:>9}{:>7}{:>9}{:>7}",
            "path",
            "CPU us/call",
            "x",
            "least",
            "target",
            "calls/s",
            "x",
            "p50 us",
            "x",
            "p99 us",
            "x"
        ),
    );
    let base = rows.iter().find(|row| row.path == BARE);
    for row in rows {
        line(out, &line_of_row(row, base));
    }
}

fn line_of_row(row: &Row, base: Option<&Row>) -> String {
    let ratio = |figure| base.map(|base| row.ratio(base, figure));
    let short = |figure| ratio(figure).map_or(String::new(), |x| format!("{:.2}", x.median));
    let cpu = ratio(CPU);
    let least = base.map(|base| row.spread(CPU).min / base.spread(CPU).min);
    format!(
        "{:<13}{:>22}{:>19}{:>7}{:>12}{:>11.0}{:>7}{:>9.0}{:>7}{:>9.0}{:>7}",
        row.path,
        ranged(row.spread(CPU), 1),
        cpu.map_or(String::new(), |x| ranged(x, 2)),
        least.map_or(String::new(), |x| format!("{x:.2}")),
        verdict(cpu, row.target, 1),
        row.spread(RATE).median,
        short(RATE),
        row.spread(P50).median,
        short(P50),
        row.spread(P99).median,
        short(P99),
    )
}

fn line_of_fact(fact: &Fact) -> String {
    let spread = Spread::of(fact.values.iter().copied());
    let value = ranged(spread, 1);
    let verdict = verdict(Some(spread), fact.target, 0);
    format!("{:<40}{value:>22} {:<4}{verdict:>12}", fact.name, fact.unit)
}

/// The median, and the range if there is one.
fn ranged(spread: Spread, digits: usize) -> String {
    let Spread { median, min, max } = spread;
    if min.total_cmp(&max).is_eq() {
        return format!("{median:.digits$}");
    }
    format!("{median:.digits$} [{min:.digits$}..{max:.digits$}]")
}

fn verdict(found: Option<Spread>, target: Option<f64>, digits: usize) -> String {
    match (found, target) {
        (Some(found), Some(target)) => {
            let word = if found.median <= target { "ok" } else { "MISS" };
            format!("<={target:.digits$} {word}")
        }
        (None, _) | (_, None) => String::new(),
    }
}

/// Adds one line without blanks at its end.
fn line(out: &mut String, text: &str) {
    out.push_str(text.trim_end());
    out.push('\n');
}

/// The same figures as JSON.
pub(crate) fn json(figures: &Figures) -> String {
    let groups = figures.groups.iter().map(json_of_group);
    let facts = figures.facts.iter().map(|fact| {
        let spread = Spread::of(fact.values.iter().copied());
        json!({ "name": fact.name, "unit": fact.unit, "target": fact.target, "found": spread })
    });
    let all = json!({
        "machine": figures.machine,
        "settings": figures.settings,
        "calls": groups.collect::<Vec<_>>(),
        "facts": facts.collect::<Vec<_>>(),
        "errors": figures.faults.len(),
    });
    format!("{all:#}\n")
}

fn json_of_group(group: &Group) -> Value {
    let base = group.rows.iter().find(|row| row.path == BARE);
    let rows = group.rows.iter().map(|row| {
        let figures = [
            ("cpu_us", CPU),
            ("calls_per_second", RATE),
            ("p50_us", P50),
            ("p99_us", P99),
        ];
        let mut object = json!({ "path": row.path, "cpu_ratio_max": row.target });
        for (name, figure) in figures {
            let ratio = base.map(|base| row.ratio(base, figure));
            object[name] = json!({ "found": row.spread(figure), "times_bare_proxy": ratio });
        }
        object
    });
    json!({
        "era": group.era.name(),
        "connections": group.connections,
        "paths": rows.collect::<Vec<_>>(),
    })
}

const CPU: fn(&Sample) -> f64 = |sample| sample.cpu_us;
const RATE: fn(&Sample) -> f64 = |sample| sample.calls_per_second;
const P50: fn(&Sample) -> f64 = |sample| sample.p50_us;
const P99: fn(&Sample) -> f64 = |sample| sample.p99_us;
