"""Clauses: one structure with a realization in each language."""

from __future__ import annotations

from dataclasses import dataclass, replace

from corpus.lexicon import ADJECTIVES, DOUBLED, MODALS, TIMES, TO_BE, Verb
from corpus.phrases import NounPhrase, english, german, relative_pronoun

CONTRACTIONS = {"in dem": "im", "in das": "ins", "von dem": "vom"}
#: German preposition and its case by the English one; "in" governs the dative for a place and the
#: accusative for a direction.
PREPOSITIONS = {
    "in": ("in", "dative"),
    "to": ("in", "accusative"),
    "into": ("in", "accusative"),
    "with": ("mit", "dative"),
    "without": ("ohne", "accusative"),
    "for": ("für", "accusative"),
    "from": ("von", "dative"),
}


@dataclass(frozen=True)
class Prepositional:
    """A preposition (in English) and its noun phrase."""

    preposition: str
    phrase: NounPhrase


@dataclass(frozen=True)
class Clause:
    """A clause.

    Attributes:
        subject: Subject; None in an infinitive clause.
        verb: Verb; TO_BE takes a `predicate`.
        tense: present, past or perfect.
        modal: English modal verb, or ""; present tense only.
        progressive: Whether English says "is working", which German does not distinguish from
            "works"; present and past without a modal only.
        direct: Accusative object.
        indirect: Dative object.
        place: Prepositional phrases, in order.
        time: English adverb, or "".
        negated: Whether the clause is negated.
        predicate: English adjective after TO_BE.
    """

    subject: NounPhrase | None
    verb: Verb
    tense: str = "present"
    modal: str = ""
    progressive: bool = False
    direct: NounPhrase | None = None
    indirect: NounPhrase | None = None
    place: tuple[Prepositional, ...] = ()
    time: str = ""
    negated: bool = False
    predicate: str = ""


# ---- English ----


def english_words(clause: Clause) -> tuple[str, str, str]:
    """Return the auxiliary, or "", the rest of the verb, and the phrases after it."""
    subject = clause.subject
    third = subject is None or not (subject.is_plural or subject.first_person)
    infinitive, present, past, participle = (form.replace("_", " ") for form in clause.verb.english)
    if clause.modal:
        return clause.modal, infinitive, _english_rest(clause)
    if clause.tense == "perfect":
        return ("has" if third else "have"), participle, _english_rest(clause)
    if clause.progressive or clause.verb is TO_BE:
        if clause.tense == "past":
            finite = "were" if subject and subject.is_plural else "was"
        else:
            finite = "am" if subject and subject.word == "I" else "is" if third else "are"
        return finite, _gerund(infinitive) if clause.progressive else "", _english_rest(clause)
    if clause.tense == "past":
        return "", past, _english_rest(clause)
    return "", present if third else infinitive, _english_rest(clause)


def _gerund(infinitive: str) -> str:
    """Return working, giving, seeing, running, picking up."""
    head, _, rest = infinitive.partition(" ")
    if head in DOUBLED:
        head += head[-1]
    elif head.endswith("e") and not head.endswith("ee"):
        head = head.removesuffix("e")
    return f"{head}ing {rest}".strip()


def _particle_apart(verb: str) -> tuple[str, str]:
    """Split pick up, put away, give back, eat up, bring along into verb and particle, or ""."""
    head, _, last = verb.rpartition(" ")
    return (head, last) if last in ("up", "away", "back", "along") else (verb, "")


def _english_rest(clause: Clause) -> str:
    parts = []
    if clause.direct is not None:
        parts.append(english(clause.direct, "accusative"))
    if clause.indirect is not None:
        to = "" if clause.direct is None else "to "
        parts.append(to + english(clause.indirect, "dative"))
    if clause.predicate:
        parts.append(clause.predicate)
    parts += [f"{p.preposition} {english(p.phrase, 'accusative')}" for p in clause.place]
    return " ".join(parts)


