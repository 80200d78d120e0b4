//! What issuers do otherwise than the specifications say, as data.

/// What is special about the issuers of one product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IssuerQuirks {
    /// The product.
    pub product: &'static str,
    /// The host of its issuers; a dot at the beginning for every host below.
    host: &'static str,
    /// Its access tokens are no JWTs, and nobody but the issuer can say what they mean.
    pub has_opaque_tokens: bool,
    /// It refuses the parameter `resource` (RFC 8707), unless it names the application that the scopes are of.
    pub refuses_resource: bool,
    /// Other names of an issuer in its tokens; `*` is the same in both.
    aliases: &'static [(&'static str, &'static str)],
    /// The issuer in its metadata may have this in place of the tenant.
    tenant_placeholder: Option<&'static str>,
}

/// Issuers that do as the specifications say need no row.
const QUIRKS: [IssuerQuirks; 2] = [
    IssuerQuirks {
        product: "Entra",
        host: "login.microsoftonline.com",
        has_opaque_tokens: false,
        refuses_resource: true,
        // Applications that do not ask for tokens of version 2 get those of version 1, signed by the same keys.
        aliases: &[(
            "https://login.microsoftonline.com/*/v2.0",
            "https://sts.windows.net/*/",
        )],
        tenant_placeholder: Some("{tenantid}"),
    },
    IssuerQuirks {
        product: "Google",
        host: "accounts.google.com",
        has_opaque_tokens: true,
        refuses_resource: false,
        aliases: &[("https://accounts.google.com", "accounts.google.com")],
        tenant_placeholder: None,
    },
];

impl IssuerQuirks {
    /// Those of `issuer`, where there are any.
    pub fn of(issuer: &str) -> Option<&'static Self> {
        let rest = issuer.strip_prefix("https://")?;
        let host = rest.split(['/', ':', '?']).next().unwrap_or_default();
        QUIRKS.iter().find(|quirks| {
            let below = quirks.host.starts_with('.') && host.ends_with(quirks.host);
            host == quirks.host || below
        })
    }
}

/// Whether tokens of `named` are those of the issuer that the config has as `configured`: the same text, but for a
/// slash at its end, which some products have in their metadata or tokens and not in both (Auth0), or another name
/// of it.
pub fn is_same_issuer(configured: &str, named: &str) -> bool {
    if without_slash(configured) == without_slash(named) {
        return true;
    }
    let aliases = IssuerQuirks::of(configured).map_or(&[][..], |quirks| quirks.aliases);
    aliases.iter().any(|(of_config, of_token)| {
        let tenant = wildcard(of_config, without_slash(configured));
        tenant.is_some() && tenant == wildcard(of_token, named)
    })
}

/// Whether metadata that name `found` are those of the issuer that the config has as `configured`.
pub(super) fn is_metadata_issuer(configured: &str, found: &str) -> bool {
    if is_same_issuer(configured, found) {
        return true;
    }
    let placeholder = IssuerQuirks::of(configured).and_then(|quirks| quirks.tenant_placeholder);
    placeholder.is_some_and(|placeholder| {
        found
            .split_once(placeholder)
            .is_some_and(|(before, after)| {
                let tenant = without_slash(configured)
                    .strip_prefix(before)
                    .and_then(|rest| rest.strip_suffix(without_slash(after)));
                tenant.is_some_and(|tenant| !tenant.is_empty() && !tenant.contains('/'))
            })
    })
}

/// What the `*` of `pattern` stands for in `text`.
fn wildcard<'t>(pattern: &str, text: &'t str) -> Option<&'t str> {
    let Some((before, after)) = pattern.split_once('*') else {
        return (pattern == text).then_some("");
    };
    let found = text.strip_prefix(before)?.strip_suffix(after)?;
    (!found.is_empty() && !found.contains('/')).then_some(found)
}

pub(super) fn without_slash(url: &str) -> &str {
    url.strip_suffix('/').unwrap_or(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issuers_are_known_by_the_names_that_they_use() {
        let check = |configured: &str, named: &str, expect: bool| {
            assert_eq!(
                is_same_issuer(configured, named),
                expect,
                "{configured} {named}"
            );
        };
        check("https://a.example", "https://a.example", true);
        check(
            "https://tenant.auth0.com",
            "https://tenant.auth0.com/",
            true,
        );
        check(
            "https://tenant.auth0.com/",
            "https://tenant.auth0.com",
            true,
        );
        check("https://a.example", "https://a.example/realms/x", false);
        check("https://a.example", "https://A.example", false);
        let entra = "https://login.microsoftonline.com/11/v2.0";
        check(entra, entra, true);
        check(entra, "https://sts.windows.net/11/", true);
        check(entra, "https://sts.windows.net/22/", false);
        check(entra, "https://sts.windows.net/", false);
        check(
            "https://a.example/11/v2.0",
            "https://sts.windows.net/11/",
            false,
        );
        check("https://accounts.google.com", "accounts.google.com", true);
        check("https://a.example", "a.example", false);
    }

    #[test]
    fn metadata_of_all_tenants_are_those_of_each() {
        let check = |configured: &str, found: &str, expect: bool| {
            assert_eq!(
                is_metadata_issuer(configured, found),
                expect,
                "{configured} {found}"
            );
        };
        let entra = "https://login.microsoftonline.com/11/v2.0";
        check(
            entra,
            "https://login.microsoftonline.com/{tenantid}/v2.0",
            true,
        );
        check(
            "https://a.example/11",
            "https://a.example/{tenantid}",
            false,
        );
        check("https://a.example/11", "https://a.example/11/", true);
    }

    #[test]
    fn products_are_known_by_their_host() {
        let product = |issuer: &str| IssuerQuirks::of(issuer).map(|quirks| quirks.product);
        assert_eq!(
            product("https://login.microsoftonline.com/x/v2.0"),
            Some("Entra")
        );
        assert_eq!(product("https://accounts.google.com"), Some("Google"));
        assert_eq!(product("https://accounts.google.com.evil.example"), None);
        let entra = IssuerQuirks::of("https://login.microsoftonline.com/x/v2.0").unwrap();
        assert!(entra.refuses_resource && !entra.has_opaque_tokens);
    }
}
