//! Where a client connects from.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

/// Bits of an IPv6 address that name a network: within it, everybody may choose an address.
const NETWORK_BITS: u32 = 64;

/// Where a client connects from.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum PeerAddress {
    /// Over TCP. Behind a reverse proxy it is the address of that.
    Ip(IpAddr),
    /// Over a Unix socket, with the id of the user whose process it is, as the system says.
    User(u32),
}

impl PeerAddress {
    /// What stands for all addresses that one party may choose: an IPv4 address, a /64 of IPv6, or a user.
    pub(crate) fn to_network(self) -> Self {
        let Self::Ip(address) = self else {
            return self;
        };
        match address.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address).into(),
            IpAddr::V6(address) => {
                let mask = u128::MAX << (Ipv6Addr::BITS - NETWORK_BITS);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask)).into()
            }
        }
    }
}

impl From<IpAddr> for PeerAddress {
    fn from(address: IpAddr) -> Self {
        Self::Ip(address)
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.to_canonical().fmt(f),
            Self::User(uid) => write!(f, "unix:uid={uid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_written_and_counted_by_its_network_or_user() {
        let check = |peer: PeerAddress, written: &str, network: &str| {
            assert_eq!(peer.to_string(), written);
            assert_eq!(peer.to_network().to_string(), network);
        };
        let ip = |text: &str| PeerAddress::Ip(text.parse().unwrap());
        check(ip("192.0.2.7"), "192.0.2.7", "192.0.2.7");
        check(ip("::ffff:192.0.2.7"), "192.0.2.7", "192.0.2.7");
        check(
            ip("2001:db8:1:2:3::4"),
            "2001:db8:1:2:3::4",
            "2001:db8:1:2::",
        );
        check(PeerAddress::User(1000), "unix:uid=1000", "unix:uid=1000");
    }
}
