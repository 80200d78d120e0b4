//! The arguments that several subcommands share: where the config is, and what is logged.

use std::{
    io::{self, IsTerminal},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::{
    EXIT_CONFIG,
    output::{OutputFormat, eprint, escape_terminal, print_json},
    suggest::did_you_mean,
    usage_error,
};
use crate::{
    app::{ConfigSource, StartError},
    auth::{Agent, AgentDirectory},
    config::{
        self, Config, ConfigErrors, Environment, InvalidLogFilter, LoadScope, LoadedConfig, Notice,
    },
    config_change::{ChangedStoreReader, EntryChange},
    names::{AgentId, ProfileName, ServerName},
    telemetry,
};

/// The variable that names the config file where no argument does.
const CONFIG_VARIABLE: &str = "TOLLBRIDGE_CONFIG";
/// The variable that says what is logged.
const FILTER_VARIABLE: &str = "RUST_LOG";
/// What commands log that end by themselves: they say on their own what a person must know.
const QUIET_FILTER: &str = "error";

/// Where the config is.
#[derive(Args, Clone, Debug)]
pub(super) struct ConfigArgs {
    /// Config file (TOML, YAML or JSON). May be repeated: files are merged, later ones win.
    /// Default: TOLLBRIDGE_CONFIG, else `tollbridge.{toml,yaml,json}` in the working directory or
    /// the user's config directory
    #[arg(long, short, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// Log level or filter, such as `info` or `tollbridge=debug`. RUST_LOG wins
    #[arg(long, value_name = "FILTER", global = true, value_parser = parse_log_filter)]
    log_level: Option<String>,
    /// Format of log lines
    #[arg(long, value_name = "FORMAT", global = true)]
    log_format: Option<LogFormatArg>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormatArg {
    Human,
    Json,
}

/// Why there is no config to run.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoConfig {
    /// It has mistakes. The operator mends them.
    #[error(transparent)]
    Mistakes(#[from] ConfigErrors),
    /// None was named and none found. The operator names one.
    #[error("no config found: use --config FILE, or create tollbridge.toml here")]
    Missing,
    /// No gateway starts with it. The operator mends it.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl NoConfig {
    /// Says what is wrong: on stderr, or on stdout where what was asked for would be JSON there.
    pub(super) fn report(&self, form: OutputFormat) -> ExitCode {
        match form {
            OutputFormat::Json => {
                print_json(&json!({ "ok": false, "notices": self.to_json() }));
                ExitCode::from(EXIT_CONFIG)
            }
            OutputFormat::Text => self.report_on_stderr(),
        }
    }

    fn report_on_stderr(&self) -> ExitCode {
        usage_error(&match self {
            Self::Mistakes(mistakes) if uses_color() => mistakes.styled(),
            Self::Mistakes(_) | Self::Missing | Self::Start(_) => self.to_string(),
        })
    }

    /// What is wrong, as an array of objects.
    fn to_json(&self) -> Value {
        match self {
            Self::Mistakes(mistakes) => json!(mistakes.notices),
            Self::Missing => json!([{
                "severity": "error",
                "message": "no config",
                "label": null,
                "suggestion": "use --config FILE, or create tollbridge.toml here",
                "file": null,
                "line": null,
                "column": null,
            }]),
            Self::Start(error) => json!([Notice::error(error.to_string())]),
        }
    }
}

impl ConfigArgs {
    /// The files that are read.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        if !self.config.is_empty() {
            return self.config.clone();
        }
        let environment = Environment::from_process();
        // Who empties a variable wants nothing of it.
        let named = environment.get(CONFIG_VARIABLE);
        let named = named.filter(|name| !name.is_empty()).map(PathBuf::from);
        named.or_else(config::find_default).into_iter().collect()
    }

    /// Reads the config for what it is `used` for.
    pub(super) fn read(&self, used: LoadScope<'_>) -> Result<LoadedConfig, NoConfig> {
        if self.files().is_empty() {
            return Err(NoConfig::Missing);
        }
        Ok(self.read_with(used, None)?)
    }

    /// The same with a change to what the store has.
    pub(super) fn read_with(
        &self,
        used: LoadScope<'_>,
        change: Option<EntryChange>,
    ) -> Result<LoadedConfig, ConfigErrors> {
        config::load_with(&self.files(), used, &config_environment(change))
    }

    /// Reads the config of a gateway and starts its log; what is wrong goes to stderr.
    pub(super) fn load(&self) -> Result<Config, ExitCode> {
        let mut config = self.load_scope(LoadScope::Enabled, OutputFormat::Text)?;
        self.start_log(&mut config)?;
        Ok(config)
    }

    /// Where a running gateway reads the config again, with what the arguments and `adjust` say over
    /// it; to be made before the config is read for the first time.
    pub(super) fn config_source(
        &self,
        adjust: impl Fn(&mut Config) + Send + Sync + 'static,
    ) -> ConfigSource {
        let (files, args) = (self.files(), self.clone());
        ConfigSource::new(files.clone(), move |change| {
            let mut loaded = config::load(&files, &config_environment(change))?;
            args.adjust_log(&mut loaded.config);
            adjust(&mut loaded.config);
            Ok(loaded)
        })
    }

    /// Reads the config of a command that ends by itself, and starts a log for errors only; what
    /// is wrong is said in `form`.
    pub(super) fn load_with_quiet_log(&self, form: OutputFormat) -> Result<Config, ExitCode> {
        self.load_scope_with_quiet_log(LoadScope::Enabled, form)
    }

    /// Like [`Self::load_with_quiet_log`], for what it is `used` for.
    pub(super) fn load_scope_with_quiet_log(
        &self,
        used: LoadScope<'_>,
        form: OutputFormat,
    ) -> Result<Config, ExitCode> {
        let mut config = self.load_scope(used, form)?;
        self.start_quiet_log(&mut config)?;
        Ok(config)
    }

    /// Starts a log for errors only, unless more was asked for.
    pub(super) fn start_quiet_log(&self, config: &mut Config) -> Result<(), ExitCode> {
        QUIET_FILTER.clone_into(&mut config.log.level);
        self.start_log(config)
    }

    fn load_scope(&self, used: LoadScope<'_>, form: OutputFormat) -> Result<Config, ExitCode> {
        let read = self.read(used);
        let loaded = read.map_err(|unusable| unusable.report(form))?;
        print_warnings(&loaded.warnings);
        Ok(loaded.config)
    }

    /// Starts the log that `config` and the arguments ask for.
    pub(super) fn start_log(&self, config: &mut Config) -> Result<(), ExitCode> {
        if let Err(fault) = environment_filter(&Environment::from_process()) {
            eprint(&format!("warning: {fault}\n"));
        }
        self.adjust_log(config);
        telemetry::start(&config.log).map_err(|invalid| usage_error(&invalid.to_string()))
    }

    fn adjust_log(&self, config: &mut Config) {
        let environment = Environment::from_process();
        // What is wrong with it was said when the log was started.
        let first = environment_filter(&environment).unwrap_or_default();
        if let Some(level) = first.or(self.log_level.as_deref()) {
            level.clone_into(&mut config.log.level);
        }
        match self.log_format {
            Some(LogFormatArg::Human) => config.log.format = config::LogFormat::Human,
            Some(LogFormatArg::Json) => config.log.format = config::LogFormat::Json,
            None => {}
        }
    }
}

