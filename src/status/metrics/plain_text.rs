//! The text form that Prometheus had before OpenMetrics, which most scrapers read: the same lines, but each
//! family is named as its samples are.

/// `openmetrics` in the text form of Prometheus, version 0.0.4.
pub(super) fn to_plain_text(openmetrics: &str) -> String {
    let mut out = String::with_capacity(openmetrics.len());
    let mut help = None;
    for line in openmetrics.lines() {
        if let Some(said) = line.strip_prefix("# HELP ") {
            help = said.split_once(' ');
        } else if let Some((name, kind)) = type_of(line) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                kind => ("", kind),
            };
            if let Some((_, text)) = help.take() {
                push_line(&mut out, &["# HELP ", name, suffix, " ", text]);
            }
            push_line(&mut out, &["# TYPE ", name, suffix, " ", kind]);
        } else if line != "# EOF" {
            push_line(&mut out, &[line]);
        }
    }
    out
}

/// The name and the type of the family that begins with `line`.
fn type_of(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("# TYPE ")?.split_once(' ')
}

fn push_line(out: &mut String, parts: &[&str]) {
    out.extend(parts.iter().copied());
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_named_as_their_samples_are() {
        let openmetrics = "# HELP a_b Help of it.\n# TYPE a_b counter\na_b_total{x=\"# y\"} 1\n\
            # HELP v Version.\n# TYPE v info\nv_info{version=\"1\"} 1\n\
            # HELP g Now.\n# TYPE g gauge\ng 0.5\n# EOF\n";
        let expect = "# HELP a_b_total Help of it.\n# TYPE a_b_total counter\na_b_total{x=\"# y\"} 1\n\
            # HELP v_info Version.\n# TYPE v_info gauge\nv_info{version=\"1\"} 1\n\
            # HELP g Now.\n# TYPE g gauge\ng 0.5\n";
        assert_eq!(to_plain_text(openmetrics), expect);
    }
}
