//! `hash` and `echo`: what is made of a text.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256, Sha384, Sha512};

use super::input_error::InputError;

/// Longest argument, in bytes: far beyond what a model writes out, and hashed within milliseconds.
pub(super) const HASH_INPUT_BYTES_MAX: usize = 1 << 20;

/// Standard base64 that may come without its padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Arguments of `hash`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HashInput {
    /// The digest to compute. Default: sha256.
    #[serde(default)]
    algorithm: HashAlgorithm,
    /// The text whose UTF-8 bytes to hash. Give this or base64.
    text: Option<String>,
    /// The bytes to hash, as base64. Give this or text.
    base64: Option<String>,
}

#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "lowercase")]
enum HashAlgorithm {
    #[default]
    Sha256,
    Sha384,
    Sha512,
}

/// Answer of `hash`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct HashOutput {
    /// The digest that was computed.
    algorithm: HashAlgorithm,
    /// The digest in lower-case hex.
    hex: String,
    /// The digest in base64.
    base64: String,
    /// How many bytes were hashed.
    bytes: usize,
}

pub(super) fn hash(input: HashInput) -> Result<HashOutput, InputError> {
    let bytes = input_bytes(input.text, input.base64)?;
    let digest = match input.algorithm {
        HashAlgorithm::Sha256 => Sha256::digest(&bytes).to_vec(),
        HashAlgorithm::Sha384 => Sha384::digest(&bytes).to_vec(),
        HashAlgorithm::Sha512 => Sha512::digest(&bytes).to_vec(),
    };
    let mut hex = String::new();
    for byte in &digest {
        write!(hex, "{byte:02x}").expect("writing to a string succeeds");
    }
    Ok(HashOutput {
        algorithm: input.algorithm,
        hex,
        base64: BASE64.encode(digest),
        bytes: bytes.len(),
    })
}

fn input_bytes(text: Option<String>, base64: Option<String>) -> Result<Vec<u8>, InputError> {
    let (argument, mut value) = match (text, base64) {
        (Some(text), None) => ("text", text),
        (None, Some(base64)) => ("base64", base64),
        (None, None) | (Some(_), Some(_)) => {
            let problem = "exactly one of text and base64 is needed";
            let remedy = "Send text, or base64 for bytes that are not text";
            return Err(InputError::new("arguments", problem, remedy));
        }
    };
    if value.len() > HASH_INPUT_BYTES_MAX {
        let problem = format_args!("longer than {HASH_INPUT_BYTES_MAX} bytes");
        return Err(InputError::new(argument, problem, "Send a shorter one"));
    }
    if argument == "text" {
        return Ok(value.into_bytes());
    }
    value.retain(|c| !c.is_ascii_whitespace());
    BASE64.decode(value).map_err(|error| {
        let remedy = "Send standard base64 (A-Z a-z 0-9 + /), not base64url";
        InputError::new("base64", format_args!("not base64 ({error})"), remedy)
    })
}

/// Arguments of `echo`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EchoInput {
    /// The text to give back.
    text: String,
}

/// Answer of `echo`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct EchoOutput {
    /// The text as it came.
    text: String,
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of every tool")]
pub(super) fn echo(EchoInput { text }: EchoInput) -> Result<EchoOutput, InputError> {
    Ok(EchoOutput { text })
}