/// What configs may refer to: the variables of this process, and secrets of the store, which `change` is made to.
fn config_environment(change: Option<EntryChange>) -> Environment {
    Environment::from_process().with_store(ChangedStoreReader(change))
}

/// The filter that comes before that of arguments and config, where it is one.
fn environment_filter(environment: &Environment) -> Result<Option<&str>, IgnoredFilter> {
    let Some(filter) = environment.get(FILTER_VARIABLE) else {
        return Ok(None);
    };
    // Who empties a variable wants nothing of it.
    if filter.is_empty() {
        return Ok(None);
    }
    match config::check_log_filter(filter) {
        Ok(()) => Ok(Some(filter)),
        Err(fault) => Err(IgnoredFilter {
            filter: filter.to_owned(),
            fault,
        }),
    }
}

/// The variable holds no filter; whoever set it mends it.
#[derive(Debug, thiserror::Error)]
#[error(
    "{FILTER_VARIABLE} is ignored: `{}` is {fault}",
    escape_terminal(filter)
)]
struct IgnoredFilter {
    /// What it holds.
    filter: String,
    /// What is wrong with it.
    fault: InvalidLogFilter,
}

/// Reads `--log-level`.
fn parse_log_filter(text: &str) -> Result<String, InvalidLogFilter> {
    config::check_log_filter(text).map(|()| text.to_owned())
}

