//! `config.example.toml` with all that is commented out in it.

/// Variables that the commented-out parts of the example need.
pub(crate) const VARIABLES: [(&str, &str); 10] = [
    ("ACTOR_TOKEN", "t"),
    ("DRIVE_SECRET", "t"),
    ("FILES_SECRET", "t"),
    ("GITHUB_TOKEN", "t"),
    ("IDP_SECRET", "t"),
    ("DOCS_TOKEN", "t"),
    ("RESEARCHER_KEY", "4f6c1d0a9b8e7f3c2d5a6b1e0f9c8d7a"),
    ("OIDC_SECRET", "t"),
    ("SEARCH_KEY", "t"),
    ("WORKLOAD_TOKEN", "t"),
];

/// The example with the keys that are commented out: lines that begin with `#` and no space.
pub(crate) fn uncommented() -> String {
    let line = |line: &str| match line.strip_prefix('#') {
        Some(key) if !key.is_empty() && !key.starts_with(' ') => format!("{key}\n"),
        _ => format!("{line}\n"),
    };
    let example = include_str!("../../config.example.toml");
    example.lines().map(line).collect()
}
