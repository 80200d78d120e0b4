//! One pass over a text: what its characters make worth a closer look, gets one.
//!
//! The pass goes from word to word. A word's first characters, an `@`, a `:`, an `=` or a digit
//! lead to the detectors; each looks at a bounded stretch, so the cost is linear in the text. What few
//! words lead to is never inlined: it would take the registers of the loop over all of them.

use std::{ops::Range, sync::LazyLock};

use crate::scan::{
    class::{Class, Classes},
    context::Text,
    detect::{
        card, credential, date,
        detectors::Detectors,
        digits::{BARE_DIGITS_MIN, CARD_DIGITS},
        iban, national, network_addresses, number,
        secret_formats::{self, TOKEN_BYTES_MIN},
        tokens::TokenSearch,
    },
    finding::{FoundValue, WantedClasses},
    lexicon::{self, EntryShapes},
};

/// What names and sentences give away.
const SECRETS: Classes = Classes::of(&[Class::ApiKey, Class::Credential]);
/// What prefixes and forms give away.
const TOKENS: Classes = Classes::of(&[Class::ApiKey, Class::Jwt, Class::PrivateKey]);
/// What has digits.
const NUMBERS: Classes = Classes::of(&[
    Class::CreditCard,
    Class::DateOfBirth,
    Class::Iban,
    Class::IpAddress,
    Class::NationalId,
    Class::Passport,
    Class::Phone,
    Class::UsSsn,
]);

const OTHER: u8 = 0;
const LETTER: u8 = 1;
const DIGIT: u8 = 2;
/// Characters that lead somewhere by themselves.
const SIGN: u8 = 4;

static CHAR_KINDS: [u8; 256] = {
    let mut kinds = [OTHER; 256];
    let mut at = 0;
    while at < 128 {
        #[expect(clippy::cast_possible_truncation, reason = "it stays below 128")]
        let byte = at as u8;
        kinds[at] = match byte {
            b'a'..=b'z' | b'A'..=b'Z' => LETTER,
            b'0'..=b'9' => DIGIT,
            b'@' | b':' | b'=' | b'-' | b'>' => SIGN,
            _ => OTHER,
        };
        at += 1;
    }
    // `è` and `é` begin with it: a verb in some languages.
    kinds[0xC3] = SIGN;
    kinds
};

/// Everything that [`SearchPass::search_verb`] knows, whatever its case.
static TELLING_WORDS: LazyLock<EntryShapes> =
    LazyLock::new(|| lexicon::telling_words("by p e bearer basic values contrase contrasen has"));

/// Looks for everything `wanted` in `text`; what is found may overlap.
pub(in crate::scan) fn search(
    text: &Text<'_>,
    wanted: WantedClasses,
    detectors: &Detectors,
    out: &mut Vec<FoundValue>,
) {
    let classes = wanted.classes;
    let secrets = classes.intersects(SECRETS);
    if secrets {
        let first = out.len();
        out.extend(credential::keyed_secret(text));
        credential::column_secrets(text, out);
        let found = out.split_off(first);
        out.extend(
            found
                .into_iter()
                .filter_map(|found| as_wanted_class(classes, found)),
        );
    }
    let mut pass = SearchPass {
        text,
        wanted,
        secrets,
        telling_words: &TELLING_WORDS,
        tokens: classes
            .intersects(TOKENS)
            .then(|| TokenSearch::new(text, detectors)),
        numbers: classes.intersects(NUMBERS),
        email_end: 0,
        ipv6_end: 0,
        out,
    };
    pass.run();
}

/// Whether `text` is too short for a token and has letters only, so that it holds at most what the
/// key above it names: everything else has digits, signs or several words.
pub(in crate::scan) fn is_short_word(text: &[u8]) -> bool {
    text.len() < TOKEN_BYTES_MIN && text.iter().all(u8::is_ascii_alphabetic)
}

/// The secret `found` under a class that is looked for: a vendor's key is a credential where keys
/// are not.
fn as_wanted_class(classes: Classes, found: FoundValue) -> Option<FoundValue> {
    let class = if classes.contains(found.class) {
        found.class
    } else {
        Class::Credential
    };
    classes
        .contains(class)
        .then_some(FoundValue { class, ..found })
}

struct SearchPass<'a, 'o> {
    text: &'a Text<'a>,
    wanted: WantedClasses,
    secrets: bool,
    telling_words: &'static EntryShapes,
    tokens: Option<TokenSearch<'a>>,
    numbers: bool,
    /// Where the last e-mail address ends: the next one begins after it.
    email_end: usize,
    /// The same for what was tried as an IPv6 address.
    ipv6_end: usize,
    out: &'o mut Vec<FoundValue>,
}

