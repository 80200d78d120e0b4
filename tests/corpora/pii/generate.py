#!/usr/bin/env python3
# -*- coding: utf-8 -*-
"""Seeded generator of a labelled corpus for measuring a PII / secret scanner.

    python3 generate.py [output.jsonl]

Standard library only.  Same seed, same bytes.  Template syntax:
    @{slot}  a labelled value      %{filler}  an unlabelled filler      ⏎ a line break
Template lines start with a kind letter:  p prose  c chat  l log  j json  v csv  x code
(upper case: do not put into a wrapper).
"""
import base64, collections, datetime, hashlib, ipaddress, json, random, re, string, sys, zlib

SEED = 20240611
R = random.Random(SEED)
KIND = {'p': 'prose', 'c': 'chat', 'l': 'log', 'j': 'json', 'v': 'csv', 'x': 'code'}
DIG, UP, LO = string.digits, string.ascii_uppercase, string.ascii_lowercase
AL = string.ascii_letters
AN = AL + DIG
HEX = '0123456789abcdef'
B64 = AN + '+/'
B64U = AN + '-_'


def rs(alpha, n):
    return ''.join(R.choice(alpha) for _ in range(n))


def pat(p):
    """# any digit, N 2-9, Z 1-9, L letter; everything else literal."""
    out = []
    for c in p:
        out.append({'#': lambda: R.choice(DIG), 'N': lambda: R.choice('23456789'),
                    'Z': lambda: R.choice('123456789'), 'L': lambda: R.choice(UP)}.get(c, lambda c=c: c)())
    return ''.join(out)


# ------------------------------------------------------------------ checksums
def luhn_ok(d):
    t = 0
    for i, c in enumerate(reversed(d)):
        n = int(c)
        if i % 2:
            n *= 2
            if n > 9:
                n -= 9
        t += n
    return t % 10 == 0


def luhn_complete(d):
    for c in DIG:
        if luhn_ok(d + c):
            return d + c


def card_iin(d):
    n = len(d)
    if d[0] == '4' and n in (13, 16, 19): return 'visa'
    if n == 16 and (51 <= int(d[:2]) <= 55 or 2221 <= int(d[:4]) <= 2720): return 'mc'
    if n == 15 and d[:2] in ('34', '37'): return 'amex'
    if n == 16 and (d[:4] == '6011' or d[:2] == '65' or 644 <= int(d[:3]) <= 649): return 'disc'
    if n == 16 and 3528 <= int(d[:4]) <= 3589: return 'jcb'
    if n == 14 and (300 <= int(d[:3]) <= 305 or d[:2] in ('36', '38', '39')): return 'diners'
    return None


def iban_num(s):
    return int(''.join(str(int(c, 36)) for c in s[4:] + s[:4]))


def iban_ok(s):
    s = re.sub(r'[ -]', '', s)
    return iban_num(s) % 97 == 1


_D5 = [[0,1,2,3,4,5,6,7,8,9],[1,2,3,4,0,6,7,8,9,5],[2,3,4,0,1,7,8,9,5,6],[3,4,0,1,2,8,9,5,6,7],[4,0,1,2,3,9,5,6,7,8],
       [5,9,8,7,6,0,4,3,2,1],[6,5,9,8,7,1,0,4,3,2],[7,6,5,9,8,2,1,0,4,3],[8,7,6,5,9,3,2,1,0,4],[9,8,7,6,5,4,3,2,1,0]]
_P8 = [[0,1,2,3,4,5,6,7,8,9],[1,5,7,6,2,8,3,0,9,4],[5,8,0,3,7,9,6,1,4,2],[8,9,1,6,0,4,3,5,2,7],
       [9,4,5,3,1,2,6,8,7,0],[4,2,8,6,5,7,3,9,0,1],[2,7,9,3,8,0,6,4,1,5],[7,0,4,6,9,1,3,2,5,8]]


def verhoeff_ok(d):
    c = 0
    for i, ch in enumerate(reversed(d)):
        c = _D5[c][_P8[i % 8][int(ch)]]
    return c == 0


def nhs_ok(d):
    s = sum(int(d[i]) * (10 - i) for i in range(9))
    k = (11 - s % 11) % 11
    return k != 10 and k == int(d[9])


def steuer_ok(d):
    if len(d) != 11 or d[0] == '0': return False
    cnt = sorted(collections.Counter(d[:10]).values(), reverse=True)
    if not (cnt[0] in (2, 3) and all(c == 1 for c in cnt[1:])): return False
    p = 10
    for c in d[:10]:
        s = (int(c) + p) % 10 or 10
        p = s * 2 % 11
    return (11 - p) % 10 == int(d[10])


def mrz_check(s):
    return str(sum(int(c, 36) * (7, 3, 1)[i % 3] for i, c in enumerate(s)) % 10)


def nir_ok(s):
    s = s.replace(' ', '')
    n = s[:13].replace('2A', '19').replace('2B', '18')
    return n.isdigit() and 97 - int(n) % 97 == int(s[13:])


DNI = 'TRWAGMYFPDXBNJZSQVHLCKE'


def dni_ok(s):
    s = re.sub(r'[ .-]', '', s).upper()
    if s[0] in 'XYZ': s = str('XYZ'.index(s[0])) + s[1:]
    return DNI[int(s[:8]) % 23] == s[8]


_ODD = dict(zip('0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ',
    [1,0,5,7,9,13,15,17,19,21,1,0,5,7,9,13,15,17,19,21,2,4,18,20,11,3,6,8,12,14,16,10,22,25,24,23]))


def cf_check(s15):
    t = 0
    for i, c in enumerate(s15):
        t += _ODD[c] if i % 2 == 0 else (int(c) if c.isdigit() else ord(c) - 65)
    return chr(65 + t % 26)


def bsn_ok(d):
    return len(d) == 9 and d != '0' * 9 and (sum(int(d[i]) * (9 - i) for i in range(8)) - int(d[8])) % 11 == 0


def ean_check(d12):
    return str(-sum(int(c) * (1, 3)[i % 2] for i, c in enumerate(d12)) % 10)


def pesel_ok(d):
    return sum(int(c) * w for c, w in zip(d, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1))) % 10 == 0


def cpf_ok(d):
    if len(set(d)) == 1: return False
    for n in (9, 10):
        s = sum(int(d[i]) * (n + 1 - i) for i in range(n)) * 10 % 11 % 10
        if s != int(d[n]): return False
    return True


def tfn_ok(d):
    return sum(int(c) * w for c, w in zip(d, (1, 4, 3, 7, 5, 8, 6, 9, 10))) % 11 == 0


def medicare_ok(d):
    return d[0] in '23456' and sum(int(c) * w for c, w in zip(d, (1, 3, 7, 9, 1, 3, 7, 9))) % 10 == int(d[8])


def search(fn, ok):
    while True:
        v = fn()
        if ok(v): return v


# ------------------------------------------------------------------ names and fillers
NAMES = {
 'en': ('James Olivia Liam Emma Noah Sophie Jack Grace Ethan Chloe Ryan Hannah Daniel Megan Priya Oscar Ruby Aisha Marcus Fiona Derek Naomi'.split(),
        'Smith Johnson Walker Hughes Patel Bennett Carter Reid Murphy Foster Clarke Nguyen Brooks Turner Ellis Morgan Price Sutton Whitaker Okafor'.split()),
 'in': ('Rahul Priya Amit Sneha Vikram Ananya Rohan Kavya Arjun Meera Suresh Divya'.split(), 'Sharma Patel Iyer Reddy Gupta Nair Singh Mehta Das Joshi Kulkarni Banerjee'.split()),
 'de': ('Anna Lukas Lena Felix Jürgen Sabine Tobias Katrin Moritz Heike Jan Ute Björn Käthe'.split(), 'Müller Schmidt Fischer Weber Becker Wagner Hoffmann Schäfer Krüger Vogel Lang Brandt Groß Köhler'.split()),
 'fr': ('Camille Julien Élodie Luc Chloé Mathieu Sylvie Antoine Noémie Thierry Margaux Benoît'.split(), 'Martin Dubois Lefèvre Moreau Girard Rousseau Blanc Faure Gauthier Perrin Bénard Chevalier'.split()),
 'es': ('Lucía Javier Carmen Pablo Marta Sergio Elena Álvaro Inés Raúl Nuria Diego'.split(), 'García López Martínez Sánchez Romero Navarro Torres Ruiz Muñoz Ortega Iglesias Núñez'.split()),
 'it': ('Giulia Marco Francesca Luca Chiara Matteo Elisa Davide Sara Paolo Niccolò Ilaria'.split(), 'Rossi Bianchi Ferrari Esposito Romano Conti Marino Greco Bruno Gallo Rizzo Moretti'.split()),
 'nl': ('Daan Sanne Bram Fleur Joost Anouk Thijs Lotte Pieter Maaike Ruben Femke'.split(), 'Jansen Visser Bakker Smit Meijer Mulder Bos Vos Peters Hendriks Dekker Kuipers'.split()),
 'pl': ('Anna Piotr Katarzyna Tomasz Magdalena Paweł Agnieszka Michał Ewa Łukasz Joanna Krzysztof'.split(), 'Kowalska Nowak Wiśniewska Wójcik Kamińska Lewandowski Zieliński Szymańska Woźniak Dąbrowski Mazur Krawczyk'.split()),
 'pt': ('João Ana Pedro Mariana Lucas Beatriz Rafael Camila Gustavo Larissa Thiago Letícia'.split(), 'Silva Santos Oliveira Souza Lima Pereira Costa Almeida Ribeiro Gomes Araújo Barbosa'.split()),
}
COMP = 'Northwind Halden Brightwater Quillon Tessera Orbis Maplebridge Corvane Lumora Ferrostat Kestrel Vantiva Solmar Alderbrook Zephyrion Pinecrest Novalis Harbourline'.split()
CSUF = {'en': ['Ltd', 'Inc.', 'LLC', 'Group'], 'de': ['GmbH', 'AG', 'KG'], 'fr': ['SARL', 'SAS'], 'es': ['S.L.', 'S.A.'], 'it': ['S.r.l.', 'S.p.A.'], 'nl': ['B.V.'], 'pl': ['Sp. z o.o.'], 'pt': ['Ltda.', 'S.A.']}
CITY = {'us': 'Austin Denver Seattle Boston Portland', 'gb': 'Leeds Bristol Manchester Cardiff York', 'in': 'Mumbai Pune Chennai Kolkata Jaipur', 'ca': 'Toronto Halifax Calgary Ottawa', 'au': 'Sydney Perth Hobart Adelaide',
        'de': 'Berlin Hamburg Leipzig Köln Mainz', 'fr': 'Lyon Nantes Lille Rennes Paris', 'es': 'Madrid Sevilla Bilbao Zaragoza', 'it': 'Milano Torino Bologna Napoli', 'nl': 'Utrecht Leiden Delft Breda', 'ch': 'Zürich Bern Genf Lugano', 'pl': 'Kraków Gdańsk Poznań Łódź', 'br': 'Recife Curitiba Fortaleza Campinas', '': 'London Berlin Oslo Madrid Dublin'}
LANGS = {'us': ['en'], 'gb': ['en'], 'in': ['en'], 'ca': ['en', 'en', 'fr'], 'au': ['en'], 'de': ['de'], 'ch': ['de', 'fr', 'it'], 'fr': ['fr'], 'es': ['es'], 'it': ['it'], 'nl': ['nl'], 'pl': ['pl'], 'br': ['pt'], '': ['en']}
LOCALES = ['us', 'gb', 'de', 'fr', 'es', 'it', 'nl', 'ch', 'pl', 'br', 'in', 'ca', 'au']
SVC = 'auth-api billing-worker gateway checkout profile-svc mailer ingest scheduler user-service crm-sync edge-proxy notifier'.split()
TLD = 'com net org io co.uk de fr es it nl ch pl com.br in ca com.au eu dev app info'.split()


def nset(ctx):
    return NAMES['in' if ctx['loc'] == 'in' and R.random() < .8 else ctx['lang']]


def ascii_(s):
    for a, b in zip('äöüßéèêëçñáíóúàòùìłśążźćńęãõôâîÄÖÜÉŁÁÍÚ', ['ae', 'oe', 'ue', 'ss', 'e', 'e', 'e', 'e', 'c', 'n', 'a', 'i', 'o', 'u', 'a', 'o', 'u', 'i', 'l', 's', 'a', 'z', 'z', 'c', 'n', 'e', 'a', 'o', 'o', 'a', 'i', 'Ae', 'Oe', 'Ue', 'E', 'L', 'A', 'I', 'U']):
        s = s.replace(a, b)
    return s.encode('ascii', 'ignore').decode()


def rdate(lo=2015, hi=2026):
    return datetime.date(lo, 1, 1) + datetime.timedelta(days=R.randrange((hi - lo) * 365))


def f_ts(ctx=None):
    d = rdate(2021, 2026)
    t = '%02d:%02d:%02d' % (R.randrange(24), R.randrange(60), R.randrange(60))
    return R.choice(['%sT%sZ', '%s %s', '%s %s,' + pat('###'), '%sT%s.' + pat('###') + 'Z', '%sT%s+02:00']) % (d.isoformat(), t)


def f_dlocal(ctx):
    d = rdate()
    if ctx['loc'] == 'us': return '%d/%d/%d' % (d.month, d.day, d.year)
    if ctx['lang'] in ('de', 'pl'): return d.strftime('%d.%m.%Y')
    if ctx['lang'] == 'nl': return d.strftime('%d-%m-%Y')
    return d.strftime('%d/%m/%Y')


def luhn_bad():
    def g():
        p, n, f = R.choice([('4', 16, 0), ('5' + R.choice('12345'), 16, 0), ('37', 15, 1), ('6011', 16, 0), ('36', 14, 2)])
        d = p + rs(DIG, n - len(p))
        return d
    d = search(g, lambda d: not luhn_ok(d))
    k = R.random()
    if k < .4: return d
    sep = ' ' if k < .7 else '-'
    return fmt_card(d, sep)


def fmt_card(d, sep):
    if len(d) == 15: return sep.join([d[:4], d[4:10], d[10:]])
    if len(d) == 14: return sep.join([d[:4], d[4:10], d[10:]])
    return sep.join(d[i:i + 4] for i in range(0, len(d), 4))


def iban_bad():
    v = gen_iban_raw()
    v = v[:2] + '%02d' % ((int(v[2:4]) + R.randrange(1, 90)) % 100) + v[4:]
    while iban_ok(v): v = v[:2] + rs(DIG, 2) + v[4:]
    return v if R.random() < .5 else ' '.join(v[i:i + 4] for i in range(0, len(v), 4))


def ssn_bad():
    k = R.randrange(4)
    if k == 0: return '000-' + pat('##-####')
    if k == 1: return '666-' + pat('##-####')
    if k == 2: return '9%s-%s-%s' % (rs(DIG, 2), R.choice(['%02d' % x for x in list(range(1, 50)) + [66, 67, 68, 69]]), rs(DIG, 4))
    return R.choice(['%s-00-%s' % (pat('Z##'), rs(DIG, 4)), '%s-%s-0000' % (pat('Z##'), pat('Z#'))])


def f_b64(n):
    return base64.b64encode(R.getrandbits(8 * n).to_bytes(n, 'big')).decode()


def wrap64(s, n=64):
    return '\n'.join(s[i:i + n] for i in range(0, len(s), n))


CROCK = '0123456789ABCDEFGHJKMNPQRSTVWXYZ'


def uuid_():
    h = rs(HEX, 32)
    return '%s-%s-4%s-%s%s-%s' % (h[:8], h[8:12], h[13:16], R.choice('89ab'), h[17:20], h[20:])


def isbn13():
    d = R.choice(['978', '979']) + rs(DIG, 9)
    d += ean_check(d)
    return R.choice([d, '%s-%s-%s-%s-%s' % (d[:3], d[3], d[4:7], d[7:12], d[12])])


def isbn10():
    d = rs(DIG, 9)
    k = sum((10 - i) * int(c) for i, c in enumerate(d)) * -1 % 11
    c = 'X' if k == 10 else str(k)
    return '%s-%s-%s-%s' % (d[0], d[1:4], d[4:9], c)


WORDS = 'alpha bridge candle delta ember falcon garnet harbor indigo juniper kernel lantern mango nectar orchid pebble quartz raven silver timber umbra velvet willow yonder zenith copper meadow pixel rocket saddle'.split()


def camel():
    a, b = R.sample(WORDS, 2)
    return a + b.capitalize()


