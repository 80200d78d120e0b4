//! Words that say what a number beside them is, in the languages of the country packs.
//!
//! All entries are in lower case, without accents (`ü` is `u`, `ß` is `ss`), words of a phrase
//! parted by one space: that is how [`super::context`] writes what it looks up.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::LazyLock,
};

use super::class::Country;

/// Shorter words that begin like one of the compounds that name secrets are words of the lists.
const SECRET_COMPOUND_BYTES_MIN: usize = 9;

/// Words of a phrase at most.
pub(super) const PHRASE_WORDS_MAX: usize = 4;

/// What words nearby say.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Hints(u64);

impl Hints {
    pub(super) const NONE: Self = Self(0);
    /// A telephone.
    pub(super) const PHONE: Self = Self(1);
    /// Somebody may be reached; weaker than [`Hints::PHONE`].
    pub(super) const REACH: Self = Self(1 << 1);
    pub(super) const CARD: Self = Self(1 << 2);
    pub(super) const SSN: Self = Self(1 << 3);
    pub(super) const IP: Self = Self(1 << 4);
    /// A version, a section or an object identifier.
    pub(super) const VERSION: Self = Self(1 << 5);
    pub(super) const PASSPORT: Self = Self(1 << 6);
    pub(super) const BIRTH: Self = Self(1 << 7);
    /// Some other number: of an order, a part, a commit, a time.
    pub(super) const OTHER: Self = Self(1 << 8);
    /// An identity document or number of any country.
    pub(super) const IDENTITY: Self = Self(1 << 9);
    /// At the end of a name it says that the value is not what the words before it name: `phone_id`.
    pub(super) const TAIL: Self = Self(1 << 10);
    /// A password.
    pub(super) const PASSWORD: Self = Self(1 << 11);
    /// A key or token that opens something.
    pub(super) const TOKEN: Self = Self(1 << 12);

    /// An identity number of `country`.
    pub(super) const fn of(country: Country) -> Self {
        Self(1 << (16 + country as u64))
    }

    pub(super) const fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    pub(super) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// What `phrase` says, if anything.
pub(super) fn phrase(phrase: &[u8]) -> Hints {
    entry(phrase).hints
}

/// What is known of `phrase`.
pub(super) fn entry(phrase: &[u8]) -> Entry {
    let lexicon = &*LEXICON;
    if !lexicon.shapes.may_be(phrase) {
        return Entry::default();
    }
    lexicon.words.get(phrase).copied().unwrap_or_default()
}

/// Whether `word` says whose a password is, in languages that put that last: `pwd_utente`.
pub(super) fn is_owner(word: &[u8]) -> bool {
    OWNERS.iter().any(|owner| owner.as_bytes() == word)
}

/// Whether a name that ends in the word `last` may be one of a secret: a quick look that spares
/// most names the slow one.
pub(super) fn may_end_secret(last: &str) -> bool {
    let bytes = last.as_bytes();
    let end = bytes
        .iter()
        .rposition(|b| !b.is_ascii_digit() && *b != b'_' && *b != b'-');
    let Some(end) = end.filter(|end| *end > 0) else {
        return bytes.len() <= 1;
    };
    let (a, b) = (bytes[end - 1] | 0x20, bytes[end] | 0x20);
    if !a.is_ascii_lowercase() || !b.is_ascii_lowercase() {
        return true;
    }
    let compound =
        bytes.len() >= SECRET_COMPOUND_BYTES_MIN && matches!(bytes[0] | 0x20, b'k' | b'p' | b'w');
    compound || ENDINGS[usize::from(a - b'a')] & (1 << (b - b'a')) != 0
}

/// The same for a name of several words, however they are joined.
pub(super) fn may_name_secret(name: &str) -> bool {
    let begins_compound = |b: u8| matches!(b | 0x20, b'k' | b'p' | b'w');
    may_end_secret(name)
        || name.len() >= SECRET_COMPOUND_BYTES_MIN && name.bytes().any(begins_compound)
}

/// Whether a word about passports may stand in `text`: each has one of the [`PASSPORT_MARKS`].
pub(super) fn may_name_passport(text: &str) -> bool {
    let is_mark = |three: &[u8]| {
        let mut marks = PASSPORT_MARKS.iter();
        matches!(three[0] | 0x20, b'p' | b'd')
            && marks.any(|mark| three.eq_ignore_ascii_case(mark.as_bytes()))
    };
    #[expect(
        clippy::needless_bitwise_bool,
        reason = "only what never branches is done with many pairs at once"
    )]
    let begins_mark = |(first, second): (&u8, &u8)| {
        let (first, second) = (first | 0x20, second | 0x20);
        (first == b'p') & (second == b'a') | (first == b'd') & (second == b'o')
    };
    let bytes = text.as_bytes();
    let pairs = bytes.iter().zip(bytes.get(1..).unwrap_or_default());
    // Letters with accents may be folded to any. Looking at many pairs at once is quicker than
    // stopping at the first: few texts have one.
    !text.is_ascii()
        || pairs.fold(false, |found, pair| found | begins_mark(pair))
            && bytes.windows(3).any(is_mark)
}

