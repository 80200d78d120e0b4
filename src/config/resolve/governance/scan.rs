//! What is looked for in data: every name stands for a class, every pattern compiles.

use indexmap::IndexMap;

use crate::config::{
    Scan, ScanAction,
    diagnostics::{report::Diagnostic, suggest},
    node::ValuePath,
    resolve::{Resolver, quoted_or_hidden},
};

/// The classes that are known without `custom` and `dictionaries`.
const CLASSES: [&str; 13] = [
    "api_key",
    "credential",
    "credit_card",
    "date_of_birth",
    "email",
    "iban",
    "ip_address",
    "jwt",
    "national_id",
    "passport",
    "phone",
    "private_key",
    "us_ssn",
];

/// The countries whose national numbers are known; `tests/pii.rs` holds both lists to the scanner's.
const COUNTRIES: [&str; 25] = [
    "au", "br", "ca", "ch", "cl", "cn", "cz", "de", "dk", "es", "fi", "fr", "gb", "in", "is", "it",
    "jp", "kr", "mx", "nl", "no", "pl", "se", "sk", "us",
];

/// Stands for all classes that are not named.
const ALL_CLASSES: &str = "*";

/// The longest name of a class of one's own, characters.
const NAME_CHARS_MAX: usize = 64;

impl Resolver<'_> {
    pub(in crate::config::resolve) fn check_scan(&mut self, scan: &Scan, at: &ValuePath<'_>) {
        self.check_custom_classes(scan, at);
        let own: Vec<&str> = scan
            .custom
            .keys()
            .chain(scan.dictionaries.keys())
            .map(String::as_str)
            .collect();
        for (part, actions) in [
            ("arguments", &scan.arguments),
            ("results", &scan.results),
            ("resources", &scan.resources),
            ("prompts", &scan.prompts),
            ("notifications", &scan.notifications),
        ] {
            self.check_classes(actions, &own, &at.child(part));
        }
        self.check_countries(&scan.countries, &at.child("countries"));
        self.check_not_empty(&scan.allow, &at.child("allow"));
        self.check_mime_types(&scan.base64, &at.child("base64"));
    }

    fn check_classes(
        &mut self,
        actions: &IndexMap<String, ScanAction>,
        own: &[&str],
        at: &ValuePath<'_>,
    ) {
        let known = || CLASSES.into_iter().chain(own.iter().copied());
        for name in actions.keys() {
            if name == ALL_CLASSES || known().any(|class| class == name) {
                continue;
            }
            let label = match suggest::closest(name, known()) {
                Some(close) => format!("did you mean `{close}`?"),
                None => "no such class".to_owned(),
            };
            self.findings.add(
                Diagnostic::error(format!("unknown class `{name}`"))
                    .at(at.child(name).key_span(), label)
                    .help(format!(
                        "the classes are {}, names under `custom` and `dictionaries`, and \"*\" \
                         for all others",
                        suggest::join_words(&CLASSES.map(str::to_owned), "and")
                    )),
            );
        }
    }

    fn check_custom_classes(&mut self, scan: &Scan, at: &ValuePath<'_>) {
        let (custom, dictionaries) = (at.child("custom"), at.child("dictionaries"));
        for (name, pattern) in &scan.custom {
            let at = custom.child(name);
            self.check_custom_name(name, &at);
            if self
                .compile_regex(pattern, &at)
                .is_some_and(|regex| regex.is_match(""))
            {
                self.findings.add(
                    Diagnostic::error(format!(
                        "{} matches everywhere",
                        quoted_or_hidden(pattern, &at)
                    ))
                    .at(at.span(), "it matches the empty string"),
                );
            }
        }
        for (name, words) in &scan.dictionaries {
            let at = dictionaries.child(name);
            self.check_custom_name(name, &at);
            if scan.custom.contains_key(name) {
                self.findings.add(
                    Diagnostic::error(format!("duplicate class name `{name}`"))
                        .at(at.key_span(), "this one")
                        .at(custom.child(name).key_span(), "and this one"),
                );
            }
            if words.is_empty() {
                self.findings.add(
                    Diagnostic::error(format!("`{}` is empty", at.path()))
                        .at(at.span(), "a dictionary must have words"),
                );
            }
            self.check_not_empty(words, &at);
        }
    }

    fn check_custom_name(&mut self, name: &str, at: &ValuePath<'_>) {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let label = if CLASSES.contains(&name) {
            "a class of this name already exists"
        } else if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(legal) {
            "names consist of 1 to 64 letters, digits, `_` and `-`"
        } else {
            return;
        };
        let diagnostic = Diagnostic::error(format!("`{name}` cannot be used for a custom class"));
        self.findings.add(diagnostic.at(at.key_span(), label));
    }

    fn check_countries(&mut self, countries: &[String], at: &ValuePath<'_>) {
        for (index, country) in countries.iter().enumerate() {
            let is_code = country.len() == 2 && country.bytes().all(|b| b.is_ascii_lowercase());
            let item = at.item_at(index);
            if is_code && !COUNTRIES.contains(&country.as_str()) {
                self.findings.add(
                    Diagnostic::error(format!(
                        "unsupported country \
                        {}",
                        quoted_or_hidden(country, &item)
                    ))
                    .at(
                        item.span(),
                        "no national numbers are known for this country",
                    )
                    .help(format!(
                        "the countries are {}",
                        suggest::join_words(&COUNTRIES.map(str::to_owned), "and")
                    )),
                );
            }
            if is_code {
                continue;
            }
            let lower = country.trim().to_lowercase();
            let is_close = lower.len() == 2 && item.is_quotable();
            let help = if is_close {
                format!("use \"{lower}\"")
            } else {
                "for example \"us\"".to_owned()
            };
            self.findings.add(
                Diagnostic::error(format!(
                    "{} is not a country \
                    code",
                    quoted_or_hidden(country, &item)
                ))
                .at(item.span(), "a lower-case ISO 3166 code of two letters")
                .help(help),
            );
        }
    }

    /// Reports texts that would match nowhere, or everywhere.
    fn check_not_empty(&mut self, texts: &[String], at: &ValuePath<'_>) {
        for (index, text) in texts.iter().enumerate() {
            if text.trim().is_empty() {
                let item = at.item_at(index);
                self.findings.add(
                    Diagnostic::error(format!("`{}` is empty", item.path()))
                        .at(item.span(), "use a text, or remove it"),
                );
            }
        }
    }

    fn check_mime_types(&mut self, types: &[String], at: &ValuePath<'_>) {
        for (index, mime) in types.iter().enumerate() {
            if mime.split('/').count() != 2 || mime.split('/').any(str::is_empty) {
                let item = at.item_at(index);
                self.findings.add(
                    Diagnostic::error(format!(
                        "{} is not a MIME type",
                        quoted_or_hidden(mime, &item)
                    ))
                    .at(item.span(), "expected a type, `/` and a subtype")
                    .help("for example \"text/*\" or \"application/json\""),
                );
            }
        }
    }
}