FILL = {
 'first': lambda c: R.choice(nset(c)[0]),
 'last': lambda c: R.choice(nset(c)[1]),
 'name': lambda c: R.choice(nset(c)[0]) + ' ' + R.choice(nset(c)[1]),
 'company': lambda c: R.choice(COMP) + ' ' + R.choice(CSUF[c['lang']]),
 'comp': lambda c: R.choice(COMP).lower(),
 'city': lambda c: R.choice(CITY[c['loc']].split()),
 'order': lambda c: R.choice([pat('ORD-#####'), pat('#####'), pat('A-######'), pat('LL-####'), pat('20##-#####'), pat('SO######')]),
 'int': lambda c: str(R.randrange(2, 99999)),
 'n2': lambda c: str(R.randrange(2, 60)),
 'n3': lambda c: str(R.randrange(100, 999)),
 'amount': lambda c: '%d.%02d' % (R.randrange(3, 2400), R.randrange(100)),
 'ts': f_ts,
 'hm': lambda c: '%02d:%02d' % (R.randrange(7, 23), R.randrange(60)),
 'hms': lambda c: '%02d:%02d:%02d' % (R.randrange(24), R.randrange(60), R.randrange(60)),
 'date': lambda c: rdate().isoformat(),
 'dlocal': f_dlocal,
 'year': lambda c: str(R.randrange(2008, 2026)),
 'exp': lambda c: '%02d/%02d' % (R.randrange(1, 13), R.randrange(26, 33)),
 'svc': lambda c: R.choice(SVC),
 'user': lambda c: R.choice(['svc_', 'app_', '', '']) + R.choice('deploy billing reports crm backup orders analytics webapp etl admin'.split()),
 'login': lambda c: ascii_(R.choice(nset(c)[0])).lower()[:1] + ascii_(R.choice(nset(c)[1])).lower(),
 'host': lambda c: '%s.%s.%s' % (R.choice(['db', 'db1', 'pg-main', 'cache', 'mq', 'api', 'sql01', 'prod-db']), R.choice(COMP).lower(), R.choice(['net', 'io', 'com', 'internal'])),
 'node': lambda c: R.choice(['web', 'ip', 'node', 'worker', 'db', 'bastion']) + '-' + pat('0#'),
 'db': lambda c: R.choice('orders crm shop analytics users app_prod inventory'.split()),
 'word': lambda c: R.choice(WORDS),
 'word2': lambda c: R.choice(WORDS),
 'camel': lambda c: camel(),
 'req': lambda c: rs(HEX, R.choice([8, 12, 16])),
 'ua': lambda c: R.choice(['Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36', 'curl/8.4.0', 'python-requests/2.31.0', 'okhttp/4.12.0', 'Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7)']),
 'path': lambda c: R.choice(['/api/v1/users', '/login', '/checkout', '/healthz', '/v2/orders/' + pat('####'), '/static/app.js', '/wp-login.php', '/index.html']),
 'status': lambda c: R.choice(['200', '201', '302', '401', '403', '404', '500']),
 'clock': lambda c: '%02d/%s/%d:%02d:%02d:%02d +0000' % (R.randrange(1, 29), R.choice('Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec'.split()), R.randrange(2021, 2026), R.randrange(24), R.randrange(60), R.randrange(60)),
 'sysl': lambda c: '%s %2d %02d:%02d:%02d' % (R.choice('Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec'.split()), R.randrange(1, 29), R.randrange(24), R.randrange(60), R.randrange(60)),
 'pid': lambda c: str(R.randrange(300, 32000)),
 'port': lambda c: str(R.randrange(1025, 65000)),
 # negatives
 'md5': lambda c: rs(HEX, 32), 'sha1': lambda c: rs(HEX, 40), 'sha256': lambda c: rs(HEX, 64), 'sha512b64': lambda c: f_b64(64),
 'git7': lambda c: rs(HEX, 7), 'uuid': lambda c: uuid_(), 'ulid': lambda c: '01' + rs(CROCK, 24),
 'ver3': lambda c: '%d.%d.%d' % (R.randrange(0, 20), R.randrange(0, 30), R.randrange(0, 30)),
 'ver4': lambda c: '%d.%d.%d.%d' % (R.randrange(1, 25), R.randrange(0, 12), R.randrange(0, 90), R.randrange(0, 250)),
 'chrome': lambda c: '%d.0.%d.%d' % (R.randrange(90, 126), R.randrange(4000, 6500), R.randrange(20, 220)),
 'luhnbad': lambda c: luhn_bad(), 'ibanbad': lambda c: iban_bad(), 'ssnbad': lambda c: ssn_bad(),
 'isbn13': lambda c: isbn13(), 'isbn10': lambda c: isbn10(),
 'ean': lambda c: (lambda d: d + ean_check(d))(R.choice(['40', '50', '30', '76', '84', '01']) + rs(DIG, 10)),
 'epoch': lambda c: str(R.randrange(1500000000, 1790000000)), 'epochms': lambda c: str(R.randrange(1500000000000, 1790000000000)),
 'lat': lambda c: '%.6f' % R.uniform(-60, 70), 'lon': lambda c: '%.6f' % R.uniform(-179, 179),
 'dims': lambda c: R.choice(['%d x %d x %d', '%dx%dx%d', '%d × %d × %d']) % (R.randrange(2, 300), R.randrange(2, 300), R.randrange(2, 300)),
 'hexcol': lambda c: '#' + rs(HEX, R.choice([3, 6, 6, 8])), 'mac': lambda c: R.choice([':', '-']).join(rs(HEX, 2) for _ in range(6)),
 'mac_': lambda c: ':'.join(rs('0123456789ABCDEF', 2) for _ in range(6)),
 'd4': lambda c: pat('Z###'), 'd5': lambda c: pat('Z####'), 'd6': lambda c: pat('Z#####'), 'd7': lambda c: pat('Z######'), 'd8': lambda c: pat('Z#######'), 'd9': lambda c: pat('Z########'),
 'd10': lambda c: pat('Z#########'), 'd12': lambda c: pat('Z###########'), 'd14': lambda c: pat('Z#############'), 'd16': lambda c: pat('Z###############'), 'd20': lambda c: pat('0034043#############'),
 'ups': lambda c: '1Z' + rs(UP + DIG, 6) + rs(DIG, 10), 'usps': lambda c: '9400' + rs(DIG, 18), 'royal': lambda c: pat('LL#########') + R.choice(['GB', 'DE', 'CN', 'US']),
 'amzn': lambda c: pat('###-#######-#######'), 'ebay': lambda c: pat('##-#####-#####'), 'part': lambda c: R.choice([pat('LL-####-##'), pat('L##-###L'), pat('###-####-0#L'), pat('LLL####LL'), pat('##-####-###')]),
 'cas': lambda c: pat('Z###-##-#'), 'doi': lambda c: '10.%s/%s' % (pat('Z###'), R.choice(['j.cell.20%s.0%s.0%s' % (pat('1#'), pat('#'), pat('##')), 's41586-0%s-%s-%s' % (pat('2#'), pat('0####'), pat('#')), pat('#######.#######')])),
 'oid': lambda c: '1.3.6.1.%s.%s' % (R.choice(['4.1', '2.1.2']), '.'.join(str(R.randrange(1, 3000)) for _ in range(R.randrange(3, 6)))),
 'sec4': lambda c: '%d.%d.%d.%d' % (R.randrange(1, 12), R.randrange(1, 9), R.randrange(1, 9), R.randrange(1, 9)),
 'b64s': lambda c: f_b64(R.choice([24, 33, 45, 60])), 'b64img': lambda c: 'iVBORw0KGgoAAAANSUhEUgAA' + f_b64(R.choice([60, 90, 150])), 'b64jpg': lambda c: '/9j/4AAQSkZJRgABAQ' + f_b64(R.choice([60, 90])), 'b64gif': lambda c: 'R0lGODlhAQABAIAAAAAAAP' + f_b64(24),
 'b64pem': lambda c: wrap64(f_b64(R.choice([294, 420, 560]))), 'sshpub': lambda c: R.choice(['ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI' + f_b64(32).rstrip('=')[:43], 'ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQ' + f_b64(258).rstrip('=')]),
 'sshfp': lambda c: 'SHA256:' + f_b64(32).rstrip('='), 'fp': lambda c: ':'.join(rs('0123456789ABCDEF', 2) for _ in range(20)),
 'k8s': lambda c: '%s-%s-%s' % (R.choice(SVC), rs('bcdf456789', R.choice([9, 10])), rs('bcdfghjklmnpqrstvwxz2456789', 5)),
 'arnacct': lambda c: pat('Z###########'), 'ec2': lambda c: R.choice(['i-0', 'vol-0', 'sg-0', 'vpc-0', 'subnet-0', 'ami-0']) + rs(HEX, 16),
 'cus': lambda c: R.choice(['cus_', 'pi_3', 'price_1', 'prod_', 'in_1', 'evt_1']) + rs(AN, R.choice([14, 22])),
 'vatde': lambda c: 'DE' + pat('Z########'), 'vatgb': lambda c: 'GB' + pat(' ### #### ##'), 'cnpj': lambda c: pat('##.###.###/0001-##'), 'nip': lambda c: pat('###-###-##-##'),
 'bic': lambda c: R.choice(['DEUTDEFF', 'COBADEFFXXX', 'BNPAFRPP', 'INGBNL2A', 'BCITITMM', 'CAIXESBB', 'UBSWCHZH80A', 'BARCGB22']),
 'f1': lambda c: '%.1f' % R.uniform(0, 100), 'f2': lambda c: '%.2f' % R.uniform(0, 10000), 'f6': lambda c: '%.6f' % R.uniform(0, 10),
 'score': lambda c: '%d-%d' % (R.randrange(0, 9), R.randrange(0, 9)), 'eu': lambda c: '%d.%03d,%02d' % (R.randrange(1, 900), R.randrange(1000), R.randrange(100)),
 'us_amt': lambda c: '%d,%03d.%02d' % (R.randrange(1, 900), R.randrange(1000), R.randrange(100)), 'thin': lambda c: '%d %03d %03d' % (R.randrange(1, 90), R.randrange(1000), R.randrange(1000)),
 'scope': lambda c: R.choice(['@types/node', '@babel/core', '@angular/cli', '@nestjs/common', '@aws-sdk/client-s3', '@vue/compiler-sfc', '@acme/ui-kit', '@sentry/browser']),
 'pkg': lambda c: R.choice('react lodash express typescript eslint webpack vite chalk axios next jest'.split()),
 'deco': lambda c: R.choice(['@staticmethod', '@Override', '@app.route("/health")', '@pytest.mark.parametrize("n", [1, 2])', '@Component', '@Injectable()', '@dataclass(frozen=True)', '@celery.task', '@Deprecated(since="4.2")', '@property']),
 'repo': lambda c: R.choice(WORDS) + '-' + R.choice(['ui', 'core', 'infra', 'api', 'docs', 'tools']),
 'handle': lambda c: '@' + R.choice(WORDS) + R.choice(['', '_', '.']) + R.choice(['dev', 'ops', 'team', 'labs', pat('##')]),
 'envv': lambda c: R.choice('API_KEY GITHUB_TOKEN STRIPE_SECRET_KEY DATABASE_PASSWORD OPENAI_API_KEY SLACK_BOT_TOKEN AWS_SECRET_ACCESS_KEY SENDGRID_API_KEY NPM_TOKEN JWT_SECRET SMTP_PASSWORD'.split()),
 'ph': lambda c: R.choice(['YOUR_API_KEY', '<your-api-key>', '<token>', 'xxxxxxxxxxxxxxxxxxxx', '${TOKEN}', '$API_TOKEN', '{{ api_key }}', 'INSERT_KEY_HERE', '<REDACTED>', '********', '...', '[your token here]', 'sk-xxxxxxxxxxxxxxxxxxxxxxxx', 'ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx', '%API_KEY%', 'your-api-key-here']),
 'pwph': lambda c: R.choice(['<password>', '${DB_PASSWORD}', '********', '<your-password>', '$PASSWORD', '{{ db_password }}', '[REDACTED]', '%(password)s', 'YOUR_PASSWORD', '<secret>', 'xxxxxxxx', '••••••••']),
 'nano': lambda c: rs(B64U, 21).replace('-', 'x').replace('--', 'x'), 'snow': lambda c: str(R.randrange(10**17, 12 * 10**17)),
 'flight': lambda c: pat('LL ###').replace('  ', ' '), 'serial': lambda c: R.choice([rs(UP + DIG, 12), pat('SN-####-LL##'), pat('C02') + rs(UP + DIG, 9)]),
 'domain': lambda c: R.choice(['%s.%s.%s', 'api.%s.%s.%s', '%s.%s.%s.cluster.local']) % (R.choice(WORDS), R.choice(COMP).lower(), R.choice(['io', 'dev', 'net', 'internal'])),
 'fpath': lambda c: R.choice(['/var/log/%s/%s.log', '/usr/local/lib/%s/%s.so.1', 'C:\\Users\\Public\\%s\\%s.txt', './src/%s/%s.ts', '~/projects/%s/%s.md', 's3://%s-artifacts/%s.tar.gz']) % (R.choice(WORDS), R.choice(WORDS)),
 'range': lambda c: '%d-%d' % (lambda a: (a, a + R.randrange(1, 400)))(R.randrange(100, 3000)),
 'sid': lambda c: R.choice(['SM', 'MM', 'CA']) + rs(HEX, 32),
}


# ------------------------------------------------------------------ positive value generators
def gen_email(ctx, kind=''):
    f, l = (ascii_(R.choice(x)).lower() for x in nset(ctx))
    lp = R.choice([f + '.' + l, f[0] + l, f + l, f + '_' + l, f + str(R.randrange(1, 99)), l + '.' + f, f + '-' + l, f + '.' + l + str(R.randrange(60, 99)), f + '+' + R.choice(['news', 'shop', 'test', 'tickets']),
                   R.choice(['support', 'info', 'sales', 'billing', 'hr', 'office', 'kontakt', 'contact']), f[0] + '.' + l, f + '.' + R.choice('abcdefghjk') + '.' + l])
    loc = ctx['loc']
    home = {'gb': 'co.uk', 'us': 'com', '': 'com', 'br': 'com.br', 'au': 'com.au'}.get(loc, loc)
    dom = R.choice(['gmail.com', 'outlook.com', 'yahoo.com', 'proton.me', 'icloud.com', 'web.de' if ctx['lang'] == 'de' else 'hotmail.com'] + 5 * [R.choice(COMP).lower() + R.choice(['', '-group', '-labs', str(R.randrange(2, 99))]) + '.' + R.choice([home, home, R.choice(TLD)])]
                   + ['%s.%s.%s' % (R.choice(['mail', 'corp', 'eu', 'students']), R.choice(COMP).lower(), R.choice(TLD))])
    if R.random() < .5: lp += str(R.randrange(2, 999))
    e = lp + '@' + dom
    k = R.random()
    return e.upper() if k < .03 else (e.title().replace('@', '@') if k < .06 else e)


INTL = ['+1 415 NN# ####', '+44 20 7NN# ####', '+44 77## ######', '+49 30 N#######', '+49 151 ########', '+33 6 ## ## ## ##', '+33 1 4# ## ## ##', '+34 6## ### ###', '+39 347 #######', '+39 06 #### ####', '+31 6 N#######', '+31 20 N## ####',
        '+41 79 NN# ## ##', '+48 60# ### ###', '+55 11 9#### ####', '+91 98### #####', '+61 4## ### ###', '+43 664 N######', '+32 47# ## ## ##', '+46 70 ### ## ##', '+47 9## ## ###', '+45 2# ## ## ##', '+358 40 ### ####',
        '+353 87 N## ####', '+351 91# ### ###', '+30 697 ### ####', '+81 90 N### ####', '+82 10 N### ####', '+86 138 #### ####', '+65 9### ####', '+852 9### ####', '+971 50 N## ####', '+972 54 N## ####', '+90 532 N## ## ##',
        '+27 82 N## ####', '+52 55 N### ####', '+54 9 11 N### ####', '+57 30# N## ####', '+56 9 N### ####', '+64 21 N## ####', '+380 67 N## ## ##', '+420 60# ### ###', '+36 30 N## ####', '+40 72# ### ###', '+234 803 N## ####', '+254 72# ### ###', '+63 917 N## ####', '+62 812 N### ####', '+66 8# N## ####', '+60 12 N## ####']
USAC = '212 415 617 312 206 303 404 512 702 503 305 213 619 713 602 215 919 614 651 816'.split()
CAAC = '416 604 514 613 403 902 204 780 647 778 438 506 306'.split()
NANP = ['(A) E-####', 'A-E-####', 'A.E.####', 'A E ####', 'AE####', '(A)E-####', '1-A-E-####', '+1 A-E-####', '+1 (A) E-####', '+1AE####', '+1.A.E.####', '(A) E ####']
NATL = {
 'gb': ['020 7N## ####', '020 8N## ####', '(020) 7N## ####', '0161 N## ####', '0121 N## ####', '01223 N#####', '01865 N#####', '07700 ######', '077## ######', '078## ### ###', '07N8########', '+44 20 7N## ####', '+44 (0)20 7N## ####', '+44 77## ######', '+4478########', '0044 161 N## ####', '0113-N##-####', '(01273) N#####'],
 'de': ['030 N######', '030 N#######', '030/N#######', '089/N######', '089 N## ## ###', '(0221) N######', '040-N#######', '0170 N######', '0151 N#######', '0176/N#######', '0711 N#####', '06221 N#####', '0160-N######', '0172N######', '+49 30 N#######', '+49 (0)89 N#######', '+49 151 N#######', '0049 40 N#######', '(030) N## ## ##', '0351 - N######', '+49-221-N######', '+49176N#######'],
 'fr': ['01 4# ## ## ##', '02 9# ## ## ##', '04 7# ## ## ##', '05 5# ## ## ##', '06 ## ## ## ##', '07 8# ## ## ##', '06.##.##.##.##', '01.4#.##.##.##', '06########', '07-8#-##-##-##', '+33 6 ## ## ## ##', '+33 (0)1 4# ## ## ##', '+336########', '0033 6 ## ## ## ##', '03 8# ## ## ##', '09 7# ## ## ##'],
 'es': ['6## ### ###', '6## ## ## ##', '91 N## ## ##', '93 N## ## ##', '91N ### ###', '95N ## ## ##', '6########', '7N# ### ###', '6##-###-###', '+34 6## ### ###', '+34 91 N## ## ##', '+346########', '0034 6## ### ###', '(91) N## ## ##', '96N-##-##-##', '6##.###.###'],
 'it': ['347 #######', '333 ### ####', '328-#######', '340/#######', '06 N### ####', '02 N#######', '02-N#######', '051 N#####', '011 N######', '389#######', '+39 347 #######', '+39 06 N#######', '+39335#######', '0039 348 #######', '055/N#####', '(02) N#######', '349 ## ## ###', '081.N######'],
 'nl': ['06-N#######', '06 N### ####', '06N#######', '020-N######', '010 N## ## ##', '030-N## ## ##', '0182-N#####', '070 N######', '+31 6 N#######', '+31 (0)6 N#######', '+31 20 N## ####', '+316N#######', '06 N# ## ## ##', '0031 6 N#######', '(020) N## ####', '040-N######'],
 'ch': ['044 NN# ## ##', '031 NN# ## ##', '022 NN# ## ##', '091 NN# ## ##', '079 NN# ## ##', '078 NN# ## ##', '076 NN# ## ##', '079NN#####', '061/NN# ## ##', '+41 44 NN# ## ##', '+41 79 NN# ## ##', '+4179NN#####', '0041 44 NN# ## ##', '+41 (0)79 NN# ## ##', '077 NN# ####', '021.NN#.##.##'],
 'pl': ['60# ### ###', '50#-###-###', '69# ### ###', '79#######', '22 N## ## ##', '12 N## ## ##', '(22) N##-##-##', '71 N## ## ##', '58-N##-##-##', '88# ### ###', '+48 60# ### ###', '+48 22 N## ## ##', '+4851#######', '0048 50# ### ###', '53# ## ## ##'],
 'br': ['(11) 9####-####', '(21) 9####-####', '(31) 3###-####', '11 9####-####', '(85) 9 ####-####', '(41) 3N##-####', '119########', '(51) 9####.####', '21 2###-####', '+55 11 9####-####', '+55 (21) 9####-####', '+55119########', '(011) 3###-####', '(62) 9########', '0xx11 3###-####'],
 'in': ['98### #####', '97########', '88########', '70### #####', '098########', '022-2### ####', '080-2N######', '(011) 2N## ####', '044 2### ####', '99###-#####', '+91 98### #####', '+91-97########', '+9188########', '0091 99########', '+91 22 2### ####', '96## ### ###'],
 'au': ['04## ### ###', '(02) 9N## ####', '(03) 9N## ####', '07 3N## ####', '08 8N## ####', '02 9N## ####', '04########', '04##-###-###', '+61 4## ### ###', '+61 2 9N## ####', '+614########', '+61 (0)4## ### ###', '0061 3 9N## ####', '(08) 9N######'],
}


def gen_phone(ctx, kind=''):
    loc = ctx['loc']
    if kind == 'intl' or loc == '':
        p = R.choice(INTL)
        k = R.random()
        if k < .3: p = p.replace(' ', '')
        elif k < .5: p = p.replace(' ', '-')
        elif k < .6: p = p.replace(' ', '.')
        elif k < .7: p = '00' + p[1:]
        elif k < .75: p = re.sub(r'^(\+\d+) (\S+)', r'\1 (\2)', p)
        return pat(p)
    if loc in ('us', 'ca'):
        e = search(lambda: pat('N##'), lambda e: e[1:] != '11' and e != '555')
        p = R.choice(NANP).replace('A', R.choice(USAC if loc == 'us' else CAAC)).replace('E', e)
        return pat(p)
    return pat(R.choice(NATL[loc]))


def gen_card(ctx, kind=''):
    p, n = R.choice([('4', 16)] * 4 + [('5' + R.choice('12345'), 16)] * 3 + [(str(R.randrange(2221, 2721)), 16), ('34', 15), ('37', 15), ('6011', 16), ('65', 16), ('64' + R.choice('456789'), 16), (str(R.randrange(3528, 3590)), 16), ('30' + R.choice('012345'), 14), ('36', 14), ('38', 14)])
    d = luhn_complete(p + rs(DIG, n - len(p) - 1))
    k = R.random()
    return d if k < .35 or kind == 'raw' else fmt_card(d, ' ' if k < .75 else '-')


IBAN = {'DE': '18n', 'GB': '4a14n', 'FR': '10n11c2n', 'ES': '20n', 'IT': '1a10n12n', 'NL': '4a10n', 'CH': '5n12n', 'PL': '24n', 'AT': '16n', 'BE': '12n', 'PT': '21n', 'IE': '4a14n', 'SE': '20n', 'NO': '11n', 'DK': '14n', 'FI': '14n', 'LU': '3n13n', 'CZ': '20n', 'SK': '20n', 'HU': '24n', 'RO': '4a16n', 'BG': '4a6n8n', 'HR': '17n', 'SI': '15n', 'EE': '16n', 'LV': '4a13n', 'LT': '16n', 'GR': '7n16n', 'CY': '8n16n', 'MT': '4a5n18c', 'TR': '5n1z16n', 'AE': '19n', 'SA': '2n18n', 'IL': '19n', 'BR': '23n1a1c', 'LI': '5n12n'}
IBW = ['DE'] * 5 + ['GB', 'FR', 'ES', 'IT', 'NL', 'CH', 'PL', 'AT', 'BE'] * 2 + list(IBAN)
IBLOC = {'de': 'DE', 'fr': 'FR', 'es': 'ES', 'it': 'IT', 'nl': 'NL', 'ch': 'CH', 'pl': 'PL', 'gb': 'GB', 'br': 'BR'}
BANKS = {'GB': ['BARC', 'NWBK', 'LOYD', 'HBUK', 'MIDL'], 'NL': ['ABNA', 'INGB', 'RABO', 'TRIO'], 'IE': ['AIBK', 'BOFI'], 'RO': ['BTRL', 'RNCB'], 'BG': ['BNBG', 'UNCR'], 'LV': ['HABA', 'UNLA'], 'MT': ['VALL', 'MALT']}


def be_fix(b):
    k = int(b[:10]) % 97 or 97
    return b[:10] + '%02d' % k


def gen_iban_raw(cc=None):
    cc = cc or R.choice(IBW)
    b = ''
    for n, t in re.findall(r'(\d+)([a-z])', IBAN[cc]):
        b += R.choice(BANKS[cc]) if t == 'a' and n == '4' and cc in BANKS else ('0' if t == 'z' else rs({'n': DIG, 'a': UP, 'c': UP + DIG}[t], int(n)))
    if cc == 'BE': b = be_fix(b)
    chk = 98 - iban_num(cc + '00' + b) % 97
    return cc + '%02d' % chk + b


def gen_iban(ctx, kind=''):
    v = gen_iban_raw(IBLOC.get(ctx['loc']) if R.random() < .6 else None)
    k = R.random()
    if k < .5: return ' '.join(v[i:i + 4] for i in range(0, len(v), 4))
    if k < .55: return '-'.join(v[i:i + 4] for i in range(0, len(v), 4))
    if k < .58: return v.lower()
    return v


def gen_ssn(ctx, kind=''):
    a = search(lambda: '%03d' % R.randrange(1, 900), lambda a: a != '666')
    g, s = '%02d' % R.randrange(1, 100), '%04d' % R.randrange(1, 10000)
    k = R.random()
    sep = '-' if k < .75 else (' ' if k < .87 else '')
    return sep.join([a, g, s])