/// Whether a word that names a telephone may stand in `text`, or one with which a phrase begins
/// that does: a quick look at the words as they are written.
pub(super) fn may_name_phone(text: &[u8]) -> bool {
    let lexicon = &*LEXICON;
    let mut rest = text;
    while let Some(first) = rest.first() {
        if !first.is_ascii_alphabetic() {
            // Letters with accents may be folded to any.
            if !first.is_ascii() {
                return true;
            }
            rest = &rest[1..];
            continue;
        }
        let end = rest.iter().position(|byte| !byte.is_ascii_alphabetic());
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        if lexicon.phones.may_be(word) && says(word, Hints::PHONE) || is_joined(word) {
            return true;
        }
        rest = after;
    }
    false
}

/// Whether `word`, in whatever case, or a phrase that it begins says something of `wanted`.
fn says(word: &[u8], wanted: Hints) -> bool {
    let mut folded = [0; Shapes::LENGTH_MAX];
    let Some(folded) = folded.get_mut(..word.len()) else {
        return true;
    };
    folded.copy_from_slice(word);
    folded.make_ascii_lowercase();
    let entry = entry(folded);
    let said = entry.hints.and(entry.begins).and(compound(folded));
    said.any(wanted)
}

/// Whether the letters of `word` may be those of several words: `homePhone`.
fn is_joined(word: &[u8]) -> bool {
    word[1..].iter().any(u8::is_ascii_uppercase) && word.iter().any(u8::is_ascii_lowercase)
}

/// What is part of every entry of the lists about passports.
const PASSPORT_MARKS: [&str; 3] = ["pas", "doc", "dok"];

/// The last two letters of all words that name secrets, or say whose they are.
static ENDINGS: LazyLock<[u32; 26]> = LazyLock::new(|| {
    let mut endings = [0; 26];
    let secrets = Hints::PASSWORD.and(Hints::TOKEN);
    let lists = LISTS.iter().filter(|(hints, _)| hints.any(secrets));
    let words = lists.flat_map(|(_, list)| list.split('|').map(str::trim));
    for word in words.chain(OWNERS) {
        if let [.., a, b] = word.as_bytes() {
            endings[usize::from(a - b'a')] |= 1 << (b - b'a');
        }
    }
    endings
});

const OWNERS: [&str; 32] = [
    "utente",
    "usuario",
    "utilisateur",
    "cliente",
    "acceso",
    "acesso",
    "accesso",
    "admin",
    "temporal",
    "temporaire",
    "provvisoria",
    "temporanea",
    "provisoria",
    "provisoire",
    "wifi",
    "tymczasowe",
    "temporaria",
    "inicial",
    "initial",
    "iniziale",
    "poczatkowe",
    "nueva",
    "nova",
    "nuova",
    "nouveau",
    "nowe",
    "actual",
    "atual",
    "attuale",
    "actuel",
    "email",
    "correo",
];

/// An entry of the lexicon.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    pub(super) hints: Hints,
    /// What the phrases of several words say that begin with this one.
    pub(super) begins: Hints,
}