/// Says on stderr what an operator should know of a config that may run.
pub(super) fn print_warnings(warnings: &[Notice]) {
    let colours = uses_color();
    for warning in warnings {
        let text = if colours {
            warning.styled()
        } else {
            warning.to_string()
        };
        eprint(&format!("{text}\n"));
    }
}

/// The server called `name` in `config`; what is wrong goes to stderr.
pub(super) fn find_server(name: &str, config: &Config) -> Result<ServerName, ExitCode> {
    let known = config.servers.keys();
    if let Some(server) = known.clone().find(|server| server.as_str() == name) {
        return Ok(server.clone());
    }
    // That of a workspace or an agent, where no other is called so.
    let mut owned = known.clone().filter(|server| server.local() == name);
    if let (Some(server), None) = (owned.next(), owned.next()) {
        return Ok(server.clone());
    }
    let names: Vec<&str> = known.map(ServerName::as_str).collect();
    Err(unknown_name("server", name, &names))
}

/// The profile called `name` in `config`; what is wrong goes to stderr.
pub(super) fn find_profile(name: &str, config: &Config) -> Result<ProfileName, ExitCode> {
    let known = config.profiles.keys();
    if let Some(profile) = known.clone().find(|profile| profile.as_str() == name) {
        return Ok(profile.clone());
    }
    let names: Vec<&str> = known.map(ProfileName::as_str).collect();
    Err(unknown_name("profile", name, &names))
}

fn unknown_name(what: &str, name: &str, names: &[&str]) -> ExitCode {
    let ending = match did_you_mean(name, names.iter().map(|name| [*name])) {
        near if !near.is_empty() => near,
        _ if names.is_empty() => "; the config has none".to_owned(),
        _ => format!("; these are: {}", names.join(", ")),
    };
    eprint(&format!("unknown {what} `{name}`{ending}\n"));
    ExitCode::from(EXIT_CONFIG)
}

fn uses_color() -> bool {
    let refused = Environment::from_process()
        .get("NO_COLOR")
        .is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !refused
}

/// The agent that `name` names; what is wrong goes to stderr. Without a name it is the anonymous
/// agent, where that is allowed.
pub(super) fn find_agent(
    name: Option<&str>,
    directory: &AgentDirectory,
) -> Result<Arc<Agent>, ExitCode> {
    let Some(name) = name else {
        if directory.is_anonymous() {
            return Ok(Arc::new(Agent::anonymous()));
        }
        return Err(usage_error(
            "the config requires keys (governance.auth): choose an agent with --agent NAME",
        ));
    };
    directory.named(name).ok_or_else(|| {
        let known = directory.agents();
        let known = known.iter().filter(|agent| agent.id != AgentId::ANONYMOUS);
        let ending = did_you_mean(name, known.map(|agent| [agent.name.as_str()]));
        usage_error(&format!("unknown agent `{name}`{ending}"))
    })
}
