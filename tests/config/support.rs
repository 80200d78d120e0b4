//! Loading configs from text, and what comes of it as text.

use std::path::Path;

use tollbridge::config::{
    Config, ConfigErrors, ConfigFormat, ConfigText, Environment, LoadedConfig, Server, parse,
};
use tollbridge::names::ServerName;

/// The report on a wrong TOML config.
pub(crate) fn toml(text: &str) -> String {
    toml_in(&[], text)
}

/// The report on a wrong TOML config in an environment.
pub(crate) fn toml_in(environment: &[(&str, &str)], text: &str) -> String {
    report(environment, &[("tollbridge.toml", text)])
}

/// The report on a wrong YAML config.
pub(crate) fn yaml(text: &str) -> String {
    report(&[], &[("tollbridge.yaml", text)])
}

/// The report on a wrong JSON config.
pub(crate) fn json(text: &str) -> String {
    report(&[], &[("tollbridge.json", text)])
}

/// The report on a wrong config of another program.
pub(crate) fn mcp_json(text: &str) -> String {
    report(&[], &[("mcp.json", text)])
}

/// The report on wrong configs.
pub(crate) fn report(environment: &[(&str, &str)], files: &[(&str, &str)]) -> String {
    load(environment, files)
        .expect_err("the config is wrong")
        .to_string()
}

/// The config of a right TOML file.
pub(crate) fn config(text: &str) -> Config {
    config_in(&[], text)
}

/// The config of a right TOML file in an environment.
pub(crate) fn config_in(environment: &[(&str, &str)], text: &str) -> Config {
    accepted(environment, &[("tollbridge.toml", text)]).config
}

/// What right files give; the report, when they are not.
pub(crate) fn accepted(environment: &[(&str, &str)], files: &[(&str, &str)]) -> LoadedConfig {
    load(environment, files).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

/// The warnings about right files.
pub(crate) fn warnings(environment: &[(&str, &str)], files: &[(&str, &str)]) -> String {
    let warnings = accepted(environment, files).warnings;
    warnings
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n\n")
}

/// Loads files, named so that the name tells the format, with the indentation that all their
/// lines share taken away.
pub(crate) fn load(
    environment: &[(&str, &str)],
    files: &[(&str, &str)],
) -> Result<LoadedConfig, ConfigErrors> {
    let environment: Environment = environment.iter().copied().collect();
    parse(
        files.iter().map(|(name, text)| source(name, text)),
        &environment,
    )
}

/// A source in `/etc/tollbridge`.
pub(crate) fn source(name: &str, text: &str) -> ConfigText {
    ConfigText {
        name: name.to_owned(),
        format: ConfigFormat::from_path(Path::new(name)).expect("the name tells the format"),
        text: dedent(text),
        directory: "/etc/tollbridge".into(),
    }
}

/// The server `name` of `config`.
pub(crate) fn server<'c>(config: &'c Config, name: &str) -> &'c Server {
    &config.servers[&ServerName::parse(name).expect("a legal name")]
}

fn dedent(text: &str) -> String {
    let text = text.strip_prefix('\n').unwrap_or(text);
    let indent = |line: &&str| line.len() - line.trim_start_matches(' ').len();
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let shared = lines.map(|line| indent(&line)).min().unwrap_or(0);
    let lines = text
        .lines()
        .map(|line| line.get(shared..).unwrap_or_default());
    lines.flat_map(|line| [line, "\n"]).collect()
}
