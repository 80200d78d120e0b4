//! What a changed config changes of a server, and whether the server goes on with it.

use std::mem::{Discriminant, discriminant};

use indexmap::IndexMap;

use crate::config::{
    Auth, ItemRules, Remote, RemoteTls, Secret, Server, ServerEgress, ServerLimits, StdioCommand,
    Transport,
};

/// One setting of a server.
struct ServerSetting {
    /// What it is called where changes are told.
    name: &'static str,
    /// The keys it is written with; each stands for all below it.
    keys: &'static [&'static str],
    differs: fn(&Server, &Server) -> bool,
    /// Gives the first server what the second has, where a running server can take it.
    apply: Option<fn(&mut Server, &Server)>,
}

macro_rules! setting {
    ($name:literal, $($field:ident).+) => {
        ServerSetting {
            name: $name,
            keys: &[$name],
            differs: |old, new| old.$($field).+ != new.$($field).+,
            apply: Some(|old, new| old.$($field).+.clone_from(&new.$($field).+)),
        }
    };
}

/// One that the connections of a server are made with.
macro_rules! anew {
    ($name:literal, $field:ident) => {
        anew!($name, &[$name], |old, new| old.$field != new.$field)
    };
    ($name:literal, $keys:expr, $differs:expr) => {
        ServerSetting {
            name: $name,
            keys: $keys,
            differs: $differs,
            apply: None,
        }
    };
}

/// One key of how a server is reached; `$of` gives what it says, alike where it is not written.
macro_rules! reached {
    ($name:literal, $of:expr) => {
        anew!($name, &[$name], |old, new| {
            $of(&old.transport) != $of(&new.transport)
        })
    };
}

const SERVER_SETTINGS: [ServerSetting; 48] = [
    reached!("args", |it| program(it).map_or(&[][..], |it| &it.args)),
    reached!("auth", |it| remote(it).map_or(&Auth::None, |it| &it.auth)),
    anew!("balance", balance),
    setting!("breaker", breaker),
    setting!("budget", budget),
    reached!("command", |it| program(it).map(|it| &it.program)),
    anew!("connect_timeout", connect_timeout),
    reached!("cwd", |it| program(it).and_then(|it| it.cwd.as_ref())),
    reached!("egress", |it| remote(it)
        .is_some_and(|it| it.egress == ServerEgress::Public)),
    setting!("ejection", ejection),
    anew!("enabled", enabled),
    anew!("env", &["env", "env_file"], |old, new| env(old) != env(new)),
    anew!("era", era),
    setting!("expose", expose),
    anew!("forward_headers", forward_headers),
    setting!("grace", grace),
    reached!("headers", |it| non_empty(remote(it).map(|it| &it.headers))),
    setting!("health", health),
    ServerSetting {
        name: "idle_timeout",
        keys: &["idle_timeout"],
        differs: |old, new| (old.idle_timeout, old.sleeps) != (new.idle_timeout, new.sleeps),
        apply: Some(|old, new| {
            (old.idle_timeout, old.sleeps) = (new.idle_timeout, new.sleeps);
        }),
    },
    reached!("inherit_env", |it| program(it)
        .map_or(&[][..], |it| &it.inherit_env)),
    anew!("isolation", isolation),
    ServerSetting {
        name: "limits",
        keys: &[
            "limits.in_flight",
            "limits.item",
            "limits.item_depth",
            "limits.queue",
        ],
        differs: |old, new| concurrency_limits(&old.limits) != concurrency_limits(&new.limits),
        apply: Some(|old, new| {
            old.limits.in_flight = new.limits.in_flight;
            old.limits.queue = new.limits.queue;
            old.limits.item = new.limits.item;
            old.limits.item_depth = new.limits.item_depth;
        }),
    },
    // Readers of connections and children are made for them.
    anew!(
        "limits",
        &["limits.memory", "limits.request", "limits.response"],
        |old, new| size_limits(&old.limits) != size_limits(&new.limits)
    ),
    anew!("max_instances", max_instances),
    // It bounds questions to clients too, on connections that know it.
    anew!("max_total_timeout", max_total_timeout),
    setting!("namespace", namespace),
    anew!("pool_size", pool_size),
    setting!("price", price),
    setting!("priority", priority),
    setting!("prompts", prompts),
    reached!("proxy", |it| remote(it).and_then(|it| it.proxy.as_ref())),
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
    ServerSetting {
        name: "tools",
        keys: &[
            "tools.allow",
            "tools.deny",
            "tools.describe",
            "tools.price",
            "tools.rename",
        ],
        differs: |old, new| rules_with_timeouts(&old.tools, &new.tools) != old.tools,
        apply: Some(|old, new| old.tools = rules_with_timeouts(&old.tools, &new.tools)),
    },
    reached!("tls", |it| remote(it)
        .map(|it| &it.tls)
        .filter(|tls| **tls != RemoteTls::default())),
    setting!("tools.timeout", tools.timeout),
    reached!("transport", explicit_kind),
    // What is shown of its path depends on whether a variable gave it.
    reached!("url", |it| remote(it).map(|it| (
        &it.url,
        it.is_from_variable,
        &it.egress_allow
    ))),
    reached!("user", |it| program(it).and_then(|it| it.user.as_ref())),
    setting!("validate", validate),
];