/// FNV-1a: the keys are ours, and short.
#[derive(Clone, Copy, Debug)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// The length of a key says nothing that its bytes do not.
    fn write_usize(&mut self, _: usize) {}
}

/// What a long word says by how it begins: languages that write compounds as one word.
pub(super) fn compound(word: &[u8]) -> Hints {
    const COMPOUND_BYTES_MIN: usize = 8;
    if word.len() < COMPOUND_BYTES_MIN || !LEXICON.compounds.may_be(&word[..2]) {
        return Hints::NONE;
    }
    let found = COMPOUNDS.iter().find(|(start, _)| {
        let start = start.as_bytes();
        start[0] == word[0] && word.starts_with(start)
    });
    found.map_or(Hints::NONE, |(_, hints)| *hints)
}

struct Lexicon {
    words: HashMap<&'static [u8], Entry, BuildHasherDefault<Fnv>>,
    shapes: Shapes,
    /// Of the first two letters of compounds.
    compounds: Shapes,
    /// Of words that name telephones or begin to.
    phones: Shapes,
}

static LEXICON: LazyLock<Lexicon> = LazyLock::new(|| {
    let mut words: HashMap<&'static [u8], Entry, BuildHasherDefault<Fnv>> = HashMap::default();
    for (hints, list) in LISTS {
        for phrase in list.split('|').map(str::trim) {
            let entry = words.entry(phrase.as_bytes()).or_default();
            entry.hints = entry.hints.and(*hints);
            if let Some((first, _)) = phrase.split_once(' ') {
                let first = words.entry(first.as_bytes()).or_default();
                first.begins = first.begins.and(*hints);
            }
        }
    }
    let none = || Shapes([0; Shapes::BEGINNINGS]);
    let (mut shapes, mut compounds, mut phones) = (none(), none(), none());
    for (word, entry) in &words {
        shapes.add(word);
        let is_phrase = word.contains(&b' ');
        if !is_phrase && entry.hints.and(entry.begins).any(Hints::PHONE) {
            phones.add(word);
        }
    }
    for (start, hints) in COMPOUNDS {
        compounds.add(&start.as_bytes()[..2]);
        if hints.any(Hints::PHONE) {
            phones.add_longer(start.as_bytes());
        }
    }
    Lexicon {
        words,
        shapes,
        compounds,
        phones,
    }
});

/// How entries begin and how long they are: most words are none, which this tells without hashing.
struct Shapes([u32; Self::BEGINNINGS]);

impl Shapes {
    /// Two characters of which five bits each count.
    const BEGINNINGS: usize = 1 << 10;
    /// Longer words than this are taken to be of this length.
    const LENGTH_MAX: usize = 31;

    fn add(&mut self, word: &[u8]) {
        let (beginning, length) = Self::of(word);
        self.0[beginning] |= length;
    }

    /// Adds all words that begin with `start`.
    fn add_longer(&mut self, start: &[u8]) {
        let (beginning, length) = Self::of(start);
        self.0[beginning] |= length.wrapping_neg();
    }

    fn may_be(&self, word: &[u8]) -> bool {
        let (beginning, length) = Self::of(word);
        self.0[beginning] & length != 0
    }

    /// The place of a beginning and the bit of a length.
    fn of(word: &[u8]) -> (usize, u32) {
        let five = |at: usize| usize::from(word.get(at).map_or(0, |byte| byte & 31));
        (
            five(0) << 5 | five(1),
            1 << word.len().min(Self::LENGTH_MAX),
        )
    }
}

