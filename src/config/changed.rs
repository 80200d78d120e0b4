//! What a changed config changes of a server, and whether the server goes on with it.

use super::{ItemRules, Server, ServerLimits};

/// One setting of a server.
struct Setting {
    /// What it is called where changes are told.
    name: &'static str,
    /// The keys it is written with; each stands for all below it.
    keys: &'static [&'static str],
    differs: fn(&Server, &Server) -> bool,
    /// Gives the first server what the second has, where a running server can take it.
    take: Option<fn(&mut Server, &Server)>,
}

macro_rules! setting {
    ($name:literal, $($field:ident).+) => {
        Setting {
            name: $name,
            keys: &[$name],
            differs: |old, new| old.$($field).+ != new.$($field).+,
            take: Some(|old, new| old.$($field).+.clone_from(&new.$($field).+)),
        }
    };
}

/// One that the connections of a server are made with.
macro_rules! anew {
    ($name:literal, $field:ident) => {
        anew!($name, &[$name], |old, new| old.$field != new.$field)
    };
    ($name:literal, $keys:expr, $differs:expr) => {
        Setting {
            name: $name,
            keys: $keys,
            differs: $differs,
            take: None,
        }
    };
}

const SETTINGS: [Setting; 35] = [
    anew!("balance", balance),
    setting!("breaker", breaker),
    setting!("budget", budget),
    anew!("connect_timeout", connect_timeout),
    setting!("ejection", ejection),
    anew!("enabled", enabled),
    anew!("era", era),
    setting!("expose", expose),
    setting!("grace", grace),
    setting!("health", health),
    Setting {
        name: "idle_timeout",
        keys: &["idle_timeout"],
        differs: |old, new| (old.idle_timeout, old.sleeps) != (new.idle_timeout, new.sleeps),
        take: Some(|old, new| {
            (old.idle_timeout, old.sleeps) = (new.idle_timeout, new.sleeps);
        }),
    },
    anew!("isolation", isolation),
    Setting {
        name: "limits",
        keys: &["limits.in_flight", "limits.queue"],
        differs: |old, new| seats(&old.limits) != seats(&new.limits),
        take: Some(|old, new| {
            old.limits.in_flight = new.limits.in_flight;
            old.limits.queue = new.limits.queue;
        }),
    },
    // Readers of connections and children are made for them.
    anew!(
        "limits",
        &["limits.memory", "limits.request", "limits.response"],
        |old, new| sizes(&old.limits) != sizes(&new.limits)
    ),
    anew!("max_instances", max_instances),
    // It bounds questions to clients too, on connections that know it.
    anew!("max_total_timeout", max_total_timeout),
    setting!("namespace", namespace),
    anew!("pool_size", pool_size),
    setting!("price", price),
    setting!("priority", priority),
    setting!("prompts", prompts),
    setting!("rate", rate),
    anew!("replicas", replicas),
    setting!("resources", resources),
    setting!("retry", retry),
    anew!("roots", roots),
    anew!("route", route),
    setting!("scan", scan),
    setting!("startup_timeout", startup_timeout),
    setting!("tags", tags),
    setting!("timeout", timeout),
    Setting {
        name: "tools",
        keys: &[
            "tools.allow",
            "tools.deny",
            "tools.describe",
            "tools.price",
            "tools.rename",
        ],
        differs: |old, new| rules(&old.tools, &new.tools) != old.tools,
        take: Some(|old, new| old.tools = rules(&old.tools, &new.tools)),
    },
    setting!("tools.timeout", tools.timeout),
    anew!(
        "transport",
        &[
            "args",
            "auth",
            "command",
            "cwd",
            "env",
            "headers",
            "transport",
            "url"
        ],
        |old, new| old.transport != new.transport
    ),
    setting!("validate", validate),
];

fn seats(limits: &ServerLimits) -> impl PartialEq + use<> {
    (limits.in_flight, limits.queue)
}

fn sizes(limits: &ServerLimits) -> impl PartialEq + use<> {
    (limits.memory, limits.request, limits.response)
}

/// The second with the timeouts of the first.
fn rules(timeouts: &ItemRules, rest: &ItemRules) -> ItemRules {
    ItemRules {
        timeout: timeouts.timeout.clone(),
        ..rest.clone()
    }
}

impl Server {
    /// Whether a server that runs as this says goes on when the config says `new`: they differ at
    /// most in what its connections know nothing of.
    pub fn runs_like(&self, new: &Self) -> bool {
        let mut like = self.clone();
        for take in SETTINGS.iter().filter_map(|setting| setting.take) {
            take(&mut like, new);
        }
        like == *new
    }

    /// The settings in which `new` differs, by the names of their keys.
    pub fn changes_to(&self, new: &Self) -> Vec<&'static str> {
        let differ = SETTINGS.iter();
        let differ = differ.filter(|setting| (setting.differs)(self, new));
        let mut names: Vec<_> = differ.map(|setting| setting.name).collect();
        names.dedup();
        names
    }
}

/// The keys of a server, each with whether a running server takes it.
pub fn server_keys() -> impl Iterator<Item = (&'static str, bool)> {
    let of = |setting: &'static Setting| {
        let takes = setting.take.is_some();
        setting.keys.iter().map(move |key| (*key, takes))
    };
    SETTINGS.iter().flat_map(of)
}