def gen_ip(ctx, kind=''):
    if kind == '4' or (kind == '' and R.random() < .7):
        k = R.random()
        if k < .06: return '192.168.%d.%d' % (R.randrange(0, 255), R.randrange(2, 254))
        if k < .12: return '10.%d.%d.%d' % (R.randrange(0, 255), R.randrange(0, 255), R.randrange(2, 254))
        if k < .15: return '172.%d.%d.%d' % (R.randrange(16, 32), R.randrange(0, 255), R.randrange(2, 254))
        def ok(v):
            i = ipaddress.ip_address(v); return i.is_global
        return search(lambda: '%d.%d.%d.%d' % (R.randrange(11, 223), R.randrange(0, 255), R.randrange(0, 255), R.randrange(2, 254)), ok)
    pre = R.choice([0x2a00, 0x2a01, 0x2a02, 0x2001, 0x2600, 0x2607, 0x2400, 0x2804, 0x2c0f, 0xfe80])
    if pre == 0xfe80:
        n = (pre << 112) | R.getrandbits(64)
    elif R.random() < .5:
        n = (pre << 112) | ((0x4860 if pre == 0x2001 else R.getrandbits(16)) << 96) | (R.getrandbits(16) << 80) | R.getrandbits(R.choice([8, 16, 32]))
    else:
        n = (pre << 112) | ((0x4860 if pre == 0x2001 else R.getrandbits(16)) << 96) | R.getrandbits(96)
    a = ipaddress.IPv6Address(n)
    return a.exploded if R.random() < .12 else (a.compressed.upper() if R.random() < .05 else a.compressed)


def pl_passport():
    l = rs(UP, 2)
    def ok(v):
        return sum(int(c, 36) * w for c, w in zip(v, (7, 3, 9, 1, 7, 3, 1, 7, 3))) % 10 == 0
    return search(lambda: l + rs(DIG, 7), ok)


DEC = 'CFGHJKLMNPRTVWXYZ0123456789'
PASSPORT = {
 'us': lambda: R.choice([rs(DIG, 9), R.choice('ABCXYZ') + rs(DIG, 8)]), 'gb': lambda: pat('Z########'), 'de': lambda: R.choice('CFGHJK') + search(lambda: rs(DEC, 8), lambda s: sum(c.isdigit() for c in s) >= 3),
 'fr': lambda: pat('##LL#####'), 'es': lambda: R.choice(['P', 'A', 'X', 'Z']) + pat('LL######'), 'it': lambda: R.choice(['Y', 'A', 'C']) + pat('L#######'), 'nl': lambda: R.choice('NBSX') + rs('ABCDEFGHJKLPRSTUVWXYZ', 1) + search(lambda: rs('BCDFHJKLPR123456789', 6), lambda s: sum(c.isdigit() for c in s) >= 2) + rs(DIG, 1),
 'ch': lambda: R.choice('XSFEC') + pat('#######'), 'pl': pl_passport, 'br': lambda: R.choice('FGYC') + pat('L######'), 'in': lambda: R.choice('ABCDEFGHJKLMNPRSTUVWYZ') + pat('Z#') + R.choice(['', '', '', ' ']) + pat('####Z'),
 'ca': lambda: R.choice([R.choice(['GA', 'HK', 'AB', 'BA', 'JX']) + pat('######'), 'P' + pat('######') + R.choice('ABCDE') + R.choice('ABCDEFGHJK')]), 'au': lambda: R.choice([R.choice('NEML') + pat('#######'), R.choice(['PA', 'PB', 'RA', 'PC']) + pat('#######')]),
}


def gen_passport(ctx, kind=''):
    return PASSPORT[ctx['loc']]()


def nino():
    while True:
        a, b = R.choice('ABCEGHJKLMNOPRSTWXYZ'), R.choice('ABCEGHJKLMNPRSTWXYZ')
        if a + b not in ('BG', 'GB', 'NK', 'KN', 'TN', 'NT', 'ZZ'): break
    d, s = rs(DIG, 6), R.choice('ABCD')
    return R.choice([a + b + d + s, '%s%s %s %s %s %s' % (a, b, d[:2], d[2:4], d[4:], s), '%s%s %s %s' % (a, b, d, s)])


def nhs():
    d = search(lambda: pat('Z#########'), nhs_ok)
    return R.choice([d, '%s %s %s' % (d[:3], d[3:6], d[6:]), '%s-%s-%s' % (d[:3], d[3:6], d[6:])])


def steuer():
    ds = R.sample(DIG, 9)
    i = R.choice(ds)
    b = ds + [i]
    R.shuffle(b)
    b = ''.join(b)
    if b[0] == '0' or re.search(r'(\d)\1\1', b): return steuer()
    for c in DIG:
        if steuer_ok(b + c):
            d = b + c
            return R.choice([d, d, '%s %s %s %s' % (d[:2], d[2:5], d[5:8], d[8:])])


def perso():
    s = R.choice('LMNPRTVWXY') + search(lambda: rs(DEC, 8), lambda s: sum(c.isdigit() for c in s) >= 3)
    return s + (mrz_check(s) if R.random() < .5 else '')


def nir():
    dep = R.choice(['%02d' % R.choice([x for x in range(1, 96) if x != 20]), '2A', '2B'] if R.random() < .1 else ['%02d' % R.choice([x for x in range(1, 96) if x != 20])])
    p = [R.choice('12'), '%02d' % R.randrange(40, 100), '%02d' % R.randrange(1, 13), dep, '%03d' % R.randrange(1, 800), '%03d' % R.randrange(1, 900)]
    n = ''.join(p)
    p.append('%02d' % (97 - int(n.replace('2A', '19').replace('2B', '18')) % 97))
    return R.choice([''.join(p), ' '.join(p), ''.join(p[:-1]) + ' ' + p[-1]])


def dni():
    n = '%08d' % R.randrange(1000000, 99999999)
    l = DNI[int(n) % 23]
    return R.choice([n + l, n + '-' + l, '%s.%s.%s-%s' % (n[:2], n[2:5], n[5:], l), n + ' ' + l, n + l])


def nie():
    x, n = R.choice('XYZ'), rs(DIG, 7)
    l = DNI[int(str('XYZ'.index(x)) + n) % 23]
    return R.choice([x + n + l, '%s-%s-%s' % (x, n, l), x + n + '-' + l])


def cf():
    def cons(s): return [c for c in s if c not in 'AEIOU']
    def vow(s): return [c for c in s if c in 'AEIOU']
    f, l = (ascii_(R.choice(x)).upper() for x in NAMES['it'])
    a = (cons(l) + vow(l) + ['X'] * 3)[:3]
    c = cons(f)
    b = [c[0], c[2], c[3]] if len(c) > 3 else (c + vow(f) + ['X'] * 3)[:3]
    day = R.randrange(1, 29) + R.choice([0, 40])
    s = ''.join(a + b) + '%02d%s%02d' % (R.randrange(100), R.choice('ABCDEHLMPRST'), day) + R.choice('ABCDEFGHIL') + '%03d' % R.randrange(1, 990)
    s += cf_check(s)
    k = R.random()
    return s.lower() if k < .06 else ('%s %s %s %s' % (s[:3], s[3:6], s[6:11], s[11:]) if k < .14 else s)


def bsn():
    d = search(lambda: rs('12', 1) + rs(DIG, 8), bsn_ok)
    return R.choice([d, d, '%s.%s.%s' % (d[:4], d[4:6], d[6:]), '%s %s %s' % (d[:3], d[3:6], d[6:])])


def ahv():
    d = '756' + rs(DIG, 9)
    d += ean_check(d)
    return R.choice(['%s.%s.%s.%s' % (d[:3], d[3:7], d[7:11], d[11:])] * 4 + [d])


def pesel():
    t = datetime.date(1940, 1, 1) + datetime.timedelta(days=R.randrange(24500))
    m = t.month + (20 if t.year >= 2000 else 0)
    p = '%02d%02d%02d%s' % (t.year % 100, m, t.day, rs(DIG, 4))
    return next(p + c for c in DIG if pesel_ok(p + c))


def cpf():
    d = search(lambda: rs(DIG, 9), lambda d: len(set(d)) > 2)
    for n in (9, 10):
        d += str(sum(int(d[i]) * (n + 1 - i) for i in range(n)) * 10 % 11 % 10)
    return R.choice(['%s.%s.%s-%s' % (d[:3], d[3:6], d[6:9], d[9:])] * 3 + [d])


def aadhaar():
    p = pat('N##########')
    d = next(p + c for c in DIG if verhoeff_ok(p + c))
    return R.choice(['%s %s %s', '%s %s %s', '%s-%s-%s', '%s%s%s']) % (d[:4], d[4:8], d[8:])


def pan():
    return rs(UP, 3) + 'P' + rs(UP, 1) + rs(DIG, 4) + rs(UP, 1)


def sin():
    d = luhn_complete(R.choice('12345679') + rs(DIG, 7))
    return R.choice(['%s-%s-%s', '%s %s %s', '%s %s %s', '%s%s%s']) % (d[:3], d[3:6], d[6:])


def tfn():
    d = search(lambda: pat('Z########'), tfn_ok)
    return R.choice(['%s %s %s', '%s %s %s', '%s%s%s', '%s-%s-%s']) % (d[:3], d[3:6], d[6:])


def medicare():
    d = search(lambda: rs('23456', 1) + rs(DIG, 8) + R.choice('12345'), medicare_ok)
    return R.choice(['%s %s %s', '%s %s %s', '%s%s%s', '%s-%s-%s']) % (d[:4], d[4:9], d[9])


def itin():
    g = R.choice([x for x in range(50, 100) if x not in (66, 67, 68, 69, 89, 93)])
    return R.choice(['-', '-', '-', ' ', '']).join(['9' + rs(DIG, 2), '%02d' % g, '%04d' % R.randrange(1, 9999)])


NID = {'nino': nino, 'nhs': nhs, 'steuer': steuer, 'perso': perso, 'nir': nir, 'dni': dni, 'nie': nie, 'cf': cf, 'bsn': bsn, 'ahv': ahv, 'pesel': pesel, 'cpf': cpf, 'aadhaar': aadhaar, 'pan': pan, 'sin': sin, 'tfn': tfn, 'medicare': medicare, 'itin': itin}
NIDLOC = {'gb': ['nino', 'nhs'], 'de': ['steuer', 'perso'], 'fr': ['nir'], 'es': ['dni', 'nie'], 'it': ['cf'], 'nl': ['bsn'], 'ch': ['ahv'], 'pl': ['pesel'], 'br': ['cpf'], 'in': ['aadhaar', 'pan'], 'ca': ['sin'], 'au': ['tfn', 'medicare'], 'us': ['itin']}

MONTHS = {'en': 'January February March April May June July August September October November December', 'de': 'Januar Februar März April Mai Juni Juli August September Oktober November Dezember', 'fr': 'janvier février mars avril mai juin juillet août septembre octobre novembre décembre',
          'es': 'enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre', 'it': 'gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre', 'nl': 'januari februari maart april mei juni juli augustus september oktober november december',
          'pl': 'stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października listopada grudnia', 'pt': 'janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro'}


def gen_dob(ctx, kind=''):
    t = datetime.date(1938, 1, 1) + datetime.timedelta(days=R.randrange(26500))
    L, loc = ctx['lang'], ctx['loc']
    mn = MONTHS[L].split()[t.month - 1]
    d, m, y = t.day, t.month, t.year
    iso = t.isoformat()
    num = {'de': ['%02d.%02d.%d' % (d, m, y), '%d.%d.%d' % (d, m, y)], 'pl': ['%02d.%02d.%d' % (d, m, y), '%02d-%02d-%d' % (d, m, y)], 'nl': ['%02d-%02d-%d' % (d, m, y), '%d-%d-%d' % (d, m, y)]}.get(L, ['%02d/%02d/%d' % (d, m, y), '%d/%d/%d' % (d, m, y), '%02d-%02d-%d' % (d, m, y)])
    if loc == 'us': num = ['%02d/%02d/%d' % (m, d, y), '%d/%d/%d' % (m, d, y), '%02d-%02d-%d' % (m, d, y)]
    if kind == 'num': return R.choice(num * 2 + [iso])
    long_ = {'en': ['%d %s %d' % (d, mn, y), '%s %d, %d' % (mn, d, y), '%d %s %d' % (d, mn[:3], y)], 'de': ['%d. %s %d' % (d, mn, y)], 'es': ['%d de %s de %d' % (d, mn, y)], 'pt': ['%d de %s de %d' % (d, mn, y)]}.get(L, ['%d %s %d' % (d, mn, y)])
    if loc == 'us': long_ = ['%s %d, %d' % (mn, d, y), '%s %d, %d' % (mn[:3], d, y)]
    sh = [re.sub(r'\d\d(\d\d)$', r'\1', num[0])]
    return R.choice(num * 3 + long_ * 3 + [iso, iso] + sh)


B62 = DIG + UP + LO


def crc_b62(s):
    n, o = zlib.crc32(s.encode()), ''
    while n: o, n = B62[n % 62] + o, n // 62
    return o.rjust(6, '0')


def ghtok(p):
    e = rs(AN, 30)
    return p + e + crc_b62(e)


def discord():
    i = base64.urlsafe_b64encode(str(R.randrange(2 * 10**17, 12 * 10**17)).encode()).decode().rstrip('=')
    return i + '.' + 'G' + rs(B64U, 5) + '.' + rs(B64U, 38)


def tail(n, alpha=B64U):
    return rs(alpha, n - 1) + R.choice(AN)


API = {
 'aws_id': lambda: R.choice(['AKIA', 'AKIA', 'AKIA', 'ASIA']) + rs(UP + '234567', 16), 'aws_secret': lambda: rs(AN, 1) + rs(B64, 38) + rs(AN, 1),
 'gh_classic': lambda: ghtok(R.choice(['ghp_', 'ghp_', 'gho_', 'ghs_', 'ghu_'])), 'gh_fine': lambda: 'github_pat_' + rs(AN, 22) + '_' + rs(AN, 59), 'gitlab': lambda: R.choice(['glpat-', 'glpat-', 'glpat-', 'gldt-', 'glrt-']) + tail(20),
 'slack_bot': lambda: 'xoxb-%s-%s-%s' % (pat('Z###########'), pat('Z############'), rs(AN, 24)), 'slack_user': lambda: 'xoxp-%s-%s-%s-%s' % (pat('Z###########'), pat('Z###########'), pat('Z############'), rs(HEX, 32)),
 'slack_hook': lambda: 'https://hooks.slack.com/services/T%s/B%s/%s' % (rs(UP + DIG, R.choice([8, 10])), rs(UP + DIG, R.choice([8, 10])), rs(AN, 24)),
 'stripe_live': lambda: R.choice(['sk_live_', 'sk_live_', 'rk_live_']) + R.choice([lambda: rs(AN, 24), lambda: '51' + rs(AN, 97)])(), 'stripe_test': lambda: 'sk_test_' + R.choice([lambda: rs(AN, 24), lambda: '51' + rs(AN, 97)])(),
 'openai': lambda: R.choice([lambda: 'sk-' + rs(AN, 20) + 'T3BlbkFJ' + rs(AN, 20), lambda: 'sk-proj-' + rs(B64U, 74) + 'T3BlbkFJ' + tail(74), lambda: 'sk-svcacct-' + rs(B64U, 74) + 'T3BlbkFJ' + tail(74)])(),
 'anthropic': lambda: R.choice(['sk-ant-api03-', 'sk-ant-api03-', 'sk-ant-admin01-']) + rs(B64U, 93) + 'AA', 'google': lambda: 'AIza' + R.choice(['Sy', 'Sy', 'Sy' ]) + tail(33), 'google_oauth': lambda: 'GOCSPX-' + tail(28), 'google_token': lambda: 'ya29.a0Af' + tail(R.randrange(120, 190)),
 'azure': lambda: f_b64(64), 'npm': lambda: ghtok('npm_'), 'pypi': lambda: 'pypi-AgEIcHlwaS5vcmcC' + tail(R.randrange(130, 170)), 'sendgrid': lambda: 'SG.' + tail(22) + '.' + tail(43), 'twilio_key': lambda: 'SK' + rs(HEX, 32), 'twilio_auth': lambda: rs(HEX, 32),
 'telegram': lambda: str(R.randrange(10**8, 79 * 10**8)) + ':AA' + R.choice('EFGH') + tail(32), 'discord': discord, 'hf': lambda: 'hf_' + rs(AL, 34), 'databricks': lambda: 'dapi' + rs(HEX, 32) + R.choice(['', '', '-2', '-3']), 'do': lambda: R.choice(['dop_v1_', 'dop_v1_', 'doo_v1_']) + rs(HEX, 64),
 'shopify': lambda: R.choice(['shpat_', 'shpat_', 'shpss_', 'shpca_', 'shppa_']) + rs(HEX, 32), 'vault': lambda: R.choice([lambda: 'hvs.CAESI' + tail(90), lambda: 'hvs.' + rs(AN, 24), lambda: 'hvb.AAAAAQ' + tail(130)])(),
}


def gen_api(ctx, kind=''):
    return API[kind or R.choice([k for k in API if k not in CTXONLY])]()


CTXONLY = ('aws_secret', 'twilio_auth', 'azure', 'telegram', 'discord', 'slack_hook')


def pem(ctx, kind='', esc=False, indent=''):
    k = kind or R.choice('rsa pkcs8 ec openssh pgp rsaenc pkcs8enc dsa'.split())
    def body(pre, nbytes): return wrap64(pre + f_b64(nbytes)[len(pre):])
    if k == 'rsa': lab, b = 'RSA PRIVATE KEY', body(*R.choice([('MIIEpAIBAAKCAQEA', 1192), ('MIICXAIBAAKBgQC', 608), ('MIIJKQIBAAKCAgEA', 2349)]))
    elif k == 'rsaenc': lab, b = 'RSA PRIVATE KEY', 'Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,%s\n\n' % rs(HEX, 32).upper() + wrap64(f_b64(1200))
    elif k == 'pkcs8': lab, b = 'PRIVATE KEY', body(*R.choice([('MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC', 1217), ('MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg', 138), ('MC4CAQAwBQYDK2VwBCIEI', 48)]))
    elif k == 'pkcs8enc': lab, b = 'ENCRYPTED PRIVATE KEY', body('MIIFHDBOBgkqhkiG9w0BBQ0wQTApBgkqhkiG9w0BBQwwHAQI', 1311)
    elif k == 'ec': lab, b = 'EC PRIVATE KEY', body(*R.choice([('MHcCAQEEI', 121), ('MIGkAgEBBDA', 167)]))
    elif k == 'dsa': lab, b = 'DSA PRIVATE KEY', body('MIIBuwIBAAKBgQD', 447)
    elif k == 'openssh': lab, b = 'OPENSSH PRIVATE KEY', wrap64('b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAA' + f_b64(R.choice([255, 1350])), 70)
    else: lab, b = 'PGP PRIVATE KEY BLOCK', '\n' + R.choice(['', 'Version: GnuPG v2\n\n']) + wrap64(R.choice(['lQOYBF', 'lQdGBF', 'lIYEZ']) + f_b64(R.choice([600, 1300]))) + '\n=' + rs(B64, 4)
    s = '-----BEGIN %s-----\n%s\n-----END %s-----' % (lab, b, lab)
    if esc: return s.replace('\n', '\\n')
    return s.replace('\n', '\n' + indent) if indent else s


def b64u(b):
    return base64.urlsafe_b64encode(b).decode().rstrip('=')


def gen_jwt(ctx, kind=''):
    alg = R.choice(['HS256', 'HS256', 'RS256', 'ES256', 'HS512', 'EdDSA'])
    h = {'alg': alg, 'typ': 'JWT'}
    if R.random() < .4: h['kid'] = rs(HEX, R.choice([8, 16, 40]))
    if R.random() < .25: h = dict(reversed(list(h.items())))
    p = {'sub': R.choice([str(R.randrange(1000, 10**9)), uuid_()]), 'iat': R.randrange(1600000000, 1750000000)}
    p['exp'] = p['iat'] + R.choice([300, 3600, 86400])
    if R.random() < .5: p['iss'] = 'https://auth.%s.io/' % R.choice(COMP).lower()
    if R.random() < .4: p['role'] = R.choice(['admin', 'user', 'viewer'])
    if R.random() < .3: p['jti'] = uuid_()
    if R.random() < .3: p['scope'] = 'openid profile'
    n = {'HS256': 32, 'RS256': 256, 'ES256': 64, 'HS512': 64, 'EdDSA': 64}[alg]
    sep = (',', ':') if R.random() < .85 else (', ', ': ')
    return '.'.join([b64u(json.dumps(h, separators=sep).encode()), b64u(json.dumps(p, separators=sep).encode()), b64u(R.getrandbits(8 * n).to_bytes(n, 'big'))])


PWW = 'Summer Winter Falcon Tiger Dragon Maple Coffee Rocket Berlin Sunset Panda Guitar Monkey Silver Thunder Pepper Lisbon Hunter Mango Turtle Cobalt Velvet Orchid Yankee Kaktus Blume Soleil Fromage Gatto Lluvia Kwiat Fiets'.split()


def gen_pw(ctx, kind=''):
    k = R.random()
    w, w2 = R.sample(PWW, 2)
    url = '-_.~!*' if kind == 'url' else '!#%*-_+=?@^~$'
    if k < .22: v = w + R.choice(['', R.choice('!#*-_') if kind == 'url' or True else '']) .replace('#', '-' if kind == 'url' else '#') + str(R.randrange(10, 9999))
    elif k < .30: v = w.lower() + str(R.randrange(10, 9999))
    elif k < .40: v = w + R.choice('-_.') + w2 + R.choice('-_.') + str(R.randrange(2, 99))
    elif k < .48: v = w.replace('o', '0').replace('e', '3').replace('a', '4') + R.choice('!*_-') + w2.lower() + str(R.randrange(1, 99))
    elif k < .65: v = rs(AN, R.randrange(10, 25))
    elif k < .72: v = rs(HEX, R.choice([16, 24, 32]))
    else:
        v = search(lambda: rs(AN, 1) + rs(AN + url + url, R.randrange(7, 19)) + rs(AN, 1), lambda s: any(c in url for c in s) and '${' not in s and '--' not in s)
    if kind == 'x' and R.random() < .3: v += R.choice('!!?*#$')
    return v


