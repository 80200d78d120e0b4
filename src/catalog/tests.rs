//! Snapshots as routes show them.

use std::time::Duration;

use globset::Glob;
use indexmap::IndexMap;
use proptest::prelude::*;

use super::*;
use crate::config::{
    Balance, BreakerConfig, Charset, Conflict, Ejection, EraPin, Expose, Health, Isolation, Probe,
    Profile, Retry, Server, ServerLimits, Terms, Transport, Validate,
};

mod naming;

mod items;

mod resources;

mod snapshots;

mod order;

mod profiles;

fn files() -> ServerOffer {
    let listing = Listing {
        templates: vec![raw(r#"{"uriTemplate":"file:///{name}","name":"n"}"#)],
        ..resources(["file:///a", "file.txt"])
    };
    listed("fs", listing)
}

fn database() -> ServerOffer {
    let listing = Listing {
        templates: vec![raw(r#"{"uriTemplate":"postgres://db/{table}","name":"n"}"#)],
        ..resources(["postgres://db/users"])
    };
    listed("postgres", listing)
}

fn resources<const N: usize>(uris: [&str; N]) -> Listing {
    Listing {
        resources: uris
            .map(|uri| raw(&format!(r#"{{"uri":"{uri}","name":"n"}}"#)))
            .to_vec(),
        ..Listing::default()
    }
}

fn tools<const N: usize>(items: [&str; N]) -> Listing {
    Listing {
        tools: items.map(raw).to_vec(),
        ..Listing::default()
    }
}

fn found(server: &str, original: &str) -> Lookup {
    Lookup::Found {
        server: name(server),
        original: original.to_owned(),
    }
}

fn glob(text: &str) -> Glob {
    Glob::new(text).unwrap()
}

fn name(server: &str) -> ServerName {
    ServerName::parse(server).unwrap()
}

fn server(name: &str) -> Scope {
    Scope::Server(self::name(name))
}

fn raw(text: &str) -> Raw {
    Raw::parse(text.to_owned()).unwrap()
}

fn naming() -> Naming {
    Naming {
        template: "mcp_{server}_{tool}".to_owned(),
        charset: Charset::Strict,
        max_length: 48,
        conflict: Conflict::Namespace,
        namespace_resources: true,
    }
}

fn offer(server: &str, tools: &[&str]) -> ServerOffer {
    let tools = tools.iter().map(|name| tool(name)).collect();
    listed(
        server,
        Listing {
            tools,
            ..Listing::default()
        },
    )
}

fn tool(name: &str) -> Raw {
    let name = Raw::string(name);
    raw(&format!(
        r#"{{ "name": {}, "inputSchema": {{"type":"object"}} }}"#,
        name.as_str()
    ))
}

fn listed(server: &str, listing: Listing) -> ServerOffer {
    ServerOffer {
        server: name(server),
        config: Arc::new(server_config()),
        listing: Arc::new(listing),
        modern_http: false,
        listing_gaps: ByKind::default(),
    }
}

fn config(offer: &mut ServerOffer) -> &mut Server {
    Arc::make_mut(&mut offer.config)
}

fn names(catalog: &Catalog) -> Vec<&str> {
    exposed(catalog, Kind::Tools)
}

fn exposed(catalog: &Catalog, kind: Kind) -> Vec<&str> {
    let entries = catalog.list(&Scope::All, kind).entries();
    entries.iter().map(|entry| &*entry.exposed).collect()
}

fn server_config() -> Server {
    Server {
        transport: Transport::Builtin,
        era: EraPin::Auto,
        enabled: true,
        namespace: None,
        expose: Expose {
            tools: true,
            resources: true,
            prompts: true,
        },
        priority: 0,
        tags: Vec::new(),
        roots: None,
        tools: ItemRules::default(),
        resources: ItemRules::default(),
        prompts: ItemRules::default(),
        isolation: Isolation::Auto,
        max_instances: 1,
        pool_size: 1,
        idle_timeout: Duration::ZERO,
        sleeps: false,
        startup_timeout: Duration::ZERO,
        connect_timeout: Duration::ZERO,
        timeout: Duration::ZERO,
        max_total_timeout: Duration::ZERO,
        retry: Retry {
            base: Duration::ZERO,
            max: Duration::ZERO,
            jitter: 0.0,
            stable_after: Duration::ZERO,
            starts_per_minute: 1,
            failed_after: 1,
        },
        breaker: BreakerConfig {
            failures: 0,
            open_for: Duration::ZERO,
        },
        health: Health {
            interval: Duration::ZERO,
            timeout: Duration::ZERO,
            failures: 1,
            probe: Probe::Off,
        },
        grace: Duration::ZERO,
        limits: ServerLimits {
            request: 0,
            response: 0,
            in_flight: None,
            queue: 0,
            memory: None,
            item: 1 << 20,
            item_depth: 32,
        },
        replicas: Vec::new(),
        balance: Balance::Failover,
        ejection: Ejection {
            base: Duration::ZERO,
            max: Duration::ZERO,
        },
        route: Vec::new(),
        validate: Validate::Auto,
        price: None,
        budget: Vec::new(),
        rate: None,
        scan: None,
    }
}
