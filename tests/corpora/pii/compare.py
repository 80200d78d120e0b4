#!/usr/bin/env python3
"""What presidio-analyzer finds of the corpus, by the metric of tests/pii.rs.

    python3 -m venv venv && venv/bin/pip install presidio-analyzer
    venv/bin/python tests/corpora/pii/compare.py

Installs and downloads nothing. Only the recognisers that work by patterns run, on a blank
pipeline of spaCy, so no model is needed. Every recogniser of a country is on, and each one that
is made for another language than English is given the English name that the analyzer asks for:
the comparison is of patterns and checksums, not of languages.
"""
import collections
import json
import pathlib

import spacy
import tldextract
from presidio_analyzer import AnalyzerEngine, RecognizerRegistry, predefined_recognizers
from presidio_analyzer.nlp_engine import NerModelConfiguration, SpacyNlpEngine
from presidio_analyzer.pattern_recognizer import PatternRecognizer

# Its check of e-mail domains would fetch the list of public suffixes; the one it brings does.
tldextract.extract = tldextract.TLDExtract(suffix_list_urls=())

# The least score that counts: what presidio gives to a pattern without its context is lower.
SCORE_MIN = 0.4
CLASSES = {
    "CREDIT_CARD": "credit_card",
    "DATE_TIME": None,
    "EMAIL_ADDRESS": "email",
    "IBAN_CODE": "iban",
    "IP_ADDRESS": "ip_address",
    "PHONE_NUMBER": "phone",
    "US_SSN": "us_ssn",
    "AU_MEDICARE": "national_id",
    "AU_TFN": "national_id",
    "BR_CPF": "national_id",
    "CA_SIN": "national_id",
    "DE_TAX_ID": "national_id",
    "DE_ID_CARD": "national_id",
    "DE_SOCIAL_SECURITY": "national_id",
    "ES_NIE": "national_id",
    "ES_NIF": "national_id",
    "FR_NIR": "national_id",
    "IN_AADHAAR": "national_id",
    "IN_PAN": "national_id",
    "IT_FISCAL_CODE": "national_id",
    "IT_IDENTITY_CARD": "national_id",
    "PL_PESEL": "national_id",
    "UK_NHS": "national_id",
    "UK_NINO": "national_id",
    "US_ITIN": "national_id",
    "DE_PASSPORT": "passport",
    "ES_PASSPORT": "passport",
    "IN_PASSPORT": "passport",
    "IT_PASSPORT": "passport",
    "UK_PASSPORT": "passport",
    "US_PASSPORT": "passport",
}


@spacy.language.Language.component("lower_case")
def lower_case(doc):
    for word in doc:
        word.lemma_ = word.lower_
    return doc


class Blank(SpacyNlpEngine):
    """Words only, no model; in lower case, so that those around a value count."""

    def __init__(self):
        config = NerModelConfiguration(labels_to_ignore=[])
        super().__init__(models=[{"lang_code": "en", "model_name": "blank"}], ner_model_configuration=config)
        self.nlp = {"en": spacy.blank("en")}
        self.nlp["en"].add_pipe("lower_case")

    def load(self):
        pass


def recognizers():
    """All that need no model, as if they were made for English."""
    registry = RecognizerRegistry(supported_languages=["en"])
    kept = []
    for name in sorted(dir(predefined_recognizers)):
        kind = getattr(predefined_recognizers, name)
        patterns = isinstance(kind, type) and issubclass(kind, PatternRecognizer) and kind is not PatternRecognizer
        if not patterns and name != "PhoneRecognizer":
            continue
        try:
            one = kind(supported_language="en")
        except TypeError:
            continue
        if any(CLASSES.get(entity) for entity in one.supported_entities):
            registry.add_recognizer(one)
            kept.extend(one.supported_entities)
    return registry, sorted(set(kept))


def main():
    registry, entities = recognizers()
    entities = [entity for entity in entities if CLASSES.get(entity)]
    print("entities:", " ".join(entities))
    engine = AnalyzerEngine(registry=registry, nlp_engine=Blank(), supported_languages=["en"])
    corpus = pathlib.Path(__file__).with_name("corpus.jsonl")
    scores = {half: collections.defaultdict(lambda: [0, 0, 0]) for half in ("tune", "held")}
    for line in corpus.open(encoding="utf-8"):
        document = json.loads(line)
        count(engine, entities, document, scores[document["half"]])
    for half, classes in scores.items():
        print(half)
        for name in sorted(set(CLASSES.values()) - {None}):
            found, missed, wrong = classes[name]
            precision, recall = found / max(found + wrong, 1), found / max(found + missed, 1)
            print(f"  {name:14} {found:5} found {missed:5} missed {wrong:5} wrong"
                  f"   precision {precision:.4f}  recall {recall:.4f}")


def count(engine, entities, document, scores):
    labels = document["spans"]
    hits = engine.analyze(document["text"], language="en", entities=entities, score_threshold=SCORE_MIN)
    # Of values that overlap the surest one counts, as it does in its anonymizer.
    kept = []
    for hit in sorted(hits, key=lambda hit: (-hit.score, hit.start - hit.end)):
        if all(min(hit.end, other.end) <= max(hit.start, other.start) for other in kept):
            kept.append(hit)
    hits = [(hit.start, hit.end, CLASSES[hit.entity_type]) for hit in kept]

    def overlap(a, b):
        return max(0, min(a[1], b[1]) - max(a[0], b[0]))

    for label in labels:
        found = any(h[2] == label[2] and overlap(h, label) * 5 >= (label[1] - label[0]) * 4 for h in hits)
        scores[label[2]][0 if found else 1] += 1
    for hit in hits:
        if not any(label[2] == hit[2] and overlap(hit, label) for label in labels):
            scores[hit[2]][2] += 1


if __name__ == "__main__":
    main()