SLOT = {
 'email': ('email', gen_email), 'phone': ('phone', gen_phone), 'card': ('credit_card', gen_card), 'iban': ('iban', gen_iban), 'ssn': ('us_ssn', gen_ssn), 'ip': ('ip_address', gen_ip), 'passport': ('passport', gen_passport), 'dob': ('date_of_birth', gen_dob),
 'api': ('api_key', gen_api), 'jwt': ('jwt', gen_jwt), 'pw': ('password', gen_pw), 'nid': ('national_id', lambda c, k='': NID[k]()),
 'pem': ('private_key', lambda c, k='': pem(c)), 'pemesc': ('private_key', lambda c, k='': pem(c, R.choice(['rsa', 'pkcs8', 'pkcs8', 'ec', 'openssh']), esc=True)), 'pemi2': ('private_key', lambda c, k='': pem(c, indent='  ')), 'pemi4': ('private_key', lambda c, k='': pem(c, indent='    ')),
 'pemrsa': ('private_key', lambda c, k='': pem(c, 'rsa')), 'pemssh': ('private_key', lambda c, k='': pem(c, 'openssh')), 'pempgp': ('private_key', lambda c, k='': pem(c, 'pgp')), 'pemp8': ('private_key', lambda c, k='': pem(c, 'pkcs8')), 'pemec': ('private_key', lambda c, k='': pem(c, 'ec')),
}