impl SearchPass<'_, '_> {
    fn run(&mut self) {
        let bytes = self.text.bytes();
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            at = match CHAR_KINDS[usize::from(*byte)] {
                OTHER => at + 1,
                SIGN => self.search_sign(at, *byte),
                _ => self.search_word(at),
            };
        }
    }

    /// What a sign at `at` leads to; returns where to go on.
    #[inline(never)]
    fn search_sign(&mut self, at: usize, byte: u8) -> usize {
        let classes = self.wanted.classes;
        match byte {
            b'@' => self.search_email(at),
            b'=' if self.secrets => self.push_secret(credential::assigned_secret(self.text, at)),
            b'>' if self.secrets
                && self.text.byte_before(at).is_ascii_alphanumeric()
                && !matches!(self.text.byte(at + 1), b'<' | b' ' | b'\n' | b'=') =>
            {
                self.push_secret(credential::element_secret(self.text, at));
            }
            0xC3 if self.secrets
                && matches!(self.text.byte(at + 1), 0xA8 | 0xA9)
                && self.text.byte_before(at) == b' '
                && self.text.byte(at + 2) == b' ' =>
            {
                self.push_secret(credential::prose::secret_after_verb(
                    self.text,
                    &(at..at + 2),
                ));
            }
            b':' => self.search_colon(at),
            b'-' if classes.contains(Class::PrivateKey)
                && self.text.bytes()[at..].starts_with(b"-----BEGIN ") =>
            {
                if let Some(found) = secret_formats::find_private_key(self.text, at) {
                    let end = found.span.end;
                    self.out.push(found);
                    return end;
                }
            }
            _ => {}
        }
        at + 1
    }

    fn search_email(&mut self, at: usize) {
        if !self.wanted.classes.contains(Class::Email) {
            return;
        }
        if let Some(found) = network_addresses::find_email(self.text, at, self.email_end) {
            self.email_end = found.span.end;
            self.out.push(found);
        }
    }

    fn search_colon(&mut self, at: usize) {
        let classes = self.wanted.classes;
        if self.secrets {
            if self.text.bytes()[at..].starts_with(b"://") {
                let password = network_addresses::userinfo_password(self.text, at + 3);
                self.push_secret(
                    password.map(|span| FoundValue::by_value(Class::Credential, span)),
                );
            } else {
                self.push_secret(credential::assigned_secret(self.text, at));
            }
        }
        let hex_or_colon = |b: u8| b.is_ascii_hexdigit() || b == b':';
        if classes.contains(Class::IpAddress)
            && at >= self.ipv6_end
            && hex_or_colon(self.text.byte(at + 1))
            && (at == 0
                || !self.text.byte_before(at).is_ascii_alphanumeric()
                || hex_or_colon(self.text.byte_before(at)))
            && let Some(found) = network_addresses::find_ipv6(self.text, at, self.ipv6_end)
        {
            self.ipv6_end = found.span.end;
            self.out.push(found);
        }
    }

    /// What the word that begins at `start` leads to; returns where to go on.
    fn search_word(&mut self, start: usize) -> usize {
        let rest = &self.text.bytes()[start..];
        let (mut length, mut kinds, mut next) = (0, OTHER, 0);
        for byte in rest {
            let kind = CHAR_KINDS[usize::from(*byte)];
            if kind & (LETTER | DIGIT) == 0 {
                next = *byte;
                break;
            }
            kinds |= kind;
            length += 1;
        }
        let end = start + length;
        let word = start..end;
        if let Some(tokens) = &mut self.tokens
            && tokens.may_start(rest, length, next, kinds & DIGIT != 0)
            && let Some(found) = tokens.find_at(&word, kinds & LETTER != 0, kinds & DIGIT != 0)
            && self.wanted.classes.contains(found.class)
        {
            return self.push(found).max(end);
        }
        match kinds {
            DIGIT => self.search_digits(&word),
            LETTER => self.search_letters(&word),
            _ => self.search_mixed(&word),
        }
    }

    #[inline(never)]
    fn search_digits(&mut self, word: &Range<usize>) -> usize {
        if self.wanted.classes.contains(Class::DateOfBirth)
            && word.len() <= 2
            && let Some(found) = date::textual_birth_date(self.text, word.clone(), self.wanted)
        {
            return self.push(found);
        }
        if matches!(self.text.byte(word.start), b'1' | b'2')
            && word.len() == 1
            && self.text.byte(word.end) == b' '
            && let Some(found) = national::spaced_id(self.text, word.start, self.wanted)
        {
            return self.push(found);
        }
        // Nothing parts two groups of digits before a letter: a short one alone is no number.
        let alone = self.text.byte(word.end + 1).is_ascii_alphabetic();
        if alone && word.len() < usize::from(BARE_DIGITS_MIN) {
            return word.end;
        }
        // `1EG4`, `12 345 678-Z` and the like begin with digits but go on with letters.
        if self.numbers {
            return number::find_number(self.text, word.start, self.wanted, self.out).max(word.end);
        }
        word.end
    }

    fn search_letters(&mut self, word: &Range<usize>) -> usize {
        let bytes = &self.text.bytes()[word.clone()];
        match bytes.len() {
            1..=3
                if bytes[0].is_ascii_uppercase()
                    && bytes.iter().all(u8::is_ascii_uppercase)
                    && self.numbers =>
            {
                let next = self.text.byte(word.end);
                let later = self.text.byte(word.end + 1);
                if matches!(next, b' ' | b'-')
                    && later.is_ascii_digit()
                    && let Some(found) = national::alphanumeric_id(self.text, word, self.wanted)
                {
                    return self.push(found);
                }
                // `MRT LCU 18S02 L796G`
                if bytes.len() == 3
                    && next == b' '
                    && later.is_ascii_uppercase()
                    && let Some(found) = national::spaced_id(self.text, word.start, self.wanted)
                {
                    return self.push(found);
                }
            }
            _ => {}
        }
        if self.secrets && self.telling_words.may_contain(bytes) {
            self.search_verb(word);
        }
        word.end
    }

    /// What a word says of the value after it. The search goes on in what is told to be a secret:
    /// it may be one by its form.
    #[inline(never)]
    fn search_verb(&mut self, word: &Range<usize>) {
        let bytes = &self.text.bytes()[word.clone()];
        let next = self.text.byte(word.end);
        if bytes == b"p"
            && self.text.byte_before(word.start) == b'-'
            && matches!(next, b'\'' | b'"')
        {
            self.push_secret(credential::glued_password(self.text, word));
            return;
        }
        if next >= 0x80 {
            self.search_accented(word);
            return;
        }
        if !matches!(next, b' ' | b']' | b'\'' | b'"' | b'(') {
            return;
        }
        let spaced = next == b' ';
        let found = match bytes {
            _ if spaced && lexicon::is_disclosure_verb(bytes) => {
                credential::prose::secret_after_verb(self.text, word)
            }
            b"Bearer" | b"bearer" | b"Basic" if spaced => {
                credential::authorization_secret(self.text, word)
            }
            b"VALUES" | b"values" | b"Values" => {
                let first = self.out.len();
                credential::inserted_secrets(self.text, word, self.out);
                for found in self.out.split_off(first) {
                    self.push_secret(Some(found));
                }
                None
            }
            _ if self.names_password(word) => self.password_near(word),
            _ => None,
        };
        self.push_secret(found);
    }

    /// Whether `word` is a name of a password: by itself, or as in `IDENTIFIED BY 'x'`.
    fn names_password(&self, word: &Range<usize>) -> bool {
        let bytes = &self.text.bytes()[word.clone()];
        if bytes.eq_ignore_ascii_case(b"by") {
            let before = word.start.saturating_sub("identified ".len())..word.start;
            return self.text.bytes()[before].eq_ignore_ascii_case(b"identified ");
        }
        lexicon::is_password_word(bytes)
    }

    /// The same of `contrase\u{f1}a` and `has\u{142}o`, of which `word` is the part before the accent, and of
    /// `\u{e8}` and `\u{e9}` as two characters.
    fn search_accented(&mut self, word: &Range<usize>) {
        let bytes = &self.text.bytes()[word.clone()];
        let names = [
            (&b"contrase"[..], "\u{f1}a "),
            (b"contrasen", "\u{303}a "),
            (b"has", "\u{142}o "),
        ];
        let rest = &self.text.text[word.end..];
        if bytes == b"e" && (rest.starts_with("\u{300} ") || rest.starts_with("\u{301} ")) {
            let verb = word.start..word.end + '\u{300}'.len_utf8();
            self.push_secret(credential::prose::secret_after_verb(self.text, &verb));
            return;
        }
        let named = names
            .into_iter()
            .find(|(start, end)| bytes.eq_ignore_ascii_case(start) && rest.starts_with(end));
        if let Some((_, end)) = named {
            let whole = word.start..word.end + end.len() - 1;
            let found = self.password_near(&whole);
            self.push_secret(found);
        }
    }

    /// The password that the word `password` in a sentence speaks of.
    fn password_near(&self, word: &Range<usize>) -> Option<FoundValue> {
        credential::prose::secret_after_password(self.text, word)
            .or_else(|| credential::prose::secret_near_password(self.text, word))
    }

    fn push_secret(&mut self, found: Option<FoundValue>) {
        let classes = self.wanted.classes;
        self.out
            .extend(found.and_then(|found| as_wanted_class(classes, found)));
    }

    #[inline(never)]
    fn search_mixed(&mut self, word: &Range<usize>) -> usize {
        if self.wanted.classes.contains(Class::Iban)
            && word.len() >= 4
            && let Some(found) = iban::find_iban(self.text, word)
        {
            return self.push(found);
        }
        if self.wanted.classes.contains(Class::CreditCard)
            && word.len() > *CARD_DIGITS.start()
            && let Some(found) = card::magnetic_track_in_word(self.text, word)
        {
            return self.push(found);
        }
        if self.numbers {
            if word.len() >= 7
                && matches!(self.text.byte(word.start), b'1' | b'2')
                && self.text.byte(word.start + 6).is_ascii_uppercase()
                && let Some(found) = national::spaced_id(self.text, word.start, self.wanted)
            {
                return self.push(found);
            }
            if let Some(found) = national::alphanumeric_id(self.text, word, self.wanted) {
                return self.push(found);
            }
            // `0xx11 3168-3711`: in Brazil the code of a carrier is left to the caller.
            if word.len() == 5
                && self.text.bytes()[word.clone()].starts_with(b"0xx")
                && self.text.byte(word.end) == b' '
                && self.text.byte(word.end + 1).is_ascii_digit()
            {
                let first = self.out.len();
                let end = number::find_number(self.text, word.start + 3, self.wanted, self.out);
                for found in &mut self.out[first..] {
                    found.span.start = word.start;
                }
                return end.max(word.end);
            }
            if let Some(found) = self.date_with_ordinal(word) {
                return self.push(found);
            }
            if let Some(end) = self.search_named_number(word) {
                return end;
            }
            return self.search_glued_date(word);
        }
        word.end
    }

    /// A number with its name in one word, `Visa4111...`; returns where to go on after it.
    fn search_named_number(&mut self, word: &Range<usize>) -> Option<usize> {
        const DIGITS_MIN: usize = 3;
        const DIGITS_ALONE_MIN: usize = 9;
        const NAMED: Classes = Classes::of(&[Class::CreditCard, Class::UsSsn]);
        let bytes = &self.text.bytes()[word.clone()];
        let name = bytes.iter().take_while(|b| b.is_ascii_alphabetic()).count();
        let digits = &bytes[name..];
        let goes_on = || {
            matches!(self.text.byte(word.end), b' ' | b'-' | b'.')
                && self.text.byte(word.end + 1).is_ascii_digit()
        };
        let may_be = name > 1
            && digits.len() >= DIGITS_MIN
            && digits.iter().all(u8::is_ascii_digit)
            && self.wanted.classes.intersects(NAMED)
            && (digits.len() >= DIGITS_ALONE_MIN || goes_on());
        if !may_be {
            return None;
        }
        let first = self.out.len();
        let end = number::find_number(self.text, word.start + name, self.wanted, self.out);
        (self.out.len() > first).then_some(end)
    }

    /// A date whose day is written as `5th`.
    fn date_with_ordinal(&self, word: &Range<usize>) -> Option<FoundValue> {
        const ORDINAL_BYTES_MAX: usize = 4;
        let bytes = &self.text.bytes()[word.clone()];
        let digits = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
        let ordinal = bytes.len() <= ORDINAL_BYTES_MAX && matches!(digits, 1 | 2);
        ordinal.then(|| {
            date::textual_birth_date(self.text, word.start..word.start + digits, self.wanted)
        })?
    }

    /// A date of which the time is part, `19900131T000000Z`; returns where to go on.
    fn search_glued_date(&mut self, word: &Range<usize>) -> usize {
        const BASIC_DATE: usize = 8;
        if word.len() > BASIC_DATE
            && self.text.byte(word.start + BASIC_DATE) == b'T'
            && self.text.byte(word.start).is_ascii_digit()
        {
            return number::find_number(self.text, word.start, self.wanted, self.out).max(word.end);
        }
        word.end
    }

    fn push(&mut self, found: FoundValue) -> usize {
        let end = found.span.end;
        self.out.push(found);
        end
    }
}
