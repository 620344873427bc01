"""Noun phrases in both languages: articles, adjective endings, cases."""

from __future__ import annotations

from dataclasses import dataclass

from corpus.lexicon import ADJECTIVES, COUNTS, PRONOUNS, Noun

# Endings by case; the four columns are masculine, feminine, neuter, plural.
COLUMNS = {"m": 0, "f": 1, "n": 2, "p": 3}
DEFINITE = {
    "nominative": ("der", "die", "das", "die"),
    "accusative": ("den", "die", "das", "die"),
    "dative": ("dem", "der", "dem", "den"),
}
# Endings of ein, kein and mein.
INDEFINITE_ENDING = {
    "nominative": ("", "e", "", "e"),
    "accusative": ("en", "e", "", "e"),
    "dative": ("em", "er", "em", "en"),
}
WEAK = {  # after der
    "nominative": ("e", "e", "e", "en"),
    "accusative": ("en", "e", "e", "en"),
    "dative": ("en", "en", "en", "en"),
}
MIXED = {  # after ein, kein, mein
    "nominative": ("er", "e", "es", "en"),
    "accusative": ("en", "e", "es", "en"),
    "dative": ("en", "en", "en", "en"),
}
STRONG = {  # after nothing, or a number
    "nominative": ("er", "e", "es", "e"),
    "accusative": ("en", "e", "es", "e"),
    "dative": ("em", "er", "em", "en"),
}
POSSESSIVES = {"my": "mein", "his": "sein", "our": "unser"}


@dataclass(frozen=True)
class NounPhrase:
    """A noun with its determiner, or a name, or a pronoun.

    Attributes:
        noun: Noun; None for a name or pronoun.
        determiner: "the", "a", "no", "my", "his", "our", an English number, or "" before a plural.
        adjective: English adjective, or "".
        plural: Whether the noun is in the plural.
        word: Name or nominative pronoun, if there is no noun.
    """

    noun: Noun | None = None
    determiner: str = "the"
    adjective: str = ""
    plural: bool = False
    word: str = ""

    @property
    def first_person(self) -> bool:
        """Whether it is I or we."""
        return self.word in ("I", "we")

    @property
    def is_plural(self) -> bool:
        """Whether its verb is in the plural."""
        return self.plural or self.word in ("we", "they")

    @property
    def is_pronoun(self) -> bool:
        """Whether it is a personal pronoun."""
        return self.word in PRONOUNS

    @property
    def is_indefinite(self) -> bool:
        """Whether German negates it with kein."""
        return self.noun is not None and self.determiner in ("a", "")


def english(phrase: NounPhrase, case: str = "nominative") -> str:
    """Realize the phrase in English."""
    if phrase.noun is None:
        if phrase.is_pronoun:
            return PRONOUNS[phrase.word][0][case != "nominative"]
        return phrase.word
    words = [phrase.determiner, phrase.adjective, phrase.noun.english[phrase.plural]]
    if phrase.determiner == "a":
        first = phrase.adjective or phrase.noun.english[0]
        words[0] = "an" if first[0] in "aeiou" else "a"
    return " ".join(word.replace("_", " ") for word in words if word)


def german(phrase: NounPhrase, case: str) -> str:
    """Realize the phrase in German, in that case."""
    if phrase.noun is None:
        if phrase.is_pronoun:
            cases = ("nominative", "accusative", "dative")
            return PRONOUNS[phrase.word][1][cases.index(case)]
        return phrase.word
    gender = "p" if phrase.plural else phrase.noun.gender
    words = [
        _determiner(phrase.determiner, gender, case),
        _adjective(phrase, gender, case),
        noun_form(phrase.noun, phrase.plural, case),
    ]
    return " ".join(word for word in words if word)


def _determiner(determiner: str, gender: str, case: str) -> str:
    column = COLUMNS[gender]
    if determiner == "the":
        return DEFINITE[case][column]
    if determiner in ("", *COUNTS):
        return COUNTS.get(determiner, "")
    stem = {"a": "ein", "no": "kein", **POSSESSIVES}[determiner]
    ending = INDEFINITE_ENDING[case][column]
    return stem + ending


def _adjective(phrase: NounPhrase, gender: str, case: str) -> str:
    if not phrase.adjective:
        return ""
    if phrase.determiner == "the":
        endings = WEAK
    elif phrase.determiner in ("", *COUNTS):
        endings = STRONG
    else:
        endings = MIXED
    stem = ADJECTIVES[phrase.adjective].removesuffix("e")  # müde: ein müder Mann
    return stem + endings[case][COLUMNS[gender]]


def noun_form(noun: Noun, plural: bool, case: str) -> str:
    """Decline the noun: -n in the dative plural, -n or -en of weak nouns."""
    if plural:
        form = noun.german[1]
        return form + "n" if case == "dative" and not form.endswith(("n", "s")) else form
    form = noun.german[0]
    if noun.weak and case != "nominative":
        return form + ("n" if form.endswith(("e", "r")) and form not in ("Bär",) else "en")
    return form


def relative_pronoun(phrase: NounPhrase, case: str) -> str:
    """Return the relative pronoun der, die, das ... for that antecedent."""
    assert phrase.noun is not None
    gender = "p" if phrase.plural else phrase.noun.gender
    if gender == "p" and case == "dative":
        return "denen"
    return DEFINITE[case][COLUMNS[gender]]
