//! `hash`, `encode` and `decode`: bytes to digests and text forms, and back.
//!
//! Called through the tool table. Hex and percent-encoding are done here, since a tool has to say
//! at which character its input went wrong, which the usual libraries keep to themselves.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::alphabet::{Alphabet, STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256, Sha384, Sha512};

use super::tools::{Mistake, check_length};

/// Longest text or base64 argument, in bytes: far beyond what a model writes out, and small enough
/// that an answer three times as long (percent-encoding) still is one ordinary message.
const INPUT_BYTES_MAX: usize = 1 << 20;

/// Arguments of `hash`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Hash {
    /// The digest to compute. Default: sha256.
    #[serde(default)]
    algorithm: Algorithm,
    /// The text whose UTF-8 bytes to hash. Give this or base64.
    text: Option<String>,
    /// The bytes to hash, as base64. Give this or text.
    base64: Option<String>,
}

#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "lowercase")]
enum Algorithm {
    #[default]
    Sha256,
    Sha384,
    Sha512,
}

/// Answer of `hash`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Hashed {
    /// The digest that was computed.
    algorithm: Algorithm,
    /// The digest in lower-case hex.
    hex: String,
    /// The digest in base64.
    base64: String,
    /// How many bytes were hashed.
    bytes: usize,
}

/// Arguments of `encode`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Encode {
    /// The form to write.
    to: Encoding,
    /// The text whose UTF-8 bytes to encode. Give this or base64.
    text: Option<String>,
    /// The bytes to encode, as base64. Give this or text.
    base64: Option<String>,
}

/// Arguments of `decode`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Decode {
    /// The form to read.
    from: Encoding,
    /// What to decode. White space in it is skipped, padding of base64 may be missing.
    input: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    Base64,
    Base64url,
    Hex,
    Percent,
}

/// Answer of `encode`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Encoded {
    /// The encoded form.
    output: String,
    /// How many bytes it stands for.
    bytes: usize,
}

/// Answer of `decode`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Decoded {
    /// The decoded bytes as text, when they are valid UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The decoded bytes as base64, when they are not valid UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    /// How many bytes were decoded.
    bytes: usize,
}

pub(super) fn hash(arguments: Hash) -> Result<Hashed, Mistake> {
    let bytes = input_bytes(arguments.text, arguments.base64)?;
    let digest = match arguments.algorithm {
        Algorithm::Sha256 => Sha256::digest(&bytes).to_vec(),
        Algorithm::Sha384 => Sha384::digest(&bytes).to_vec(),
        Algorithm::Sha512 => Sha512::digest(&bytes).to_vec(),
    };
    Ok(Hashed {
        algorithm: arguments.algorithm,
        hex: to_hex(&digest),
        base64: BASE64_STANDARD.encode(digest),
        bytes: bytes.len(),
    })
}

pub(super) fn encode(arguments: Encode) -> Result<Encoded, Mistake> {
    let bytes = input_bytes(arguments.text, arguments.base64)?;
    let output = match arguments.to {
        Encoding::Base64 => BASE64_STANDARD.encode(&bytes),
        Encoding::Base64url => BASE64_URL_SAFE_NO_PAD.encode(&bytes),
        Encoding::Hex => to_hex(&bytes),
        Encoding::Percent => to_percent(&bytes),
    };
    Ok(Encoded {
        output,
        bytes: bytes.len(),
    })
}

pub(super) fn decode(Decode { from, input }: Decode) -> Result<Decoded, Mistake> {
    check_length("input", input.len(), INPUT_BYTES_MAX)?;
    let bytes = match from {
        Encoding::Base64 => from_base64("input", &input, &STANDARD)?,
        Encoding::Base64url => from_base64("input", &input, &URL_SAFE)?,
        Encoding::Hex => from_hex(&input)?,
        Encoding::Percent => from_percent("input", &input)?,
    };
    let count = bytes.len();
    let (text, base64) = match String::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(error) => (None, Some(BASE64_STANDARD.encode(error.as_bytes()))),
    };
    Ok(Decoded {
        text,
        base64,
        bytes: count,
    })
}

/// Reads percent-encoding; everything else stands for itself.
pub(super) fn from_percent(place: &str, input: &str) -> Result<Vec<u8>, Mistake> {
    let bytes = input.as_bytes();
    let mut output = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if byte != b'%' {
            output.push(byte);
            at += 1;
            continue;
        }
        let digit = |offset: usize| bytes.get(at + offset).copied().and_then(hex_digit);
        let (Some(high), Some(low)) = (digit(1), digit(2)) else {
            return Err(Mistake::new(
                place,
                format_args!(
                    "the % at {} is not followed by two hex digits",
                    character(input, at)
                ),
                "Write a literal percent sign as %25",
            ));
        };
        output.push(high << 4 | low);
        at += 3;
    }
    Ok(output)
}

