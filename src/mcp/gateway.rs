//! Which gateway a request comes from, so that one whose URL leads back to it finds out.

use http::{HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

/// Names the gateway in its requests to servers, and in its refusal of a request of its own. Ours, of
/// no specification; what clients write there is relayed to nobody.
pub const GATEWAY: HeaderName = HeaderName::from_static("tollbridge-gateway");

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
    pub fn sign(&self, headers: &mut HeaderMap) {
        headers.insert(GATEWAY, self.0.clone());
    }

    /// Whether `headers` name it.
    pub fn has_signed(&self, headers: &HeaderMap) -> bool {
        // What is between may have a header of its own from another gateway.
        headers.get_all(GATEWAY).iter().any(|id| *id == self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_knows_itself_alone() {
        let (one, other) = (GatewayId::random(), GatewayId::random());
        let mut headers = HeaderMap::new();
        assert!(!one.has_signed(&headers));
        one.sign(&mut headers);
        assert!(one.has_signed(&headers) && !other.has_signed(&headers));
        other.sign(&mut headers);
        assert!(other.has_signed(&headers) && !one.has_signed(&headers));
    }
}