# ================================================================== TEMPLATES
# ---- structured skeletons: K = identifier key, V = value slot
SKEL = r'''
j|{"K": "V"}
j|{"id": %{int}, "K": "V", "active": true}
j|{⏎  "customer": {⏎    "name": "%{name}",⏎    "K": "V"⏎  },⏎  "updated_at": "%{ts}"⏎}
j|[{"K":"V","seq":1},{"K":"V","seq":2}]
j|{"level":"info","ts":%{epoch},"msg":"profile saved","ctx":{"K":"V","request_id":"%{req}"}}
j|{"event": "user.updated", "data": {"object": {"K": "V", "city": "%{city}"}}}
j|{"attributes": [{"name": "K", "value": "V"}, {"name": "plan", "value": "pro"}]}
j|{"query":"mutation","variables":{"input":{"K":"V","orderId":"%{order}"}}}
v|id,name,K⏎%{int},%{name},V
v|K,city,plan⏎V,%{city},basic⏎V,%{city},pro
v|name;K;created⏎%{name};V;%{date}⏎%{name};V;%{date}
v|id	K	status⏎%{int}	V	open
v|"order","K","amount"⏎"%{order}","V","%{amount}"
x|K: V
x|user:⏎  name: %{name}⏎  K: "V"⏎  tags: [beta, %{word}]
x|- id: %{int}⏎  K: V⏎  note: migrated %{date}
x|INSERT INTO customers (name, K) VALUES ('%{name}', 'V');
x|UPDATE accounts SET K = 'V' WHERE id = %{int};
x|SELECT id, name FROM people WHERE K = 'V' LIMIT 10;
x|K = "V"
x|record.K = 'V'  # %{word} fixture
x|const person = { name: '%{name}', K: 'V' };
x|    assert client.post("/people", json={"K": "V"}).status_code == 201
x|val K: String = "V" // row %{int}
x|<person id="%{int}"><K>V</K></person>
x|<input type="text" name="K" value="V" class="form-control">
l|%{ts} INFO  [%{svc}] updated profile K=V user_id=%{int}
l|%{ts} WARN %{svc}: validation failed field=K value="V" trace=%{req}
l|%{sysl} %{node} %{svc}[%{pid}]: import row %{int}: K='V' skipped
l|[%{hms}] DEBUG request body: {K: V}
x|| Name | K |⏎|------|------|⏎| %{name} | V |
'''
# ---- human label skeletons: L = human label in the language
LSKEL = r'''
p|L: V
p|%{name}⏎%{city}⏎L: V
p|- **L:** V⏎- Ref: %{order}
p|L . . . . . : V⏎%{date}
p|%{company} · %{city} · L: V
p|| L | V |
p|[L] V
p|* L = V
c|L: V
c|%{first} → L V
p|L: V / %{name} / %{city}
p|(L: V)
'''
STRUCT = {  # class -> lang -> (identifier keys, human labels)
 'phone': {'en': ('phone phone_number mobile contact_phone telephone cell tel phoneNumber', 'Phone|Tel.|Mobile|Telephone|Phone number|Contact no.'), 'de': ('telefon telefonnummer handy mobil phone tel', 'Tel.|Telefon|Mobil|Handy|Telefonnummer|Rückrufnummer'), 'fr': ('telephone tel mobile numero_telephone phone portable', 'Tél.|Téléphone|Portable|Tél. mobile|N° de téléphone'),
   'es': ('telefono movil tel numero_telefono phone', 'Tel.|Teléfono|Móvil|Tfno.|Teléfono de contacto'), 'it': ('telefono cellulare tel numero_telefono phone', 'Tel.|Telefono|Cell.|Cellulare|Recapito telefonico'), 'nl': ('telefoon telefoonnummer mobiel tel phone', 'Tel.|Telefoon|Mobiel|Telefoonnummer|Tel.nr.'), 'pl': ('telefon numer_telefonu tel_kom tel phone', 'Tel.|Telefon|Kom.|Nr telefonu|Tel. kontaktowy'), 'pt': ('telefone celular tel fone phone', 'Tel.|Telefone|Celular|Fone|WhatsApp|Telefone para contato')},
 'passport': {'en': ('passport passport_number passportNo passport_no travel_document_passport', 'Passport No.|Passport number|Passport|Passport #'), 'de': ('reisepass passnummer reisepassnummer pass_nr passport_number', 'Reisepass-Nr.|Passnummer|Reisepassnummer|Reisepass Nr.|Pass-Nr.'), 'fr': ('passeport numero_passeport no_passeport passport_number', 'N° de passeport|Passeport n°|Numéro de passeport|Passeport'),
   'es': ('pasaporte numero_pasaporte num_pasaporte passport_number', 'Pasaporte|N.º de pasaporte|Número de pasaporte|Pasaporte n.º'), 'it': ('passaporto numero_passaporto passaporto_n passport_number', 'Passaporto n.|Numero di passaporto|Passaporto|N. passaporto'), 'nl': ('paspoort paspoortnummer paspoort_nr passport_number', 'Paspoortnummer|Paspoort nr.|Paspoort|Paspoortnr.'), 'pl': ('paszport numer_paszportu nr_paszportu passport_number', 'Nr paszportu|Numer paszportu|Paszport nr|Paszport'), 'pt': ('passaporte numero_passaporte num_passaporte passport_number', 'Passaporte|N.º do passaporte|Número do passaporte|Passaporte nº')},
 'dob': {'en': ('dob date_of_birth birth_date birthDate birthday dateOfBirth', 'DOB|Date of birth|Birth date|D.O.B.|Birthday'), 'de': ('geburtsdatum geb_datum geburtstag date_of_birth', 'Geburtsdatum|Geb.-Datum|geb.|Geburtstag'), 'fr': ('date_naissance date_de_naissance dateNaissance naissance', 'Date de naissance|Né(e) le|Naissance'), 'es': ('fecha_nacimiento fechaNacimiento fecha_de_nacimiento', 'Fecha de nacimiento|F. nacimiento|Fecha nac.'),
   'it': ('data_nascita dataNascita data_di_nascita', 'Data di nascita|Nato/a il|Data nascita'), 'nl': ('geboortedatum geb_datum geboorteDatum', 'Geboortedatum|Geb.datum|Geboren'), 'pl': ('data_urodzenia dataUrodzenia data_ur', 'Data urodzenia|Data ur.|Ur.'), 'pt': ('data_nascimento dataNascimento data_de_nascimento nascimento', 'Data de nascimento|Nascimento|Data nasc.')},
 'email': {'en': ('email email_address contact_email userEmail mail to', 'E-mail|Email|Email address|Contact'), 'de': ('email e_mail mailadresse kontakt_email', 'E-Mail|Mail|E-Mail-Adresse'), 'fr': ('email courriel adresse_email mail', 'Courriel|E-mail|Adresse e-mail|Mél.'), 'es': ('correo email correo_electronico', 'Correo|Correo electrónico|E-mail'), 'it': ('email posta_elettronica mail', 'E-mail|Posta elettronica|Indirizzo e-mail'), 'nl': ('email emailadres mail', 'E-mail|E-mailadres|Mail'), 'pl': ('email adres_email mail', 'E-mail|Adres e-mail|Poczta'), 'pt': ('email correio_eletronico mail', 'E-mail|Correio eletrônico|Email')},
 'card': {'en': ('card_number cardNumber pan cc_number credit_card card', 'Card number|Credit card|Card no.|Visa/MC'), 'de': ('kartennummer kreditkarte kreditkartennummer', 'Kartennummer|Kreditkarte|Kreditkartennr.'), 'fr': ('numero_carte carte_bancaire', 'Carte bancaire|N° de carte|Carte bleue'), 'es': ('numero_tarjeta tarjeta', 'Tarjeta|Número de tarjeta'), 'it': ('numero_carta carta_credito', 'Carta di credito|Numero carta'), 'nl': ('kaartnummer creditcard', 'Creditcardnummer|Kaartnummer'), 'pl': ('numer_karty karta', 'Numer karty|Karta nr'), 'pt': ('numero_cartao cartao', 'Cartão|Número do cartão')},
 'iban': {'en': ('iban account_iban bank_account iban_number payout_iban', 'IBAN|Bank account (IBAN)|IBAN no.'), 'de': ('iban kontoverbindung bankkonto', 'IBAN|Bankverbindung|Konto (IBAN)'), 'fr': ('iban compte_iban rib', 'IBAN|RIB/IBAN|Compte (IBAN)'), 'es': ('iban cuenta cuenta_iban', 'IBAN|Cuenta bancaria|N.º de cuenta (IBAN)'), 'it': ('iban conto codice_iban', 'IBAN|Codice IBAN|Conto corrente IBAN'), 'nl': ('iban rekeningnummer', 'IBAN|Rekeningnummer|Bankrekening'), 'pl': ('iban numer_konta rachunek', 'IBAN|Nr rachunku|Numer konta (IBAN)'), 'pt': ('iban conta', 'IBAN|Conta (IBAN)')},
 'ssn': {'en': ('ssn social_security_number socialSecurityNumber ssn_number tax_ssn', 'SSN|Social Security Number|Social Security No.|Soc. Sec. #|SS#')},
 'ip': {'en': ('ip ip_address client_ip remote_addr src_ip clientIp last_login_ip', 'IP|IP address|Client IP|Source IP|Last login IP')},
 'jwt': {'en': ('token access_token id_token jwt authToken session_token', 'Token|Access token|JWT|Bearer token')},
 'pw.x': {'en': ('password db_password passwd pwd smtp_password DB_PASSWORD adminPassword ftp_pass', 'Password|Pwd|Admin password|Temp password'), 'de': ('passwort kennwort password datenbank_passwort', 'Passwort|Kennwort|Initialpasswort'), 'fr': ('mot_de_passe mdp password', 'Mot de passe|MDP|Mot de passe provisoire'), 'es': ('contrasena password clave', 'Contraseña|Clave de acceso'), 'it': ('password pwd_utente', 'Password|Password provvisoria'), 'nl': ('wachtwoord password', 'Wachtwoord|Tijdelijk wachtwoord'), 'pl': ('haslo password', 'Hasło|Hasło tymczasowe'), 'pt': ('senha password', 'Senha|Senha provisória')},
}
# national ids: subtype -> lang -> (keys, labels)
NIDS = {
 'nino': {'en': ('nino national_insurance_number ni_number nationalInsuranceNo', 'NI number|National Insurance number|NINO|NI No.')}, 'nhs': {'en': ('nhs_number nhsNumber nhs_no patient_nhs', 'NHS number|NHS No.|NHS no|Patient NHS number')},
 'steuer': {'de': ('steuer_id steueridnr steuerid idnr tax_id', 'Steuer-ID|Steuerliche Identifikationsnummer|IdNr.|Steueridentifikationsnummer|Steuer-IdNr.')}, 'perso': {'de': ('personalausweis ausweisnummer personalausweisnummer perso_nr', 'Personalausweis-Nr.|Ausweisnummer|Personalausweisnummer|Personalausweis')},
 'nir': {'fr': ('nir numero_secu num_secu numero_securite_sociale insee', 'N° de sécurité sociale|NIR|Numéro de sécu|N° INSEE|Numéro de Sécurité sociale')}, 'dni': {'es': ('dni nif documento numero_dni', 'DNI|NIF|D.N.I.|Nº DNI|DNI/NIF')}, 'nie': {'es': ('nie numero_nie nie_extranjero documento_nie', 'NIE|N.I.E.|Número de NIE|NIE nº')},
 'cf': {'it': ('codice_fiscale codiceFiscale cf cod_fisc', 'Codice fiscale|C.F.|Cod. Fisc.|CF')}, 'bsn': {'nl': ('bsn burgerservicenummer bsn_nummer sofinummer', 'BSN|Burgerservicenummer|BSN-nummer|BSN nr.')},
 'ahv': {'de': ('ahv_nummer ahvNr ahv sozialversicherungsnummer', 'AHV-Nr.|AHV-Nummer|Sozialversicherungsnummer|AHVN13'), 'fr': ('numero_avs avs no_avs', 'N° AVS|Numéro AVS|AVS'), 'it': ('numero_avs avs', 'Numero AVS|N. AVS')}, 'pesel': {'pl': ('pesel numer_pesel nr_pesel peselNumber', 'PESEL|Nr PESEL|Numer PESEL|PESEL nr')}, 'cpf': {'pt': ('cpf numero_cpf cpf_cliente documento_cpf', 'CPF|CPF nº|Nº do CPF|C.P.F.')},
 'aadhaar': {'en': ('aadhaar aadhaar_number aadhar_no uid_aadhaar', 'Aadhaar|Aadhaar number|Aadhaar No.|Aadhar no')}, 'pan': {'en': ('pan pan_number pan_no income_tax_pan', 'PAN|PAN number|PAN card no.|PAN No.')},
 'sin': {'en': ('sin sin_number social_insurance_number socialInsuranceNumber', 'SIN|Social Insurance Number|SIN number|S.I.N.'), 'fr': ('nas numero_nas numero_assurance_sociale', "NAS|Numéro d'assurance sociale")}, 'tfn': {'en': ('tfn tax_file_number tfn_number taxFileNumber', 'TFN|Tax File Number|Tax file no.|TFN number')}, 'medicare': {'en': ('medicare medicare_number medicare_card_no medicareNumber', 'Medicare number|Medicare card|Medicare No.|Medicare card number')},
 'itin': {'en': ('itin itin_number taxpayer_itin individual_taxpayer_id', 'ITIN|ITIN number|Individual Taxpayer Identification Number|Taxpayer ITIN')},
}
# generic sentences around "L V" (ids and passports)
GENID = {
 'en': '''
p|Hello, as requested here is my L: V. Please confirm that you received it.
p|The applicant's L is V and the file was opened on %{date}.
p|Could you check the record for %{name} (L V)?
p|We could not match L V to any customer in %{city}.
c|sure, my L is V
c|Agent: could you give me your L? Customer: V
p|Please add the L "V" to case %{order} before Friday.
p|V is the L we have on file; is that still correct?
P|Subject: Onboarding documents⏎⏎Hi %{first},⏎⏎L - V⏎Start date: %{date}⏎⏎Thanks,⏎%{name}⏎%{company}
l|%{ts} ERROR [%{svc}] duplicate record for L V (case %{int})
p|Name: %{name}; L: V; City: %{city}
p|Guest 1: %{name}, L V⏎Guest 2: to be announced''',
 'de': '''
p|Guten Tag, anbei wie gewünscht meine Angaben: L V. Bitte bestätigen Sie kurz den Eingang.
p|Für %{name} liegt uns folgende Angabe vor: L V.
p|Die Person (L: V) wurde am %{dlocal} im System erfasst.
c|Klar, L lautet V
c|Berater: Nennen Sie mir bitte noch: L? Kunde: V
p|Bitte tragen Sie unter "L" den Wert V ein und schicken das Formular zurück.
P|Betreff: Unterlagen %{order}⏎⏎Sehr geehrte Frau %{last},⏎⏎L: V⏎⏎Mit freundlichen Grüßen⏎%{name}⏎%{company}
l|%{ts} WARN [%{svc}] Dublette gefunden, L V, Vorgang %{int}
p|Name: %{name}, Wohnort: %{city}, L V
p|V (L) konnte keinem Vorgang zugeordnet werden.''',
 'fr': '''
p|Bonjour, comme convenu voici l'information demandée : L V. Merci de me confirmer la réception.
p|Le dossier de %{name} (L : V) a été ouvert le %{dlocal}.
p|Merci d'indiquer « L V » sur le formulaire %{order}.
c|oui bien sûr, L : V
c|Conseiller : pouvez-vous me donner : L ? Client : V
P|Objet : pièces justificatives⏎⏎Bonjour %{first},⏎⏎L : V⏎Ville : %{city}⏎⏎Cordialement,⏎%{name}
l|%{ts} ERROR [%{svc}] doublon détecté pour L V (dossier %{int})
p|Nom : %{name} ; L : V ; Ville : %{city}
p|V, c'est bien ce qui figure sur la carte (L) ?
p|Nous n'avons trouvé aucun assuré avec L V à %{city}.''',
 'es': '''
p|Buenos días, le envío el dato solicitado: L V. Quedo a la espera de su confirmación.
p|D./Dña. %{name}, con L V, vecino/a de %{city}, solicita el alta.
p|El expediente %{order} corresponde al titular con L V.
c|sí claro, mi L es V
c|Agente: ¿me indica su L? Cliente: V
P|Asunto: documentación⏎⏎Hola, %{first}:⏎⏎L: V⏎⏎Un saludo,⏎%{name}⏎%{company}
l|%{ts} ERROR [%{svc}] registro duplicado para L V (caso %{int})
p|Nombre: %{name}. L: V. Ciudad: %{city}.
p|V es el L que figura en el contrato.
p|No encontramos a ningún cliente ("L V").''',
 'it': '''
p|Buongiorno, come richiesto invio il dato: L V. Resto in attesa di conferma.
p|Il/La sottoscritto/a %{name}, L V, residente a %{city}, dichiara quanto segue.
p|La pratica %{order} è intestata a %{name} (L: V).
c|certo, L V
c|Operatore: mi può dare: L? Cliente: V
P|Oggetto: documenti⏎⏎Gentile %{first},⏎⏎L: V⏎⏎Cordiali saluti⏎%{name}⏎%{company}
l|%{ts} ERROR [%{svc}] anagrafica duplicata, L V, pratica %{int}
p|Nome: %{name} - L V - Città: %{city}
p|V risulta già registrato come L nel nostro archivio.
p|Non troviamo nessun cliente con L "V".''',
 'nl': '''
p|Goedemiddag, hierbij de gevraagde gegevens: L V. Graag een korte bevestiging.
p|De heer/mevrouw %{name} (L: V) woont in %{city}.
p|Dossier %{order} staat op naam van %{name}, L V.
c|tuurlijk, mijn L is V
c|Medewerker: mag ik uw L? Klant: V
P|Onderwerp: documenten⏎⏎Beste %{first},⏎⏎L: V⏎⏎Met vriendelijke groet,⏎%{name}⏎%{company}
l|%{ts} ERROR [%{svc}] dubbele registratie voor L V (zaak %{int})
p|Naam: %{name}; L: V; Plaats: %{city}
p|V is het L dat bij ons bekend is.
p|We vinden geen klant met "L V".''',
 'pl': '''
p|Dzień dobry, przesyłam wymagane dane: L V. Proszę o potwierdzenie.
p|Pan/Pani %{name} (L: V), zam. %{city}, składa wniosek.
p|Sprawa %{order} dotyczy osoby: %{name}, L V.
c|jasne, L: V
c|Konsultant: proszę podać L. Klient: V
P|Temat: dokumenty⏎⏎Szanowni Państwo,⏎⏎L: V⏎⏎Z poważaniem⏎%{name}⏎%{company}
l|%{ts} ERROR [%{svc}] duplikat rekordu, L V, sprawa %{int}
p|Imię i nazwisko: %{name}; L: V; Miasto: %{city}
p|V - taki L widnieje w umowie.
p|Nie znaleziono klienta ("L V").''',
 'pt': '''
p|Bom dia, segue o dado solicitado: L V. Fico no aguardo da confirmação.
p|Eu, %{name}, portador do L V, residente em %{city}, declaro para os devidos fins.
p|O processo %{order} está em nome de %{name} (L: V).
c|claro, meu L é V
c|Atendente: pode informar o L? Cliente: V
P|Assunto: documentos⏎⏎Olá, %{first},⏎⏎L: V⏎⏎Atenciosamente,⏎%{name}⏎%{company}
l|%{ts} ERROR [%{svc}] registro duplicado, L V, caso %{int}
p|Nome: %{name}; L: V; Cidade: %{city}
p|V é o L que consta no contrato.
p|Nenhum cliente encontrado para "L V".''',
}
# class specific sentences per language
CORE = {}
CORE['phone'] = {
 'en': '''
p|Please call me on @{phone} after %{hm}.
p|You can reach our %{city} office at @{phone} Monday to Friday.
p|For urgent matters ring @{phone}, otherwise open a ticket.
p|If the driver gets lost he should call @{phone} or @{phone}.
c|my number is @{phone}
c|can you text me at @{phone}? thanks
c|@{phone} - call anytime
P|Best regards,⏎%{name}⏎%{company}⏎T @{phone} | M @{phone}⏎%{city}
P|%{name}⏎Account Manager, %{company}⏎Phone: @{phone}⏎Fax: @{phone}
p|Contact: %{name} (@{phone})
l|%{ts} INFO [%{svc}] sms queued to=@{phone} template=otp_%{n2}
l|%{ts} sip: INVITE from @{phone} rejected, code 486
p|Customer left a voicemail; callback requested on "@{phone}" regarding order %{order}.
p|I tried @{phone} twice but nobody picked up.
x|<a href="tel:@{phone}">Call us</a>
p|Delivery note %{order}: ring the bell at %{last}, or phone @{phone} on arrival.
p|WhatsApp: @{phone}⏎Signal: same number
p|Emergency contact for %{name} is her brother, @{phone}.''',
 'de': '''
p|Sie erreichen mich unter @{phone}, am besten ab %{hm} Uhr.
p|Bitte rufen Sie mich unter der Nummer @{phone} zurück.
p|Unser Büro in %{city} ist telefonisch unter @{phone} erreichbar.
c|meine Nummer ist @{phone}
c|ruf mich bitte an: @{phone}
c|Handy @{phone}, danke!
P|Mit freundlichen Grüßen⏎%{name}⏎%{company}⏎Tel.: @{phone}⏎Mobil: @{phone}
P|%{name}⏎%{company}, %{city}⏎Fon @{phone} · Fax @{phone}
p|Ansprechpartner: %{name} (@{phone})
l|%{ts} INFO [%{svc}] SMS an @{phone} versendet
p|Der Kunde bittet wegen Bestellung %{order} um Rückruf: @{phone}.
p|Zustellhinweis: bei %{last} klingeln oder @{phone} anrufen
p|Im Notfall bitte meinen Mann anrufen, Tel. @{phone}.''',
 'fr': '''
p|Vous pouvez me joindre au @{phone} à partir de %{hm}.
p|Merci de me rappeler au @{phone} concernant la commande %{order}.
p|Notre agence de %{city} est joignable par téléphone : @{phone}.
c|mon numéro c'est le @{phone}
c|appelle-moi au @{phone} stp
P|Cordialement,⏎%{name}⏎%{company}⏎Tél. : @{phone}⏎Port. : @{phone}
P|%{name}⏎%{company} - %{city}⏎Tél @{phone} / Fax @{phone}
p|Contact sur place : %{name} (@{phone})
l|%{ts} INFO [%{svc}] SMS envoyé au @{phone}
p|En cas d'urgence, prévenir Mme %{last} au « @{phone} ».
p|Le livreur doit appeler le @{phone} en arrivant.
p|J'ai essayé le @{phone}, sans réponse.''',
 'es': '''
p|Puede llamarme al @{phone} a partir de las %{hm}.
p|Por favor, devuélvanme la llamada al @{phone} por el pedido %{order}.
p|Nuestra oficina de %{city} atiende en el teléfono @{phone}.
c|mi número es el @{phone}
c|llámame al @{phone} porfa
P|Un saludo,⏎%{name}⏎%{company}⏎Tel.: @{phone}⏎Móvil: @{phone}
P|%{name}⏎%{company} - %{city}⏎Tfno. @{phone} / Fax @{phone}
p|Persona de contacto: %{name} (@{phone})
l|%{ts} INFO [%{svc}] SMS enviado al @{phone}
p|En caso de urgencia avisar a %{name}, teléfono "@{phone}".
p|El repartidor debe llamar al @{phone} al llegar.
p|He probado con el @{phone} y no contestan.''',
 'it': '''
p|Può chiamarmi al @{phone} dopo le %{hm}.
p|Vi prego di richiamarmi al numero @{phone} per l'ordine %{order}.
p|La nostra sede di %{city} risponde al @{phone}.
c|il mio numero è @{phone}
c|chiamami al @{phone} grazie
P|Cordiali saluti⏎%{name}⏎%{company}⏎Tel. @{phone}⏎Cell. @{phone}
P|%{name}⏎%{company} - %{city}⏎Tel @{phone} / Fax @{phone}
p|Referente: %{name} (@{phone})
l|%{ts} INFO [%{svc}] SMS inviato a @{phone}
p|In caso di emergenza avvisare %{name}, tel. "@{phone}".
p|Il corriere deve telefonare al @{phone} all'arrivo.
p|Ho provato al @{phone} ma non risponde nessuno.''',
 'nl': '''
p|U kunt mij bereiken op @{phone} na %{hm} uur.
p|Graag terugbellen op @{phone} over bestelling %{order}.
p|Ons kantoor in %{city} is telefonisch bereikbaar op @{phone}.
c|mijn nummer is @{phone}
c|bel me even op @{phone}
P|Met vriendelijke groet,⏎%{name}⏎%{company}⏎T: @{phone}⏎M: @{phone}
P|%{name}⏎%{company}, %{city}⏎Tel @{phone} / Fax @{phone}
p|Contactpersoon: %{name} (@{phone})
l|%{ts} INFO [%{svc}] sms verstuurd naar @{phone}
p|Bij nood graag %{name} bellen, tel. "@{phone}".
p|De bezorger moet @{phone} bellen bij aankomst.
p|Ik heb @{phone} geprobeerd maar er neemt niemand op.''',
 'pl': '''
p|Proszę o kontakt pod numerem @{phone} po godzinie %{hm}.
p|Proszę oddzwonić na @{phone} w sprawie zamówienia %{order}.
p|Nasze biuro w mieście %{city} jest dostępne pod tel. @{phone}.
c|mój numer to @{phone}
c|zadzwoń do mnie: @{phone}
P|Pozdrawiam⏎%{name}⏎%{company}⏎tel. @{phone}⏎kom. @{phone}
P|%{name}⏎%{company}, %{city}⏎tel. @{phone} / faks @{phone}
p|Osoba kontaktowa: %{name} (@{phone})
l|%{ts} INFO [%{svc}] wysłano SMS na @{phone}
p|W nagłych przypadkach proszę dzwonić: "@{phone}" (%{name}).
p|Kurier ma zadzwonić pod @{phone} przed dostawą.
p|Dzwoniłam na @{phone}, nikt nie odbiera.''',
 'pt': '''
p|Pode me ligar no @{phone} depois das %{hm}.
p|Por favor, retornem a ligação no número @{phone} sobre o pedido %{order}.
p|Nosso escritório em %{city} atende pelo telefone @{phone}.
c|meu número é @{phone}
c|me chama no zap @{phone}
P|Atenciosamente,⏎%{name}⏎%{company}⏎Tel.: @{phone}⏎Cel.: @{phone}
P|%{name}⏎%{company} - %{city}⏎Fone @{phone} / Fax @{phone}
p|Contato: %{name} (@{phone})
l|%{ts} INFO [%{svc}] SMS enviado para @{phone}
p|Em caso de emergência avisar %{name}, tel. "@{phone}".
p|O entregador deve ligar para @{phone} ao chegar.
p|Tentei o @{phone} e ninguém atende.''',
}
CORE['dob'] = {
 'en': '''
p|%{name} was born on @{dob} in %{city}.
p|The patient (DOB @{dob}) was admitted on %{date}.
p|My date of birth is @{dob}, please update my profile.
p|Born @{dob}, %{first} has worked for %{company} since %{year}.
c|dob is @{dob}
c|Agent: for security, your date of birth? Customer: @{dob}
P|Subject: Policy %{order}⏎⏎Insured: %{name}⏎Born: @{dob}⏎Valid from: %{date}
l|%{ts} WARN [%{svc}] kyc mismatch date of birth "@{dob}" for user %{int}
p|Re: %{name}, d.o.b. @{dob} - referral to cardiology
p|Child's name: %{first} / birthday: @{dob} / class: 3B
p|He turned up with an ID that says he was born on @{dob}.
j|{"patient":{"family":"%{last}","birthDate":"@{dob.num}","admitted":"%{date}"}}''',
 'de': '''
p|%{name}, geboren am @{dob} in %{city}.
p|Die Patientin %{name}, geb. @{dob}, wurde am %{dlocal} aufgenommen.
p|Mein Geburtsdatum ist der @{dob}, bitte korrigieren Sie mein Profil.
c|geboren bin ich am @{dob}
c|Berater: Ihr Geburtsdatum bitte? Kunde: @{dob}
P|Betreff: Police %{order}⏎⏎Versicherte Person: %{name}⏎geb. am: @{dob}⏎gültig ab: %{dlocal}
p|%{name} (* @{dob} in %{city}) ist seit %{year} bei %{company}.
l|%{ts} WARN [%{svc}] Geburtsdatum @{dob} stimmt nicht überein, Kunde %{int}
p|Kind: %{first}, Geburtstag @{dob}, Klasse 3b
j|{"patient":{"nachname":"%{last}","geburtsdatum":"@{dob.num}","aufnahme":"%{date}"}}''',
 'fr': '''
p|%{name}, né le @{dob} à %{city}.
p|La patiente, née le @{dob}, a été admise le %{dlocal}.
p|Ma date de naissance est le @{dob}, merci de corriger mon profil.
c|je suis né le @{dob}
c|Conseiller : votre date de naissance ? Client : @{dob}
P|Objet : contrat %{order}⏎⏎Assuré : %{name}⏎Né(e) le : @{dob}⏎Valable à partir du : %{dlocal}
l|%{ts} WARN [%{svc}] date de naissance @{dob} incohérente, client %{int}
p|Enfant : %{first}, date de naissance « @{dob} », classe de CE2
j|{"patient":{"nom":"%{last}","date_naissance":"@{dob.num}","admission":"%{date}"}}''',
 'es': '''
p|%{name}, nacido el @{dob} en %{city}.
p|La paciente, nacida el @{dob}, ingresó el %{dlocal}.
p|Mi fecha de nacimiento es @{dob}, por favor corrijan mi perfil.
c|nací el @{dob}
c|Agente: ¿su fecha de nacimiento? Cliente: @{dob}
P|Asunto: póliza %{order}⏎⏎Asegurado: %{name}⏎Fecha de nacimiento: @{dob}⏎Vigente desde: %{dlocal}
l|%{ts} WARN [%{svc}] fecha de nacimiento @{dob} no coincide, cliente %{int}
p|Alumno: %{first}, nacimiento "@{dob}", curso 3.º B
j|{"paciente":{"apellido":"%{last}","fecha_nacimiento":"@{dob.num}","ingreso":"%{date}"}}''',
 'it': '''
p|%{name}, nato il @{dob} a %{city}.
p|La paziente, nata il @{dob}, è stata ricoverata il %{dlocal}.
p|La mia data di nascita è @{dob}, correggete il profilo per favore.
c|sono nata il @{dob}
c|Operatore: data di nascita? Cliente: @{dob}
P|Oggetto: polizza %{order}⏎⏎Assicurato: %{name}⏎Data di nascita: @{dob}⏎Decorrenza: %{dlocal}
l|%{ts} WARN [%{svc}] data di nascita @{dob} non corrisponde, cliente %{int}
p|Alunno: %{first}, nato il "@{dob}", classe 3B
j|{"paziente":{"cognome":"%{last}","data_nascita":"@{dob.num}","ricovero":"%{date}"}}''',
 'nl': '''
p|%{name}, geboren op @{dob} te %{city}.
p|De patiënt (geb. @{dob}) is opgenomen op %{dlocal}.
p|Mijn geboortedatum is @{dob}, graag mijn profiel aanpassen.
c|ik ben geboren op @{dob}
c|Medewerker: uw geboortedatum? Klant: @{dob}
P|Onderwerp: polis %{order}⏎⏎Verzekerde: %{name}⏎Geboortedatum: @{dob}⏎Ingangsdatum: %{dlocal}
l|%{ts} WARN [%{svc}] geboortedatum @{dob} komt niet overeen, klant %{int}
p|Kind: %{first}, verjaardag en geboortedatum "@{dob}", groep 5
j|{"patient":{"achternaam":"%{last}","geboortedatum":"@{dob.num}","opname":"%{date}"}}''',
 'pl': '''
p|%{name}, ur. @{dob} w miejscowości %{city}.
p|Pacjentka urodzona @{dob} została przyjęta dnia %{dlocal}.
p|Moja data urodzenia to @{dob}, proszę poprawić profil.
c|urodziłem się @{dob}
c|Konsultant: data urodzenia? Klient: @{dob}
P|Temat: polisa %{order}⏎⏎Ubezpieczony: %{name}⏎Data urodzenia: @{dob}⏎Ważna od: %{dlocal}
l|%{ts} WARN [%{svc}] niezgodna data urodzenia @{dob}, klient %{int}
p|Uczeń: %{first}, urodzony "@{dob}", klasa 3B
j|{"pacjent":{"nazwisko":"%{last}","data_urodzenia":"@{dob.num}","przyjecie":"%{date}"}}''',
 'pt': '''
p|%{name}, nascido em @{dob} em %{city}.
p|A paciente, nascida em @{dob}, foi internada em %{dlocal}.
p|Minha data de nascimento é @{dob}, favor corrigir o cadastro.
c|nasci em @{dob}
c|Atendente: sua data de nascimento? Cliente: @{dob}
P|Assunto: apólice %{order}⏎⏎Segurado: %{name}⏎Data de nascimento: @{dob}⏎Vigência: %{dlocal}
l|%{ts} WARN [%{svc}] data de nascimento @{dob} divergente, cliente %{int}
p|Aluno: %{first}, nascimento "@{dob}", turma 3B
j|{"paciente":{"sobrenome":"%{last}","data_nascimento":"@{dob.num}","internacao":"%{date}"}}''',
}
CORE['email'] = {
 'en': '''
p|Please send the invoice to @{email} before Friday.
p|I wrote to @{email} and @{email} but got no answer.
p|Contact me: @{email}
p|Reach out to %{name} <@{email}> for access.
p|(@{email})
p|You can mail me at @{email}.
c|@{email}
c|its @{email} thx
c|Agent: which address did you use to sign up? Customer: @{email}
P|From: %{name} <@{email}>⏎To: @{email}⏎Cc: "%{last}, %{first}" <@{email}>⏎Subject: Invoice %{order}⏎⏎See attachment.
P|commit %{sha1}⏎Author: %{name} <@{email}>⏎Date:   %{ts}⏎⏎    fix %{word} handling
l|%{ts} INFO [%{svc}] login ok user=@{email} session=%{req}
l|%{sysl} %{node} postfix/smtp[%{pid}]: %{req}: to=<@{email}>, relay=none, delay=%{n2}, status=deferred
l|%{ts} ERROR mail bounced: @{email};reason=mailbox full
x|<a href="mailto:@{email}?subject=Hello">write us</a>
x|git config user.email "@{email}"
x|ADMINS = [("%{first}", "@{email}"), ("%{first}", "@{email}")]
x|curl -s https://api.%{comp}.io/v1/users?email=@{email}
x|authors = ["%{name} <@{email}>"]
x|# Maintainer: %{name} <@{email}>
p|Forwarded by @{email}: order %{order} is late again!''',
 'de': 'p|Bitte senden Sie die Rechnung an @{email}.\np|Meine neue Adresse lautet @{email}, bitte ändern.\nc|schreib mir an @{email}\nP|Von: %{name} <@{email}>⏎An: @{email}⏎Betreff: Angebot %{order}⏎⏎siehe Anhang', 'fr': "p|Merci d'envoyer la facture à @{email}.\np|Vous pouvez m'écrire à l'adresse @{email}, à bientôt.\nc|mon mail : @{email}\nP|De : %{name} <@{email}>⏎À : @{email}⏎Objet : devis %{order}⏎⏎voir pièce jointe",
 'es': 'p|Envíen la factura a @{email}, por favor.\np|Mi correo es @{email} desde hoy.\nc|escríbeme a @{email}\nP|De: %{name} <@{email}>⏎Para: @{email}⏎Asunto: presupuesto %{order}', 'it': "p|Inviate la fattura a @{email}, grazie.\np|Il mio nuovo indirizzo è @{email}.\nc|scrivimi a @{email}\nP|Da: %{name} <@{email}>⏎A: @{email}⏎Oggetto: preventivo %{order}",
 'nl': 'p|Stuur de factuur naar @{email} graag.\np|Mijn nieuwe adres is @{email}.\nc|mail me op @{email}\nP|Van: %{name} <@{email}>⏎Aan: @{email}⏎Onderwerp: offerte %{order}', 'pl': 'p|Proszę wysłać fakturę na adres @{email}.\np|Mój nowy adres to @{email}, proszę o zmianę.\nc|napisz na @{email}\nP|Od: %{name} <@{email}>⏎Do: @{email}⏎Temat: oferta %{order}', 'pt': 'p|Enviem a nota fiscal para @{email}, por favor.\np|Meu novo e-mail é @{email}.\nc|manda para @{email}\nP|De: %{name} <@{email}>⏎Para: @{email}⏎Assunto: orçamento %{order}',
}
CORE['card'] = {
 'en': '''
p|Please charge my card @{card}, expiry %{exp}.
p|I was billed twice on @{card} for order %{order}.
p|The card ending soon is @{card}; use the new one @{card} instead.
p|Card holder %{name}, number @{card}, valid thru %{exp}
c|my card number is @{card} exp %{exp}
c|Agent: can you read me the long number on the front? Customer: @{card}
c|@{card}
P|Booking form⏎Guest: %{name}⏎Nights: 3⏎Card: @{card}⏎Expires: %{exp}
l|%{ts} DEBUG [%{svc}] charge request card=@{card} amount=%{amount} cur=EUR
l|%{ts} ERROR [%{svc}] processor declined pan "@{card}" code=51
x|stripe.Token.create(card={"number": "@{card.raw}", "exp_month": 4, "exp_year": 2028})
x|INSERT INTO payments (order_id, card_no, amount) VALUES (%{int}, '@{card}', %{amount});
j|{"payment_method":{"type":"card","number":"@{card.raw}","exp":"%{exp}"}}
p|They wrote the number (@{card}) on a sticky note!
p|Paid by Visa @{card} on %{date}.''',
 'de': 'p|Bitte belasten Sie meine Kreditkarte @{card}, gültig bis %{exp}.\nc|Karte: @{card}, Ablauf %{exp}\np|Die Buchung lief über die Karte mit der Nummer @{card}.', 'fr': 'p|Merci de débiter ma carte @{card}, expire %{exp}.\nc|ma carte : @{card}\np|Le paiement a été fait avec la carte n° @{card} le %{dlocal}.', 'es': 'p|Carguen el importe en mi tarjeta @{card}, caduca %{exp}.\nc|mi tarjeta es @{card}\np|El pago se hizo con la tarjeta número @{card}.',
 'it': 'p|Addebitate sulla mia carta @{card}, scadenza %{exp}.\nc|la carta è @{card}\np|Pagamento con carta numero @{card} del %{dlocal}.', 'nl': 'p|Schrijf het bedrag af van mijn creditcard @{card}, geldig tot %{exp}.\nc|mijn kaart is @{card}', 'pl': 'p|Proszę obciążyć moją kartę @{card}, ważna do %{exp}.\nc|numer karty to @{card}', 'pt': 'p|Podem cobrar no meu cartão @{card}, validade %{exp}.\nc|meu cartão é @{card}',
}
CORE['iban'] = {
 'en': '''
p|Please transfer %{amount} EUR to @{iban}, reference %{order}.
p|Our bank details: @{iban} (%{company}).
p|Refund to @{iban} was rejected by the bank.
c|here is my iban @{iban}
c|@{iban}
P|Payment details⏎Beneficiary: %{company}⏎IBAN: @{iban}⏎BIC: %{bic}⏎Reference: %{order}
l|%{ts} INFO [%{svc}] payout created iban=@{iban} amount=%{amount}
l|%{ts} ERROR sepa: debtor "@{iban}" closed, reason AC04
x|<CdtrAcct><Id><IBAN>@{iban}</IBAN></Id></CdtrAcct>
x|UPDATE payouts SET account = '@{iban}' WHERE vendor_id = %{int};
j|{"bank":{"holder":"%{name}","iban":"@{iban}","bic":"%{bic}"}}
p|Account (@{iban}) belongs to %{name}.''',
 'de': 'p|Bitte überweisen Sie %{amount} EUR auf das Konto @{iban}, Verwendungszweck %{order}.\np|Unsere Bankverbindung: IBAN @{iban}, BIC %{bic}\nc|meine IBAN ist @{iban}\np|Die Lastschrift von @{iban} wurde zurückgegeben.', 'fr': 'p|Merci de virer %{amount} EUR sur le compte @{iban}, référence %{order}.\np|Nos coordonnées bancaires : IBAN @{iban} - BIC %{bic}\nc|mon IBAN : @{iban}', 'es': 'p|Transfieran %{amount} EUR a la cuenta @{iban}, concepto %{order}.\nc|mi cuenta es @{iban}\np|Datos bancarios: @{iban} (BIC %{bic})',
 'it': 'p|Si prega di bonificare %{amount} EUR su @{iban}, causale %{order}.\nc|il mio iban è @{iban}\np|Coordinate bancarie: @{iban} - BIC %{bic}', 'nl': 'p|Graag %{amount} EUR overmaken naar @{iban} o.v.v. %{order}.\nc|mijn rekening is @{iban}', 'pl': 'p|Proszę przelać %{amount} EUR na rachunek @{iban}, tytułem %{order}.\nc|mój numer konta to @{iban}', 'pt': 'p|Favor transferir %{amount} EUR para @{iban}, referência %{order}.\nc|meu IBAN é @{iban}',
}
CORE['ssn'] = {'en': '''
p|My social security number is @{ssn}, please update payroll.
p|SSN @{ssn} was used to open the account in %{city}.
p|The W-2 lists the wrong SSN: it should be @{ssn} and not the one of my spouse, SSN @{ssn}.
p|Employee %{name} (SSN: @{ssn}) starts on %{date}.
p|Background check for %{name}, social security no. @{ssn}, is complete.
c|ssn is @{ssn}
c|Agent: please verify your Social Security number. Customer: @{ssn}
c|sure its @{ssn} (social)
P|Subject: I-9 form⏎⏎Name: %{name}⏎SSN: @{ssn}⏎Start date: %{date}
l|%{ts} ERROR [%{svc}] credit pull failed ssn=@{ssn} bureau=2
l|%{ts} DEBUG [%{svc}] matched applicant by SSN "@{ssn}" score=0.%{n2}
x|SELECT * FROM employees WHERE ssn = '@{ssn}';
x|applicant = Applicant(name="%{name}", ssn="@{ssn}")
j|{"applicant":{"last":"%{last}","ssn":"@{ssn}","state":"TX"}}
v|employee_id,name,ssn,dept⏎%{int},%{name},@{ssn},ops⏎%{int},%{name},@{ssn},sales
p|Form 1099: recipient's TIN/SSN @{ssn}'''}
CORE['ip'] = {'en': '''
p|Requests from @{ip} were blocked by the firewall.
p|Can you whitelist @{ip} and @{ip} for the %{svc} host?
p|The last login came from @{ip} (%{city}).
p|My IP is @{ip}, why am I banned?
c|its @{ip}
c|server is at @{ip.4}:%{port}
l|@{ip} - - [%{clock}] "GET %{path} HTTP/1.1" %{status} %{int} "-" "%{ua}"
l|@{ip} - %{login} [%{clock}] "POST %{path} HTTP/2.0" %{status} %{n3}
l|%{sysl} %{node} sshd[%{pid}]: Failed password for invalid user %{login} from @{ip} port %{port} ssh2
l|%{sysl} %{node} sshd[%{pid}]: Accepted publickey for %{login} from @{ip} port %{port} ssh2
l|%{sysl} %{node} kernel: [UFW BLOCK] IN=eth0 OUT= SRC=@{ip.4} DST=@{ip.4} LEN=40 PROTO=TCP DPT=22
l|%{ts} [error] 31#31: *%{int} connect() failed (111: Connection refused) while connecting to upstream, client: @{ip}, server: _
l|%{ts} INFO [%{svc}] connection from [@{ip.6}]:%{port} closed
l|%{ts} WARN [%{svc}] rate limit exceeded ip=@{ip} path=%{path}
l|X-Forwarded-For: @{ip}, @{ip}
x|ssh -p %{port} %{user}@@{ip.4}
x|curl -v http://@{ip.4}:%{port}%{path}
x|curl -g "http://[@{ip.6}]:%{port}/"
x|iptables -A INPUT -s @{ip.4} -j DROP
x|ping6 @{ip.6}
x|server:⏎  host: @{ip.4}⏎  port: %{port}
x|UPSTREAM = ("@{ip.4}", %{port})
x|@{ip}    %{node}.%{comp}.internal %{node}
x|%{word} IN A @{ip.4}⏎%{word} IN AAAA @{ip.6}
x|Host %{node}⏎  HostName @{ip.4}⏎  User %{user}
j|{"src":"@{ip}","dst":"@{ip}","proto":"tcp","bytes":%{int}}
j|{"event":"login","user":%{int},"ip":"@{ip}","ua":"%{ua}"}
v|time,src,dst,port⏎%{ts},@{ip},@{ip},%{port}
p|Traceroute stops at hop %{n2} (@{ip}).
p|<@{ip}> shows up in the abuse report of %{date}.'''}
CORE['jwt'] = {'en': '''
x|curl -H "Authorization: Bearer @{jwt}" https://api.%{comp}.io/v1/me
x|Authorization: Bearer @{jwt}
x|Cookie: session=@{jwt}; theme=dark
x|const token = "@{jwt}";
x|export ACCESS_TOKEN=@{jwt}
x|headers = {"Authorization": "Bearer @{jwt}"}
x|GET /callback?state=%{req}&id_token=@{jwt} HTTP/1.1
x|localStorage.setItem('jwt', '@{jwt}')
l|%{ts} DEBUG [%{svc}] verifying token @{jwt}
l|%{ts} ERROR [%{svc}] jwt expired: "@{jwt}" sub=%{int}
l|%{ts} TRACE request headers authorization='Bearer @{jwt}' accept='*/*'
j|{"access_token":"@{jwt}","token_type":"Bearer","expires_in":3600}
j|{"data":{"login":{"token":"@{jwt}","user":{"id":%{int}}}}}
p|I get a 401 with this token: @{jwt}
p|Paste it into the debugger:⏎⏎@{jwt}⏎⏎and you will see the claims.
c|try with @{jwt}
c|@{jwt}
p|The staging token (@{jwt}) leaked in ticket %{order}.
v|user_id,token⏎%{int},@{jwt}'''}
CORE['pem'] = {'en': '''
X|@{pem}
X|cat > ~/.ssh/id_rsa <<'EOF'⏎@{pemssh}⏎EOF⏎chmod 600 ~/.ssh/id_rsa
X|echo "@{pemrsa}" > key.pem
X|tls:⏎  key: |⏎    @{pemi4}⏎  port: 8443
X|stringData:⏎  tls.key: |-⏎    @{pemi4}
X|PRIVATE_KEY = """@{pem}"""
X|const key = `@{pemp8}`;
X|resource "tls" "main" {⏎  private_key = <<PEM⏎@{pemrsa}⏎PEM⏎}
X|# id_ed25519 (%{node})⏎@{pemssh}⏎# end
X|<ca>...</ca>⏎<key>⏎@{pemp8}⏎</key>
X|APP_KEY="@{pemesc}"
X|const KEY = "@{pemesc}\\n";
J|{"type":"service_account","project_id":"%{word}-%{n3}","private_key":"@{pemesc}\\n","client_id":"%{snow}"}
J|{"private_key": "@{pemesc}"}
J|{⏎  "cert": "server.crt",⏎  "key": "@{pemesc}\\n",⏎  "passphrase": null⏎}
P|Hi %{first},⏎⏎here is the deploy key for %{node}:⏎⏎@{pem}⏎⏎Please delete this mail afterwards.⏎%{name}
P|The customer pasted this into ticket %{order}:⏎⏎```⏎@{pem}⏎```
C|%{first}: can you send me the key?⏎%{first}: sure⏎@{pem}
C|[%{hm}] %{first}: @{pemec}
L|%{ts} DEBUG [%{svc}] loaded key @{pemesc}
L|%{ts} ERROR [%{svc}] could not parse key:⏎@{pemrsa}⏎%{ts} INFO shutting down
X|gpg --import <<KEY⏎@{pempgp}⏎KEY
P|My backup key, keep safe:⏎@{pempgp}
X|-  path: /etc/ssl/private/%{word}.key⏎   content: |⏎  @{pemi2}'''}
CORE['pw'] = {'en': '''
x|password=@{pw}
x|DB_PASSWORD=@{pw}⏎DB_NAME=%{db}
x|export PGPASSWORD='@{pw.x}'
x|"db_password": "@{pw.x}"
j|{"host": "%{host}", "user": "%{user}", "password": "@{pw.x}"}
j|{"database":{"name":"%{db}","credentials":{"username":"%{user}","pwd":"@{pw.x}"}}}
j|{"login":"%{login}","password":"@{pw.x}","remember":true}
x|postgres://%{user}:@{pw.url}@%{host}:5432/%{db}
x|DATABASE_URL=postgresql://%{user}:@{pw.url}@%{host}/%{db}?sslmode=require
x|mysql://%{user}:@{pw.url}@%{host}:3306/%{db}
x|mongodb+srv://%{user}:@{pw.url}@%{host}/%{db}?retryWrites=true
x|REDIS_URL="redis://:@{pw.url}@%{host}:6379/0"
x|amqp://%{user}:@{pw.url}@%{host}:5672/%2f
x|git clone https://%{login}:@{pw.url}@git.%{comp}.io/%{repo}.git
x|curl -u %{login}:@{pw.url} https://%{host}%{path}
x|wget --user=%{login} --password='@{pw}' https://%{host}/%{word}.zip
x|mysql -h %{host} -u %{user} -p'@{pw}' %{db} < dump.sql
x|sshpass -p '@{pw}' ssh %{user}@%{node}
x|jdbc:mysql://%{host}:3306/%{db}?user=%{user}&password=@{pw.url}
x|Server=%{host};Database=%{db};User Id=%{user};Password=@{pw};Encrypt=true
x|spring.datasource.username=%{user}⏎spring.datasource.password=@{pw}
x|define('DB_PASSWORD', '@{pw.x}');
x|smtp:⏎  host: mail.%{comp}.io⏎  username: %{login}⏎  password: "@{pw.x}"
x|ansible_user: %{user}⏎ansible_ssh_pass: "@{pw.x}"
x|machine %{host} login %{login} password @{pw.url}
x|conn = psycopg2.connect(host="%{host}", user="%{user}", password="@{pw.x}")
x|CREATE USER '%{user}'@'%' IDENTIFIED BY '@{pw.x}';
x|ALTER ROLE %{user} WITH PASSWORD '@{pw.x}';
x|stringData:⏎  username: %{user}⏎  password: @{pw.url}
x|var client = new FtpClient("%{host}", "%{login}", password: "@{pw.x}");
x|<add name="Main" connectionString="Data Source=%{host};Initial Catalog=%{db};User ID=%{user};Pwd=@{pw.url}" />
x|bind_dn: cn=%{user},dc=%{comp},dc=net⏎bind_password: @{pw}
x|net use Z: \\\\%{node}\\share /user:%{login} & rem pwd: @{pw}
x|docker run -e MYSQL_ROOT_PASSWORD=@{pw.url} -d mysql:8
x|String pwd = "@{pw.x}"; // TODO remove
x|[client]⏎user=%{user}⏎password="@{pw.x}"
l|%{ts} DEBUG [%{svc}] login attempt user=%{login} password=@{pw.url}
l|%{ts} DEBUG [%{svc}] POST /login body={"user":"%{login}","password":"@{pw.x}"}
l|%{ts} ERROR [%{svc}] cannot connect to postgres://%{user}:@{pw.url}@%{host}:5432/%{db}: timeout
l|%{hms} connecting with pwd: @{pw}
p|Your temporary password is: @{pw}⏎Please change it after the first login.
p|User: %{login}⏎Password: @{pw}
p|The wifi password is "@{pw.x}" and the network is %{word}-guest.
p|Login with %{login} / password @{pw} on the staging site
p|Username %{login}, pwd: @{pw}
c|the password is @{pw}
c|pw: @{pw}
c|pwd: @{pw} (same user as before)
c|admin password for %{node} is `@{pw.x}`
v|site,username,password⏎%{host},%{login},@{pw.url}⏎%{host},%{login},@{pw.url}
v|login;pwd⏎%{login};@{pw.url}
P|Hi %{first},⏎⏎your account is ready.⏎⏎User: %{login}⏎Password: @{pw}⏎⏎Regards,⏎IT''',
 'de': 'p|Ihr vorläufiges Passwort lautet: @{pw}\nc|das Passwort ist @{pw}\np|Benutzer: %{login}⏎Kennwort: @{pw}\np|WLAN-Passwort: "@{pw.x}", Netz %{word}', 'fr': 'p|Votre mot de passe provisoire : @{pw}\nc|le mot de passe est @{pw}\np|Identifiant : %{login}⏎Mot de passe : @{pw}\np|Le mot de passe du wifi est « @{pw} »', 'es': 'p|Su contraseña provisional es: @{pw}\nc|la contraseña es @{pw}\np|Usuario: %{login}⏎Contraseña: @{pw}',
 'it': 'p|La password provvisoria è: @{pw}\nc|la password è @{pw}\np|Utente: %{login}⏎Password: @{pw}', 'nl': 'p|Uw tijdelijke wachtwoord is: @{pw}\nc|het wachtwoord is @{pw}\np|Gebruiker: %{login}⏎Wachtwoord: @{pw}', 'pl': 'p|Twoje hasło tymczasowe: @{pw}\nc|hasło to @{pw}\np|Login: %{login}⏎Hasło: @{pw}', 'pt': 'p|Sua senha provisória é: @{pw}\nc|a senha é @{pw}\np|Usuário: %{login}⏎Senha: @{pw}'}
