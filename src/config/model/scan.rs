//! What is looked for in data, and what happens to it.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::policy::GlobList;

/// Scanning for personal data and secrets. The tables map a class (`email`, `credit_card`, ...), a
/// name from `custom` or `dictionaries`, or `*` for all others to an action.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scan {
    /// Tool arguments, params of vendor methods, and client answers to server requests.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    #[schemars(extend("x-classes" = true))]
    pub arguments: IndexMap<String, ScanAction>,
    /// Tool results, and server requests to clients.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    #[schemars(extend("x-classes" = true))]
    pub results: IndexMap<String, ScanAction>,
    /// Contents of resources.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    #[schemars(extend("x-classes" = true))]
    pub resources: IndexMap<String, ScanAction>,
    /// Prompts: arguments and contents, and completions.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    #[schemars(extend("x-classes" = true))]
    pub prompts: IndexMap<String, ScanAction>,
    /// Progress, log messages and other notifications.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    #[schemars(extend("x-classes" = true))]
    pub notifications: IndexMap<String, ScanAction>,
    /// Replacement of a redacted match. A redacted number stays a number: 0 with `type`, a 1
    /// followed by zeros with `length`.
    pub mask: Mask,
    /// Countries whose national ids are detected, as lower-case ISO 3166 codes. Default: all
    /// supported countries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub countries: Vec<String>,
    /// Additional classes: name -> regular expression.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    #[schemars(extend("x-classes" = true))]
    pub custom: IndexMap<String, String>,
    /// Additional classes: name -> words and phrases.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    #[schemars(extend("x-classes" = true))]
    pub dictionaries: IndexMap<String, Vec<String>>,
    /// Additional token detectors, in the format of `src/scan/detect/detectors.toml`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub detectors: Vec<Detector>,
    /// Values that are never a match, such as a public help-desk address.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// MIME types (globs such as `text/*`) whose base64 content is decoded and scanned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "GlobList")]
    pub base64: Vec<String>,
}

/// A detector for tokens with a recognizable format.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Detector {
    /// Name in error messages, `vendor/kind`.
    pub id: String,
    /// Regular expression of the whole token: bounded, ASCII, beginning with a letter or digit. If
    /// it has a group, the group is the secret.
    pub pattern: String,
    /// Lower-case words, one of which must occur nearby. For formats that are not specific enough
    /// alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub near: Vec<String>,
    /// Minimum Shannon entropy in bits per character. Default: 2.5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entropy: Option<f64>,
    /// Require both letters and digits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mixed: bool,
    /// Checksum. A token with a valid checksum is reported regardless of `entropy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<CheckDigits>,
    /// Class of the matches.
    #[serde(default)]
    pub class: DetectorClass,
}

/// Checksum of a token.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckDigits {
    /// The last six characters are the base-62 CRC-32 of the characters between them and the
    /// constant prefix.
    Crc32,
}

/// Class of a detector's matches.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DetectorClass {
    /// A key or token.
    #[default]
    ApiKey,
    /// Another secret.
    Credential,
    /// A private key.
    PrivateKey,
}

/// What to do with a match.
#[derive(
    Clone, Copy, Debug, Deserialize, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize,
)]
#[serde(rename_all = "lowercase")]
pub enum ScanAction {
    /// Do not look for this class.
    Off,
    /// Count and audit it.
    Report,
    /// Replace it with a mask.
    Redact,
    /// Refuse the call, or withhold its result.
    Block,
}

impl ScanAction {
    /// What a config calls it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Report => "report",
            Self::Redact => "redact",
            Self::Block => "block",
        }
    }
}

/// Replacement of a redacted match.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mask {
    /// `*` for each character.
    Length,
    /// The class in brackets, such as `[EMAIL]`.
    #[default]
    Type,
}
