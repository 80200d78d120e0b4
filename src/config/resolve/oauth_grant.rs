//! How the gateway gets tokens for a server.

use url::Url;

use super::Resolver;
use crate::config::{GrantKind, OAuthGrant, diagnostics::report::Diagnostic, node::ValuePath};

impl Resolver<'_> {
    /// `written` with the path of its key in full.
    pub(super) fn oauth_grant(&mut self, written: &OAuthGrant, at: &ValuePath<'_>) -> OAuthGrant {
        let mut grant = written.clone();
        if let Some(path) = &written.private_key {
            let path = self.path(&path.to_string_lossy(), &at.child("private_key"));
            // No program has to read it.
            self.named_files.push(path.clone());
            grant.private_key = Some(path);
        }
        self.check_client(&grant, at);
        self.check_grant_keys(&grant, at);
        if let Some(issuer) = &grant.issuer {
            self.check_issuer(issuer, &at.child("issuer"));
        }
        if let Some(idp) = &grant.idp {
            self.check_issuer(&idp.issuer, &at.child("idp").child("issuer"));
        }
        for (index, scope) in grant.scopes.iter().enumerate() {
            let is_character = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\');
            if scope.is_empty() || !scope.chars().all(is_character) {
                self.report_unusable(&at.child("scopes").item_at(index), "is not one scope");
            }
        }
        grant
    }

    /// Who the gateway is to the issuer.
    fn check_client(&mut self, grant: &OAuthGrant, at: &ValuePath<'_>) {
        let (secret, key) = (at.child("client_secret"), at.child("private_key"));
        if grant.client_secret.is_some() && grant.private_key.is_some() {
            self.findings.add(
                Diagnostic::error(format!("`{}` sets the credential twice", at.path()))
                    .at(secret.key_span(), "here")
                    .at(key.key_span(), "and here")
                    .help("keep one of them"),
            );
        }
        let has_credential = grant.client_secret.is_some() || grant.private_key.is_some();
        let missing = match grant.grant {
            _ if grant.client_id.is_none() && has_credential => "client_id",
            GrantKind::ClientCredentials | GrantKind::IdJag | GrantKind::TokenExchange
                if grant.client_id.is_none() =>
            {
                "client_id"
            }
            GrantKind::ClientCredentials if !has_credential => "client_secret` or `private_key",
            GrantKind::IdJag if grant.idp.is_none() => "idp",
            GrantKind::AuthorizationCode
            | GrantKind::ClientCredentials
            | GrantKind::IdJag
            | GrantKind::TokenExchange => return,
        };
        self.findings.add(
            Diagnostic::error(format!("`{}` requires `{missing}`", at.path()))
                .at(at.key_span(), "not set here"),
        );
    }

    /// Warns of keys that other grants read.
    fn check_grant_keys(&mut self, grant: &OAuthGrant, at: &ValuePath<'_>) {
        let (what, unused): (_, &[&str]) = match grant.grant {
            GrantKind::AuthorizationCode => (
                "`authorization_code`",
                &["actor_token", "idp", "subject_token"],
            ),
            GrantKind::ClientCredentials => (
                "`client_credentials`",
                &["actor_token", "idp", "per_user", "subject_token"],
            ),
            GrantKind::IdJag => ("`id_jag`", &["actor_token", "audience", "per_user"]),
            GrantKind::TokenExchange => ("`token_exchange`", &["idp", "per_user"]),
        };
        self.warn_of_unused_keys(at, what, unused);
    }

    fn check_issuer(&mut self, issuer: &str, at: &ValuePath<'_>) {
        let url = Url::parse(issuer).ok();
        let is_issuer = url.is_some_and(|url| {
            let is_web = matches!(url.scheme(), "http" | "https") && url.has_host();
            let is_bare = url.query().is_none() && url.fragment().is_none();
            is_web && is_bare && url.username().is_empty() && url.password().is_none()
        });
        if !is_issuer {
            self.report_unusable(at, "is not an `https:` URL without a query");
        }
    }

    /// Reports a grant of a replica.
    pub(super) fn check_replica_auth(&mut self, replica: &ValuePath<'_>) {
        let at = replica.child("auth");
        if at.child("type").text() == Some("oauth2") {
            self.findings.add(
                Diagnostic::error(format!("`{}` cannot be `oauth2`", at.path()))
                    .at(at.child("type").span(), "replicas have fixed credentials")
                    .help("make it a server of its own"),
            );
        }
    }
}
