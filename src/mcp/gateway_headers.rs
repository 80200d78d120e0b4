//! Which gateways talk to each other over HTTP, in headers of ours that no specification knows: one whose
//! URL leads back to it finds out, and of two that list each other each hears of the other's own.

use std::{collections::BTreeMap, sync::Arc};

use http::{HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

/// Names the gateway that asks in requests to servers, and the one that answers in answers to those. What
/// clients write there is relayed to nobody.
pub const GATEWAY_HEADER: HeaderName = HeaderName::from_static("tollbridge-gateway");

/// In an answer to a gateway, those that stand behind the one that answers, each with how many servers away
/// it is: `gw_b=1, gw_c=2`.
pub const BEHIND_HEADER: HeaderName = HeaderName::from_static("tollbridge-behind");

/// How many servers away a gateway may be to be told of. In a ring each tells the others what it has heard
/// of them: this is how news of one that is gone comes to an end.
const DISTANCE_MAX: u8 = 8;

/// How many gateways are told of, the nearest first: a header has room for them.
const GATEWAYS_SENT_MAX: usize = 64;

/// Bytes of an id, of which ours have 39.
const ID_BYTES_MAX: usize = 64;

/// A gateway for as long as it runs. Another process has another, whatever data they share.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct GatewayId(String);

impl GatewayId {
    /// One that no other gateway has.
    pub fn random() -> Self {
        Self(format!("gw_{}", Uuid::new_v4()))
    }

    /// What names a gateway; `None` for text that names none.
    fn parse(text: &str) -> Option<Self> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let is_id =
            text.starts_with("gw_") && text.len() <= ID_BYTES_MAX && text.bytes().all(is_plain);
        is_id.then(|| Self(text.to_owned()))
    }

    /// The gateway that `headers` name.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        Self::parse(headers.get(GATEWAY_HEADER)?.to_str().ok()?)
    }

    /// Names it in `headers`, and nobody else.
    pub fn set_header(&self, headers: &mut HeaderMap) {
        let id = HeaderValue::try_from(&self.0).expect("letters and digits");
        headers.insert(GATEWAY_HEADER, id);
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

/// Gateways behind something, and how many servers away each is.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct GatewaysBehind(BTreeMap<GatewayId, u8>);

impl GatewaysBehind {
    /// Those behind a server, as the `headers` of its answer say; itself, where it is one.
    pub fn from_response(headers: &HeaderMap) -> Self {
        let mut behind = BTreeMap::new();
        let Some(itself) = GatewayId::from_headers(headers) else {
            return Self(behind);
        };
        let told = headers
            .get(BEHIND_HEADER)
            .and_then(|told| told.to_str().ok());
        for part in told.unwrap_or_default().split(',').take(GATEWAYS_SENT_MAX) {
            if let Some((id, away)) = part.trim().split_once('=')
                && let (Some(id), Ok(away)) = (GatewayId::parse(id), away.parse())
            {
                behind.insert(id, away);
            }
        }
        behind.insert(itself, 0);
        Self(behind)
    }

    /// Those behind `own`, which has servers that these are behind.
    pub fn behind_gateway(own: &GatewayId, servers: impl IntoIterator<Item = Arc<Self>>) -> Self {
        let mut behind = Self::default();
        for server in servers {
            for (id, away) in &server.0 {
                let away = away.saturating_add(1);
                if id != own && away <= DISTANCE_MAX {
                    behind.add(id, away);
                }
            }
        }
        behind
    }

    /// Those behind any of `servers`, which are one to who asks them.
    pub fn union<'b>(servers: impl IntoIterator<Item = &'b Self>) -> Self {
        let mut behind = Self::default();
        for (id, away) in servers.into_iter().flat_map(|server| &server.0) {
            behind.add(id, *away);
        }
        behind
    }

    fn add(&mut self, id: &GatewayId, away: u8) {
        if let Some(known) = self.0.get_mut(id) {
            *known = away.min(*known);
        } else {
            self.0.insert(id.clone(), away);
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `gateway` is among them.
    pub fn contains(&self, gateway: &GatewayId) -> bool {
        self.0.contains_key(gateway)
    }

    /// Tells of them in `headers`.
    pub fn write_header(&self, headers: &mut HeaderMap) {
        let mut nearest: Vec<_> = self.0.iter().collect();
        nearest.sort_by_key(|(_, away)| **away);
        nearest.truncate(GATEWAYS_SENT_MAX);
        let told = nearest.iter().map(|(id, away)| format!("{}={away}", id.0));
        let told = told.collect::<Vec<_>>().join(", ");
        if !told.is_empty() {
            let told = HeaderValue::try_from(told).expect("letters and digits");
            headers.insert(BEHIND_HEADER, told);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> GatewayId {
        GatewayId::parse(text).unwrap()
    }

    /// What `own` tells of what is behind it, and what that is to whom it tells.
    fn told(own: &str, servers: &[&GatewaysBehind]) -> (String, GatewaysBehind) {
        let own = id(own);
        let mut headers = HeaderMap::new();
        own.set_header(&mut headers);
        let servers = servers.iter().map(|behind| Arc::new((*behind).clone()));
        GatewaysBehind::behind_gateway(&own, servers).write_header(&mut headers);
        let text = headers
            .get(BEHIND_HEADER)
            .map(|told| told.to_str().unwrap());
        (
            text.unwrap_or_default().to_owned(),
            GatewaysBehind::from_response(&headers),
        )
    }

    #[test]
    fn a_gateway_knows_itself_alone() {
        let (one, other) = (GatewayId::random(), GatewayId::random());
        let mut headers = HeaderMap::new();
        assert!(!one.is_in_header(&headers));
        one.set_header(&mut headers);
        assert!(one.is_in_header(&headers) && !other.is_in_header(&headers));
        assert_eq!(GatewayId::from_headers(&headers), Some(one.clone()));
        other.set_header(&mut headers);
        assert!(other.is_in_header(&headers) && !one.is_in_header(&headers));
    }

    #[test]
    fn what_names_no_gateway_is_none() {
        for odd in ["", "x", "GW_1", "gw_ü", "gw_a b", "gw_a=1", "gw_a,gw_b"] {
            assert_eq!(GatewayId::parse(odd), None, "{odd}");
        }
        let long = |bytes: usize| GatewayId::parse(&format!("gw_{}", "a".repeat(bytes - 3)));
        assert!(long(ID_BYTES_MAX).is_some() && long(ID_BYTES_MAX + 1).is_none());
    }

    #[test]
    fn a_server_that_names_no_gateway_has_none_behind_it() {
        let mut headers = HeaderMap::new();
        headers.insert(BEHIND_HEADER, HeaderValue::from_static("gw_a=1"));
        assert_eq!(
            GatewaysBehind::from_response(&headers),
            GatewaysBehind::default()
        );
        headers.insert(GATEWAY_HEADER, HeaderValue::from_static("gw_b"));
        headers.insert(
            BEHIND_HEADER,
            HeaderValue::from_static("gw_a=1,gw_c = 2, gw_d=x, gw_e, =3, gw_f=999"),
        );
        let behind = GatewaysBehind::from_response(&headers);
        assert!(behind.contains(&id("gw_a")) && behind.contains(&id("gw_b")));
        assert_eq!(behind.0.len(), 2, "{behind:?}");
    }

    #[test]
    fn the_nearest_way_counts() {
        let (_, c) = told("gw_c", &[]);
        let (text, b) = told("gw_b", &[&c]);
        assert_eq!(text, "gw_c=1");
        assert_eq!(told("gw_a", &[&b]).0, "gw_b=1, gw_c=2");
        assert_eq!(told("gw_a", &[&b, &c]).0, "gw_b=1, gw_c=1");
        assert_eq!(told("gw_c", &[&b]).0, "gw_b=1", "itself is not behind it");
    }

    /// Three in a ring went on telling of one that is gone.
    #[test]
    fn who_is_gone_is_forgotten() {
        let (_, gone) = told("gw_gone", &[]);
        let mut ring = [gone.clone(), gone.clone(), gone];
        for round in 0.. {
            for (at, own) in ["gw_a", "gw_b", "gw_c"].iter().enumerate() {
                ring[at] = told(own, &[&ring[(at + 1) % 3]]).1;
            }
            if !ring.iter().any(|behind| behind.contains(&id("gw_gone"))) {
                break;
            }
            assert!(round < u32::from(DISTANCE_MAX));
        }
        assert!(ring[0].contains(&id("gw_b")) && ring[0].contains(&id("gw_c")));
    }

    #[test]
    fn a_header_has_room() {
        let all = |count: usize| {
            let mut behind = GatewaysBehind::default();
            for at in 0..count {
                behind
                    .0
                    .insert(id(&format!("gw_{at:03}")), u8::from(at != count - 1));
            }
            let (text, _) = told("gw_own", &[&behind]);
            (
                text.split(", ").count(),
                text.starts_with(&format!("gw_{:03}=1", count - 1)),
            )
        };
        assert_eq!(all(GATEWAYS_SENT_MAX), (GATEWAYS_SENT_MAX, true));
        assert_eq!(
            all(GATEWAYS_SENT_MAX + 1),
            (GATEWAYS_SENT_MAX, true),
            "the nearest is told"
        );
    }
}