def _with_object(verb: str, rest: str, clause: Clause) -> str:
    """Join verb and objects; a particle stands after a direct object: picks the man up."""
    head, particle = _particle_apart(verb)
    if not particle or clause.direct is None:
        return f"{verb} {rest}".strip()
    direct = english(clause.direct, "accusative")
    return f"{head} {direct} {particle} {rest[len(direct) :].strip()}".strip()


def english_clause(clause: Clause, time_first: bool = False) -> str:
    """Order the clause: often and always before the verb, other times last or first."""
    assert clause.subject is not None
    auxiliary, verb, rest = english_words(clause)
    frequent = clause.time in ("often", "always") and not time_first
    words = [english(clause.subject)]
    if clause.negated and not auxiliary:
        auxiliary, verb = _do(clause)
    words.append(auxiliary + (" not" if clause.negated else "") if auxiliary else "")
    if frequent:
        words.append(clause.time)
    words.append(_with_object(verb, rest, clause))
    if clause.time and not frequent:
        words = [clause.time, *words] if time_first else [*words, clause.time]
    text = " ".join(word for word in words if word)
    return text.replace("can not", "cannot")


def _do(clause: Clause) -> tuple[str, str]:
    """Return the auxiliary do and the infinitive."""
    assert clause.subject is not None
    third = not (clause.subject.is_plural or clause.subject.first_person)
    do = "did" if clause.tense == "past" else "does" if third else "do"
    return do, clause.verb.english[0].replace("_", " ")


def english_question(clause: Clause, word: str = "") -> str:
    """(Where) does the man work (today)?"""
    assert clause.subject is not None
    auxiliary, verb, rest = english_words(clause)
    if not auxiliary:
        auxiliary, verb = _do(clause)
    frequent = clause.time if clause.time in ("often", "always") else ""
    late = "" if frequent else clause.time
    rest = _with_object(verb, rest, clause)
    words = [word, auxiliary, english(clause.subject), frequent, rest, late]
    return " ".join(part for part in words if part)


def english_infinitive(clause: Clause) -> str:
    """To see the man."""
    infinitive = clause.verb.english[0].replace("_", " ")
    return "to " + _with_object(infinitive, _english_rest(clause), clause)


# ---- German ----


def conjugate(verb: Verb, subject: NounPhrase, tense: str) -> str:
    """Return the finite form in the present or past, without prefix."""
    infinitive, present, past, _ = verb.german
    if verb is TO_BE:
        if tense == "past":
            return "waren" if subject.is_plural else "war"
        if subject.is_plural:
            return "sind"
        return "bin" if subject.first_person else "ist"
    if tense == "past":
        if subject.is_plural:
            return past + ("n" if past.endswith("e") else "en")
        return past
    if subject.is_plural:
        return infinitive
    if subject.first_person:
        return "weiß" if infinitive == "wissen" else infinitive.removesuffix("en") + "e"
    return present


def _finite_and_end(clause: Clause) -> tuple[str, str]:
    """Return the finite verb of a main clause and the words that close its verbal frame."""
    assert clause.subject is not None
    subject, verb = clause.subject, clause.verb
    if clause.modal:
        return MODALS[clause.modal][subject.is_plural], verb.prefix + verb.german[0]
    if clause.tense == "perfect":
        return _auxiliary(verb, subject), verb.german[3]
    return conjugate(verb, subject, clause.tense), verb.prefix


def _auxiliary(verb: Verb, subject: NounPhrase) -> str:
    if verb.auxiliary == "sein":
        return conjugate(TO_BE, subject, "present")
    if subject.is_plural:
        return "haben"
    return "habe" if subject.first_person else "hat"


