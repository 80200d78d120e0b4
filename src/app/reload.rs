//! Takes a changed config while the gateway runs.
//!
//! Everything that can be wrong with it is found before anything changes. Then governance has the
//! new rules, the directory the new agents, and the servers, the catalog and the edges follow.
//! Budgets, rates, the audit and the store stay as they are; what a running gateway cannot change
//! keeps its value, and `/status` says so.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock},
};

use tokio::sync::watch;

use super::{
    authorization,
    config_diff::differences,
    identity,
    own_server::has_servers,
    storage::{ConfigInput, StorageKeeper},
    warn_if_empty, warn_invalid_agents,
};
use crate::{
    audit::{ChangedValues, EventKind},
    config::{Budget, Config, ConfigErrors, EntryKey, EntrySection, Listen, Terms},
    egress::EgressError,
    governance::{InvalidTerms, PolicySet},
    http::{Certificate, Certificates, HttpEdge, InvalidTls},
    lock::lock,
    names::ServerName,
    proxy::{Proxy, ServerChange, ServerChanges},
    status::Status,
    task::Tasks,
};

/// What a changed config is given to.
#[derive(Debug)]
pub(super) struct Reloader {
    running: Mutex<Arc<Config>>,
    proxy: Arc<Proxy>,
    status: Arc<Status>,
    storage: Arc<StorageKeeper>,
    tasks: Tasks,
    listener: OnceLock<ListenerHandle>,
}

/// The listener over HTTP, where there is one.
#[derive(Debug)]
pub(super) struct ListenerHandle {
    pub(super) edge: Arc<HttpEdge>,
    pub(super) certificates: Option<Arc<Certificates>>,
    /// Where it listens.
    pub(super) listen: Listen,
    /// Where the listener for state and probes does.
    pub(super) admin_listen: Option<Listen>,
}

/// What a changed config has changed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Reloaded {
    /// What became of the servers.
    pub servers: ServerChanges,
    /// What else differs: agents and profiles by name, the keys of other settings, and the certificate
    /// in the files of `tls`.
    pub others: Vec<String>,
    /// Keys whose new values count after a restart only.
    pub needs_restart: Vec<&'static str>,
}

