//! Keys that a scripted issuer signs with, and how it signs.

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, jwk::Jwk};
use serde_json::{Map, Value};

/// A key of an issuer, of which the JWKS has the public half.
#[derive(Clone)]
pub(crate) struct TestKey {
    pub(crate) id: String,
    pub(crate) algorithm: Algorithm,
    private: EncodingKey,
}

impl TestKey {
    /// The `number`th key of an issuer. A key for ES256 is made anew; making one for RS256 would take
    /// seconds, so that there are two, which take turns.
    pub(crate) fn new(algorithm: Algorithm, number: usize) -> Self {
        let private = if algorithm == Algorithm::ES256 {
            let pem = rcgen::KeyPair::generate().unwrap().serialize_pem();
            EncodingKey::from_ec_pem(pem.as_bytes()).unwrap()
        } else {
            EncodingKey::from_rsa_pem(RSA_TEST_KEYS[number % 2].as_bytes()).unwrap()
        };
        Self {
            id: format!("key-{number}"),
            algorithm,
            private,
        }
    }

    /// A key of RSA, as a file of PEM has it, and what verifies its signatures.
    pub(crate) fn rsa_pair() -> (&'static str, DecodingKey) {
        let private = RSA_TEST_KEYS[0];
        let key = EncodingKey::from_rsa_pem(private.as_bytes()).unwrap();
        let jwk = Jwk::from_encoding_key(&key, Algorithm::RS256).unwrap();
        (private, DecodingKey::from_jwk(&jwk).unwrap())
    }

    /// A JWT of `claims` with the header `typ`.
    pub(crate) fn sign(&self, typ: &str, claims: &Map<String, Value>) -> String {
        let mut header = Header::new(self.algorithm);
        header.kid = Some(self.id.clone());
        header.typ = Some(typ.to_owned());
        jsonwebtoken::encode(&header, claims, &self.private).unwrap()
    }

    /// Its public half.
    pub(crate) fn public(&self) -> Value {
        let mut jwk = Jwk::from_encoding_key(&self.private, self.algorithm).unwrap();
        jwk.common.key_id = Some(self.id.clone());
        let mut jwk = serde_json::to_value(jwk).unwrap();
        jwk["use"] = "sig".into();
        jwk
    }
}