fn input_bytes(text: Option<String>, base64: Option<String>) -> Result<Vec<u8>, Mistake> {
    match (text, base64) {
        (Some(text), None) => {
            check_length("text", text.len(), INPUT_BYTES_MAX)?;
            Ok(text.into_bytes())
        }
        (None, Some(base64)) => {
            check_length("base64", base64.len(), INPUT_BYTES_MAX)?;
            from_base64("base64", &base64, &STANDARD)
        }
        (None, None) | (Some(_), Some(_)) => Err(Mistake::new(
            "arguments",
            "exactly one of text and base64 is needed",
            "Send text, or base64 for bytes that are not text",
        )),
    }
}

fn from_base64(place: &str, input: &str, alphabet: &Alphabet) -> Result<Vec<u8>, Mistake> {
    let config =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let compact: Vec<u8> = input.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    GeneralPurpose::new(alphabet, config)
        .decode(compact)
        .map_err(|error| {
            let stranger = input.char_indices().find(|(_, c)| !is_base64(*c, alphabet));
            let problem = match stranger {
                Some((at, c)) => format!("{c:?} at {} is not base64", character(input, at)),
                None => format!("not complete base64 ({error})"),
            };
            Mistake::new(
                place,
                problem,
                "Send base64 (A-Z a-z 0-9 + /); base64url has - and _ instead and is its own form",
            )
        })
}

fn is_base64(c: char, alphabet: &Alphabet) -> bool {
    c.is_ascii_whitespace() || c == '=' || alphabet.as_str().contains(c)
}

fn to_hex(bytes: &[u8]) -> String {
    let mut output = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        write!(output, "{byte:02x}").expect("writing to a string succeeds");
    }
    output
}

fn from_hex(input: &str) -> Result<Vec<u8>, Mistake> {
    let mut digits = Vec::with_capacity(input.len());
    for (at, c) in input
        .char_indices()
        .filter(|(_, c)| !c.is_ascii_whitespace())
    {
        let digit = u8::try_from(c).ok().and_then(hex_digit).ok_or_else(|| {
            Mistake::new(
                "input",
                format_args!("{c:?} at {} is not a hex digit", character(input, at)),
                "Send digits 0-9 and a-f only, without a prefix",
            )
        })?;
        digits.push(digit);
    }
    if digits.len() % 2 == 1 {
        return Err(Mistake::new(
            "input",
            format_args!("{} hex digits do not make whole bytes", digits.len()),
            "Send two digits for each byte",
        ));
    }
    Ok(digits
        .chunks_exact(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect())
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

/// Escapes all but the unreserved characters of RFC 3986, section 2.3.
fn to_percent(bytes: &[u8]) -> String {
    let mut output = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            output.push(char::from(byte));
        } else {
            write!(output, "%{byte:02X}").expect("writing to a string succeeds");
        }
    }
    output
}

