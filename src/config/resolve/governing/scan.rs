//! What is looked for in data: every name stands for a class, every pattern compiles.

use indexmap::IndexMap;

use crate::config::{
    Scan, ScanAction,
    diagnostics::{report::Diagnostic, suggest},
    file,
    node::ValuePath,
    resolve::{Resolver, quote},
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
const REST: &str = "*";

/// The longest name of a class of one's own, characters.
const NAME_CHARS_MAX: usize = 64;

impl Resolver<'_> {
    pub(in crate::config::resolve) fn scan(
        &mut self,
        scan: file::ScanSection,
        at: &ValuePath<'_>,
    ) -> Scan {
        self.own_classes(&scan, at);
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
            self.classes(actions, &own, &at.key(part));
        }
        self.countries(&scan.countries, &at.key("countries"));
        self.not_empty(&scan.allow, &at.key("allow"));
        self.mime_types(&scan.base64, &at.key("base64"));
        Scan {
            arguments: scan.arguments,
            results: scan.results,
            resources: scan.resources,
            prompts: scan.prompts,
            notifications: scan.notifications,
            mask: scan.mask,
            countries: scan.countries,
            custom: scan.custom,
            dictionaries: scan.dictionaries,
            detectors: scan.detectors,
            allow: scan.allow,
            base64: scan.base64,
        }
    }

    fn classes(
        &mut self,
        actions: &IndexMap<String, ScanAction>,
        own: &[&str],
        at: &ValuePath<'_>,
    ) {
        let known = || CLASSES.into_iter().chain(own.iter().copied());
        for name in actions.keys() {
            if name == REST || known().any(|class| class == name) {
                continue;
            }
            let label = match suggest::closest(name, known()) {
                Some(close) => format!("did you mean `{close}`?"),
                None => "no such class".to_owned(),
            };
            self.findings.add(
                Diagnostic::mistake(format!("`{name}` is not a class of data"))
                    .at(at.key(name).key_span(), label)
                    .help(format!(
                        "the classes are {}, names under `custom` and `dictionaries`, and \"*\" \
                         for all others",
                        suggest::joined(&CLASSES.map(str::to_owned), "and")
                    )),
            );
        }
    }

    fn own_classes(&mut self, scan: &file::ScanSection, at: &ValuePath<'_>) {
        let (custom, dictionaries) = (at.key("custom"), at.key("dictionaries"));
        for (name, pattern) in &scan.custom {
            let at = custom.key(name);
            self.own_name(name, &at);
            if self
                .regex(pattern, &at)
                .is_some_and(|regex| regex.is_match(""))
            {
                self.findings.add(
                    Diagnostic::mistake(format!("{} matches everywhere", quote(pattern, &at)))
                        .at(at.span(), "it matches the empty text"),
                );
            }
        }
        for (name, words) in &scan.dictionaries {
            let at = dictionaries.key(name);
            self.own_name(name, &at);
            if scan.custom.contains_key(name) {
                self.findings.add(
                    Diagnostic::mistake(format!("two classes are called `{name}`"))
                        .at(at.key_span(), "this one")
                        .at(custom.key(name).key_span(), "and this one"),
                );
            }
            if words.is_empty() {
                self.findings.add(
                    Diagnostic::mistake(format!("`{}` is empty", at.path()))
                        .at(at.span(), "a dictionary has words"),
                );
            }
            self.not_empty(words, &at);
        }
    }

    fn own_name(&mut self, name: &str, at: &ValuePath<'_>) {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let label = if CLASSES.contains(&name) {
            "a class of this name exists already"
        } else if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(legal) {
            "names have 1 to 64 letters, digits, `_` and `-`"
        } else {
            return;
        };
        let finding = Diagnostic::mistake(format!("`{name}` cannot be a class of your own"));
        self.findings.add(finding.at(at.key_span(), label));
    }

    fn countries(&mut self, countries: &[String], at: &ValuePath<'_>) {
        for (index, country) in countries.iter().enumerate() {
            let is_code = country.len() == 2 && country.bytes().all(|b| b.is_ascii_lowercase());
            let item = at.item(index);
            if is_code && !COUNTRIES.contains(&country.as_str()) {
                self.findings.add(
                    Diagnostic::mistake(format!("nothing is known of {}", quote(country, &item)))
                        .at(item.span(), "no national numbers of this country")
                        .help(format!(
                            "the countries are {}",
                            suggest::joined(&COUNTRIES.map(str::to_owned), "and")
                        )),
                );
            }
            if is_code {
                continue;
            }
            let lower = country.trim().to_lowercase();
            let is_close = lower.len() == 2 && item.is_quotable();
            let help = if is_close {
                format!("write \"{lower}\"")
            } else {
                "write for example \"us\"".to_owned()
            };
            self.findings.add(
                Diagnostic::mistake(format!("{} is not a country", quote(country, &item)))
                    .at(item.span(), "two letters of ISO 3166, in lower case")
                    .help(help),
            );
        }
    }

    /// Reports texts that would match nowhere, or everywhere.
    fn not_empty(&mut self, texts: &[String], at: &ValuePath<'_>) {
        for (index, text) in texts.iter().enumerate() {
            if text.trim().is_empty() {
                let item = at.item(index);
                self.findings.add(
                    Diagnostic::mistake(format!("`{}` is empty", item.path()))
                        .at(item.span(), "write a text, or leave it out"),
                );
            }
        }
    }

    fn mime_types(&mut self, types: &[String], at: &ValuePath<'_>) {
        for (index, mime) in types.iter().enumerate() {
            if mime.split('/').count() != 2 || mime.split('/').any(str::is_empty) {
                let item = at.item(index);
                self.findings.add(
                    Diagnostic::mistake(format!("{} is not a MIME type", quote(mime, &item)))
                        .at(item.span(), "a type, `/` and a subtype are needed")
                        .help("write for example \"text/*\" or \"application/json\""),
                );
            }
        }
        self.globs(types, at);
    }
}
