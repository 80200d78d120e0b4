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

use super::{differences::differences, storage::Keeper, warn_if_empty, warn_of_unusable};
use crate::{
    audit::EventKind,
    config::{Authentication, Budget, Config, Listen, Mistakes, Terms},
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
    running: Mutex<Config>,
    proxy: Arc<Proxy>,
    status: Arc<Status>,
    keeper: Arc<Keeper>,
    tasks: Tasks,
    front: OnceLock<Front>,
}

/// The listener over HTTP, where there is one.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) edge: Arc<HttpEdge>,
    pub(super) certificates: Option<Arc<Certificates>>,
    /// Where it listens.
    pub(super) listen: Listen,
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
        "{file} is empty, as a file is while it is being written; for a config that says nothing, \
         write a comment into it"
    )]
    Emptied {
        /// As it was named.
        file: String,
    },
    /// It has mistakes.
    #[error(transparent)]
    Mistakes(#[from] Mistakes),
    /// It would let everybody in at an address that is bound already.
    #[error(
        "nobody would have to authenticate, but the listener can be reached from other machines; \
         `listen` changes with a restart only"
    )]
    OpenToStrangers,
    /// It says no longer that callers have to authenticate, nor that they need not.
    #[error(
        "nobody would have to authenticate any more: `governance.auth` is gone, as from a file that is \
         half written; if that is meant, write `auth = \"anonymous\"`"
    )]
    Unlocked,
    /// It keeps budgets or keys, but the gateway was started without a store.
    #[error("budgets and keys need the data directory, which is opened at the start: restart")]
    Store,
    /// The terms of an agent, a profile or a server.
    #[error("the config has terms that cannot be used: {0}")]
    Terms(#[from] InvalidTerms),
    /// The certificate.
    #[error(transparent)]
    Tls(#[from] InvalidTls),
}

impl ReloadError {
    /// The file of the first mistake, where it is in one.
    fn file(&self) -> Option<String> {
        match self {
            Self::Emptied { file } => Some(file.clone()),
            Self::Mistakes(mistakes) => {
                let mut notices = mistakes.notices.iter();
                notices.find_map(|notice| notice.file.clone())
            }
            Self::Tls(invalid) => Some(invalid.file.clone()),
            Self::OpenToStrangers | Self::Store | Self::Terms(_) | Self::Unlocked => None,
        }
    }
}

impl Reloader {
    pub(super) fn new(
        config: &Config,
        proxy: &Arc<Proxy>,
        status: &Arc<Status>,
        keeper: &Arc<Keeper>,
        tasks: &Tasks,
    ) -> Self {
        Self {
            running: Mutex::new(config.clone()),
            proxy: Arc::clone(proxy),
            status: Arc::clone(status),
            keeper: Arc::clone(keeper),
            tasks: tasks.clone(),
            front: OnceLock::new(),
        }
    }

    /// Lets the listener follow too; only the first counts.
    pub(super) fn set_front(&self, front: Front) {
        drop(self.front.set(front));
    }

    pub(super) fn status(&self) -> &Status {
        &self.status
    }

    /// What runs now.
    pub(super) fn running(&self) -> Config {
        lock(&self.running).clone()
    }

    /// The files that what runs now names, and those of the certificate in use, which a changed config may no
    /// longer name.
    pub(super) fn named_files(&self) -> Vec<PathBuf> {
        let running = lock(&self.running);
        let in_use = running.tls.iter().flat_map(|tls| [&tls.cert, &tls.key]);
        in_use.chain(&running.named_files).cloned().collect()
    }

    /// Takes `config`, and says everywhere what came of it.
    pub(super) fn take(&self, config: &Config) -> Result<Reloaded, ReloadError> {
        let taken = self.apply(config.clone());
        match &taken {
            Ok(reloaded) => self.note(reloaded),
            Err(refused) => self.refuse(refused),
        }
        taken
    }

    /// Says everywhere that a changed config is not taken.
    pub(super) fn refuse(&self, refused: &ReloadError) {
        // A report has several lines, and whoever reads the log sees its excerpts below each other.
        let report = format!("the changed config is refused, the old one holds: {refused}");
        for line in report.lines().filter(|line| !line.is_empty()) {
            tracing::error!("{line}");
        }
        let file = refused.file();
        // What is wrong may be in words of the files; those stay out of the audit.
        let subject = file.as_deref().unwrap_or("config");
        let governance = self.proxy.governance();
        governance.note(EventKind::ConfigRefused, subject, Some("config"), None);
        self.status.note_refused(refused.to_string(), file);
    }

    fn note(&self, reloaded: &Reloaded) {
        let detail = reloaded.detail();
        tracing::info!("the config was read again: {detail}");
        let governance = self.proxy.governance();
        let actor = Some("config");
        governance.note(EventKind::ConfigChanged, "config", actor, Some(&detail));
        self.status.note_reload(reloaded.needs_restart.clone());
    }

    fn apply(&self, mut config: Config) -> Result<Reloaded, ReloadError> {
        let mut running = lock(&self.running);
        let needs_restart = config.keep_fixed(&running);
        if config.is_open_to_strangers() && !config.danger_listen_without_auth {
            return Err(ReloadError::OpenToStrangers);
        }
        let is_unlocked = running.governance.auth == Authentication::Keys
            && config.governance.auth == Authentication::Anonymous;
        if is_unlocked && !config.governance.is_auth_written {
            return Err(ReloadError::Unlocked);
        }
        if !self.keeper.suffices(&config) {
            return Err(ReloadError::Store);
        }
        let law = PolicySet::new(&config)?;
        let front = self.front.get();
        let certificates = front.and_then(|front| front.certificates.as_ref());
        let shown = match (certificates, &config.tls) {
            (Some(certificates), Some(tls)) => Some((certificates, Certificate::read(tls)?)),
            (Some(_) | None, _) => None,
        };
        // From here on nothing fails.
        for whose in counted_anew(&running, &config) {
            tracing::warn!(
                "the budget of {whose} counts in another window now: at 0.00, unless it counted in \
                 that one before in this period; `budget show` has what was spent in the old one"
            );
        }
        if is_unlocked {
            tracing::warn!("authentication is now off: `governance.auth` is no longer \"keys\"");
        }
        let governance = self.proxy.governance();
        governance.enforce(law);
        let agents = config.agents.values().cloned().collect();
        governance
            .directory()
            .rewrite(config.governance.auth, agents);
        self.keeper.warn_of_hidden();
        // By the new rules, and with agents that the config has hidden until now.
        warn_of_unusable(&self.proxy, &self.tasks);
        governance.audit().rewrite(config.audit);
        if let Some(front) = front {
            front.edge.replace(&Config {
                listen: front.listen.clone(),
                ..config.clone()
            });
        }
        let mut others = differences(&running, &config);
        if let Some((certificates, certificate)) = shown
            && certificates.show(certificate)
        {
            others.push("certificate taken anew: tls".to_owned());
        }
        let servers = self.proxy.replace(&config);
        warn_if_empty(&config);
        *running = config;
        Ok(Reloaded {
            servers,
            others,
            needs_restart,
        })
    }
}

/// Whose budgets `new` counts in none of the windows that `old` counted them in.
fn counted_anew(old: &Config, new: &Config) -> Vec<String> {
    fn all(config: &Config) -> impl Iterator<Item = (String, &[Budget])> {
        fn of_terms(whose: String, terms: &Terms) -> Option<(String, &[Budget])> {
            let budget = terms.budget.as_deref();
            budget.map(|budgets| (whose, budgets))
        }
        let governance = &config.governance;
        let default = of_terms(
            "agents without one of their own".to_owned(),
            &governance.terms,
        );
        let agents = config.agents.iter();
        let agents =
            agents.filter_map(|(name, agent)| of_terms(format!("agent `{name}`"), &agent.terms));
        let profiles = config.profiles.iter();
        let profiles = profiles
            .filter_map(|(name, profile)| of_terms(format!("profile `{name}`"), &profile.terms));
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
    let before: HashMap<String, &[Budget]> = all(old).collect();
    let changed = all(new).filter(|(whose, budgets)| {
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
            settings,
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
                .filter(|(name, _)| self.servers.fate(name) == fate);
            let named = alike.map(|(name, keys)| format!("{name} ({})", keys.join(", ")));
            tell(fate.as_str(), named.collect());
        }
        tell("removed", all(removed));
        parts.extend(self.others.iter().cloned());
        if parts.is_empty() && self.needs_restart.is_empty() {
            parts.push("nothing differs".to_owned());
        }
        if !self.needs_restart.is_empty() {
            let keys = self.needs_restart.join(", ");
            parts.push(format!("changed, but needs a restart: {keys}"));
        }
        parts.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let expect = ["agents without one of their own", "agent `alice`"];
        assert_eq!(counted_anew(&old, &new), expect);
        assert!(counted_anew(&new, &new).is_empty());
    }
}
