//! The words and phrases of the lexicon, parted by `|`.

use super::Hints;
use crate::scan::{class::Country, national_ids::NATIONAL_IDS};

/// Words that say whose a password is, or which, after its name.
pub(super) const OWNERS: [&str; 32] = [
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

/// How long words begin that are written as one.
pub(super) const COMPOUNDS: &[(&str, Hints)] = &[
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
    ("personalausweis", Hints::for_country(Country::De)),
    ("steuerid", Hints::for_country(Country::De)),
    ("steuernummer", Hints::for_country(Country::De)),
    ("identifikationsnummer", Hints::for_country(Country::De)),
    ("rentenversicherung", Hints::for_country(Country::De)),
    (
        "sozialversicherung",
        Hints::for_country(Country::De).union(Hints::for_country(Country::Ch)),
    ),
    (
        "versichertennummer",
        Hints::for_country(Country::De).union(Hints::for_country(Country::Ch)),
    ),
    ("burgerservice", Hints::for_country(Country::Nl)),
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

/// What words and phrases say.
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
        "card|cards|credit card|debit card|creditcard|cardnumber|card number|cardno|ccnum|cc|pan|pan number|visa|mastercard|\
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

/// All words and phrases with what they say.
pub(super) fn phrases() -> impl Iterator<Item = (Hints, &'static str)> {
    let lists = LISTS.iter();
    let listed = lists.flat_map(|(hints, list)| list.split('|').map(|word| (*hints, word.trim())));
    let of_countries = NATIONAL_IDS.rows().iter().flat_map(|row| {
        let hints = Hints::for_country(row.country());
        row.near.iter().map(move |word| (hints, word.as_str()))
    });
    listed.chain(of_countries)
}
