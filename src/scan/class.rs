//! The built-in classes and country packs, by the names that configs use.

use crate::config::DetectorClass;

/// A built-in class of data, in alphabetical order of its name.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Class {
    ApiKey,
    Credential,
    CreditCard,
    DateOfBirth,
    Email,
    Iban,
    IpAddress,
    Jwt,
    NationalId,
    Passport,
    Phone,
    PrivateKey,
    UsSsn,
}

impl Class {
    pub(super) const ALL: [Self; 13] = [
        Self::ApiKey,
        Self::Credential,
        Self::CreditCard,
        Self::DateOfBirth,
        Self::Email,
        Self::Iban,
        Self::IpAddress,
        Self::Jwt,
        Self::NationalId,
        Self::Passport,
        Self::Phone,
        Self::PrivateKey,
        Self::UsSsn,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ApiKey => "api_key",
            Self::Credential => "credential",
            Self::CreditCard => "credit_card",
            Self::DateOfBirth => "date_of_birth",
            Self::Email => "email",
            Self::Iban => "iban",
            Self::IpAddress => "ip_address",
            Self::Jwt => "jwt",
            Self::NationalId => "national_id",
            Self::Passport => "passport",
            Self::Phone => "phone",
            Self::PrivateKey => "private_key",
            Self::UsSsn => "us_ssn",
        }
    }

    pub(super) const fn index(self) -> usize {
        self as usize
    }

    /// What the detectors of `class` find.
    pub(super) const fn from_detector(class: DetectorClass) -> Self {
        match class {
            DetectorClass::ApiKey => Self::ApiKey,
            DetectorClass::Credential => Self::Credential,
            DetectorClass::PrivateKey => Self::PrivateKey,
        }
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// A set of built-in classes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Classes(u32);

impl Classes {
    pub(super) const ALL: Self = Self::of(&Class::ALL);
    pub(super) const NONE: Self = Self(0);

    /// Those that are in both.
    #[must_use]
    pub(super) const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those that are in either.
    #[must_use]
    pub(super) const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn contains(self, class: Class) -> bool {
        self.0 & class.bit() != 0
    }

    pub(super) const fn of(classes: &[Class]) -> Self {
        let (mut all, mut at) = (Self(0), 0);
        while at < classes.len() {
            all = all.with(classes[at]);
            at += 1;
        }
        all
    }

    pub(super) const fn intersects(self, classes: Self) -> bool {
        self.0 & classes.0 != 0
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) const fn with(self, class: Class) -> Self {
        Self(self.0 | class.bit())
    }
}

/// A country that has a pack of national numbers, in alphabetical order of its ISO 3166 code.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Country {
    Au,
    Br,
    Ca,
    Ch,
    Cl,
    Cn,
    Cz,
    De,
    Dk,
    Es,
    Fi,
    Fr,
    Gb,
    In,
    Is,
    It,
    Jp,
    Kr,
    Mx,
    Nl,
    No,
    Pl,
    Se,
    Sk,
    Us,
}

impl Country {
    pub(super) const ALL: [Self; 25] = [
        Self::Au,
        Self::Br,
        Self::Ca,
        Self::Ch,
        Self::Cl,
        Self::Cn,
        Self::Cz,
        Self::De,
        Self::Dk,
        Self::Es,
        Self::Fi,
        Self::Fr,
        Self::Gb,
        Self::In,
        Self::Is,
        Self::It,
        Self::Jp,
        Self::Kr,
        Self::Mx,
        Self::Nl,
        Self::No,
        Self::Pl,
        Self::Se,
        Self::Sk,
        Self::Us,
    ];

    pub(super) const fn code(self) -> &'static str {
        match self {
            Self::Au => "au",
            Self::Br => "br",
            Self::Ca => "ca",
            Self::Ch => "ch",
            Self::Cl => "cl",
            Self::Cn => "cn",
            Self::Cz => "cz",
            Self::De => "de",
            Self::Dk => "dk",
            Self::Es => "es",
            Self::Fi => "fi",
            Self::Fr => "fr",
            Self::Gb => "gb",
            Self::In => "in",
            Self::Is => "is",
            Self::It => "it",
            Self::Jp => "jp",
            Self::Kr => "kr",
            Self::Mx => "mx",
            Self::Nl => "nl",
            Self::No => "no",
            Self::Pl => "pl",
            Self::Se => "se",
            Self::Sk => "sk",
            Self::Us => "us",
        }
    }
}

/// A set of countries.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Countries(u32);

impl Countries {
    pub(super) fn all() -> Self {
        Country::ALL.into_iter().fold(Self(0), Self::with)
    }

    pub(super) const fn contains(self, country: Country) -> bool {
        self.0 & (1 << country as u16) != 0
    }

    #[must_use]
    pub(super) const fn with(self, country: Country) -> Self {
        Self(self.0 | (1 << country as u16))
    }
}