# api keys: generic lines (E = env name, V = slot) and vendor specific ones
APIENV = {'aws_id': 'AWS_ACCESS_KEY_ID', 'gh_classic': 'GITHUB_TOKEN', 'gh_fine': 'GH_PAT', 'gitlab': 'GITLAB_TOKEN', 'slack_bot': 'SLACK_BOT_TOKEN', 'slack_user': 'SLACK_USER_TOKEN', 'stripe_live': 'STRIPE_SECRET_KEY', 'stripe_test': 'STRIPE_TEST_KEY', 'openai': 'OPENAI_API_KEY', 'anthropic': 'ANTHROPIC_API_KEY', 'google': 'GOOGLE_MAPS_API_KEY', 'google_oauth': 'GOOGLE_OAUTH_SECRET', 'google_token': 'GOOGLE_OAUTH_ACCESS_TOKEN', 'npm': 'NPM_TOKEN', 'pypi': 'TWINE_API_TOKEN', 'sendgrid': 'SENDGRID_API_KEY', 'twilio_key': 'TWILIO_API_KEY', 'twilio_auth': 'TWILIO_AUTH_TOKEN', 'aws_secret': 'AWS_SECRET_ACCESS_KEY', 'telegram': 'TELEGRAM_BOT_TOKEN', 'discord': 'DISCORD_BOT_TOKEN', 'hf': 'HF_TOKEN', 'databricks': 'DATABRICKS_TOKEN', 'do': 'DIGITALOCEAN_TOKEN', 'shopify': 'SHOPIFY_ACCESS_TOKEN', 'vault': 'VAULT_TOKEN', 'slack_hook': 'SLACK_WEBHOOK_URL', 'azure': 'AZURE_STORAGE_KEY'}
APISKEL = '''
x|export E=V
x|E=V
x|E="V"⏎DEBUG=false
x|os.environ["E"] = "V"
x|E: V
x|env:⏎  - name: E⏎    value: "V"
x|const client = new Client({ E: 'V' });
j|{"E": "V"}
j|{"env":{"NODE_ENV":"production","E":"V"}}
x|docker run -e E=V %{comp}/%{word}:latest
x|  E: 'V' # rotate after %{date}
l|%{ts} DEBUG [%{svc}] loaded config E=V region=eu
x|variable "E" {⏎  default = "V"⏎}
c|set E to V and restart
p|The E in the repo is V, please rotate it.'''
APIBARE = '''
c|here is the key: V
c|V
p|I accidentally pushed V to the %{repo} repository, what now?
p|Use this token (V) for the %{svc} integration.
l|%{ts} ERROR [%{svc}] 401 invalid credentials "V"
x|api_key = "V"
x|curl -H "Authorization: Bearer V" https://%{host}/v1
x|token: V
j|{"token":"V","owner":"%{login}"}
v|service,key,created⏎%{word},V,%{date}
x|// old key: V⏎const x = %{n2};'''
APISPEC = {
 'aws_id': 'x|[default]⏎aws_access_key_id = @{api.aws_id}⏎aws_secret_access_key = @{api.aws_secret}⏎region = eu-west-1\nx|aws configure set aws_access_key_id @{api.aws_id}\nj|{"AccessKeyId":"@{api.aws_id}","SecretAccessKey":"@{api.aws_secret}","Status":"Active"}\nv|User name,Access key ID,Secret access key⏎%{login},@{api.aws_id},@{api.aws_secret}',
 'aws_secret': 'x|secret_key = "@{api.aws_secret}" # aws\nx|s3 = boto3.client("s3", aws_access_key_id="@{api.aws_id}", aws_secret_access_key="@{api.aws_secret}")\nj|{"aws":{"secretAccessKey":"@{api.aws_secret}","region":"us-east-1"}}\nc|aws secret access key is @{api.aws_secret}\nx|provider "aws" {⏎  access_key = "@{api.aws_id}"⏎  secret_key = "@{api.aws_secret}"⏎}',
 'gh_classic': 'x|git clone https://@{api.gh_classic}@github.com/%{comp}/%{repo}.git\nx|curl -H "Authorization: token @{api.gh_classic}" https://api.github.com/user', 'gitlab': 'x|curl --header "PRIVATE-TOKEN: @{api.gitlab}" https://gitlab.%{comp}.io/api/v4/projects\nx|git remote add origin https://oauth2:@{api.gitlab}@gitlab.%{comp}.io/x/%{repo}.git',
 'slack_hook': "x|curl -X POST -d '{\"text\":\"deploy done\"}' @{api.slack_hook}\nx|webhook_url: @{api.slack_hook}\np|The alerts go to @{api.slack_hook} since %{date}.\nj|{\"notify\":{\"slack\":\"@{api.slack_hook}\"}}\nl|%{ts} ERROR [%{svc}] POST @{api.slack_hook} returned 404\nc|hook is <@{api.slack_hook}>", 'stripe_live': 'x|stripe.api_key = "@{api.stripe_live}"\nx|curl https://api.stripe.com/v1/charges -u @{api.stripe_live}:', 'stripe_test': "x|const stripe = require('stripe')('@{api.stripe_test}');",
 'openai': 'x|client = OpenAI(api_key="@{api.openai}")', 'anthropic': 'x|curl https://api.anthropic.com/v1/messages -H "x-api-key: @{api.anthropic}"', 'google': 'x|<script src="https://maps.googleapis.com/maps/api/js?key=@{api.google}&callback=init"></script>\nx|apiKey: "@{api.google}",⏎projectId: "%{word}-%{n3}"', 'google_oauth': 'j|{"installed":{"client_secret":"@{api.google_oauth}","auth_uri":"https://accounts.google.com/o/oauth2/auth"}}',
 'google_token': 'x|curl -H "Authorization: Bearer @{api.google_token}" https://www.googleapis.com/drive/v3/files\nj|{"access_token":"@{api.google_token}","expires_in":3599,"token_type":"Bearer"}',
 'azure': 'x|DefaultEndpointsProtocol=https;AccountName=%{word}%{n3};AccountKey=@{api.azure};EndpointSuffix=core.windows.net\nx|AZURE_STORAGE_CONNECTION_STRING="DefaultEndpointsProtocol=https;AccountName=%{word}%{n3};AccountKey=@{api.azure};EndpointSuffix=core.windows.net"\nj|{"AzureWebJobsStorage":"DefaultEndpointsProtocol=https;AccountName=%{word};AccountKey=@{api.azure}"}\nx|az storage blob list --account-name %{word} --account-key @{api.azure}\nl|%{ts} ERROR [%{svc}] bad connection string AccountName=%{word};AccountKey=@{api.azure};',
 'npm': 'x|//packages.corp.test/:_authToken=@{api.npm}', 'pypi': 'x|[pypi]⏎username = __token__⏎password = @{api.pypi}\nx|twine upload -u __token__ -p @{api.pypi} dist/*', 'sendgrid': "x|sgMail.setApiKey('@{api.sendgrid}')", 'twilio_auth': 'x|twilio:⏎  auth_token: @{api.twilio_auth}\nx|client = TwilioClient(auth_token="@{api.twilio_auth}")\nj|{"twilio":{"authToken":"@{api.twilio_auth}"}}\nc|twilio auth token: @{api.twilio_auth}',
 'telegram': 'x|curl "https://api.telegram.org/bot@{api.telegram}/sendMessage?text=hi"\nx|bot = Bot(token="@{api.telegram}")\np|Use this token to access the HTTP API:⏎@{api.telegram}⏎Keep your token secure.\nc|bot token @{api.telegram}\nj|{"bot_token":"@{api.telegram}","chat":"%{word}"}', 'discord': "x|client.login('@{api.discord}');\nx|bot.run(\"@{api.discord}\")\nx|Authorization: Bot @{api.discord}\nj|{\"prefix\":\"!\",\"token\":\"@{api.discord}\"}\nc|discord bot token: @{api.discord}", 'hf': 'x|huggingface-cli login --token @{api.hf}', 'databricks': 'x|[DEFAULT]⏎host = https://%{word}.cloud.databricks.com⏎token = @{api.databricks}', 'do': 'x|doctl auth init -t @{api.do}', 'shopify': 'x|curl -H "X-Shopify-Access-Token: @{api.shopify}" https://%{word}.myshopify.com/admin/api/2024-01/shop.json', 'vault': 'x|vault login @{api.vault}\nx|curl -H "X-Vault-Token: @{api.vault}" https://vault.%{comp}.io:8200/v1/secret/data/%{word}',
}

