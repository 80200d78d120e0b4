//! Client certificates: what they call their holder, and which agent that is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use x509_parser::{
    certificate::X509Certificate,
    extensions::GeneralName,
    objects::{oid_registry, oid2abbrev},
    prelude::FromDer,
    x509::AttributeTypeAndValue,
};

use crate::{config::ClaimGlob, names::AgentId};

/// Names of a certificate that are looked at.
const NAMES_MAX: usize = 100;

/// A verified certificate of a client.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PeerCertificate {
    /// Its subject and the names beside it.
    names: Vec<String>,
}

impl PeerCertificate {
    /// Reads a certificate that was verified; `None` where it cannot be read.
    pub fn read(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = subject_of(&certificate);
        let other = certificate.subject_alternative_name().ok().flatten();
        let other = other
            .into_iter()
            .flat_map(|names| &names.value.general_names);
        let names = std::iter::once(subject).chain(other.filter_map(name_of));
        Some(Self {
            names: names
                .take(NAMES_MAX)
                .filter(|name| !name.is_empty())
                .collect(),
        })
    }

    /// Its subject (RFC 4514), or the first of the names beside it where it has none.
    pub(super) fn subject(&self) -> &str {
        self.names.first().map_or("(none)", String::as_str)
    }

    /// The agents whose rules match one of its names, each once.
    pub(super) fn agents(&self, rules: &[CertificateRule]) -> Vec<AgentId> {
        let is_match = |rule: &&CertificateRule| {
            let mut names = self.names.iter();
            names.any(|name| rule.glob.is_match(name))
        };
        let mut agents: Vec<_> = rules
            .iter()
            .filter(is_match)
            .map(|rule| rule.agent)
            .collect();
        agents.sort_unstable();
        agents.dedup();
        agents
    }
}

/// A glob over names of certificates, and whose those are.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CertificateRule {
    pub(super) glob: ClaimGlob,
    pub(super) agent: AgentId,
}

/// The subject, the most specific part first (RFC 4514).
fn subject_of(certificate: &X509Certificate<'_>) -> String {
    let parts = certificate.subject().iter_rdn().map(|part| {
        let attributes: Vec<String> = part.iter().map(attribute).collect();
        attributes.join("+")
    });
    let mut parts: Vec<String> = parts.collect();
    parts.reverse();
    parts.join(",")
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let oid = attribute.attr_type();
    let name = oid2abbrev(oid, oid_registry()).map_or_else(|_| oid.to_id_string(), str::to_owned);
    format!("{name}={}", escaped(attribute.as_str().unwrap_or_default()))
}

/// A value that cannot be taken for the beginning of another part.
fn escaped(value: &str) -> String {
    let mut escaped = String::new();
    for character in value.chars() {
        if matches!(character, ',' | '+' | '"' | '\\' | '<' | '>' | ';' | '=') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

fn name_of(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
            Some((*name).to_owned())
        }
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(|it| IpAddr::from(Ipv4Addr::from(it)));
            let v6 = <[u8; 16]>::try_from(*bytes).map(|it| IpAddr::from(Ipv6Addr::from(it)));
            v4.or(v6).ok().map(|address| address.to_string())
        }
        GeneralName::DirectoryName(_)
        | GeneralName::EDIPartyName(_)
        | GeneralName::Invalid(..)
        | GeneralName::OtherName(..)
        | GeneralName::RegisteredID(_)
        | GeneralName::X400Address(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;
    use crate::config::AgentMatch;

    fn certificate(common_name: &str, names: &[SanType]) -> PeerCertificate {
        let mut params = CertificateParams::default();
        params.distinguished_name.remove(DnType::CommonName);
        params
            .distinguished_name
            .push(DnType::OrganizationName, "Example");
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.subject_alt_names = names.to_vec();
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        PeerCertificate::read(made.der()).unwrap()
    }

    fn rule(glob: &str, agent: &str) -> CertificateRule {
        let rule = serde_json::json!({"claims": {"x": glob}, "agent": "a"});
        let rule: AgentMatch = serde_json::from_value(rule).unwrap();
        CertificateRule {
            glob: rule.claims["x"].clone(),
            agent: AgentId::from_name(agent),
        }
    }

    #[test]
    fn agents_are_found_by_any_name() {
        let names = [
            SanType::DnsName("ci.example.com".try_into().unwrap()),
            SanType::URI("spiffe://example.com/ns/a/sa/ci".try_into().unwrap()),
            SanType::IpAddress([192, 0, 2, 1].into()),
        ];
        let certificate = certificate("ci-1", &names);
        let check = |glob: &str, expect: bool| {
            let found = certificate.agents(&[rule(glob, "a")]);
            assert_eq!(!found.is_empty(), expect, "{glob}");
        };
        check("CN=ci-1,O=Example", true);
        check("CN=ci-*", true);
        check("*,O=Example", true);
        check("CN=ci", false);
        check("ci.example.com", true);
        check("*.example.com", true);
        check("spiffe://example.com/*/ci", true);
        check("192.0.2.1", true);
        check("example.com", false);
        assert_eq!(certificate.subject(), "CN=ci-1,O=Example");
        let several = [rule("CN=*", "a"), rule("ci.*", "a"), rule("192.*", "b")];
        assert_eq!(certificate.agents(&several).len(), 2);
    }

    #[test]
    fn a_value_is_no_further_part() {
        let certificate = certificate("x,O=Other", &[]);
        assert_eq!(certificate.names, ["CN=x\\,O\\=Other,O=Example"]);
        assert!(PeerCertificate::read(b"none").is_none());
    }
}
