//! How gateways that are servers of one another notice a loop, by two headers of ours.
//!
//! A request to a server names the gateway that sends it and counts the gateways it has passed: a gateway
//! refuses its own requests, and those that passed too many. The answer to a gateway counts the gateways that
//! stand in a row behind it, so that lists which would grow in a circle come to an end as well.

use http::{HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

/// Names the gateway that sends a request, or that refuses one as part of a loop. What clients write there is
/// relayed to nobody.
pub const GATEWAY_HEADER: HeaderName = HeaderName::from_static("tollbridge-gateway");

/// In a request, how many gateways it has passed; in the answer to a gateway, how many stand in a row from
/// the one that answers on.
pub const HOPS_HEADER: HeaderName = HeaderName::from_static("tollbridge-hops");

/// Gateways that may stand in a row. More are taken for a loop.
pub const HOPS_MAX: u8 = 8;

/// A gateway for as long as it runs. Another process has another, whatever data they share.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GatewayId(HeaderValue);

impl GatewayId {
    /// One that no other gateway has.
    pub fn random() -> Self {
        let id = format!("gw_{}", Uuid::new_v4());
        Self(HeaderValue::try_from(id).expect("letters and digits"))
    }

    /// Names it in `headers`, and nobody else.
    pub fn set_header(&self, headers: &mut HeaderMap) {
        headers.insert(GATEWAY_HEADER, self.0.clone());
    }

    /// Whether `headers` name it.
    pub fn is_in_header(&self, headers: &HeaderMap) -> bool {
        // What is between may have a header of its own from another gateway.
        headers
            .get_all(GATEWAY_HEADER)
            .iter()
            .any(|id| *id == self.0)
    }
}

/// The hop count in `headers`; 0 without one. What is no number counts as too many.
pub fn hops(headers: &HeaderMap) -> u8 {
    let count = |value: &HeaderValue| value.to_str().ok()?.parse().ok();
    let written = headers.get(HOPS_HEADER);
    written.map_or(0, |value| count(value).unwrap_or(u8::MAX))
}

/// Writes the hop count into `headers`.
pub fn set_hops(headers: &mut HeaderMap, hops: u8) {
    headers.insert(HOPS_HEADER, u16::from(hops).into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_knows_itself_alone() {
        let (one, other) = (GatewayId::random(), GatewayId::random());
        let mut headers = HeaderMap::new();
        assert!(!one.is_in_header(&headers));
        one.set_header(&mut headers);
        assert!(one.is_in_header(&headers) && !other.is_in_header(&headers));
        other.set_header(&mut headers);
        assert!(other.is_in_header(&headers) && !one.is_in_header(&headers));
    }

    #[test]
    fn hops_are_counted() {
        let mut headers = HeaderMap::new();
        assert_eq!(hops(&headers), 0);
        for count in [0, HOPS_MAX, u8::MAX] {
            set_hops(&mut headers, count);
            assert_eq!(hops(&headers), count);
        }
        for odd in ["", "-1", "256", "1, 2", "x"] {
            headers.insert(HOPS_HEADER, HeaderValue::from_static(odd));
            assert_eq!(hops(&headers), u8::MAX, "{odd}");
        }
    }
}