# ================================================================== NEGATIVES
NEG = {'en': r'''
p|Your order %{order} has shipped and should arrive on %{date}.
p|Invoice no. %{d8} dated %{dlocal} is overdue by %{n2} days.
p|Order number: %{d10}
p|Invoice %{d9} / Customer no. %{d6}
p|Reference %{d12}, please quote it in all correspondence.
c|my order is %{amzn} and it never came
c|order no %{ebay}
p|Your booking reference is %{d7} for %{n2} guests.
p|PO %{d10} was split into %{d10} and %{d10}.
p|Ticket #%{d6} was merged into #%{d6}.
j|{"order_id": "%{d10}", "total": %{amount}, "items": %{n2}}
j|{"order_number": %{d16}, "status": "shipped"}
j|{"invoice": "%{d9}", "customer_no": "%{d8}"}
v|order_id,amount,currency⏎%{d9},%{amount},EUR⏎%{d9},%{amount},EUR
v|sku,qty,price⏎%{part},%{n2},%{amount}⏎%{part},%{n2},%{amount}
v|invoice;date;net⏎%{d8};%{date};%{amount}
x|SELECT * FROM orders WHERE order_id = %{d9};
x|INSERT INTO order_items (order_id, sku, qty) VALUES (%{d10}, '%{part}', %{n2});
p|UPS tracking number: %{ups}
p|Track your parcel with %{usps} on the carrier's site.
c|tracking says %{ups} is stuck in %{city}
p|DHL shipment %{d20} is out for delivery.
j|{"carrier":"usps","tracking":"%{usps}"}
j|{"shipment":{"tracking_number":"%{royal}","weight":%{f1}}}
p|Royal Mail item %{royal} was signed for on %{date}.
p|We upgraded to version %{ver4} last night.
p|Chrome %{chrome} fixes the rendering bug.
x|version: %{ver4}
x|<Version>%{ver4}</Version>
x|[assembly: AssemblyVersion("%{ver4}")]
j|{"version": "%{ver4}", "channel": "stable"}
j|{"build": "%{ver4}", "commit": "%{git7}"}
l|%{ts} INFO [%{svc}] starting build %{ver4} (%{git7})
l|%{ts} INFO driver version %{ver4} loaded
p|Firmware v%{ver4} is available for your router.
p|See section %{sec4} of the manual.
p|Requirement %{sec4} is covered by test case %{n3}.
p|Release %{ver3} contains %{n2} fixes.
x|"dependencies": { "%{pkg}": "^%{ver3}", "%{scope}": "~%{ver3}" }
x|npm install %{scope}@%{ver3} %{pkg}@%{ver3}
x|"%{pkg}": ">=%{ver3} <%{ver3}"
x|requires = ["%{pkg}>=%{ver3},<%{ver3}"]
x|import x from '%{scope}';
x|+ %{scope}@%{ver3}⏎added %{n3} packages in %{n2}s
l|npm WARN deprecated %{pkg}@%{ver3}: use %{scope}@%{ver3} instead
x|yarn add -D %{scope}@^%{ver3}
x|%{md5}  %{word}.iso
x|%{sha256}  %{word}-%{ver3}.tar.gz
p|MD5 checksum: %{md5}
p|SHA-1: %{sha1}
p|The sha256 of the artefact is %{sha256}.
x|"integrity": "sha512-%{sha512b64}"
x|docker pull %{comp}/%{word}@sha256:%{sha256}
x|FROM python:3.11@sha256:%{sha256}
l|Digest: sha256:%{sha256}⏎Status: Downloaded newer image
p|Fixed in commit %{git7}, see also %{sha1}.
x|git cherry-pick %{sha1}
x|git checkout %{git7} -- src/%{word}.py
l|%{git7} (HEAD -> main, tag: v%{ver3}) fix %{word} parser
l|ETag: "%{md5}"
j|{"etag":"%{md5}","size":%{int}}
j|{"sha":"%{sha1}","node_id":"%{d7}"}
x|Merge: %{git7} %{git7}⏎Date:   %{ts}
l|%{ts} INFO [%{svc}] job finished in %{n3}ms
l|%{ts} ERROR [%{svc}] timeout after %{d5} ms request=%{uuid}
l|%{epoch} %{svc} heartbeat ok
l|[%{epochms}] cache hit ratio 0.%{n3}
j|{"created": %{epoch}, "updated": %{epochms}}
j|{"ts":"%{ts}","level":"warn","msg":"slow query","ms":%{d4}}
p|The meeting was moved from %{date} to %{date}.
p|The contract runs until %{dlocal} and renews automatically.
p|Delivery date: %{dlocal}
p|Founded on %{dlocal}, the company now employs %{d4} people.
p|Valid from %{dlocal} to %{dlocal}
v|date,open,close,volume⏎%{date},%{f2},%{f2},%{d7}⏎%{date},%{f2},%{f2},%{d7}
p|Release date: %{date}; last reviewed %{date}.
j|{"created_at":"%{date}","expires_at":"%{date}"}
x|WHERE order_date BETWEEN '%{date}' AND '%{date}'
x|touch -t %{year}01021530 %{word}.txt
p|Request id %{uuid} failed twice.
j|{"id":"%{uuid}","parent":"%{uuid}"}
j|{"%{uuid}":{"state":"done"},"%{uuid}":{"state":"queued"}}
x|DELETE FROM sessions WHERE id = '%{uuid}';
l|%{ts} INFO trace=%{uuid} span=%{req} done
j|{"event_id":"%{ulid}","kind":"click"}
v|id,name⏎%{ulid},%{word}⏎%{ulid},%{word2}
x|const ROOM = "%{nano}"; // nanoid for the room
p|ISBN %{isbn13} is out of print.
p|ISBN-10: %{isbn10}
j|{"isbn":"%{isbn13}","pages":%{n3}}
p|EAN: %{ean}
v|ean,name,stock⏎%{ean},%{word} mug,%{n2}⏎%{ean},%{word2} plate,%{n2}
x|<barcode type="EAN13">%{ean}</barcode>
p|Part number %{part} replaces %{part}.
p|The replacement filter is %{part}, in stock in %{city}.
p|Serial number: %{serial}
j|{"model":"%{part}","serial":"%{serial}"}
p|The form rejects %{luhnbad} because the check digit is wrong.
p|Voucher code %{luhnbad}
x|assert not luhn("%{luhnbad}")
x|INVALID_CARDS = ["%{luhnbad}", "%{luhnbad}"]
j|{"loyalty_id":"%{luhnbad}"}
l|%{ts} WARN [%{svc}] luhn check failed for %{luhnbad}
p|%{ibanbad} is not a valid IBAN, the checksum does not match.
x|self.assertFalse(valid_iban("%{ibanbad}"))
l|%{ts} WARN [%{svc}] iban checksum failed: %{ibanbad}
c|the form says %{ibanbad} is wrong
p|%{ssnbad} cannot be a social security number.
x|assert not is_ssn("%{ssnbad}")
p|Case %{ssnbad} was closed on %{date}.
v|code,valid⏎%{ssnbad},false⏎%{ssnbad},false
p|Item code: %{ssnbad}
p|The box measures %{dims} cm and weighs %{f1} kg.
p|Total: %{us_amt} USD (net %{us_amt})
p|The price went from $%{us_amt} to $%{us_amt}.
p|Coordinates: %{lat}, %{lon}
j|{"lat": %{lat}, "lng": %{lon}, "zoom": %{n2}}
j|{"type":"Point","coordinates":[%{lon},%{lat}]}
p|The final score was %{score} after %{score} at half-time.
p|Pages %{range} and %{range} are missing from the scan.
p|Years %{year}-%{year}, about %{thin} inhabitants
p|Open %{hm}-%{hm} on weekdays and 10:00-14:00 on Saturday.
p|Winning numbers: 3 14 22 27 35 %{n2}
p|Flight %{flight} departs at %{hm} from gate B%{n2}.
v|x,y,z⏎%{f6},%{f6},%{f6}⏎%{f6},%{f6},%{f6}
p|Resolution 1920x1080, lens 70-200 mm, ISO %{d4}
p|NIST SP 800-53 and ISO 27001:2022 apply, as does RFC %{d4}.
p|Substance CAS %{cas}, purity %{f1} %
p|Temperatures ranged from %{f1} to %{f1} degrees in %{year}.
c|thanks %{handle} for the review!
p|Follow us %{handle} and tag %{handle} in your photos
c|%{handle} can you look at #%{d4}?
p|cc %{handle}, %{handle}
x|%{deco}⏎def %{word}(self):⏎    return %{n2}
x|%{deco}⏎public void %{camel}() {}
x|%{deco}⏎class %{camel}:
x|@media (max-width: %{n3}px) { .%{word} { color: %{hexcol}; } }
x|@import url("%{word}.css");
x|%{login}@%{node}:~$ ls -la %{fpath}
x|root@%{node}:/etc# systemctl restart %{svc}
x|[%{user}@%{node} ~]$ uptime
x|ssh %{user}@%{node} 'df -h'
x|scp %{word}.tar.gz %{user}@%{node}:/tmp/
x|git clone git@github.com:%{comp}/%{repo}.git
x|git remote add origin git@gitlab.com:%{comp}/%{repo}.git
x|url = git@github.com:%{comp}/%{repo}.git
p|Clone it via git@github.com:%{comp}/%{repo}.git and run make.
x|uses: actions/checkout@v4
x|uses: docker/build-push-action@v%{n2}
x|x = a @ b  # matrix product
x|<img src="data:image/png;base64,%{b64img}">
x|background: url(data:image/gif;base64,%{b64gif});
j|{"thumb":"data:image/jpeg;base64,%{b64jpg}"}
x|const icon = "%{b64img}";
x|!function(e,t){"object"==typeof exports?module.exports=t():e.%{word}=t()}(this,function(){var n=%{d5},r=[%{n2},%{n3},%{d4}];return n})
x|var a=function(t){return t.%{word}||0},b=%{n3},c="%{git7}";for(;b--;)a(c.charCodeAt(b%%{n2}));
x|(self.webpackChunk=self.webpackChunk||[]).push([[%{d4}],{%{d5}:(e,t,n)=>{n.d(t,{%{camel}:()=>r})}}]);
x|.%{word}{margin:0 %{n2}px;color:%{hexcol};background:%{hexcol}}
x|--%{word}: %{hexcol};⏎--%{word2}: %{hexcol};
p|Use %{hexcol} for headings and %{hexcol} for links.
l|%{k8s}   1/1   Running   0   %{n2}d
l|pod/%{k8s} evicted: The node was low on resource: memory.
x|kubectl logs %{k8s} -n %{word}
j|{"kind":"Pod","metadata":{"name":"%{k8s}","uid":"%{uuid}"}}
p|doi:%{doi}
p|See https://doi.org/%{doi} for details.
p|SNMP OID %{oid} returns the interface counter.
x|snmpget -v2c -c public %{node} %{oid}
p|The device with MAC %{mac_} keeps reconnecting.
l|%{sysl} %{node} dhcpd[%{pid}]: DHCPDISCOVER from %{mac} via eth0
x|link/ether %{mac} brd ff:ff:ff:ff:ff:ff
j|{"mac":"%{mac_}","ssid":"%{word}-guest"}
p|The log is in %{fpath}, please attach it.
x|cp %{fpath} %{fpath}
x|std::vector<std::string> %{word}; // see boost::asio::ip
x|use crate::%{word}::%{word2}::Error;
x|fn main() { let d = Duration::from_secs(%{n3}); }
p|You can reset your password from the login page.
p|I forgot my password, could you send me a reset link?
p|Passwords must be at least %{n2} characters long and contain a digit.
p|Never share your password or API key with anyone.
c|did you change your password?
c|password reset mail never arrives :(
c|what's the wifi password?
p|Hi %{first}, your password was changed on %{date}. If this was not you, contact support.
p|Your password expires in %{n2} days.
l|%{ts} WARN [%{svc}] wrong password for user %{int}
l|%{ts} INFO [%{svc}] password reset requested user_id=%{int}
j|{"password": null, "user_id": %{int}}
j|{"password": "", "id": %{int}}
j|{"errors":{"password":["is too short (minimum is %{n2} characters)"]}}
j|{"login.password.label": "Password", "login.password.forgot": "Forgot your password?", "rev": %{int}}
x|password = os.environ["%{envv}"]
x|password: str = Field(min_length=%{n2})
x|if (!password) throw new Error('password is required');
x|const password = document.getElementById('%{word}').value;
x|passwd = getpass.getpass("Password for %{word}: ")
x|<input type="password" name="password" id="%{word}" required>
x|password=%{pwph}
x|password: "%{pwph}"
j|{"user":"%{user}","password":"%{pwph}"}
x|postgres://%{user}:${DB_PASSWORD}@%{host}:5432/%{db}
x|postgresql://<user>:<password>@%{host}/%{db}
l|%{ts} INFO [%{svc}] connecting to postgres://%{user}:***@%{host}/%{db}
x|mysql -h %{host} -u %{user} -p %{db}
x|%{envv}=%{ph}
x|export %{envv}="%{ph}"
x|api_key: %{ph}
x|curl -H "Authorization: Bearer %{ph}" https://%{host}/v1
x|token = os.getenv("%{envv}")
x|const key = process.env.%{envv};
x|env:⏎  %{envv}: ${{ secrets.%{envv} }}
p|Set %{envv} before you start the %{svc} service.
p|Replace %{ph} with your own key from the dashboard.
p|The variables %{envv} and %{envv} are read at startup.
j|{"api_key":"%{ph}","region":"eu"}
x|valueFrom:⏎  secretKeyRef:⏎    name: %{word}-secret⏎    key: %{envv}
x|vault kv get -field=token secret/%{word}/%{word2}
x|resource "aws_secretsmanager_secret" "%{word}" { name = "%{comp}/%{word2}" }
x|%{sshpub} %{login}@%{node}
X|-----BEGIN PUBLIC KEY-----⏎%{b64pem}⏎-----END PUBLIC KEY-----
X|-----BEGIN CERTIFICATE-----⏎%{b64pem}⏎-----END CERTIFICATE-----
X|-----BEGIN PGP PUBLIC KEY BLOCK-----⏎⏎%{b64pem}⏎-----END PGP PUBLIC KEY BLOCK-----
X|-----BEGIN CERTIFICATE REQUEST-----⏎%{b64pem}⏎-----END CERTIFICATE REQUEST-----
X|-----BEGIN PGP SIGNATURE-----⏎⏎%{b64pem}⏎-----END PGP SIGNATURE-----
p|Host key fingerprint is %{sshfp}.
l|ED25519 key fingerprint is %{sshfp}.
p|Certificate SHA1 fingerprint: %{fp}
p|Keep the -----BEGIN PRIVATE KEY----- line when you paste your own key into %{fpath}.
x|openssl rsa -in %{word}.key -pubout -out %{word}.pub
p|The service runs at %{domain} behind %{domain}.
x|proxy_pass https://%{domain}/%{word};
l|%{ts} WARN dns lookup failed for %{domain}
x|java.lang.NullPointerException⏎	at com.%{comp}.%{word}.%{camel}(%{word}.java:%{n3})
p|arn:aws:iam::%{arnacct}:role/%{word}-role is missing a policy.
x|"Resource": "arn:aws:s3:::%{comp}-%{word}/*"
x|aws ec2 describe-instances --instance-ids %{ec2} %{ec2}
j|{"InstanceId":"%{ec2}","VpcId":"%{ec2}"}
j|{"id":"%{cus}","object":"customer","livemode":false}
l|%{ts} INFO [%{svc}] stripe event %{cus} processed
l|%{ts} INFO [%{svc}] sms %{sid} delivered
p|Our VAT ID is %{vatde}, the one in the UK%{vatgb}.
p|BIC/SWIFT: %{bic}
p|Message id %{snow} was deleted by a moderator.
j|{"guild_id":"%{snow}","channel_id":"%{snow}"}
x|const IDS = [%{d9}, %{d10}, %{d8}];
x|0x%{git7} <+%{n2}>: mov %eax, 0x%{git7}(%rip)
x|#define REG_BASE 0x%{req}
p|Meter reading %{d6} kWh, previous %{d6} kWh
p|Member since %{year}, membership no. %{d8}.
p|Case law: %{n2} F.3d %{n3} (%{year})
p|Room %{n3}, floor %{n2}, extension %{d4}
l|%{ts} DEBUG gc pause %{f2}ms heap %{d9}->%{d8}
l|allocated %{d10} bytes at offset %{d9}
v|metric,count,sum⏎latency_ms,%{d8},%{d10}⏎bytes,%{d9},%{d12}
j|{"nonce":"%{b64s}","seq":%{int}}
x|checksum = "%{b64s}"
p|The content hash is %{b64s} according to the manifest.
x|Content-Security-Policy: script-src 'sha256-%{b64s}'
j|{"width":%{d4},"height":%{d4},"ratio":%{f6}}
p|Quarter results: revenue %{thin}, cost %{thin}, margin %{f1}%.
p|License plate readers logged %{d7} passes in %{year}.
p|Standard form W-9 asks for a Social Security number; leave it blank if you are a company.
p|Please bring your passport and a copy of your visa on %{date}.
p|Do not e-mail your card number; enter it in the payment form instead.
p|An IBAN has up to 34 characters, a UK sort code only six.
c|do you need my date of birth for that?
c|is the phone line open on sundays?
p|Fields: name, email, phone, date_of_birth, ssn (rev %{d4})
x|CREATE TABLE %{word} (id INT, email VARCHAR(%{n3}), phone VARCHAR(32), ssn CHAR(11));
v|name,email,phone,dob⏎%{name},,,⏎%{name},,,
x|EMAIL_RE = re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+")  # %{word}
x|ip = request.headers.get("X-Forwarded-For", "%{word}")
j|{"phone": null, "email": null, "id": "%{uuid}"}
''',
'de': '''
p|Ihre Bestellung %{order} wurde am %{dlocal} versandt.
p|Rechnungsnummer: %{d9}, Kundennummer: %{d8}
p|Rechnung Nr. %{d10} vom %{dlocal} über %{eu} EUR
p|Sendungsnummer %{d20} ist unterwegs nach %{city}.
p|USt-IdNr.: %{vatde}
p|Aktenzeichen %{n2} C %{n3}/%{n2}, Termin am %{dlocal}
c|meine Bestellnummer ist %{d8}
c|wie kann ich mein Passwort zurücksetzen?
p|Bitte geben Sie Ihr Passwort niemals weiter.
p|Das Paket ist %{dims} cm groß und kostet %{eu} EUR.
p|Zählerstand %{d6}, Vertragsnummer %{d12}
p|Gegründet am %{dlocal}, Sitz in %{city}, ca. %{d4} Mitarbeitende
p|Artikelnummer %{part}, EAN %{ean}
v|Bestellnr;Datum;Betrag⏎%{d8};%{dlocal};%{eu}
p|Bringen Sie bitte Ihren Reisepass oder Personalausweis mit.''',
'fr': '''
p|Votre commande %{order} a été expédiée le %{dlocal}.
p|Facture n° %{d9}, client n° %{d8}
p|Numéro de suivi : %{royal}, livraison prévue le %{dlocal}
c|mon numéro de commande est le %{d10}
c|j'ai oublié mon mot de passe
p|Le colis mesure %{dims} cm et pèse %{f1} kg.
p|Référence dossier %{d12}, à rappeler dans tout échange.
p|Société créée le %{dlocal} à %{city}, %{n3} salariés
p|Version %{ver4} disponible depuis le %{dlocal}.
v|facture;date;montant⏎%{d8};%{dlocal};%{amount}
p|Merci de vous munir de votre passeport le jour du rendez-vous.''',
'es': '''
p|Su pedido %{order} se envió el %{dlocal}.
p|Factura n.º %{d9}, cliente %{d6}
p|Número de seguimiento: %{d12}
c|mi número de pedido es %{d10}
c|he olvidado mi contraseña
p|La caja mide %{dims} cm y cuesta %{eu} EUR.
p|Referencia catastral %{part}, expediente %{d7}
p|La empresa se fundó el %{dlocal} en %{city}.
v|pedido;fecha;importe⏎%{d8};%{dlocal};%{amount}
p|Presente su DNI o pasaporte en recepción.''',
'it': '''
p|Il suo ordine %{order} è stato spedito il %{dlocal}.
p|Fattura n. %{d9} del %{dlocal}, cliente %{d6}
p|Codice spedizione: %{d12}
c|il mio numero d'ordine è %{d10}
c|ho dimenticato la password
p|Il pacco misura %{dims} cm e costa %{eu} EUR.
p|Pratica %{d7}, protocollo %{d6}/%{year}
p|La società è stata fondata il %{dlocal} a %{city}.
v|ordine;data;importo⏎%{d8};%{dlocal};%{amount}
p|Portare il codice fiscale e un documento valido.''',
'nl': '''
p|Uw bestelling %{order} is op %{dlocal} verzonden.
p|Factuurnummer %{d9}, klantnummer %{d8}
p|Track & trace: 3S%{part}, bezorging op %{dlocal}
c|mijn bestelnummer is %{d10}
c|ik ben mijn wachtwoord vergeten
p|Het pakket is %{dims} cm en kost %{eu} EUR.
p|Het bedrijf is opgericht op %{dlocal} in %{city}.
v|order;datum;bedrag⏎%{d8};%{dlocal};%{amount}
p|Neem uw paspoort of identiteitskaart mee.''',
'pl': '''
p|Zamówienie %{order} wysłano dnia %{dlocal}.
p|Faktura nr %{d9} z dnia %{dlocal}, klient %{d6}
p|NIP: %{nip}
c|numer zamówienia to %{d8}
c|nie pamiętam hasła
p|Paczka ma wymiary %{dims} cm i kosztuje %{eu} zł.
p|Firma powstała dnia %{dlocal}, siedziba: %{city}.
v|zamowienie;data;kwota⏎%{d8};%{dlocal};%{amount}
p|Proszę zabrać ze sobą paszport lub dowód osobisty.''',
'pt': '''
p|Seu pedido %{order} foi enviado em %{dlocal}.
p|Nota fiscal nº %{d9} de %{dlocal}, cliente %{d6}
p|CNPJ: %{cnpj}
c|o número do meu pedido é %{d8}
c|esqueci minha senha
p|A caixa mede %{dims} cm e custa R$ %{eu}.
p|A empresa foi fundada em %{dlocal} em %{city}.
v|pedido;data;valor⏎%{d8};%{dlocal};%{amount}
p|Apresente o passaporte ou CPF na recepção.'''}
NEGLOC = {'en': '', 'de': 'de', 'fr': 'fr', 'es': 'es', 'it': 'it', 'nl': 'nl', 'pl': 'pl', 'pt': 'br'}

