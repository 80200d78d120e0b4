//! What a value looks like: which characters it has, and whether it only stands for another.

use crate::scan::lexicon::is_listed;

/// Which kinds of characters a value has.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each says one thing of a text"
)]
#[derive(Default)]
pub(super) struct CharKinds {
    pub(super) digit: bool,
    pub(super) lower: bool,
    pub(super) upper: bool,
    pub(super) symbol: bool,
    /// Symbols that names and paths do not have.
    pub(super) strong: bool,
    pub(super) space: bool,
    /// Capitals after the first character.
    pub(super) inner_uppers: usize,
}

impl CharKinds {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut kinds = Self::default();
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                b'a'..=b'z' => kinds.lower = true,
                b'A'..=b'Z' => {
                    kinds.upper = true;
                    kinds.inner_uppers += usize::from(at > 0);
                }
                b'0'..=b'9' => kinds.digit = true,
                _ => {
                    kinds.symbol = true;
                    kinds.strong |= b"!@#$%^&*+?~".contains(byte);
                    kinds.space |= byte.is_ascii_whitespace();
                }
            }
        }
        if !bytes.is_ascii() {
            kinds.add_non_ascii(bytes);
        }
        kinds
    }

    /// Adds the letters beyond ASCII, which stay symbols too. Scripts without case may not part words
    /// by spaces, so that a whole sentence would be taken for one.
    fn add_non_ascii(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        for c in text.chars().filter(|c| !c.is_ascii()) {
            self.lower |= c.is_lowercase();
            self.upper |= c.is_uppercase();
        }
    }
}

/// Whether a value stands for one that is to be filled in, or has been taken out.
pub(super) fn is_placeholder(bytes: &[u8]) -> bool {
    const PARTS: &str = "your xxx redacted placeholder change_me changeme replace insert todo < ${ {{ %( \
        process.env os.environ getenv secretref";
    const WHOLE: &str = "null none true false undefined string required optional hidden password passwort secret \
        token unset empty masked encrypted missing invalid expired number bearer passwd passphrase pass_word";
    let same = bytes.iter().all(|b| b == &bytes[0]);
    let masked = bytes.first() == Some(&b'[') && bytes.last() == Some(&b']');
    let stars = bytes
        .iter()
        .filter(|b| matches!(b, b'*' | b'.' | 0x80..))
        .count()
        * 2
        > bytes.len();
    same || masked
        || stars && !bytes.iter().any(u8::is_ascii_digit)
        || bytes.ends_with(b"***")
        || is_listed(WHOLE, &bytes.to_ascii_lowercase())
        || PARTS.split(' ').any(|part| {
            let mut windows = bytes.windows(part.len());
            windows.any(|window| window.eq_ignore_ascii_case(part.as_bytes()))
        })
}

/// Whether a value is an expression instead of a literal.
pub(super) fn is_code(bytes: &[u8], quoted: bool) -> bool {
    let begins = bytes.first().copied().unwrap_or(0);
    let variable = matches!(begins, b'$' | b'%' | b'{' | b'<' | b'(' | b'&') && !quoted
        || begins == b'$'
            && bytes
                .get(1)
                .is_some_and(|b| b.is_ascii_uppercase() || matches!(b, b'{' | b'('));
    if quoted {
        let address = bytes.starts_with(b"http")
            || bytes.starts_with(b"arn:")
            || bytes.starts_with(b"vault:");
        let path = matches!(begins, b'/' | b'.')
            && bytes.split(|b| *b == b'/').count() > 2
            && !bytes.contains(&b'=');
        return variable
            || address
            || path
                && bytes
                    .iter()
                    .all(|b| b.is_ascii_lowercase() || matches!(b, b'/' | b'.' | b'_' | b'-'));
    }
    let call = bytes.contains(&b'(') || bytes.contains(&b'[') && bytes.contains(&b']');
    let member = bytes.split(|b| *b == b'.').count() > 1
        && bytes.split(|b| *b == b'.').all(|part| {
            part.first()
                .is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_')
                && part.iter().all(|b| b.is_ascii_alphabetic() || *b == b'_')
        });
    let identifier = bytes.iter().all(|b| b.is_ascii_alphabetic() || *b == b'_');
    variable
        || call
        || member
        || identifier
        || matches!(begins, b'/' | b'[')
        || bytes.starts_with(b"http")
        || is_typed(bytes)
}

/// Whether `word` is the name of a type of numbers, which no secret is.
pub(super) fn is_number_type(word: &[u8]) -> bool {
    const TYPES: &str =
        "u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64 int long uint size_t";
    is_listed(TYPES, word)
}

/// Whether a value is a path, a name or a number as only programs write them: `core::PCWSTR`,
/// `node.dot2_token`, `__u32`, `4097u16`, `{name!r}`.
fn is_typed(bytes: &[u8]) -> bool {
    let in_name = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    let digits = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
    let number = digits > 0 && is_number_type(&bytes[digits..]);
    let path = bytes.windows(2).any(|two| two == b"::")
        && bytes
            .iter()
            .all(|b| in_name(b) || matches!(b, b':' | b'<' | b'>'));
    let member = bytes.contains(&b'.')
        && bytes.contains(&b'_')
        && bytes.split(|b| *b == b'.').all(|part| {
            part.first()
                .is_some_and(|b| b.is_ascii_lowercase() || *b == b'_')
                && part.iter().all(|b| in_name(b) && !b.is_ascii_uppercase())
        });
    let private =
        bytes.starts_with(b"_") && bytes.iter().all(|b| in_name(b) && !b.is_ascii_uppercase());
    let formatted = bytes.windows(2).any(|two| two == b"={");
    number || path || member || private || formatted || is_version(bytes)
}

/// Whether a value is the version of a package: `1:4.13+dfsg1-1`, beside the name `passwd`.
fn is_version(bytes: &[u8]) -> bool {
    let in_version = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b".:+~-".contains(b);
    let pointed = bytes
        .windows(3)
        .any(|three| three[0].is_ascii_digit() && three[1] == b'.' && three[2].is_ascii_digit());
    bytes[0].is_ascii_digit() && pointed && bytes.iter().all(in_version)
}