/// Private keys for tests alone: they are public, and protect nothing.
const RSA_TEST_KEYS: [&str; 2] = [
    "\
-----BEGIN PRIVATE KEY-----\n\
MIIEvAIBADANBgkqhkiG9w0BAQEFAASCBKYwggSiAgEAAoIBAQC3uAAqQ7eQY6nP\n\
1oV3VPWSngoGdC/qvv2rNQZan5QmOXinFGuXno4HJnzHcpnR2TeJrMeySuDeT6ML\n\
U0rpJ2neKXBJUZ6RRbM7iuEyZO8qVeeKohIXHoL8GWyRaRfuYfe97RA8zbDF0Xco\n\
wxvmCdokmSbRyFfCcIAms87fs76TTp+VDHp0h+HQmt9B4BDH2I0XOJpB10W4YUbN\n\
5rOOThhZEnIhKmLQNZdXx4JhxhPUhzU56CJtqgZyP79mcN3WntPaEkS7qU3zsMFm\n\
MwHwm/0wdkuacxhqgVt09xaZR9wEnfJZjrxMFC56z1qvJ3oHUmcBLa3WNIvBWIpj\n\
FvX/3mq/AgMBAAECggEAP1CgbfBsgMx4J3KtCJU1FNR2bAb6xJIR5kEd8Xlxm0LP\n\
O/Wjptsz4272Ld5m+JU9uKrdH6sCmFslu69276dvqurpEbuZREObI3gXaEC01AhL\n\
BdIZHfKb/bndWre3UaZdtQzQPcQ9mc84m8myAbN/hIFriXzcEdynra7mKt5NXYJz\n\
D2eNCm3S8vNGCOy0ONBkj9kRlcYG9tKelUedQlk/gHv2DRnUO+1+xVs4QNlqi7sW\n\
wuzvLNF6xB18Ejm4Jo7GnkNFfMnzhjy6UF3qcOGs2WwBwq1w6crYxT7gR8GwOcQo\n\
xybHYdKyBhJCbKe8dl2SrttlG0I8MGdeddx6ZqJqkQKBgQDthK7icL06MmCMR71k\n\
UFZ2fhG9v1vKpbYdDv0pHTalXdFf0qhDFOifPQSdYVJaZrnHV4m7sRrAcfpOOk2V\n\
7mvijbINH6dGeuIeKRGRnW3OxJh3cd7CsfPR6dpYA+S7PeeKZrQQ81vLP6jKX+y6\n\
iRLv8ikEn2dKUpTEfO9FpUWktQKBgQDGA6Qz0YZcQgIYFL2I4dGBKX0rF9/2sxQa\n\
rAyr5shng5dSFb8n/GLcAhMxNr9yAkPp/xIv8tgi0tE3alItuKbbqRH9WYDy6LiB\n\
rShjk3IITW9lJB9pyqU4TAdZsyESLwIALZ30uBCYFhVxbI+s/oIZi2bRWnHcXhAR\n\
Gb0kXFsOIwKBgCAcO/ho/WwMu3i7iiMxqT7DtGpOoH45APHUwOz6AhVBJbkqpYzM\n\
GtbMTP9p1NRb5unIL9qsCs3RmuFQiISogvVR6qxThy3EFyW0r6db/Shi86nSPydb\n\
H3dVgis7+4REzjSrxdQ00kgcBxm09jARr/m4Z0s0saYem/YkXcSwn0WxAoGAGsRF\n\
Pwf0rKXzmIO9NzKnWllcZSXeDYAZmJ1nPRl+P5fnLZ5o76PLTUguhfmLmYK64Xes\n\
YrTmCJcM1vvVTf7m90x8dQ3TQ4K35jec/RDiWkL1auueH3PYL6r/V13Ce63FDHce\n\
IgV7oMNjdKijJ1RkC8XvSR97wrkoXNdo3PBrEpcCgYA3kJh1VlkNxMcu9tPwRDG6\n\
P0a3/ZiABFjSfgeGRtt1JO1oLGLJiA3cTEIAraOJtjscV9v4xO6ci5uAOUCQYup2\n\
NrPRCQ2c8F+eCK3zVyoKpqIxbUjmFBpZcc1ZqTYSe3A9N+dm47VAfLgOme/O9+fI\n\
O1kveS8N22znbDh+Ubs7BQ==\n\
-----END PRIVATE KEY-----\n",
    "\
-----BEGIN PRIVATE KEY-----\n\
MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQCM90agip13TYlu\n\
uTqPjiH58Wj2zB9Hf8wx6lOqwby1V5F52VAq0B5YiDSq7/YuUgBqXxuKnqiellj+\n\
ByMdvw6KnEFhcXiSz4wgPS1e4O9/6N/gfAtyjeh0aeAVeoJR/UKLh6aZhMW6HX2N\n\
G6k4B5gw00V5gzlRwpzEMWeGzqJxGzDOPjsCv6J5e8vtXAgGXj0uLoqisW1yyws2\n\
sQhLuOrTdIofiMJ7ajAT2gqmBBrfAa8s8FCOXRGSbcOmAu9rpOwUcSsm1fj5rmqO\n\
XonEcQHTty/w77cGKA2qg+aiV8Dhg4ruC5wy2VnzX6NXpXCzB4VUHQQnf5LeWPsc\n\
NT23AwGxAgMBAAECggEAB9QlIv4FGBQWoYSTS60GwV0hNDD1PRZMM9V3XLtdDJaB\n\
aMqjLiLYHJiWkYu5bgHLLh0mvWsUTZe8oixT90SeEnVHwu6iAJ1Fg0uCfTYcIaFq\n\
6t+uDxLx1E1GTvW6eRffSI/PC9BDiZOLs84pIV3NRkuQHIXSJXKbxuBA3KFrL2wl\n\
uHF6RU2qE46AiViJgnqr/TLNoZPYgSNQ4F6XSwWGJGA/9n+31WGoPp4k9+chyvUs\n\
Wi6U+qXOoT8+VRRLSrtgH5EvKFjIh6uPnOd3jdiBF7TP5MCN0MD0Wr47nJTf9x4Q\n\
keUC4J/Z1zyKV+e9Fxcy3XN7O8dwY5sgsu/dIHYaZQKBgQDCKclgrCYkmhMpqHrb\n\
j/95HjUjdYE4inf8yWBN4a8Rs389wXqks8avOe8MKiayDXMUBqHyhEXhrPXuM6FZ\n\
xv+xDnLYMgLbNLGSuHQ7iZ+WuTSASVGbxdh/TOqZKq1xSLDEZ4AHog41Xn/uZ9KO\n\
0tAF1qlmRpg7F0PJWYc35FjvcwKBgQC53EoVz6cQNAF9unn0MT2Ox7ru3/79M9TH\n\
UN3enh+eDK6WMOv63Nh+Irw/6qMfSZ+JBlrONZjGCWUzaqWkz3rl/bgT39hgcI3z\n\
NeUdiQEWT27zKUMxOKkKG60Qx8pwg8ptb58mWeFQHQqMLkzGbu6QBS0LfaK02kWK\n\
bSKKsDr5SwKBgQCcvG67gzwnP9lIP6EtrMhmVWRAA5MUuXKytTzwocZZW7TTfWQr\n\
oJQ6z2GRSFWEVicXe2MwCmb/DkhYyYTunB28KBW9QGHd4mOWNSBfD3GskkU3afhe\n\
7w8ddFHM4w6v7CYF5icMAl3F50sOgPEQKk2S6P5GeaZZzSYDXCozjDne0QKBgDvQ\n\
7fb/EaFhW2l/bmhswIcHON5QMNyEpeJP4FgZQ8u2ASpNLGVcVkCiJTvc5ArZwwJy\n\
jR74mOaDd5KIrC7Sp5cFhQzAaf7/um+f1NEgmrz3a5nOmdVpit258oUIB9sWTzvR\n\
RMMvAhiqgA6FiCgE47puMAUWthrGdMMMRKWl+hTpAoGAB4j7QuyCRPFZ67NHY9gH\n\
OEzgYtxLDSvBa1FAnxn4ftt+1i0Z1E1RAr//lwNlPIT3YBNHjP9SxNDp3MZE7uwr\n\
DX+LZNqPGseYqvZ0EzXj0e4O/OxzgMjlqdPqcEPbvBYQxgkqLCaIJhGkTXRj/HQv\n\
yKNtz6YNh26BtuessHX6Dug=\n\
-----END PRIVATE KEY-----\n",
];