const COMPOUNDS: &[(&str, Hints)] = &[
    ("telefon", Hints::PHONE),
    ("telefoon", Hints::PHONE),
    ("mobilfunk", Hints::PHONE),
    ("mobiltelefon", Hints::PHONE),
    ("mobilnummer", Hints::PHONE),
    ("handynummer", Hints::PHONE),
    ("festnetz", Hints::PHONE),
    ("ruckruf", Hints::REACH),
    ("geburt", Hints::BIRTH),
    ("geboorte", Hints::BIRTH),
    ("reisepass", Hints::PASSPORT),
    ("paspoort", Hints::PASSPORT),
    ("paszport", Hints::PASSPORT),
    ("kreditkart", Hints::CARD),
    ("creditcard", Hints::CARD),
    ("personalausweis", Hints::of(Country::De)),
    ("steuerid", Hints::of(Country::De)),
    ("steuernummer", Hints::of(Country::De)),
    ("identifikationsnummer", Hints::of(Country::De)),
    ("rentenversicherung", Hints::of(Country::De)),
    (
        "sozialversicherung",
        Hints::of(Country::De).and(Hints::of(Country::Ch)),
    ),
    (
        "versichertennummer",
        Hints::of(Country::De).and(Hints::of(Country::Ch)),
    ),
    ("burgerservice", Hints::of(Country::Nl)),
    ("rekeningnummer", Hints::OTHER),
    ("bestell", Hints::OTHER),
    ("rechnung", Hints::OTHER),
    ("auftrag", Hints::OTHER),
    ("artikel", Hints::OTHER),
    ("kundennummer", Hints::OTHER),
    ("sendung", Hints::OTHER),
    ("vorgang", Hints::OTHER),
    ("factuur", Hints::OTHER),
    ("zamowien", Hints::OTHER),
    ("passwor", Hints::PASSWORD),
    ("kennwort", Hints::PASSWORD),
    ("wachtwoord", Hints::PASSWORD),
];

