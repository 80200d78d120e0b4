//! The settings that a running gateway cannot change; all others count as soon as a changed config
//! is loaded.

use crate::config::{Config, Tls};

/// A setting that counts from the next start on.
struct RestartSetting {
    key: &'static str,
    differs: fn(&Config, &Config) -> bool,
    /// Gives the first config what the second has.
    copy: fn(&mut Config, &Config),
}

macro_rules! fixed {
    ($key:literal, $($field:ident).+) => {
        RestartSetting {
            key: $key,
            differs: |new, running| new.$($field).+ != running.$($field).+,
            copy: |new, running| new.$($field).+.clone_from(&running.$($field).+),
        }
    };
}

const RESTART_SETTINGS: [RestartSetting; 15] = [
    fixed!("admin_listen", admin_listen),
    fixed!("audit.durability", audit.durability),
    fixed!("audit.enabled", audit.enabled),
    fixed!("data_dir", data_dir),
    fixed!("listen", listen),
    fixed!("log.format", log.format),
    fixed!("log.level", log.level),
    fixed!("port_search", port_search),
    RestartSetting {
        key: "secrets.key_file",
        differs: |new, running| new.secrets.key != running.secrets.key,
        copy: |new, running| {
            new.secrets.key.clone_from(&running.secrets.key);
            new.secrets.key_file.clone_from(&running.secrets.key_file);
        },
    },
    fixed!("socket.mode", socket.mode),
    fixed!("socket.uids", socket.uids),
    tls("tls.cert", |new, running| {
        tls_part(new, |tls| &tls.cert) != tls_part(running, |tls| &tls.cert)
    }),
    tls("tls.client_ca", |new, running| {
        tls_part(new, |tls| &tls.client_ca) != tls_part(running, |tls| &tls.client_ca)
    }),
    tls("tls.key", |new, running| {
        tls_part(new, |tls| &tls.key) != tls_part(running, |tls| &tls.key)
    }),
    fixed!("workers", workers),
];

/// What the files hold is read again; which files they are is not.
const fn tls(key: &'static str, differs: fn(&Config, &Config) -> bool) -> RestartSetting {
    RestartSetting {
        key,
        differs,
        copy: |new, running| new.tls.clone_from(&running.tls),
    }
}

fn tls_part<T>(config: &Config, part: impl Fn(&Tls) -> &T) -> Option<&T> {
    config.tls.as_ref().map(part)
}

/// The keys that count from the next start on.
pub fn restart_keys() -> impl Iterator<Item = &'static str> {
    RESTART_SETTINGS.iter().map(|setting| setting.key)
}

impl Config {
    /// Brings back what a running gateway cannot change; the keys in which this config differs from
    /// the `running` one so that a restart is needed.
    pub fn keep_restart_settings(&mut self, running: &Self) -> Vec<&'static str> {
        let differ = RESTART_SETTINGS.iter();
        let differ: Vec<_> = differ
            .filter(|setting| (setting.differs)(self, running))
            .collect();
        for setting in &differ {
            (setting.copy)(self, running);
        }
        differ.iter().map(|setting| setting.key).collect()
    }
}
