//! Which places may be reached.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use url::{Host, Url};

use crate::config::{Egress, EgressTarget};

/// Names of metadata services of clouds, which hand out credentials of the machine.
const METADATA_HOSTS: [&str; 4] = [
    "metadata",
    "metadata.goog",
    "metadata.google.internal",
    "metadata.azure.internal",
];

/// Addresses of metadata services that are not link-local: of Azure, Alibaba Cloud, Oracle Cloud and Google Cloud.
const METADATA_ADDRESSES: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// Which places may be reached: every public one over TLS, others where they are listed.
#[derive(Clone, Debug, Default)]
pub struct EgressRules {
    /// Hosts of `egress.allow`.
    hosts: HashSet<String>,
    /// Networks of `egress.allow`.
    networks: Vec<IpNet>,
    /// Hosts of URLs that the operator wrote, and may be private.
    written: HashSet<String>,
    /// Whether servers are at public addresses too, or listed.
    servers_are_public: bool,
}

/// What kind of place an address is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Reach {
    /// Link-local, which metadata services of clouds are, multicast, and what is no place at all.
    Never,
    /// On this machine, or in a network of its own.
    Private,
    Public,
}

/// A place that may not be reached.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum EgressRefused {
    /// Its address is none that strangers may name.
    #[error(
        "{host} is at {address}, which is not public; list it in `egress.allow` if it is meant"
    )]
    Address {
        /// The host as the URL names it.
        host: String,
        /// Its address.
        address: IpAddr,
    },
    /// It is none that a server has.
    #[error(
        "{host} is at {address}, which is link-local or a metadata service of a cloud; list it in `egress.allow` if \
         it is meant"
    )]
    LinkLocal {
        /// The host as the URL names it.
        host: String,
        /// Its address.
        address: IpAddr,
    },
    /// It hands out credentials of machines.
    #[error("{0} is a metadata service of a cloud; list it in `egress.allow` if it is meant")]
    MetadataService(String),
    /// It is not reached over TLS.
    #[error("{0} is reached without TLS: use `https:`, or list the host in `egress.allow`")]
    Plain(String),
    /// It is no `http:` or `https:` URL, or has a user in it.
    #[error("only `https:` URLs without a user are fetched")]
    Scheme,
}

impl EgressRules {
    /// The rules of a config.
    pub fn new(config: &Egress) -> Self {
        Self::for_servers(&config.allow)
    }

    /// The rules for servers, where `egress.allow` has these targets.
    pub fn for_servers(allow: &[EgressTarget]) -> Self {
        let mut rules = Self::default();
        for target in allow {
            match target {
                EgressTarget::Host(host) => {
                    rules.hosts.insert(host.clone());
                }
                EgressTarget::Network(network) => rules.networks.push(*network),
            }
        }
        rules
    }

    /// The same where servers may be at public addresses only, and where `egress.allow` says.
    #[must_use]
    pub fn with_public_servers(self) -> Self {
        Self {
            servers_are_public: true,
            ..self
        }
    }

    /// The same where the operator wrote URLs with these hosts, which may be private therefore.
    #[must_use]
    pub fn with_written<'u>(mut self, urls: impl IntoIterator<Item = &'u Url>) -> Self {
        let hosts = urls.into_iter().filter_map(Url::host_str);
        self.written.extend(hosts.map(str::to_ascii_lowercase));
        self
    }

    /// Whether `url` may be asked for, as far as that can be told before its name is resolved.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check_url(&self, url: &Url) -> Result<(), EgressRefused> {
        let host = url.host().ok_or(EgressRefused::Scheme)?;
        let is_web = matches!(url.scheme(), "http" | "https");
        if !is_web || !url.username().is_empty() || url.password().is_some() {
            return Err(EgressRefused::Scheme);
        }
        let name = host.to_string();
        let address = match host {
            Host::Domain(_) => None,
            Host::Ipv4(address) => Some(IpAddr::V4(address)),
            Host::Ipv6(address) => Some(IpAddr::V6(address)),
        };
        if let Some(address) = address {
            self.check_address(&name, address)?;
        }
        let is_metadata = METADATA_HOSTS.contains(&name.trim_end_matches('.'));
        if is_metadata && !self.hosts.contains(&name) {
            return Err(EgressRefused::MetadataService(name));
        }
        let is_listed = self.is_host_listed(&name)
            || address.is_some_and(|address| self.is_address_listed(address));
        if url.scheme() == "http" && !is_listed {
            return Err(EgressRefused::Plain(name));
        }
        Ok(())
    }

    /// Whether `host`, which was resolved to `address`, may be reached there.
    ///
    /// # Errors
    /// [`EgressRefused::Address`].
    pub fn check_address(&self, host: &str, address: IpAddr) -> Result<(), EgressRefused> {
        let host = host.to_ascii_lowercase();
        let is_allowed = match Reach::of(address) {
            Reach::Public => true,
            Reach::Private => self.is_host_listed(&host) || self.is_address_listed(address),
            Reach::Never => self.hosts.contains(&host) || self.is_address_listed(address),
        };
        is_allowed
            .then_some(())
            .ok_or(EgressRefused::Address { host, address })
    }

    /// Whether a server, whose URL the operator wrote with `host`, may be reached, as far as that can be told before
    /// its name is resolved. It may be private.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check_server(&self, host: &str) -> Result<(), EgressRefused> {
        let host = host.trim_matches(['[', ']']);
        if let Ok(address) = host.parse() {
            return self.check_server_address(host, address);
        }
        let name = host.trim_end_matches('.').to_ascii_lowercase();
        if METADATA_HOSTS.contains(&name.as_str()) && !self.hosts.contains(&name) {
            return Err(EgressRefused::MetadataService(name));
        }
        Ok(())
    }

    /// The same where `host` was resolved to `address`: a name may lead anywhere.
    ///
    /// # Errors
    /// [`EgressRefused::Address`], [`EgressRefused::LinkLocal`].
    pub fn check_server_address(&self, host: &str, address: IpAddr) -> Result<(), EgressRefused> {
        let host = host.to_ascii_lowercase();
        let is_listed = || self.hosts.contains(&host) || self.is_address_listed(address);
        if self.servers_are_public && Reach::of(address) != Reach::Public && !is_listed() {
            return Err(EgressRefused::Address { host, address });
        }
        if is_link_local(address) && !is_listed() {
            return Err(EgressRefused::LinkLocal { host, address });
        }
        Ok(())
    }

    fn is_host_listed(&self, host: &str) -> bool {
        self.hosts.contains(host) || self.written.contains(host)
    }

    fn is_address_listed(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks
            .iter()
            .any(|network| network.contains(&address))
    }
}

