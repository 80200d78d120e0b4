//! Which names of keys, flags and variables stand for secrets.

use crate::config::{diagnostics::suggest::closest, node::Node};

/// Whether a flag or a variable called `name` has a secret in `value`: by a name as in a config, by a
/// word for one at its end, or by a slip of the pen for either.
pub(super) fn names_secret(name: &str, value: &str) -> bool {
    /// What may as well name a file.
    const AMBIGUOUS_WORDS: [&str; 12] = [
        "auth", "bearer", "cookie", "cred", "creds", "jwt", "key", "pass", "pat", "pin", "pw",
        "pwd",
    ];
    const MEANT: [&str; 10] = [
        "accesskey",
        "apikey",
        "authorization",
        "bearer",
        "credential",
        "passphrase",
        "password",
        "privatekey",
        "secret",
        "token",
    ];
    /// Shorter words are too near to others.
    const WORD_CHARS_MIN: usize = 4;
    if sounds_secret(name) {
        return true;
    }
    let lower = name.to_lowercase();
    let words: Vec<&str> = lower
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect();
    let is_path = value.starts_with(['/', '.', '~']) || value.is_empty();
    if !is_path
        && words
            .last()
            .is_some_and(|word| AMBIGUOUS_WORDS.contains(word))
    {
        return true;
    }
    let is_meant = |word: &str| {
        let may_be = word.len() >= WORD_CHARS_MIN;
        let slip = |meant: &&str| strsim::damerau_levenshtein(word, meant) <= 1 + meant.len() / 9;
        may_be && MEANT.iter().any(slip)
    };
    let pairs = words.windows(2).map(<[&str]>::concat);
    words.iter().any(|word| is_meant(word)) || pairs.into_iter().any(|pair| is_meant(&pair))
}

/// Whether `node` says of which kind a credential is, even if misspelt.
pub(super) fn is_credential_kind(node: &Node) -> bool {
    let kinds = ["basic", "bearer", "header", "none", "oauth"];
    node.as_text()
        .is_some_and(|kind| closest(kind, kinds).is_some())
}

/// Whether `key` is a setting about credentials whose value, which `node` has, is no credential itself.
pub(super) fn is_open_setting(key: &str, node: &Node) -> bool {
    const OPEN: [&str; 19] = [
        "access_token_lifetime",
        "audience",
        "client_id",
        "client_id_metadata_documents",
        "exec",
        "grant",
        "issuer",
        "key_file",
        "mode",
        "name",
        "per_user",
        "private_key",
        "refresh_grace",
        "refresh_token_lifetime",
        "registration",
        "registration_lifetime",
        "registrations_max",
        "scopes",
        "token_url",
    ];
    // Somebody may put the key itself where its file is to be named.
    let is_key = node.as_text().is_some_and(|text| text.contains("-----"));
    match key {
        "type" => is_credential_kind(node),
        key => OPEN.contains(&key) && !is_key,
    }
}

/// How secret the values below a key are.
pub(super) enum Secrecy {
    /// They never are.
    Public,
    /// That depends on the keys below.
    ByKey,
    /// All of them are.
    All,
    /// All of them are, but for settings.
    Credentials,
    /// All of them may be, and have names that say so.
    Named,
}

/// Whether what is called `name` is most likely secret, wherever it stands.
pub(in crate::config) fn sounds_secret(name: &str) -> bool {
    !matches!(secrecy(name), Secrecy::Public | Secrecy::ByKey)
}

/// Judges `key` by its name alone, wherever it stands.
pub(super) fn secrecy(key: &str) -> Secrecy {
    /// Sections whose keys sound like secrets and are none: `limits.headers` is a size,
    /// `governance.auth` a word, and classes of a scan are called `api_key` or `password`.
    const NONE: [&str; 3] = ["governance", "limits", "scan"];
    const CREDENTIALS: [&str; 3] = ["auth", "oauth", "secrets"];
    const NAMED: [&str; 3] = ["env", "environment", "headers"];
    const WHOLE: [&str; 5] = ["authentication", "bearer", "keys", "pass", "pwd"];
    const PART: [&str; 7] = [
        "apikey",
        "authorization",
        "credential",
        "passw",
        "privatekey",
        "secret",
        "token",
    ];
    let plain: String = key
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect::<String>()
        .to_lowercase();
    if NONE.contains(&plain.as_str()) {
        Secrecy::Public
    } else if CREDENTIALS.contains(&plain.as_str()) {
        Secrecy::Credentials
    } else if NAMED.contains(&plain.as_str()) {
        Secrecy::Named
    } else if WHOLE.contains(&plain.as_str()) || PART.iter().any(|part| plain.contains(part)) {
        Secrecy::All
    } else {
        Secrecy::ByKey
    }
}
