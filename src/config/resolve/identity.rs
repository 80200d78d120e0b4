//! Who may call: `governance.auth`, and the URLs that tokens are issued for.

use url::Url;

use super::{Resolver, quoted_or_hidden};
use crate::config::{Authentication, diagnostics::report::Diagnostic, node::ValuePath};

impl Resolver<'_> {
    /// Checks `governance.auth` against what its ways need.
    pub(super) fn check_authentication(&mut self, auth: Authentication, root: &ValuePath<'_>) {
        let at = root.child("governance").child("auth");
        if auth.is_empty() {
            self.findings.add(
                Diagnostic::error("`governance.auth` is empty")
                    .at(at.span(), "nobody could call anything")
                    .help("use \"anonymous\", or a list such as [\"keys\", \"oauth\"]"),
            );
        }
    }

    /// The URL by which clients reach the gateway, without a slash at its end.
    pub(super) fn public_url(&mut self, written: Option<&str>, at: &ValuePath<'_>) -> Option<Url> {
        let written = written?;
        let problem = match Url::parse(written) {
            Ok(url) => match public_url_problem(&url) {
                None => return Some(url),
                Some(problem) => problem,
            },
            Err(_) => "expected a URL such as \"https://mcp.example.com\"",
        };
        self.findings.add(
            Diagnostic::error(format!(
                "{} is not a public URL",
                quoted_or_hidden(written, at)
            ))
            .at(at.span(), problem),
        );
        None
    }
}

/// Why `url` cannot be the one by which clients reach a gateway.
fn public_url_problem(url: &Url) -> Option<&'static str> {
    let has_credential = !url.username().is_empty() || url.password().is_some();
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        Some("expected a scheme `https` (or `http`) and a host")
    } else if has_credential || url.query().is_some() || url.fragment().is_some() {
        Some("remove user, query and fragment")
    } else if ["/mcp", "/sse"]
        .iter()
        .any(|route| url.path().ends_with(route))
    {
        Some("remove the path of the route, such as `/mcp`")
    } else {
        None
    }
}
