//! Who may call: `governance.auth` and what its ways need, and rules for subjects of tokens.

use indexmap::IndexMap;
use url::Url;

use super::{Resolver, quoted_or_hidden};
use crate::config::{
    AgentMatch, AuthMethod, OAuthMode, diagnostics::report::Diagnostic, diagnostics::suggest, file,
    listen_address, node::ValuePath,
};

impl Resolver<'_> {
    /// Checks `governance.auth` against what its ways need.
    pub(super) fn check_identity(&mut self, file: &file::ConfigFile, root: &ValuePath<'_>) {
        self.warn_of_unmatched_tokens(file, root);
        let oauth = root.child("oauth");
        self.check_issuer_url(file.oauth.issuer.as_deref(), &oauth.child("issuer"));
        for (name, issuer) in &file.jwt {
            let at = root.child("jwt").child(name);
            self.check_issuer_url(Some(&issuer.issuer), &at.child("issuer"));
            self.check_issuer_url(issuer.jwks_url.as_deref(), &at.child("jwks_url"));
        }
        let Some(governance) = &file.governance else {
            return;
        };
        let (auth, at) = (governance.auth, root.child("governance").child("auth"));
        for (name, agent) in &file.agents.by_name {
            let at = root.child("agents").child(name).child("certificates");
            self.check_certificates(&agent.certificates, auth, &at);
        }
        let missing = |needs: bool, message: &str, help: &str| {
            let found = Diagnostic::error(message.to_owned()).at(at.span(), "set here");
            needs.then(|| found.help(help.to_owned()))
        };
        let is_external = file.oauth.mode == OAuthMode::External;
        let listens_locally = || match listen_address(&file.listen) {
            Ok(listen) => listen
                .address()
                .is_none_or(|it| it.ip().to_canonical().is_loopback()),
            Err(_) => true,
        };
        let has_client_ca = file.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let signs_in = auth.allows(AuthMethod::Oauth);
        let findings = [
            missing(
                auth.is_empty(),
                "`governance.auth` is empty",
                "use \"anonymous\", or a list such as [\"keys\", \"oauth\"]",
            ),
            missing(
                signs_in && is_external && file.oauth.issuer.is_none(),
                "`oauth.issuer` is missing: OAuth has an external issuer",
                "add issuer = \"https://...\" to `[oauth]`",
            ),
            missing(
                signs_in && file.public_url.is_none() && !listens_locally(),
                "`public_url` is missing: tokens are issued for the URL that clients use",
                "add public_url = \"https://...\", the URL by which clients reach the gateway",
            ),
            missing(
                auth.allows(AuthMethod::Jwt) && file.jwt.is_empty(),
                "there is no issuer of JWTs",
                "add a section `[jwt.NAME]` with `issuer` and `audience`",
            ),
            missing(
                auth.allows(AuthMethod::Mtls) && !has_client_ca,
                "`tls.client_ca` is missing: client certificates cannot be verified",
                "add client_ca = \"ca.pem\" to `[tls]`",
            ),
        ];
        if !self.context.is_incomplete {
            for finding in findings.into_iter().flatten() {
                self.findings.add(finding);
            }
        }
    }

    /// Warns where tokens are accepted and none is that of anybody.
    fn warn_of_unmatched_tokens(&mut self, file: &file::ConfigFile, root: &ValuePath<'_>) {
        let Some(governance) = &file.governance else {
            return;
        };
        let at = root.child("governance").child("auth");
        let is_external = file.oauth.mode == OAuthMode::External;
        let has_issuer = governance.auth.allows(AuthMethod::Jwt)
            || (is_external && governance.auth.allows(AuthMethod::Oauth));
        if has_issuer && file.agents.rules.is_empty() && !self.context.is_incomplete {
            self.findings.add(
                Diagnostic::warning("no token is that of an agent")
                    .at(at.span(), "tokens of issuers are accepted")
                    .help("add `[[agents.match]]` with `claims` and `agent`"),
            );
        }
    }

    /// Reports what is no URL that tokens or keys may come from.
    fn check_issuer_url(&mut self, written: Option<&str>, at: &ValuePath<'_>) {
        let Some(written) = written else { return };
        let is_url = Url::parse(written).is_ok_and(|url| {
            let is_web = matches!(url.scheme(), "http" | "https") && url.has_host();
            is_web && url.username().is_empty() && url.fragment().is_none()
        });
        if !is_url {
            let message = format!("{} is not a URL", quoted_or_hidden(written, at));
            let label = "expected a URL such as \"https://login.example.com\"";
            self.findings
                .add(Diagnostic::error(message).at(at.span(), label));
        }
    }

    /// The rules for subjects of tokens; agents and profiles that they may name are `known`.
    pub(super) fn agent_matches(
        &mut self,
        rules: Vec<AgentMatch>,
        (agents, profiles): (&IndexMap<String, file::AgentSection>, &[String]),
        at: &ValuePath<'_>,
    ) -> Vec<AgentMatch> {
        let at = at.child("match");
        for (index, rule) in rules.iter().enumerate() {
            let item = at.item_at(index);
            if !agents.contains_key(&rule.agent) && !self.context.is_incomplete {
                let agent = item.child("agent");
                let close = suggest::closest(&rule.agent, agents.keys().map(String::as_str));
                let help = close.map_or_else(
                    || "the rule holds once the store has an agent of that name".to_owned(),
                    |close| format!("did you mean \"{close}\"?"),
                );
                self.findings.add(
                    Diagnostic::warning(format!(
                        "{} is not an agent",
                        quoted_or_hidden(&rule.agent, &agent)
                    ))
                    .at(agent.span(), "no agent of the config has this name")
                    .help(help),
                );
            }
            if let Some(names) = &rule.profiles {
                self.agent_profiles(names, profiles, &item.child("profiles"));
            }
        }
        rules
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