/// Where a byte offset is, in the words of an error message.
fn character(input: &str, at: usize) -> String {
    format!("character {}", input[..at].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::builtin::testing::check;

    #[tokio::test]
    async fn hashes() {
        check(
            "hash",
            &[
                (
                    "FIPS 180 example, by default SHA-256",
                    json!({"text": "abc"}),
                    Ok(json!({
                        "algorithm": "sha256", "bytes": 3,
                        "hex": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
                        "base64": "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=",
                    })),
                ),
                (
                    "SHA-384 of bytes",
                    json!({"algorithm": "sha384", "base64": "YWJj"}),
                    Ok(json!({
                        "hex": "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed\
                                8086072ba1e7cc2358baeca134c825a7",
                    })),
                ),
                (
                    "SHA-512 of nothing",
                    json!({"algorithm": "sha512", "text": ""}),
                    Ok(json!({
                        "bytes": 0,
                        "hex": "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce\
                                47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e",
                    })),
                ),
                (
                    "both inputs",
                    json!({"text": "a", "base64": "YQ=="}),
                    Err(
                        "arguments: exactly one of text and base64 is needed. Send text, or base64 \
                         for bytes that are not text.",
                    ),
                ),
                (
                    "an algorithm that is not offered",
                    json!({"text": "a", "algorithm": "md5"}),
                    Err(
                        "algorithm: unknown variant `md5`, expected one of `sha256`, `sha384`, \
                         `sha512`. Send the arguments that the tool's input schema describes.",
                    ),
                ),
            ],
        )
        .await;
    }

    #[tokio::test]
    async fn encodes() {
        let row = |to| json!({"to": to, "text": "Zürich?~/+"});
        check(
            "encode",
            &[
                (
                    "base64",
                    row("base64"),
                    Ok(json!({"output": "WsO8cmljaD9+Lys=", "bytes": 11})),
                ),
                (
                    "base64url",
                    row("base64url"),
                    Ok(json!({"output": "WsO8cmljaD9-Lys"})),
                ),
                (
                    "hex",
                    row("hex"),
                    Ok(json!({"output": "5ac3bc726963683f7e2f2b"})),
                ),
                (
                    "percent",
                    row("percent"),
                    Ok(json!({"output": "Z%C3%BCrich%3F~%2F%2B"})),
                ),
                (
                    "bytes",
                    json!({"to": "hex", "base64": "/wA"}),
                    Ok(json!({"output": "ff00"})),
                ),
                (
                    "a form that is not offered",
                    json!({"to": "rot13", "text": ""}),
                    Err(
                        "to: unknown variant `rot13`, expected one of `base64`, `base64url`, \
                         `hex`, `percent`. Send the arguments that the tool's input schema \
                         describes.",
                    ),
                ),
                (
                    "base64url in place of base64",
                    json!({"to": "hex", "base64": "_wA"}),
                    Err(
                        "base64: '_' at character 1 is not base64. Send base64 (A-Z a-z 0-9 + /); \
                         base64url has - and _ instead and is its own form.",
                    ),
                ),
            ],
        )
        .await;
    }

    #[tokio::test]
    async fn decodes() {
        let row = |from, input| json!({"from": from, "input": input});
        check(
            "decode",
            &[
                (
                    "base64",
                    row("base64", "WsO8\ncmljaD9+Lys="),
                    Ok(json!({"text": "Zürich?~/+", "bytes": 11})),
                ),
                (
                    "base64url",
                    row("base64url", "WsO8cmljaD9-Lys"),
                    Ok(json!({"text": "Zürich?~/+"})),
                ),
                (
                    "hex",
                    row("hex", "5A c3 bc"),
                    Ok(json!({"text": "Zü", "bytes": 3})),
                ),
                (
                    "percent",
                    row("percent", "Z%C3%BCrich%3f+"),
                    Ok(json!({"text": "Zürich?+"})),
                ),
                (
                    "not UTF-8",
                    row("hex", "ff00"),
                    Ok(json!({"base64": "/wA=", "bytes": 2})),
                ),
            ],
        )
        .await;
    }

    #[tokio::test]
    async fn refuses_what_does_not_decode() {
        let row = |from, input| json!({"from": from, "input": input});
        check(
            "decode",
            &[
                (
                    "a stranger in base64",
                    row("base64", "WsO8 ä"),
                    Err(
                        "input: 'ä' at character 6 is not base64. Send base64 (A-Z a-z 0-9 + /); \
                         base64url has - and _ instead and is its own form.",
                    ),
                ),
                (
                    "base64 cut off",
                    row("base64", "WsO8c"),
                    Err(
                        "input: not complete base64 (Invalid input length: 5). Send base64 (A-Z \
                         a-z 0-9 + /); base64url has - and _ instead and is its own form.",
                    ),
                ),
                (
                    "a stranger in hex",
                    row("hex", "0x12"),
                    Err(
                        "input: 'x' at character 2 is not a hex digit. Send digits 0-9 and a-f \
                         only, without a prefix.",
                    ),
                ),
                (
                    "half a byte",
                    row("hex", "123"),
                    Err(
                        "input: 3 hex digits do not make whole bytes. Send two digits for each \
                         byte.",
                    ),
                ),
                (
                    "a percent sign alone",
                    row("percent", "ü 100%"),
                    Err(
                        "input: the % at character 6 is not followed by two hex digits. Write a \
                         literal percent sign as %25.",
                    ),
                ),
            ],
        )
        .await;
    }

    #[test]
    fn input_has_a_limit() {
        let a = |bytes| Some("A".repeat(bytes));
        let hash = |text, base64| {
            let algorithm = Algorithm::Sha256;
            hash(Hash {
                algorithm,
                text,
                base64,
            })
            .map(|hashed| hashed.bytes)
        };
        let decode = |from, bytes| {
            let input = "A".repeat(bytes);
            decode(Decode { from, input }).map(|decoded| decoded.bytes)
        };
        assert_eq!(hash(a(INPUT_BYTES_MAX), None), Ok(INPUT_BYTES_MAX));
        assert_eq!(
            hash(a(INPUT_BYTES_MAX + 1), None).unwrap_err().to_string(),
            "text: 1048577 bytes, more than the 1048576 this tool takes. Send a shorter one or \
             split it."
        );
        assert_eq!(hash(None, a(INPUT_BYTES_MAX)), Ok(INPUT_BYTES_MAX / 4 * 3));
        assert!(hash(None, a(INPUT_BYTES_MAX + 4)).is_err());
        assert_eq!(
            hash(None, a(INPUT_BYTES_MAX - 4)),
            Ok(INPUT_BYTES_MAX / 4 * 3 - 3)
        );
        assert_eq!(
            decode(Encoding::Hex, INPUT_BYTES_MAX),
            Ok(INPUT_BYTES_MAX / 2)
        );
        assert!(decode(Encoding::Hex, INPUT_BYTES_MAX + 2).is_err());
        assert_eq!(
            decode(Encoding::Percent, INPUT_BYTES_MAX),
            Ok(INPUT_BYTES_MAX)
        );
    }
}