# ================================================================== WRAPPERS  (\x00 = core)
FILLER = {
 'en': ['Thanks for your patience.', 'Order %{order} is still open.', 'We will get back to you within %{n2} hours.', 'The ticket was created on %{date}.', 'Sorry for the late reply!', 'Version %{ver3} is running in production.', 'Nothing else changed since then.', 'Please keep this thread internal.', 'See page %{n2} of the contract.'],
 'de': ['Vielen Dank für Ihre Geduld.', 'Die Bestellung %{order} ist noch offen.', 'Wir melden uns innerhalb von %{n2} Stunden.', 'Das Ticket wurde am %{dlocal} angelegt.', 'Entschuldigen Sie die späte Antwort!', 'Siehe Seite %{n2} im Vertrag.'],
 'fr': ['Merci de votre patience.', 'La commande %{order} est toujours en cours.', 'Nous revenons vers vous sous %{n2} heures.', 'Le ticket a été créé le %{dlocal}.', 'Désolé pour la réponse tardive !'],
 'es': ['Gracias por su paciencia.', 'El pedido %{order} sigue abierto.', 'Le responderemos en %{n2} horas.', 'El ticket se creó el %{dlocal}.', '¡Perdón por la demora!'],
 'it': ['Grazie per la pazienza.', "L'ordine %{order} è ancora aperto.", 'Risponderemo entro %{n2} ore.', 'Il ticket è stato creato il %{dlocal}.', 'Scusate il ritardo!'],
 'nl': ['Bedankt voor uw geduld.', 'Bestelling %{order} staat nog open.', 'We reageren binnen %{n2} uur.', 'Het ticket is aangemaakt op %{dlocal}.', 'Excuses voor de late reactie!'],
 'pl': ['Dziękujemy za cierpliwość.', 'Zamówienie %{order} jest nadal otwarte.', 'Odpowiemy w ciągu %{n2} godzin.', 'Zgłoszenie utworzono dnia %{dlocal}.', 'Przepraszam za zwłokę!'],
 'pt': ['Obrigado pela paciência.', 'O pedido %{order} continua em aberto.', 'Responderemos em até %{n2} horas.', 'O chamado foi aberto em %{dlocal}.', 'Desculpe a demora!'],
}
HI = {'en': ['Hi %{first},', 'Hello,', 'Dear %{name},'], 'de': ['Hallo %{first},', 'Guten Tag,'], 'fr': ['Bonjour,', 'Bonjour %{first},'], 'es': ['Hola, %{first}:', 'Buenos días:'], 'it': ['Buongiorno,', 'Ciao %{first},'], 'nl': ['Beste %{first},', 'Hallo,'], 'pl': ['Dzień dobry,', 'Cześć %{first},'], 'pt': ['Olá, %{first},', 'Bom dia,']}
BYE = {'en': ['Best regards,⏎%{name}', 'Thanks,⏎%{first}'], 'de': ['Viele Grüße⏎%{name}'], 'fr': ['Cordialement,⏎%{name}'], 'es': ['Un saludo,⏎%{name}'], 'it': ['Cordiali saluti,⏎%{name}'], 'nl': ['Met vriendelijke groet,⏎%{name}'], 'pl': ['Pozdrawiam⏎%{name}'], 'pt': ['Atenciosamente,⏎%{name}']}


def wrap(t, kind, lang):
    f = lambda: R.choice(FILLER[lang])
    if kind == 'p':
        k = R.random()
        multi = '⏎' in t or t.startswith(('|', '- ', '* '))
        nl = '⏎' if multi or not t.rstrip('"').endswith(('.', '!', '?')) else ' '
        if k < .35: return t
        if k < .48: return f() + nl + t
        if k < .61: return t + nl + f()
        if k < .70: return f() + nl + t + nl + f()
        if k < .80: return R.choice(HI[lang]) + '⏎⏎' + t + '⏎⏎' + R.choice(BYE[lang])
        if k < .85: return '> ' + t.replace('⏎', '⏎> ')
        if k < .90: return f() + '⏎⏎' + t + '⏎⏎' + f() + ' ' + f()
        if k < .93 and not multi: return '1. ' + f() + '⏎2. ' + t + '⏎3. ' + f()
        if k < .96 and not multi: return '## %{date}⏎⏎- ' + t
        return '⏎' + t + '⏎'
    if kind == 'c':
        k = R.random()
        if k < .35: return t
        if k < .55: return '[%{hm}] %{first}: ' + t
        if k < .70: return '%{first}: ' + f() + '⏎%{first}: ' + t
        if k < .82: return t + '⏎' + f()
        if k < .92: return '<%{first}> ' + t + '⏎<%{first}> ok'
        return '%{hm} - ' + t
    if kind == 'x':
        k = R.random()
        if k < .7 or t.startswith(('-', '[', '|', '<')): return t
        if k < .8: return '```⏎' + t + '⏎```'
        if k < .9: return t + '⏎'
        return '    ' + t.replace('⏎', '⏎    ')
    return t


# ================================================================== ENGINE
TOK = re.compile(r'([@%])\{([a-z0-9_.]+)\}')
USED = {}


def norm(v):
    return re.sub(r'[\s.\-/()+]', '', v).lower()


def render(t, ctx, kind):
    t = t.replace('⏎', '\n')
    out, pos, spans, n = [], 0, [], 0

    def put(s):
        nonlocal n
        out.append(s)
        n += len(s)
    for m in TOK.finditer(t):
        put(t[pos:m.start()])
        pos = m.end()
        if m[1] == '%':
            v = FILL[m[2]](ctx) if m[2] != 'b64pem' else FILL['b64pem'](ctx)
            if m[2] == 'ts' and kind == 'v': v = v.replace(',', '.')
            put(v)
        else:
            slot, _, sub = m[2].partition('.')
            cls, fn = SLOT[slot]
            for _ in range(400):
                v = fn(ctx, sub)
                if norm(v) in USED: continue
                if kind == 'v' and any(c in v for c in ',;\t"'): continue
                break
            else:
                raise SystemExit('value space exhausted: ' + t)
            USED[norm(v)] = 1
            spans.append([n, n + len(v), cls])
            put(v)
    put(t[pos:])
    text = ''.join(out)
    assert TOK.search(text) is None, text
    return text, spans


def lines(s):
    r = []
    for l in s.strip('\n').split('\n'):
        if not l.strip(): continue
        k, b = l.split('|', 1)
        assert k.lower() in KIND, l
        r.append((k, b))
    return r


SK, LSK = lines(SKEL), lines(LSKEL)


def struct(keys, labels, slot):
    v = '@{%s}' % slot
    r = []
    for key in keys.split():
        for k, b in SK:
            r.append((k, re.sub(r'\bV\b', v, re.sub(r'\bK\b', key, b))))
    for lab in labels.split('|'):
        for k, b in LSK:
            r.append((k, re.sub(r'\bV\b', v, b.replace('%{', '\x01')).replace('\x01', '%{') if False else re.sub(r'(?<![\w%{])L(?!\w)', lambda m: lab, b).replace('V', v) if 'V' not in lab else re.sub(r'\bV\b', v, re.sub(r'(?<![\w%{])L(?!\w)', '\x02', b)).replace('\x02', lab)))
    return r


def gen_id(lang, labels, slot):
    v = '@{%s}' % slot
    r = []
    for lab in labels.split('|'):
        for k, b in lines(GENID[lang]):
            b = re.sub(r'(?<![\w%{"\'])L(?!\w)|(?<=")L(?=[ "])', '\x02', b)
            b = re.sub(r'(?<!\w)V(?!\w)', v, b)
            r.append((k, b.replace('\x02', lab)))
    return r


GROUPS = []  # (name, class, locale, lang-chooser, {lang: (core, structured)}, count, core share)


def group(name, loc, pools, count, share):
    GROUPS.append((name, loc, pools, count, share))


def build():
    for loc in LOCALES:
        langs = LANGS[loc]
        for cls, n in (('phone', 230), ('dob', 150)):
            group(cls, loc, {l: (lines(CORE[cls][l]), struct(*STRUCT[cls][l], cls)) for l in langs}, n, .5)
        group('passport', loc, {l: (gen_id(l, STRUCT['passport'][l][1], 'passport'), struct(*STRUCT['passport'][l], 'passport')) for l in langs}, 190, .5)
        for sub in NIDLOC[loc]:
            group('nid.' + sub, loc, {l: (gen_id(l, NIDS[sub][l][1], 'nid.' + sub), struct(*NIDS[sub][l], 'nid.' + sub)) for l in set(langs) if l in NIDS[sub]}, 190 if len(NIDLOC[loc]) == 1 else 130, .5)
        group('email', loc, {l: (lines(CORE['email'][l]), struct(*STRUCT['email'][l], 'email')) for l in langs}, 30, .5)
        for cls, key, n in (('card', 'card', 24), ('iban', 'iban', 24), ('pw', 'pw.x', 14)):
            l = langs[0]
            if l != 'en':
                group(cls, loc, {l: (lines(CORE[cls][l]), struct(*STRUCT[key][l], key))}, n, .55)
    en = lambda c: lines(CORE[c]['en'])
    S = lambda c, slot=None: struct(*STRUCT[c]['en'], slot or c)
    group('phone', '', {'en': ([(k, b.replace('@{phone}', '@{phone.intl}')) for k, b in en('phone')], S('phone', 'phone.intl'))}, 320, .6)
    group('email', '', {'en': (en('email'), S('email'))}, 260, .6)
    group('card', '', {'en': (en('card'), S('card'))}, 320, .55)
    group('iban', '', {'en': (en('iban'), S('iban'))}, 320, .5)
    group('ssn', 'us', {'en': (en('ssn'), S('ssn'))}, 320, .5)
    group('ip', '', {'en': (en('ip'), S('ip'))}, 420, .75)
    group('jwt', '', {'en': (en('jwt'), S('jwt'))}, 320, .7)
    group('pem', '', {'en': (en('pem'), [])}, 360, 1)
    group('pw', '', {'en': (en('pw'), S('pw.x'))}, 560, .75)
    for v in API:
        slot = '@{api.%s}' % v
        spec = lines(APISPEC[v]) if v in APISPEC else []
        gen = [(k, b.replace('E', '\x02').replace('D\x02BUG', 'DEBUG').replace('NOD\x02_\x02NV', 'NODE_ENV')) for k, b in lines(APISKEL)] if v != 'azure' else []
        gen = [(k, re.sub(r'\bV\b', slot, b).replace('\x02', APIENV[v])) for k, b in gen]
        if v not in CTXONLY: gen += [(k, re.sub(r'\bV\b', slot, b)) for k, b in lines(APIBARE)]
        group('api.' + v, '', {'en': (spec or gen, gen or spec)}, 48, .45)
    NEGP = {}
    for l, s in NEG.items():
        group('neg', NEGLOC[l], {l: (lines(s), [])}, 26 * len(lines(s)) if l != 'en' else 24 * len(lines(s)), 1)


def hidden_positive(text):
    """Own conservative check that a negative carries no real positive."""
    for m in re.finditer(r'(?<!\d)\d(?:[ -]?\d){12,18}(?!\d)', text):
        d = re.sub(r'\D', '', m[0])
        if luhn_ok(d) and card_iin(d): return 'card ' + m[0]
    for m in re.finditer(r'(?<![A-Z0-9])[A-Z]{2}\d\d(?: ?[A-Z0-9]){11,30}', text):
        s = m[0].replace(' ', '')
        if s[:2] in IBAN:
            n = 4 + sum(int(a) for a, _ in re.findall(r'(\d+)([a-z])', IBAN[s[:2]]))
            if len(s) >= n and iban_ok(s[:n]): return 'iban ' + m[0]
    for m in re.finditer(r'(?<![\d-])(\d{3})-(\d\d)-(\d{4})(?![\d-])', text):
        if not (m[1] in ('000', '666') or m[2] == '00' or m[3] == '0000' or (m[1][0] == '9' and int(m[2]) in list(range(0, 50)) + [66, 67, 68, 69])): return 'ssn ' + m[0]
    for m in re.finditer(r'[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b', text):
        if not m[0].startswith('git@'): return 'email ' + m[0]
    if re.search(r'eyJ[\w-]{8,}\.eyJ', text): return 'jwt'
    if re.search(r'BEGIN [A-Z ]*PRIVATE KEY', text) and 'END ' in text: return 'pem'
    if re.search(r'AKIA[A-Z2-7]{16}|gh[pousr]_(?!x{6})\w{36}|glpat-|xox[bp]-|sk_(?:live|test)_|AIza|\bhf_|dapi[0-9a-f]{32}|756\.\d{4}\.', text): return 'api'
    return None


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else 'corpus.jsonl'
    build()
    # ---- halves: a template belongs to one half; hash order, balanced inside every group
    half = {}
    for gname, loc, pools, n, share in GROUPS:
        for l in sorted(pools):
            for pool in pools[l]:
                ts = sorted({t for _, t in pool}, key=lambda t: hashlib.sha256((gname + t).encode()).hexdigest())
                c = collections.Counter(half[t] for t in ts if t in half)
                for t in ts:
                    if t not in half:
                        half[t] = 'tune' if c['tune'] < c['held'] or (c['tune'] == c['held'] and int(hashlib.sha256(t.encode()).hexdigest(), 16) % 2) else 'held'
                        c[half[t]] += 1
    docs, seen, used_t = [], set(), collections.defaultdict(set)
    for gname, loc, pools, n, share in GROUPS:
        langs = [l for l in LANGS[loc] if l in pools] or sorted(pools)
        decks = {}

        def draw(key, pool):  # deal templates evenly, without replacement
            if not decks.get(key):
                decks[key] = list(pool)
                R.shuffle(decks[key])
            return decks[key].pop()
        i = tries = 0
        while i < n:
            tries += 1
            if tries > n * 12: break
            want = 'tune' if i % 2 else 'held'
            lang = R.choice(langs)
            core, st = pools[lang]
            which = 0 if (R.random() < share or not st) else 1
            pool = [x for x in (core, st)[which] if half[x[1]] == want]
            if not pool: pool = [x for x in st + core if half[x[1]] == want]
            if gname == 'neg': pool, key = core, (lang, 'neg')
            else: key = (lang, which, want)
            k, t = draw(key, pool)
            ctx = {'loc': loc, 'lang': lang}
            body = t if k.isupper() else wrap(t, k, lang)
            text, spans = render(body, ctx, k.lower())
            if text in seen: continue
            if gname == 'neg' and hidden_positive(text): continue
            seen.add(text)
            used_t[gname.split('.')[0]].add(t)
            docs.append(({'text': text, 'spans': spans, 'locale': loc, 'kind': KIND[k.lower()], 'half': half[t]}, gname))
            i += 1
    check(docs)
    order = sorted(range(len(docs)), key=lambda i: hashlib.sha256(('%d' % SEED + docs[i][0]['text']).encode()).hexdigest())
    with open(out, 'w', encoding='utf-8', newline='\n') as f:
        for i in order:
            f.write(json.dumps(docs[i][0], ensure_ascii=False) + '\n')
    summary(docs, used_t)


# ------------------------------------------------------------------ self check
def valid(cls, v, gname):
    d = re.sub(r'\D', '', v)
    if cls == 'credit_card': return luhn_ok(d) and card_iin(d)
    if cls == 'iban': return iban_ok(v.upper())
    if cls == 'us_ssn': return len(d) == 9 and d[:3] not in ('000', '666') and d[0] != '9' and d[3:5] != '00' and d[5:] != '0000'
    if cls == 'ip_address': return ipaddress.ip_address(v)
    if cls == 'email': return re.fullmatch(r'[\w.+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}', v)
    if cls == 'jwt':
        h, p, s = v.split('.')
        dec = lambda x: json.loads(base64.urlsafe_b64decode(x + '=' * (-len(x) % 4)))
        return dec(h)['alg'] and dec(p)['sub'] and s
    if cls == 'private_key': return v.startswith('-----BEGIN ') and v.endswith('-----') and 'PRIVATE KEY' in v
    if cls == 'phone': return 6 <= len(d) <= 16
    if cls == 'national_id':
        s = gname.split('.')[1]
        f = {'nhs': nhs_ok, 'steuer': steuer_ok, 'bsn': bsn_ok, 'pesel': pesel_ok, 'cpf': cpf_ok, 'tfn': tfn_ok, 'medicare': medicare_ok, 'aadhaar': verhoeff_ok, 'sin': luhn_ok}.get(s)
        if f: return f(d)
        if s == 'nir': return nir_ok(v)
        if s in ('dni', 'nie'): return dni_ok(v)
        if s == 'cf': c = v.replace(' ', '').upper(); return cf_check(c[:15]) == c[15] and len(c) == 16
        if s == 'ahv': return d[:3] == '756' and ean_check(d[:12]) == d[12]
        if s == 'perso': return len(v) in (9, 10) and (len(v) == 9 or mrz_check(v[:9]) == v[9])
        if s == 'nino': return re.fullmatch(r'[A-Z]{2}\d{6}[A-D]', v.replace(' ', ''))
        if s == 'pan': return re.fullmatch(r'[A-Z]{3}P[A-Z]\d{4}[A-Z]', v)
        if s == 'itin': return d[0] == '9' and len(d) == 9
        raise KeyError(s)
    return bool(v)


def check(docs):
    vals = {}
    for o, g in docs:
        last = 0
        for a, b, c in o['spans']:
            assert 0 <= last <= a < b <= len(o['text'])
            last = b
            v = o['text'][a:b]
            assert v == v.strip() and v, (v, g)
            assert valid(c, v, g), (c, v, g)
            assert vals.setdefault(norm(v), o['half']) == o['half'], v
            if re.match(r'\w', v[0]) and a and c not in ('private_key',) and not o['text'][a - 3:a] == 'bot': assert not re.match(r'\w', o['text'][a - 1]), (v, o['text'])
            if b < len(o['text']) and re.match(r'\w', v[-1]): assert not re.match(r'\w', o['text'][b]), (v, o['text'])
        assert (g == 'neg') == (not o['spans']), (g, o)


def summary(docs, used_t):
    c = collections.defaultdict(collections.Counter)
    k = collections.Counter()
    for o, g in docs:
        k[o['kind'], bool(o['spans'])] += 1
        if not o['spans']:
            c['NEGATIVE (documents)', o['locale']][o['half']] += 1
        for a, b, cl in o['spans']:
            c[cl, o['locale']][o['half']] += 1
            if cl in ('api_key', 'national_id'): c[cl + ' / ' + g.split('.')[1], o['locale']][o['half']] += 1
    print('documents', len(docs), 'halves', dict(collections.Counter(o['half'] for o, _ in docs)), 'with spans', sum(bool(o['spans']) for o, _ in docs))
    print('kinds', {a: n for a, n in sorted(k.items())})
    tot = collections.defaultdict(collections.Counter)
    for (cl, loc), h in c.items(): tot[cl] += h
    print('%-34s %6s %6s %6s' % ('class', 'tune', 'held', 'all'))
    for cl in sorted(tot): print('%-34s %6d %6d %6d' % (cl, tot[cl]['tune'], tot[cl]['held'], sum(tot[cl].values())))
    print('\nclass x locale (tune+held)')
    for cl in sorted(tot):
        if ' / ' not in cl: print('%-22s' % cl, ' '.join('%s:%d+%d' % (loc or '-', c[cl, loc]['tune'], c[cl, loc]['held']) for l2, loc in sorted(x for x in c if x[0] == cl)))
    print('\ndistinct expanded templates used:', len(set().union(*used_t.values())), {g: len(s) for g, s in used_t.items()})
    hand = set()
    for d in list(CORE.values()) + [GENID, NEG]:
        for s in d.values(): hand |= {b for _, b in lines(s)}
    for s in [SKEL, LSKEL, APISKEL, APIBARE] + list(APISPEC.values()): hand |= {b for _, b in lines(s)}
    print('hand-written templates/skeletons:', len(hand))


if __name__ == '__main__':
    main()
