//! Who knows the tokens of clients, by what the config says.

use std::sync::Arc;

use url::Url;

use crate::{
    auth::{
        AgentDirectory,
        jwt::{IssuerQuirks, JwtVerifier, TrustedIssuer},
        token::TokenVerifier,
    },
    config::{AuthMethod, Config},
    egress::EgressClient,
};

/// Lets `directory` know the tokens of issuers and the users that `config` has.
pub(crate) fn apply(config: &Config, directory: &AgentDirectory) {
    apply_with(config, directory, None);
}

/// The same with the tokens that the gateway issues.
pub(super) fn apply_with(
    config: &Config,
    directory: &AgentDirectory,
    builtin: Option<Arc<dyn TokenVerifier>>,
) {
    directory.set_workspace_members(config.workspace_members());
    directory.set_agent_matches(config.agent_matches.clone());
    directory.set_token_verifiers(token_verifiers(config, builtin));
}

/// The same where `config` takes the place of `old`: keys of issuers are not fetched anew for nothing.
pub(super) fn apply_changed(
    (old, config): (&Config, &Config),
    directory: &AgentDirectory,
    builtin: Option<Arc<dyn TokenVerifier>>,
) {
    directory.set_workspace_members(config.workspace_members());
    directory.set_agent_matches(config.agent_matches.clone());
    let is_same = old.governance.auth == config.governance.auth
        && old.oauth == config.oauth
        && old.jwt == config.jwt
        && old.egress == config.egress
        && old.public_url == config.public_url;
    if !is_same {
        directory.set_token_verifiers(token_verifiers(config, builtin));
    }
}

fn token_verifiers(
    config: &Config,
    builtin: Option<Arc<dyn TokenVerifier>>,
) -> Vec<Arc<dyn TokenVerifier>> {
    let mut verifiers: Vec<Arc<dyn TokenVerifier>> = builtin.into_iter().collect();
    if let Some(jwt) = jwt_verifier(config) {
        verifiers.push(Arc::new(jwt));
    }
    verifiers
}

/// What verifies the tokens of other issuers, where there are any.
pub(super) fn jwt_verifier(config: &Config) -> Option<JwtVerifier> {
    let auth = config.governance.auth;
    let external = config.oauth.external_issuer();
    let external = external.filter(|_| auth.allows(AuthMethod::Oauth));
    let machines = || config.jwt.values().filter(|_| auth.allows(AuthMethod::Jwt));
    let of_machines = machines().flat_map(|it| [Some(&*it.issuer), it.jwks_url.as_deref()]);
    let written = of_machines.flatten().chain(external);
    let written: Vec<Url> = written.filter_map(|url| Url::parse(url).ok()).collect();
    if written.is_empty() {
        return None;
    }
    let egress = match EgressClient::new(&config.egress, &written) {
        Ok(egress) => egress,
        Err(error) => {
            tracing::error!(%error, "tokens cannot be verified");
            return None;
        }
    };
    let quirks = external.and_then(IssuerQuirks::of);
    if let Some(quirks) = quirks.filter(|quirks| quirks.has_opaque_tokens) {
        let product = quirks.product;
        tracing::warn!(
            "access tokens of {product} are opaque and cannot be verified: use it as `[oauth.login]` with \
             `oauth.mode = \"builtin\"`"
        );
    }
    let external = external.and_then(|_| TrustedIssuer::external(&config.oauth, &egress));
    let machines = machines().map(|issuer| TrustedIssuer::machines(issuer, &egress));
    Some(JwtVerifier::new(
        external.into_iter().chain(machines).collect(),
    ))
}