/// Why a changed config is not taken; the old one holds. The operator mends it.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// A file that said something is empty.
    #[error(
        "{file} is empty, possibly because it is being written; add a comment if an empty config \
         is intended"
    )]
    Emptied {
        /// As it was named.
        file: String,
    },
    /// It has mistakes.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// It would let everybody in at an address that is bound already.
    #[error(
        "authentication would be off while the listener is reachable from other machines; changing \
         `listen` requires a restart"
    )]
    OpenWithoutAuth,
    /// It has no servers, or none but the gateway itself, and what runs has some: most likely it is cut off,
    /// or another file, or a client was connected whose config it is.
    #[error(
        "the config has no servers{}, which would take away {}; to stop servers set `enabled = false` in \
         their sections, and to run without any restart the gateway",
        if *.names_gateway { " but this gateway itself" } else { "" },
        named(servers)
    )]
    NoServers {
        /// Those that run.
        servers: Vec<ServerName>,
        /// Whether the config has an entry for the gateway itself.
        names_gateway: bool,
    },
    /// It says no longer that callers have to authenticate, nor that they need not.
    #[error(
        "`governance.auth` was removed, which would turn authentication off; set `auth = \
         \"anonymous\"` if that is intended"
    )]
    AuthDisabled,
    /// It keeps budgets or keys, but the gateway was started without a store.
    #[error("budgets and keys require the data directory, which is opened at startup: restart")]
    StoreNotOpen,
    /// The entries of the store could not be read: without them what runs would be taken away.
    #[error("the entries of the store (servers, profiles, workspaces) cannot be read: {0}")]
    EntriesUnread(String),
    /// The thread that read it ended before it was done.
    #[error("reading the config was interrupted")]
    Interrupted,
    /// The terms of an agent, a profile or a server.
    #[error("invalid terms in the config: {0}")]
    Terms(#[from] InvalidTerms),
    /// The certificate.
    #[error(transparent)]
    Tls(#[from] InvalidTls),
    /// Requests to URLs that others name cannot be made.
    #[error(transparent)]
    Egress(#[from] EgressError),
}

impl ReloadError {
    /// The file of the first mistake, where it is in one.
    fn file(&self) -> Option<String> {
        match self {
            Self::Emptied { file } => Some(file.clone()),
            Self::Config(mistakes) => {
                let mut notices = mistakes.notices.iter();
                notices.find_map(|notice| notice.file.clone())
            }
            Self::Tls(invalid) => Some(invalid.file.clone()),
            Self::AuthDisabled
            | Self::Egress(_)
            | Self::EntriesUnread(_)
            | Self::Interrupted
            | Self::NoServers { .. }
            | Self::OpenWithoutAuth
            | Self::StoreNotOpen
            | Self::Terms(_) => None,
        }
    }
}

/// Servers that a refusal names; of more, how many there are.
const SERVERS_NAMED_MAX: usize = 5;

/// `servers` for people.
fn named(servers: &[ServerName]) -> String {
    let names = servers.iter().take(SERVERS_NAMED_MAX);
    let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
    match servers.len().saturating_sub(SERVERS_NAMED_MAX) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

impl Reloader {
    pub(super) fn new(
        config: &Config,
        proxy: &Arc<Proxy>,
        status: &Arc<Status>,
        storage: &Arc<StorageKeeper>,
        tasks: &Tasks,
    ) -> Self {
        Self {
            running: Mutex::new(Arc::new(config.clone())),
            proxy: Arc::clone(proxy),
            status: Arc::clone(status),
            storage: Arc::clone(storage),
            tasks: tasks.clone(),
            listener: OnceLock::new(),
        }
    }

    /// Lets the listener follow too; only the first counts.
    pub(super) fn set_listener(&self, listener: ListenerHandle) {
        drop(self.listener.set(listener));
    }

    pub(super) fn status(&self) -> &Status {
        &self.status
    }

    /// What runs now.
    pub(super) fn running(&self) -> Arc<Config> {
        Arc::clone(&lock(&self.running))
    }

    /// The files that what runs now names, and those of the certificate in use, which a changed config may no
    /// longer name.
    pub(super) fn named_files(&self) -> Vec<PathBuf> {
        let running = lock(&self.running);
        let in_use = running.tls.iter().flat_map(|tls| [&tls.cert, &tls.key]);
        in_use.chain(&running.named_files).cloned().collect()
    }

    /// Checks that a changed file leaves servers to a gateway that has some. Those of the store go only when somebody
    /// removes them.
    pub(super) fn check_servers(&self, config: &Config) -> Result<(), ReloadError> {
        let running = lock(&self.running);
        let is_stored = |name: &ServerName| {
            let key = EntryKey::new(EntrySection::Servers, name.as_str());
            running.entries.in_store.contains(&key)
        };
        if running.servers.keys().all(is_stored) {
            return Ok(());
        }
        let listen = self.listener.get().map(|front| &front.listen);
        if !has_servers(&running, listen) || has_servers(config, listen) {
            return Ok(());
        }
        Err(ReloadError::NoServers {
            servers: running.servers.keys().cloned().collect(),
            names_gateway: !config.servers.is_empty(),
        })
    }

    /// Takes `config`, and says everywhere what came of it.
    pub(super) fn reload(&self, config: &Config) -> Result<Reloaded, ReloadError> {
        let taken = self.apply(config.clone());
        match &taken {
            Ok(reloaded) => self.report_reloaded(reloaded),
            Err(refused) => self.report_refused(refused),
        }
        taken
    }

    /// Checks that `config` can be taken, and changes nothing.
    pub(super) fn check(config: &Config) -> Result<(), ReloadError> {
        check_entries(config)?;
        PolicySet::new(config)?;
        authorization::settings(config)?;
        Ok(())
    }

    /// Ends every connection to `server` and makes new ones; whether it is one that runs.
    pub(super) fn restart_server(&self, server: &ServerName) -> bool {
        // Not while the set of servers changes.
        let _running = lock(&self.running);
        self.proxy.restart_server(server)
    }

    /// Records what somebody changed of the entry or view `subject`.
    pub(super) fn record_change(
        &self,
        event: EventKind,
        subject: &str,
        record: (&str, &str),
        changes: ChangedValues,
    ) {
        let governance = self.proxy.governance();
        // Kept in order with everything else; nobody waits for it.
        drop(governance.record_change(event, subject, record, changes));
    }

    /// Says everywhere that a changed config is not taken, and why.
    pub(super) fn refuse(&self, refused: ReloadError) -> ReloadError {
        self.report_refused(&refused);
        refused
    }

    fn report_refused(&self, refused: &ReloadError) {
        let report = format!("config reload rejected, keeping the current config: {refused}");
        for line in report_lines(&report) {
            tracing::error!("{line}");
        }
        let file = refused.file();
        // What is wrong may be in words of the files; those stay out of the audit.
        let subject = file.as_deref().unwrap_or("config");
        let governance = self.proxy.governance();
        governance.record_event(EventKind::ConfigRefused, subject, Some("config"), None);
        self.status.note_refused(refused.to_string(), file);
    }

    fn report_reloaded(&self, reloaded: &Reloaded) {
        let detail = reloaded.detail();
        tracing::info!("config reloaded: {detail}");
        let governance = self.proxy.governance();
        let actor = Some("config");
        governance.record_event(EventKind::ConfigChanged, "config", actor, Some(&detail));
        self.status.note_reload(reloaded.needs_restart.clone());
    }

    /// Tells when something of the store changes that configs are made of.
    pub(super) fn config_input(&self) -> watch::Receiver<ConfigInput> {
        self.storage.config_input()
    }

    fn apply(&self, mut config: Config) -> Result<Reloaded, ReloadError> {
        let mut running = lock(&self.running);
        let needs_restart = config.keep_restart_settings(&running);
        check_entries(&config)?;
        if config.is_open_without_auth() && !config.danger_listen_without_auth {
            return Err(ReloadError::OpenWithoutAuth);
        }
        let is_unlocked = !running.governance.auth.allows_anonymous()
            && config.governance.auth.allows_anonymous();
        if is_unlocked && !config.governance.is_auth_written {
            return Err(ReloadError::AuthDisabled);
        }
        if !self.storage.is_sufficient_for(&config) {
            return Err(ReloadError::StoreNotOpen);
        }
        let policy_set = PolicySet::new(&config)?;
        let oauth = authorization::settings(&config)?;
        let listener = self.listener.get();
        let certificates = listener.and_then(|front| front.certificates.as_ref());
        let shown = match (certificates, &config.tls) {
            (Some(certificates), Some(tls)) => Some((
                certificates,
                Certificate::read(tls, config.governance.auth)?,
            )),
            (Some(_) | None, _) => None,
        };
        // From here on nothing fails.
        for whose in budgets_restarted(&running, &config) {
            tracing::warn!(
                "the budget window of {whose} changed: spending starts at 0.00 unless that window \
                 was used before in this period; see `budget show` for the old window"
            );
        }
        if is_unlocked {
            tracing::warn!(
                "clients may come without a credential: `governance.auth` allows \"anonymous\" now"
            );
        }
        let governance = self.proxy.governance();
        governance.set_policies(policy_set);
        let agents = config.agents.values().cloned().collect();
        governance
            .directory()
            .update_config(config.governance.auth, agents);
        self.storage.set_oauth(oauth);
        let (configs, builtin) = ((&**running, &config), self.storage.token_verifier());
        identity::apply_changed(configs, governance.directory(), builtin);
        self.storage.warn_shadowed_agents();
        // By the new rules, and with agents that the config has hidden until now.
        warn_invalid_agents(&self.proxy, &self.tasks);
        governance.audit().update_config(config.audit);
        if let Some(front) = listener {
            front.edge.replace(&Config {
                listen: front.listen.clone(),
                admin_listen: front.admin_listen.clone(),
                ..config.clone()
            });
        }
        let mut others = differences(&running, &config);
        if let Some((certificates, certificate)) = shown
            && certificates.replace(certificate)
        {
            others.push("certificate reloaded: tls".to_owned());
        }
        let servers = self.proxy.replace(&config);
        warn_if_empty(&config);
        *running = Arc::new(config);
        Ok(Reloaded {
            servers,
            others,
            needs_restart,
        })
    }
}

/// Checks that the entries of the store are known.
fn check_entries(config: &Config) -> Result<(), ReloadError> {
    match &config.entries.unread {
        Some(why) => Err(ReloadError::EntriesUnread(why.clone())),
        None => Ok(()),
    }
}

/// The lines of a report of the config: whoever reads the log sees its excerpts below each other.
pub(super) fn report_lines(report: &str) -> impl Iterator<Item = &str> {
    report.lines().filter(|line| !line.trim().is_empty())
}

/// Whose budgets `new` counts in none of the windows that `old` counted them in.
fn budgets_restarted(old: &Config, new: &Config) -> Vec<String> {
    fn all_budgets(config: &Config) -> impl Iterator<Item = (String, &[Budget])> {
        fn budgets_of_terms(whose: String, terms: &Terms) -> Option<(String, &[Budget])> {
            let budget = terms.budget.as_deref();
            budget.map(|budgets| (whose, budgets))
        }
        let governance = &config.governance;
        let default = budgets_of_terms(
            "agents without their own budget".to_owned(),
            &governance.terms,
        );
        let agents = config.agents.iter();
        let agents = agents
            .filter_map(|(name, agent)| budgets_of_terms(format!("agent `{name}`"), &agent.terms));
        let profiles = config.profiles.iter();
        let profiles = profiles.filter_map(|(name, profile)| {
            budgets_of_terms(format!("profile `{name}`"), &profile.terms)
        });
        let teams = governance.teams.iter();
        let teams = teams.map(|(name, budgets)| (format!("team `{name}`"), &**budgets));
        let servers = config.servers.iter();
        let servers = servers.map(|(name, it)| (format!("server `{name}`"), &*it.budget));
        default
            .into_iter()
            .chain(agents)
            .chain(profiles)
            .chain(teams)
            .chain(servers)
    }
    let before: HashMap<String, &[Budget]> = all_budgets(old).collect();
    let changed = all_budgets(new).filter(|(whose, budgets)| {
        let before = before.get(whose).copied().unwrap_or_default();
        let is_kept = |old: &Budget| budgets.iter().any(|new| new.window == old.window);
        !before.is_empty() && !budgets.is_empty() && !before.iter().any(is_kept)
    });
    changed.map(|(whose, _)| whose).collect()
}

impl Reloaded {
    /// For log and audit.
    fn detail(&self) -> String {
        let ServerChanges {
            added,
            removed,
            changed_settings: settings,
            ..
        } = &self.servers;
        let mut parts = Vec::new();
        let mut tell = |what: &str, names: Vec<String>| {
            if !names.is_empty() {
                parts.push(format!("servers {what}: {}", names.join(", ")));
            }
        };
        let all = |names: &[ServerName]| names.iter().map(ToString::to_string).collect();
        tell("added", all(added));
        for fate in ServerChange::ALL {
            let alike = settings
                .iter()
                .filter(|(name, _)| self.servers.change_of(name) == fate);
            let named = alike.map(|(name, keys)| format!("{name} ({})", keys.join(", ")));
            tell(fate.as_str(), named.collect());
        }
        tell("removed", all(removed));
        parts.extend(self.others.iter().cloned());
        if parts.is_empty() && self.needs_restart.is_empty() {
            parts.push("no changes".to_owned());
        }
        if !self.needs_restart.is_empty() {
            let keys = self.needs_restart.join(", ");
            parts.push(format!("changed keys that require a restart: {keys}"));
        }
        parts.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_some_servers() {
        let servers = |count: usize| -> Vec<ServerName> {
            let names = (0..count).map(|number| format!("s{number}"));
            names
                .map(|name| ServerName::parse(&name).unwrap())
                .collect()
        };
        let five = "`s0`, `s1`, `s2`, `s3`, `s4`";
        assert_eq!(named(&servers(1)), "`s0`");
        assert_eq!(named(&servers(SERVERS_NAMED_MAX)), five);
        let more = named(&servers(SERVERS_NAMED_MAX + 1));
        assert_eq!(more, format!("{five} and 1 more"));
    }

    #[test]
    fn a_budget_that_counts_in_another_window_begins_anew() {
        let old = Config::example(
            r#"
            [servers.docs]
            command = "x"
            budget = { limit = "1.00", window = "day" }
            [governance]
            auth = "keys"
            budget = { limit = "1.00", window = "day" }
            [governance.teams.science]
            budget = [{ limit = "1.00", window = "day" }, { limit = "9.00" }]
            [agents.alice]
            team = "science"
            budget = { limit = "1.00" }
            "#,
        );
        let new = Config::example(
            r#"
            [servers.docs]
            command = "x"
            budget = { limit = "2.00", window = "day" }
            [governance]
            auth = "keys"
            budget = { limit = "1.00", window = "month" }
            [governance.teams.science]
            budget = { limit = "9.00" }
            [agents.alice]
            team = "science"
            budget = { limit = "1.00", window = "month" }
            "#,
        );
        let expect = ["agents without their own budget", "agent `alice`"];
        assert_eq!(budgets_restarted(&old, &new), expect);
        assert!(budgets_restarted(&new, &new).is_empty());
    }
}