impl Reach {
    /// By the registries of special-purpose addresses (RFC 6890).
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            address if is_link_local(address) => Self::Never,
            IpAddr::V4(address) => Self::of_v4(address),
            IpAddr::V6(address) => Self::of_v6(address),
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        let [a, b, c, _] = address.octets();
        match (a, b, c) {
            (0 | 224..=255, _, _) => Self::Never,
            (10 | 127, _, _)
            | (100, 64..=127, _)
            | (172, 16..=31, _)
            | (192, 168, _)
            | (192, 0, 0 | 2)
            | (198, 18 | 19, _)
            | (198, 51, 100)
            | (203, 0, 113) => Self::Private,
            _ => Self::Public,
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        if let Some(within) = address_within(address) {
            return Self::of_v4(within);
        }
        let segments = address.segments();
        match segments[0] {
            _ if address.is_loopback() => Self::Private,
            _ if address.is_unspecified() => Self::Never,
            0xfc00..=0xfdff => Self::Private,
            0x2001 if segments[1] == 0x0db8 => Self::Private,
            0x2000..=0x3fff => Self::Public,
            _ => Self::Never,
        }
    }
}

/// The address of IPv4 that `address` stands for: NAT64 (RFC 6052), 6to4 (RFC 3056), and what was meant for hosts.
fn address_within(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let (high, low) = match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => (high, low),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => (high, low),
        _ => return None,
    };
    Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
}

