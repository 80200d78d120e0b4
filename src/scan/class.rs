//! The built-in classes and country packs, by the names that configs use.

use crate::config::DetectorClass;

/// An enum whose variants have names, in their order.
macro_rules! named {
    ($(#[$doc:meta])* $enum:ident { $($variant:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
        pub(super) enum $enum {
            $($variant,)*
        }

        impl $enum {
            pub(super) const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

named! {
    /// A built-in class of data, in alphabetical order of its name.
    Class {
        ApiKey = "api_key",
        Credential = "credential",
        CreditCard = "credit_card",
        DateOfBirth = "date_of_birth",
        Email = "email",
        Iban = "iban",
        IpAddress = "ip_address",
        Jwt = "jwt",
        NationalId = "national_id",
        Passport = "passport",
        Phone = "phone",
        PrivateKey = "private_key",
        UsSsn = "us_ssn",
    }
}

impl Class {
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

named! {
    /// A country that has a pack of national numbers, by its ISO 3166 code, in alphabetical order.
    Country {
        Au = "au",
        Br = "br",
        Ca = "ca",
        Ch = "ch",
        Cl = "cl",
        Cn = "cn",
        Cz = "cz",
        De = "de",
        Dk = "dk",
        Es = "es",
        Fi = "fi",
        Fr = "fr",
        Gb = "gb",
        In = "in",
        Is = "is",
        It = "it",
        Jp = "jp",
        Kr = "kr",
        Mx = "mx",
        Nl = "nl",
        No = "no",
        Pl = "pl",
        Se = "se",
        Sk = "sk",
        Us = "us",
    }
}

impl Country {
    pub(super) fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|country| country.name() == name)
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