const LISTS: &[(Hints, &str)] = &[
    (
        Hints::PHONE,
        "phone|phones|telephone|tel|telno|phonenumber|phonenumbers|phoneno|mobile|mobil|mob|cell|cellphone|fax|telefax|\
         landline|msisdn|hotline|helpline|voicemail|whatsapp|whats app|sms|callback|caller|callerid|homephone|workphone|\
         mobilephone|mobileno|mobilenumber|tollfree|toll free|phone number|contact number|contact no|\
         daytime number|evening number|emergency contact|emergency number|ph|dial in|\
         telefon|telefonnummer|telefonnr|handy|handynr|rufnummer|mobilnr|durchwahl|festnetz|fon|natel|\
         telephone portable|portable|fixe|numero de portable|gsm|ligne directe|\
         telefono|telefonos|movil|celular|telf|tlf|tfno|numero movil|\
         cellulare|recapito telefonico|fisso|utenza|\
         telefoon|telefoonnummer|mobiel|mobiele|nummer mobiel|\
         komorka|kom|komorkowy|komorkowego|komorkowe|telefonu|tel kom|nr tel|\
         telefone|fone|celulares|telemovel|telefone fixo|mobile number|contact details",
    ),
    (
        Hints::REACH,
        "call|calls|called|calling|reach|reached|contact|contacts|contacted|ring|rang|dial|dialed|dialled|text|texted|\
         texting|message her|message him|answer|answers|answered|picked up|pick up|switchboard|reception|emergency|call back|reachable|office|number|line|extension|\
         telefonisch|buro|privat|dienstlich|geschaftlich|zentrale|empfang|versucht|probiert|benachrichtigen|verstandigen|zuruckrufen|ansprechpartner|ansprechpartnerin|notfall|anrufen|anruf|rufen|ruf|erreichbar|erreichen|kontakt|nummer|melden|ruckruf|angerufen|\
         appel|rappel|bureau|standard|domicile|repondeur|repond|essaye|essayer|urgences|composez|composer|secretariat|accueil|rappelle|rappelez|telephoner|prevenir|avertir|urgence|interlocuteur|appeler|appelez|appelle|rappeler|joindre|joignable|contacter|contactez|numero|\
         llamada|llamadas|telefonico|telefonica|atiende|atienden|contesta|contestan|oficina|urgencias|localizar|avise|avisar|extension|intentado|probado|comunicarse|telefonear|marcar|marque|emergencia|llamar|llame|llama|llamame|contactar|contacto|\
         telefonare|telefonata|rispondono|segreteria|ufficio|urgenze|raggiungibile|avvisare|avvisi|provato|centralino|richiamare|richiami|chiamata|risponde|emergenza|referente|chiamare|chiami|chiama|chiamami|contattare|contattami|contatto|recapito|numero|\
         gebeld|belde|kantoor|thuis|waarschuwen|spoed|opgenomen|receptie|probeer|terugbellen|opnemen|neemt|geprobeerd|contactpersoon|noodgeval|bellen|bel|bereikbaar|bereiken|\
         oddzwonic|oddzwon|biuro|domowy|sluzbowy|powiadomic|odbiera|probowalem|recepcja|centrala|telefonicznie|telefoniczny|zadzwon|zadzwonic|dzwonic|dzwon|dzwonil|kontakt|numer|numerem|numeru|\
         ligou|ligacao|escritorio|residencial|comercial|recado|recados|emergencias|tentei|recepcao|ramal|atender|retornar|retorne|atende|discar|disque|ligar|ligue|liga|contato|fale",
    ),
    (
        Hints::CARD,
        "card|cards|credit card|debit card|creditcard|cardnumber|card number|cardno|ccnum|cc|pan number|visa|mastercard|\
         amex|american express|maestro|discover|diners|jcb|payment card|ccn|credit|debit|\
         karte|kreditkarte|kreditkartennummer|kartennummer|carte|carte bancaire|carte bleue|cb|tarjeta|\
         tarjeta de credito|carta di credito|carta|kaart|creditcardnummer|karta|karty|karte kredytowa|\
         cartao|cartao de credito",
    ),
    (
        Hints::SSN,
        "ssn|ssns|social security|social security number|soc sec|ss no|ssn number|ss number|taxpayer|tin|\
         socialsecurity|socialsecuritynumber|itin|social sec",
    ),
    (
        Hints::IP,
        "ip|ips|ipv|ip address|ipaddress|ipaddr|ip addr|addr|address|host|hosts|hostname|server|client|remote|gateway|\
         subnet|netmask|dns|nameserver|peer|src|dst|source|dest|destination|from ip|remote addr|clientip|client ip|\
         remoteaddr|x forwarded for|forwarded for|login from|ssh|ping|route|proxy|firewall|listen|bind|cidr|network|\
         connection|connect|connected|endpoint|node|vpn|adresse ip|adres ip|direccion ip|indirizzo ip|ip adres|\
         ip adresse|endereco ip|allow|deny|blocked|banned|router|traceroute|whitelist|nslookup|attack|attacks",
    ),
    (
        Hints::VERSION,
        "version|versions|ver|release|released|releases|build|builds|firmware|driver|drivers|sdk|assembly|fileversion|\
         productversion|revision|upgrade|upgraded|upgrading|update|updated|updates|bump|bumped|downgrade|downgraded|\
         rollback|patch|hotfix|changelog|semver|tag|tagged|package|nuget|section|sections|chapter|clause|paragraph|\
         figure|fig|table|appendix|step|oid|agent|useragent|user agent|chrome|firefox|safari|edge|opera|chromium|\
         webkit|abschnitt|kapitel|version|versione|wersja|wersji|versie|versao|versionen|schritt|seccion|rozdzial|\
         plugin|library|lib|dependency|dependencies|requires|module|artifact|nightly|stable|beta|rc",
    ),
    (
        Hints::PASSPORT,
        "passport|passports|passport number|passport no|passportnumber|passportno|passport id|passnumber|\
         reisepass|reisepassnummer|pass nr|passnummer|passnr|pass nummer|\
         passeport|numero de passeport|passeports|pasaporte|pasaportes|numero de pasaporte|\
         passaporto|passaporti|numero passaporto|paspoort|paspoortnummer|paszport|paszportu|numer paszportu|paszporty|\
         passaporte|passaportes|numero do passaporte|travel document|reisedokument|document de voyage",
    ),
    (
        Hints::BIRTH,
        "dob|d o b|date of birth|birth date|birthdate|birthday|born|born on|birth|dateofbirth|bday|birthdays|\
         geburtsdatum|geboren|geboren am|geburtstag|geb|geb am|geburtsdaten|\
         date de naissance|naissance|ne le|nee le|nee|ne e le|nes le|anniversaire|\
         fecha de nacimiento|nacimiento|nacido|nacida|nacido el|nacio|cumpleanos|naci|nacimos|fecha nac|fec nac|f nac|\
         data di nascita|nascita|nato|nata|nato il|nata il|compleanno|\
         geboortedatum|geboren op|geboorte|verjaardag|\
         data urodzenia|urodzenia|urodzony|urodzona|ur|urodziny|urodzil|urodzila|urodzilem|urodzilam|\
         data de nascimento|nascimento|nascido|nascida|nasceu|aniversario|nasci|dt nasc|data nasc|nasc",
    ),
    (
        Hints::OTHER,
        "order|orders|order number|order no|invoice|invoices|tracking|track|reference|ref|refs|ticket|tickets|case|cases|\
         sku|part|parts|serial|serial number|sn|model|batch|lot|article|item|items|product|products|isbn|ean|upc|gtin|\
         barcode|asin|imei|imsi|iccid|vin|meid|transaction|transactions|txn|trx|confirmation|booking|reservation|\
         customer number|customer no|customer id|client id|account number|account no|account id|acct|policy|claim|\
         contract|po|po number|purchase|shipment|parcel|waybill|commit|hash|sha|checksum|digest|md|crc|uuid|guid|\
         timestamp|timestamps|ts|time|epoch|unix|unixtime|nonce|created|updated|modified|expires|expiry|iat|exp|nbf|\
         size|bytes|length|count|total|amount|price|sum|balance|offset|port|pid|tid|thread|row|rows|col|seq|sequence|\
         index|build|revision|rev|block|height|width|lat|lon|lng|latitude|longitude|score|trace|span|correlation|job|\
         run|process|device|sensor|asset|inventory|bug|issue|pr|pull|snowflake|test id|test case|id|ids|user id|\
         tax invoice|vat|vat id|vat no|vat number|tva|partita iva|p iva|btw nummer|ust idnr|siret|siren|cnpj|abn|ein|kvk|\
         client n|n client|winning numbers|quote|offer|catalog|catalogue|equation|constant|pi|random|seed|duration|elapsed|ms|micros|nanos|millis|\
         random number|doi|issn|orcid|patent|flight|train|room|license key|licence key|product key|build number|\
         member|membership|employee id|employee number|employee no|student|student id|loyalty|coupon|voucher|gift|\
         progress token|page token|next token|continuation token|sync token|cancellation token|csrf token|design token|\
         color|colour|request id|session id|event|event id|record|version|rfc|cve|chassis|fedex|ups|usps|dhl|\
         bestellung|bestellnummer|bestellnr|rechnung|rechnungsnummer|rechnungsnr|artikelnummer|auftrag|auftragsnummer|\
         kundennummer|aktenzeichen|vorgang|vorgangsnummer|sendung|sendungsnummer|lieferschein|vertrag|vertragsnummer|\
         seriennummer|charge|buchung|buchungsnummer|zeitstempel|\
         commande|numero de commande|facture|numero de facture|colis|suivi|dossier|devis|numero de serie|reservation|\
         pedido|factura|envio|numero de pedido|seguimiento|lote|albaran|expediente|referencia|numero de serie|\
         ordine|numero ordine|fattura|spedizione|lotto|pratica|preventivo|riferimento|matricola|\
         bestelling|bestelnummer|factuur|factuurnummer|ordernummer|zending|zaaknummer|klantnummer|serienummer|\
         zamowienie|zamowienia|faktura|faktury|przesylka|przesylki|sprawa|sygnatura|partia|partii|\
         nota fiscal|fatura|encomenda|protocolo|rastreio|pedido numero|nf|boleto",
    ),
    (
        Hints::TAIL,
        "id|ids|count|type|uuid|hash|ts|timestamp|at|version|model|verified|length|size|index|status|enabled|required|\
         country|format|prefix|code|expiry|expires|policy|rule|url|uri|path|file|name|hint|label|ttl|limit|max|min",
    ),
    (
        Hints::IDENTITY,
        "national id|national id number|national identity|national identification|nationalid|id number|id no|idnumber|\
         identity card|identity number|identity|id card|tax id|taxid|tax number|tax file|personal id|personal number|\
         government id|identification number|identification|citizen|citizen id|document number|\
         id document|national number|nin|tax identification|social insurance|ausweis|ausweisnummer|ausweisnr|\
         identity document|documento|documento de identidad|cedula|identidad|documento d identita|identiteitskaart|\
         dowod|dowodu|identifiant|piece d identite|personal identification|fiscal code|patient|patient id",
    ),
    (
        Hints::of(Country::Gb),
        "nino|ni number|ni no|nhs|nhs number|nhs no|national insurance|national insurance number|nhsnumber|insurance number|\
         ni|nationalinsurance|nationalinsurancenumber|hospital",
    ),
    (
        Hints::of(Country::De),
        "steuer id|id nr|steuerid|steuer identifikationsnummer|steueridentifikationsnummer|steuerliche identifikationsnummer|idnr|\
         steuernummer|steuer|steuer identnummer|identifikationsnummer|tin|tax id|personalausweis|personalausweisnummer|\
         perso|persoausweis|personalausweisnr|ausweis|ausweisnummer|ausweis nr|sozialversicherungsnummer|\
         rentenversicherungsnummer|rvnr|sv nummer|svnr|versicherungsnummer|sozialversicherung|rentenversicherung|\
         id card|identity card|sv nr|sozialversicherungsnr|rv nummer|steuer idnr|idnummer|dokumentennummer",
    ),
    (
        Hints::of(Country::Fr),
        "nir|insee|numero insee|securite sociale|numero de securite sociale|num secu|secu|n secu|nss|numero secu|carte vitale|\
         vitale|carte d identite|cni|carte nationale|numero fiscal|spi|identifiant fiscal|assure social|cnie|\
         carte nationale d identite|secu sociale|reference fiscale",
    ),
    (
        Hints::of(Country::Es),
        "dni|nie|nif|documento nacional|seguridad social|numero de la seguridad social|nuss|naf|documento de identidad|\
         numero de identidad|afiliacion|identificacion fiscal|n i f|d n i|n i e|extranjero",
    ),
    (
        Hints::of(Country::It),
        "codice fiscale|cf|cod fisc|codicefiscale|c f|fiscal code|codice|carta d identita|carta identita|cie|\
         documento d identita|tessera sanitaria|cod fiscale|numero carta identita|patente|numero documento",
    ),
    (
        Hints::of(Country::Nl),
        "bsn|burgerservicenummer|sofinummer|sofi|bsn nummer|burger service nummer|citizen service number|bsnnummer|\
         identiteitskaart|id kaart",
    ),
    (
        Hints::of(Country::Ch),
        "ahv|ahv nummer|ahvnummer|ahv nr|ahvn|avs|numero avs|no avs|oasi|avsnumber|n avs|ahvnr|numero ahv|\
         sozialversicherungsnummer|navs|social security|ahv avs|avs ahv|versichertennummer",
    ),
    (
        Hints::of(Country::Pl),
        "pesel|nr pesel|numer pesel|peselu|nip|nr nip|numer nip|dowod|dowod osobisty|dowodu osobistego|nr dowodu|\
         numer dowodu|seria i numer|dowodem osobistym|dowodu|dowodem",
    ),
    (
        Hints::of(Country::Br),
        "cpf|cpfs|rg|cadastro de pessoas fisicas|cpf mf|registro geral|numero cpf|contribuinte|pis|pasep|nis|nit|cnh|\
         identidade|carteira de identidade|titulo de eleitor",
    ),
    (
        Hints::of(Country::In),
        "aadhaar|aadhar|adhaar|aadhaar number|aadhaar no|aadhaarnumber|uidai|uid|aadhar card|pan|pan card|pan number|pan no|\
         permanent account number|pancard|voter|voter id|epic|epic no|epic number|voterid|aadhaarno|panno|pannumber|\
         elector|electoral|income tax",
    ),
    (
        Hints::of(Country::Ca),
        "sin|sin number|social insurance|social insurance number|socialinsurancenumber|numero d assurance sociale|\
         assurance sociale|nas|sinnumber|sin no|sin card|s i n",
    ),
    (
        Hints::of(Country::Au),
        "tfn|tax file number|tax file|taxfilenumber|medicare|medicare number|medicare no|medicare card|medicarenumber|\
         tfnnumber|tfn number|ato",
    ),
    (
        Hints::of(Country::Us),
        "itin|taxpayer identification|taxpayer identification number|individual taxpayer|mbi|medicare beneficiary|medicare|\
         medicare id|medicare number|taxpayer id|taxpayer",
    ),
    (
        Hints::PASSWORD,
        "password|passwd|pwd|passphrase|pass|passcode|pw|userpassword|dbpassword|rootpassword|adminpassword|pswd|\
         passwort|kennwort|mot de passe|mdp|motdepasse|contrasena|clave|contrasenya|wachtwoord|haslo|senha|\
         parola d ordine|parola chiave|psw|pgpassword|mysql pwd|userpass|dbpass|login password",
    ),
    (
        Hints::TOKEN,
        "secret|secrets|api key|apikey|api token|apitoken|access key|accesskey|secret key|secretkey|secret access key|\
         access token|accesstoken|auth token|authtoken|authentication token|client secret|clientsecret|token|bearer|\
         bearer token|private token|refresh token|refreshtoken|id token|app secret|appsecret|consumer secret|\
         encryption key|signing key|signing secret|webhook secret|shared secret|session secret|session token|\
         credential|credentials|auth key|authkey|account key|accountkey|sharedaccesskey|shared access key|\
         master key|service key|jwt secret|app key|appkey|api secret|apisecret|authorization|deploy key|license key|\
         storage key|x api key|subscription key|key secret|admin key|service role key|cookie secret|oauth token|\
         personal access token|geheimnis|schlussel|jeton|cle api|cle secrete|clave api|secreto|chiave api",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quick_look_misses_no_word_about_passports() {
        let words = LISTS.iter().flat_map(|(hints, list)| {
            let words = list.split('|').map(str::trim);
            words.map(move |word| (*hints, word))
        });
        let compounds = COMPOUNDS.iter().map(|(start, hints)| (*hints, *start));
        for (hints, word) in words.chain(compounds) {
            let about = hints.any(Hints::PASSPORT);
            assert!(!about || may_name_passport(word), "{word}");
            assert!(!about || may_name_passport(&word.to_uppercase()), "{word}");
        }
        assert!(
            may_name_passport("pässe"),
            "what is folded is not told apart"
        );
        assert!(!may_name_passport("order"));
    }

    #[test]
    fn the_quick_look_misses_no_word_about_telephones() {
        let check = |text: &str, expect: bool| {
            assert_eq!(may_name_phone(text.as_bytes()), expect, "{text}");
        };
        let lists = LISTS.iter().filter(|(hints, _)| hints.any(Hints::PHONE));
        let words = lists.flat_map(|(_, list)| list.split('|').map(str::trim));
        let compounds = COMPOUNDS
            .iter()
            .filter(|(_, hints)| hints.any(Hints::PHONE));
        let compounds = compounds.map(|(start, _)| format!("{start}nummer"));
        for word in words.map(str::to_owned).chain(compounds) {
            check(&format!("the {word}, 12"), true);
            check(&word.to_uppercase(), true);
            check(
                &format!("12_{}{}", word[..1].to_uppercase(), &word[1..]),
                true,
            );
            check(&word.replace(' ', "_"), true);
        }
        check("homePhone", true);
        check("IPhone", true);
        check("t\u{e9}l", true);
        check("connection 12 makes a call to a Content, IP", false);
    }

    #[test]
    fn every_entry_is_found() {
        for (hints, list) in LISTS {
            for word in list.split('|').map(str::trim) {
                let known = phrase(word.as_bytes());
                assert_eq!(known.and(*hints), known, "{word}");
                assert!(!known.is_none(), "{word}");
            }
        }
        for (start, hints) in COMPOUNDS {
            let word = format!("{start}sxyz");
            assert_eq!(compound(word.as_bytes()), *hints, "{start}");
        }
    }
}
