//! Which headers of callers a server gets.

use http::HeaderName;

use super::{Resolver, transport::is_reserved_header};
use crate::config::{diagnostics::report::Diagnostic, node::ValuePath};

/// Headers that are for the gateway, or for what stands before it.
const PRIVATE_HEADERS: [&str; 7] = [
    "authorization",
    "content-encoding",
    "cookie",
    "host",
    "origin",
    "proxy-authorization",
    "x-api-key",
];

impl Resolver<'_> {
    /// The names in small letters, sorted.
    pub(super) fn forward_headers(
        &mut self,
        written: &[String],
        server: &ValuePath<'_>,
    ) -> Vec<String> {
        let at = server.child("forward_headers");
        let own = own_headers(server);
        for (index, name) in written.iter().enumerate() {
            let lower = name.to_lowercase();
            let problem = if HeaderName::from_bytes(name.as_bytes()).is_err() {
                "a header name consists of letters, digits and `-`"
            } else if PRIVATE_HEADERS.contains(&lower.as_str()) {
                "this header is for the gateway, and goes no further"
            } else if is_reserved_header(&lower) {
                "this header is set by the transport"
            } else if own.contains(&lower) {
                "the server gets this header from the config"
            } else {
                continue;
            };
            let item = at.item_at(index);
            let diagnostic = Diagnostic::error(format!("`{}` cannot be forwarded", item.path()));
            self.findings.add(diagnostic.at(item.span(), problem));
        }
        let mut names: Vec<_> = written.iter().map(|name| name.to_lowercase()).collect();
        names.sort();
        names.dedup();
        names
    }
}

/// The headers that `headers` and `auth` of a server, or of one of its replicas, set.
fn own_headers(server: &ValuePath<'_>) -> Vec<String> {
    let replicas = server.child("replicas");
    let of_replicas = (0..replicas.item_count())
        .flat_map(|index| headers_at(&replicas.item_at(index)))
        .collect::<Vec<_>>();
    let mut names = headers_at(server);
    names.extend(of_replicas);
    names
}

fn headers_at(place: &ValuePath<'_>) -> Vec<String> {
    let headers = place.child("headers");
    let names = headers.keys().map(str::to_lowercase);
    let of_auth = place.child("auth").child("name");
    names.chain(of_auth.text().map(str::to_lowercase)).collect()
}