fn concurrency_limits(limits: &ServerLimits) -> impl PartialEq + use<> {
    (
        limits.in_flight,
        limits.queue,
        limits.item,
        limits.item_depth,
    )
}

fn size_limits(limits: &ServerLimits) -> impl PartialEq + use<> {
    (limits.memory, limits.request, limits.response)
}

fn program(transport: &Transport) -> Option<&StdioCommand> {
    match transport {
        Transport::Stdio(command) => Some(command),
        Transport::Auto(_)
        | Transport::Builtin
        | Transport::ControlSocket(_)
        | Transport::Http(_)
        | Transport::Sse(_)
        | Transport::WebSocket(_) => None,
    }
}

fn remote(transport: &Transport) -> Option<&Remote> {
    match transport {
        Transport::Auto(remote)
        | Transport::Http(remote)
        | Transport::Sse(remote)
        | Transport::WebSocket(remote) => Some(remote),
        Transport::Builtin | Transport::ControlSocket(_) | Transport::Stdio(_) => None,
    }
}

/// The kind of transport, unless it follows from `command` or `url`.
fn explicit_kind(transport: &Transport) -> Option<Discriminant<Transport>> {
    match transport {
        Transport::Auto(_) | Transport::Stdio(_) | Transport::WebSocket(_) => None,
        Transport::Builtin
        | Transport::ControlSocket(_)
        | Transport::Http(_)
        | Transport::Sse(_) => Some(discriminant(transport)),
    }
}

fn env(server: &Server) -> Option<&IndexMap<String, Secret>> {
    non_empty(program(&server.transport).map(|it| &it.env))
}

fn non_empty(values: Option<&IndexMap<String, Secret>>) -> Option<&IndexMap<String, Secret>> {
    values.filter(|values| !values.is_empty())
}

/// The second with the timeouts of the first.
fn rules_with_timeouts(timeouts: &ItemRules, rest: &ItemRules) -> ItemRules {
    ItemRules {
        timeout: timeouts.timeout.clone(),
        ..rest.clone()
    }
}

impl Server {
    /// Whether a server that runs as this says goes on when the config says `new`: they differ at
    /// most in what its connections know nothing of.
    pub fn is_compatible_with(&self, new: &Self) -> bool {
        let mut like = self.clone();
        for take in SERVER_SETTINGS.iter().filter_map(|setting| setting.apply) {
            take(&mut like, new);
        }
        like == *new
    }

    /// The settings in which `new` differs, by the names of their keys.
    pub fn changed_settings(&self, new: &Self) -> Vec<&'static str> {
        let differ = SERVER_SETTINGS.iter();
        let differ = differ.filter(|setting| (setting.differs)(self, new));
        let mut names: Vec<_> = differ.map(|setting| setting.name).collect();
        names.dedup();
        names
    }
}

/// The keys of a server, each with whether a running server takes it.
pub fn server_keys() -> impl Iterator<Item = (&'static str, bool)> {
    let of = |setting: &'static ServerSetting| {
        let takes = setting.apply.is_some();
        setting.keys.iter().map(move |key| (*key, takes))
    };
    SERVER_SETTINGS.iter().flat_map(of)
}
