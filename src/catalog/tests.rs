//! Snapshots as routes show them.

use globset::Glob;
use indexmap::IndexMap;
use proptest::prelude::*;

use super::*;
use crate::config::{Charset, Conflict, Expose, Profile, Server, Terms};

mod naming;

mod output_schemas;

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
    crate::config::glob(text).unwrap()
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
        config: Arc::new(Server::default()),
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