def _middle(clause: Clause, time: str) -> str:
    """Order the middle field: pronouns, dative, time, accusative, not, places, predicate."""
    direct, indirect, negated = clause.direct, clause.indirect, clause.negated
    parts: list[str] = []
    if direct is not None and direct.is_pronoun:
        parts.append(german(direct, "accusative"))
    if indirect is not None:
        parts.append(german(indirect, "dative"))
    parts.append(time)
    if direct is not None and not direct.is_pronoun:
        if negated and direct.is_indefinite:
            # kein takes the place of ein, and of nothing before a plural.
            direct, negated = replace(direct, determiner="no"), False
        parts.append(german(direct, "accusative"))
    if negated:
        parts.append("nicht")
    parts += [german_prepositional(p) for p in clause.place]
    if clause.predicate:
        parts.append(ADJECTIVES[clause.predicate])
    return " ".join(part for part in parts if part)


def german_prepositional(part: Prepositional) -> str:
    """Put the phrase into the preposition's case, contracted as in im and ins."""
    preposition, case = PREPOSITIONS[part.preposition]
    text = f"{preposition} {german(part.phrase, case)}"
    for long, short in CONTRACTIONS.items():
        if text.startswith(long + " "):
            return short + text.removeprefix(long)
    return text


def _time(clause: Clause) -> str:
    return TIMES[clause.tense][clause.time] if clause.time else ""


def german_main(clause: Clause, time_first: bool = False) -> str:
    """Order a verb-second clause: subject, or time and then subject, before the middle field."""
    assert clause.subject is not None
    finite, end = _finite_and_end(clause)
    subject, time = german(clause.subject, "nominative"), _time(clause)
    if time_first:
        words = [time, finite, subject, _middle(clause, ""), end]
    else:
        words = [subject, finite, _middle(clause, time), end]
    return " ".join(word for word in words if word)


def german_question(clause: Clause, word: str = "") -> str:
    """Order a verb-first clause, after the question word if there is one."""
    assert clause.subject is not None
    finite, end = _finite_and_end(clause)
    words = [
        word,
        finite,
        german(clause.subject, "nominative"),
        _middle(clause, _time(clause)),
        end,
    ]
    return " ".join(part for part in words if part)


def verb_group(clause: Clause, subject: NounPhrase) -> str:
    """Return all verbs of a clause, the finite one last: gesehen hat, anrufen kann, anruft."""
    verb = clause.verb
    if clause.modal:
        return f"{verb.prefix}{verb.german[0]} {MODALS[clause.modal][subject.is_plural]}"
    if clause.tense == "perfect":
        return f"{verb.german[3]} {_auxiliary(verb, subject)}"
    return verb.prefix + conjugate(verb, subject, clause.tense)


def german_subordinate(clause: Clause) -> str:
    """Order a verb-final clause, as after a conjunction."""
    assert clause.subject is not None
    subject = german(clause.subject, "nominative")
    words = [subject, _middle(clause, _time(clause)), verb_group(clause, clause.subject)]
    return " ".join(word for word in words if word)


def german_infinitive(clause: Clause) -> str:
    """Put zu before the verb, or inside it: den Mann zu sehen, den Mann anzurufen."""
    verb = clause.verb
    last = f"{verb.prefix}zu{verb.german[0]}" if verb.prefix else f"zu {verb.german[0]}"
    return f"{_middle(clause, '')} {last}".strip()


def english_relative(antecedent: NounPhrase, clause: Clause, as_subject: bool) -> str:
    """Who sees the dog; that the man sees."""
    if as_subject:
        text = english_clause(replace(clause, subject=antecedent))
        return "who" + text.removeprefix(english(antecedent))
    return "that " + english_clause(clause)


def german_relative(antecedent: NounPhrase, clause: Clause, as_subject: bool) -> str:
    """Der den Hund sieht; den der Mann sieht. Verb-final, with the pronoun in its own case."""
    subject = antecedent if as_subject else clause.subject
    assert subject is not None
    words = [
        relative_pronoun(antecedent, "nominative" if as_subject else "accusative"),
        "" if as_subject else german(subject, "nominative"),
        _middle(clause, _time(clause)),
        verb_group(clause, subject),
    ]
    return " ".join(word for word in words if word)
