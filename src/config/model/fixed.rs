//! The settings that a running gateway cannot change; all others count as soon as a changed config
//! is loaded.

use crate::config::{Config, Tls};

/// A setting that counts from the next start on.
struct Fixed {
    key: &'static str,
    differs: fn(&Config, &Config) -> bool,
    /// Gives the first config what the second has.
    keep: fn(&mut Config, &Config),
}

macro_rules! fixed {
    ($key:literal, $($field:ident).+) => {
        Fixed {
            key: $key,
            differs: |new, running| new.$($field).+ != running.$($field).+,
            keep: |new, running| new.$($field).+.clone_from(&running.$($field).+),
        }
    };
}

const FIXED: [Fixed; 12] = [
    fixed!("audit.durability", audit.durability),
    fixed!("audit.enabled", audit.enabled),
    fixed!("data_dir", data_dir),
    fixed!("listen", listen),
    fixed!("log.format", log.format),
    fixed!("log.level", log.level),
    fixed!("port_search", port_search),
    fixed!("socket.mode", socket.mode),
    fixed!("socket.uids", socket.uids),
    tls("tls.cert", |new, running| {
        part(new, |tls| &tls.cert) != part(running, |tls| &tls.cert)
    }),
    tls("tls.key", |new, running| {
        part(new, |tls| &tls.key) != part(running, |tls| &tls.key)
    }),
    fixed!("workers", workers),
];

/// What the files hold is read again; which files they are is not.
const fn tls(key: &'static str, differs: fn(&Config, &Config) -> bool) -> Fixed {
    Fixed {
        key,
        differs,
        keep: |new, running| new.tls.clone_from(&running.tls),
    }
}

fn part<T>(config: &Config, part: impl Fn(&Tls) -> &T) -> Option<&T> {
    config.tls.as_ref().map(part)
}

/// The keys that count from the next start on.
pub fn fixed_keys() -> impl Iterator<Item = &'static str> {
    FIXED.iter().map(|setting| setting.key)
}

impl Config {
    /// Brings back what a running gateway cannot change; the keys in which this config differs from
    /// the `running` one so that a restart is needed.
    pub fn keep_fixed(&mut self, running: &Self) -> Vec<&'static str> {
        let differ = FIXED.iter();
        let differ: Vec<_> = differ
            .filter(|setting| (setting.differs)(self, running))
            .collect();
        for setting in &differ {
            (setting.keep)(self, running);
        }
        differ.iter().map(|setting| setting.key).collect()
    }
}