/// Whether `address` is link-local, as most metadata services of clouds are, or another of theirs.
fn is_link_local(address: IpAddr) -> bool {
    let address = address.to_canonical();
    if METADATA_ADDRESSES.contains(&address) {
        return true;
    }
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => match address_within(address) {
            Some(within) => is_link_local(within.into()),
            // That of AWS is a private address.
            None => address.is_unicast_link_local() || address.segments()[..2] == [0xfd00, 0x0ec2],
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(allow: &[&str], written: &[&str]) -> EgressRules {
        let config = Egress {
            allow: allow.iter().map(|it| it.parse().unwrap()).collect(),
            ..Egress::default()
        };
        let written: Vec<Url> = written.iter().map(|it| it.parse().unwrap()).collect();
        EgressRules::new(&config).with_written(&written)
    }

    #[test]
    fn private_places_are_reached_only_where_they_are_listed() {
        let check = |url: &str, rules: &EgressRules, is_allowed: bool| {
            let checked = rules.check_url(&url.parse().unwrap());
            assert_eq!(checked.is_ok(), is_allowed, "{url}: {checked:?}");
        };
        let none = rules(&[], &[]);
        for public in [
            "https://example.com/x",
            "https://8.8.8.8/",
            "https://[2606:4700::1]/",
        ] {
            check(public, &none, true);
        }
        let private = [
            "https://127.0.0.1/",
            "https://10.1.2.3/",
            "https://192.168.1.1/",
            "https://172.31.0.1/",
            "https://100.64.0.1/",
            "https://[::1]/",
            "https://[fd12::1]/",
            "https://[::ffff:10.1.2.3]/",
            "https://[64:ff9b::a01:203]/",
            "https://[2002:0a01:0203::1]/",
            "https://0x7f000001/",
            "https://2130706433/",
        ];
        let never = [
            "https://169.254.169.254/latest/meta-data",
            "https://[fe80::1]/",
            "https://[fd00:ec2::254]/",
            "https://metadata.google.internal/",
            "https://0.0.0.0/",
            "https://224.0.0.1/",
        ];
        for url in private.iter().chain(&never) {
            check(url, &none, false);
            check(
                url,
                &rules(&["0.0.0.0/0", "::/0", "metadata.google.internal"], &[]),
                true,
            );
        }
        for url in private {
            check(url, &rules(&[], &[url]), true);
        }
        for url in never {
            check(url, &rules(&[], &[url]), false);
        }
        check("http://10.1.2.3/", &rules(&["10.0.0.0/8"], &[]), true);
        check("http://11.1.2.3/", &rules(&["10.0.0.0/8"], &[]), false);
    }

    /// What an operator wrote may be private, but not what hands out credentials of the machine.
    #[test]
    fn servers_are_reached_anywhere_but_at_metadata_services() {
        let none = rules(&[], &[]);
        let listed = rules(
            &["169.254.0.0/16", "fe80::/10", "metadata.google.internal"],
            &[],
        );
        for host in [
            "localhost",
            "10.0.0.1",
            "127.0.0.1",
            "0.0.0.0",
            "[::1]",
            "fd12::1",
            "a.example",
        ] {
            assert_eq!(none.check_server(host), Ok(()), "{host}");
        }
        for host in [
            "169.254.169.254",
            "[fe80::1]",
            "[::ffff:169.254.169.254]",
            "Metadata.Google.Internal.",
        ] {
            none.check_server(host).unwrap_err();
            assert_eq!(listed.check_server(host), Ok(()), "{host}");
        }
        for host in [
            "[fd00:ec2::254]",
            "[64:ff9b::a9fe:a9fe]",
            "168.63.129.16",
            "100.100.100.200",
        ] {
            none.check_server(host).unwrap_err();
        }
        let address = "169.254.169.254".parse().unwrap();
        none.check_server_address("a.example", address).unwrap_err();
        let named = rules(&["a.example"], &["https://b.example/"]);
        named.check_server_address("A.example", address).unwrap();
        named
            .check_server_address("b.example", address)
            .unwrap_err();
    }

    /// Of what somebody else wrote only public places are reached, and those that are listed.
    #[test]
    fn servers_of_others_are_reached_at_public_addresses() {
        let none = rules(&[], &[]).with_public_servers();
        let listed = rules(&["10.0.0.0/8"], &[]).with_public_servers();
        none.check_server("8.8.8.8").unwrap();
        none.check_server("a.example").unwrap();
        for host in [
            "10.0.0.1",
            "127.0.0.1",
            "0.0.0.0",
            "[::1]",
            "[fd12::1]",
            "[::ffff:10.0.0.1]",
        ] {
            none.check_server(host).unwrap_err();
        }
        listed.check_server("10.0.0.1").unwrap();
        listed.check_server("127.0.0.1").unwrap_err();
        let private = "192.168.1.1".parse().unwrap();
        none.check_server_address("a.example", private).unwrap_err();
    }

    #[test]
    fn only_listed_hosts_are_reached_without_tls() {
        let url: Url = "http://example.com/".parse().unwrap();
        let refused = EgressRefused::Plain("example.com".to_owned());
        assert_eq!(rules(&[], &[]).check_url(&url), Err(refused));
        assert_eq!(rules(&["Example.com"], &[]).check_url(&url), Ok(()));
        assert_eq!(
            rules(&[], &["https://example.com/"]).check_url(&url),
            Ok(())
        );
        for url in [
            "ftp://example.com/",
            "https://a:b@example.com/",
            "file:///etc/passwd",
        ] {
            let checked = rules(&[], &[]).check_url(&url.parse().unwrap());
            assert_eq!(checked, Err(EgressRefused::Scheme), "{url}");
        }
    }

    #[test]
    fn a_name_is_judged_by_where_it_leads() {
        let private = "10.1.2.3".parse().unwrap();
        let none = rules(&[], &[]);
        none.check_address("a.example", "8.8.8.8".parse().unwrap())
            .unwrap();
        none.check_address("a.example", private).unwrap_err();
        rules(&["a.example"], &[])
            .check_address("A.example", private)
            .unwrap();
        rules(&["10.1.2.3"], &[])
            .check_address("a.example", private)
            .unwrap();
        let link_local = "169.254.169.254".parse().unwrap();
        let written = rules(&[], &["https://a.example/"]);
        written.check_address("a.example", private).unwrap();
        written.check_address("a.example", link_local).unwrap_err();
    }
}
