"""Random sentences: structures drawn by chance and realized in both languages."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from corpus import lexicon, phrases
from corpus.clauses import (
    Clause,
    Prepositional,
    english_clause,
    english_infinitive,
    english_question,
    english_relative,
    german_infinitive,
    german_main,
    german_question,
    german_relative,
    german_subordinate,
)
from corpus.lexicon import Noun
from corpus.phrases import NounPhrase

Pair = tuple[str, str]
T = TypeVar("T")


class Grammar:
    """Generator of sentence pairs; the same seed gives the same sequence."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        # Weights: plain main clauses are a quarter of the corpus.
        self._kinds: tuple[tuple[int, Callable[[], Pair]], ...] = (
            (6, self.main_clause),
            (3, self.question),
            (3, self.reason),
            (2, self.reason_first),
            (3, self.report),
            (2, self.intention),
            (2, self.purpose),
            (2, self.relative_subject),
            (2, self.relative_object),
        )

    def sentences(self) -> Iterator[Pair]:
        """Yield English and German sentences without end; some come more than once."""
        weights = [weight for weight, _ in self._kinds]
        while True:
            _, kind = self._random.choices(self._kinds, weights)[0]
            english, german = kind()
            yield english[0].upper() + english[1:], german[0].upper() + german[1:]

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _one_of(self, values: Sequence[T]) -> T:
        return self._random.choice(values)

    # ---- phrases ----

    def _phrase(self, nouns: Sequence[Noun], adjectives: Sequence[str]) -> NounPhrase:
        plural = self._chance(0.25)
        some = ("the", "the", "the", "", *lexicon.COUNTS) if plural else ("the", "the", "a")
        determiner = self._one_of((*some, "my", "his", "our") if self._chance(0.3) else some)
        adjective = self._one_of(adjectives) if self._chance(0.35) else ""
        return NounPhrase(self._one_of(nouns), determiner, adjective, plural)

    def _living(self) -> NounPhrase:
        nouns = lexicon.PERSONS if self._chance(0.75) else lexicon.ANIMALS
        return self._phrase(nouns, lexicon.FOR_LIVING)

    def _person(self) -> NounPhrase:
        if self._chance(0.15):
            return NounPhrase(word=self._one_of(lexicon.NAMES))
        if self._chance(0.12):
            return NounPhrase(word=self._one_of(tuple(lexicon.PRONOUNS)))
        return self._phrase(lexicon.PERSONS, lexicon.FOR_LIVING)

    def _subject(self, animals: float = 0) -> NounPhrase:
        if self._chance(animals):
            subject = self._phrase(lexicon.ANIMALS, lexicon.FOR_LIVING)
        else:
            subject = self._person()
        # "Two men work" begins as well as "the men work"; a bare plural would be a general truth.
        return replace(subject, determiner="the") if subject.determiner == "" else subject

    def _place(self, preposition: str) -> Prepositional:
        phrase = self._phrase(lexicon.PLACES, lexicon.FOR_PLACES)
        return Prepositional(preposition, replace(phrase, determiner="the", plural=False))

    def _other(self, subject: NounPhrase, draw: Callable[[], NounPhrase]) -> NounPhrase:
        """Draw a phrase about somebody else than the subject."""
        while True:
            phrase = draw()
            pronouns = phrase.is_pronoun and subject.is_pronoun
            same = phrase.noun is not None and phrase.noun is subject.noun
            if not (pronouns or same or (phrase.word and phrase.word == subject.word)):
                return phrase

    # ---- clauses ----

    def _clause(self, subject: NounPhrase, tense: str | None = None) -> Clause:
        """Draw a clause about that subject, with all that its verb needs."""
        tense = tense or self._one_of(("present", "present", "past", "past", "perfect"))
        clause = self._frame(Clause(subject, lexicon.TO_BE, tense))
        if tense == "present" and clause.verb is not lexicon.TO_BE and self._chance(0.25):
            clause = replace(clause, modal=self._one_of(tuple(lexicon.MODALS)))
        times = tuple(lexicon.TIMES[tense])
        if times and self._chance(0.35):
            clause = replace(clause, time=self._one_of(times))
        if self._has_progressive(clause) and self._chance(0.3):
            clause = replace(clause, progressive=True)
        return replace(clause, negated=self._chance(0.2) and self._can_negate(clause))

    def _has_progressive(self, clause: Clause) -> bool:
        frequent = clause.time in ("often", "always")
        stative = clause.verb is lexicon.TO_BE or clause.verb.english[0] in lexicon.STATIVE
        return clause.tense != "perfect" and not (clause.modal or frequent or stative)

    def _can_negate(self, clause: Clause) -> bool:
        # must not and may not change places in German; counted objects and "always" are not
        # negated the same way in both languages.
        counted = clause.direct is not None and clause.direct.determiner in lexicon.COUNTS
        frequent = clause.time in ("often", "always")
        return clause.modal not in ("must", "may") and not counted and not frequent

    def _frame(self, clause: Clause) -> Clause:
        """Draw a verb, and the phrases that it needs."""
        subject = clause.subject
        assert subject is not None
        frames: tuple[Callable[[Clause, NounPhrase], Clause], ...] = (
            self._with_person,
            self._with_thing,
            self._with_thing,
            self._with_food,
            self._giving,
            self._helping,
            self._doing,
            self._going,
            self._being,
        )
        if subject.noun in lexicon.ANIMALS:
            frames = (self._doing, self._going, self._being)
        return self._one_of(frames)(clause, subject)

    def _with_person(self, clause: Clause, subject: NounPhrase) -> Clause:
        draw = self._person if self._chance(0.6) else self._living
        place = (self._place("in"),) if self._chance(0.3) else ()
        direct = self._other(subject, draw)
        return replace(clause, verb=self._one_of(lexicon.WITH_PERSON), direct=direct, place=place)

    def _with_thing(self, clause: Clause, subject: NounPhrase) -> Clause:
        direct = self._phrase(lexicon.THINGS, lexicon.FOR_THINGS)
        place: tuple[Prepositional, ...] = ()
        if self._chance(0.2):
            place = (Prepositional("for", self._other(subject, self._living)),)
        elif self._chance(0.3):
            place = (self._place("in"),)
        return replace(clause, verb=self._one_of(lexicon.WITH_THING), direct=direct, place=place)

    def _with_food(self, clause: Clause, subject: NounPhrase) -> Clause:
        direct = self._phrase(lexicon.FOODS, lexicon.FOR_FOOD)
        place: tuple[Prepositional, ...] = ()
        if self._chance(0.3):
            place = (Prepositional("with", self._other(subject, self._person)),)
        elif self._chance(0.3):
            place = (self._place("in"),)
        return replace(clause, verb=self._one_of(lexicon.WITH_FOOD), direct=direct, place=place)

    def _giving(self, clause: Clause, subject: NounPhrase) -> Clause:
        return replace(
            clause,
            verb=self._one_of(lexicon.GIVING),
            direct=self._phrase(lexicon.THINGS, lexicon.FOR_THINGS),
            indirect=self._other(subject, self._person),
        )

    def _helping(self, clause: Clause, subject: NounPhrase) -> Clause:
        indirect = self._other(subject, self._person)
        return replace(clause, verb=self._one_of(lexicon.HELPING), indirect=indirect)

    def _doing(self, clause: Clause, subject: NounPhrase) -> Clause:
        place: list[Prepositional] = []
        if self._chance(0.35):
            place.append(
                Prepositional(self._one_of(("with", "without")), self._other(subject, self._person))
            )
        if self._chance(0.6):
            place.append(self._place("in"))
        return replace(clause, verb=self._one_of(lexicon.DOING), place=tuple(place))

    def _going(self, clause: Clause, subject: NounPhrase) -> Clause:
        verb = self._one_of(lexicon.GOING)
        preposition = "into" if verb.english[0] == "run" else "to"
        return replace(clause, verb=verb, place=(self._place(preposition),))

    def _being(self, clause: Clause, subject: NounPhrase) -> Clause:
        # The perfect of "to be" is rare in German; the past stands for it.
        tense = "past" if clause.tense == "perfect" else clause.tense
        predicate = self._one_of(tuple(a for a in lexicon.FOR_LIVING if a != subject.adjective))
        return replace(clause, verb=lexicon.TO_BE, tense=tense, predicate=predicate)

    # ---- sentences ----

    def main_clause(self) -> Pair:
        """The man sees the dog; today the man sees the dog."""
        clause = self._clause(self._subject(animals=0.2))
        first = clause.time not in ("", "often", "always") and self._chance(0.5)
        return f"{english_clause(clause, first)}.", f"{german_main(clause, first)}."

    def question(self) -> Pair:
        """Does the man see the dog? Why does the man see the dog?"""
        clause = replace(self._clause(self._subject()), negated=False)
        words = {"why": "warum"}
        if not clause.time:
            words["when"] = "wann"
        if not clause.place:
            words["where"] = "wo"
        if clause.verb is lexicon.TO_BE or clause.verb in lexicon.GOING:
            words.pop("where", None)
        word = self._one_of(tuple(words)) if self._chance(0.5) else ""
        english = english_question(clause, word)
        return f"{english}?", f"{german_question(clause, words.get(word, ''))}?"

    def _two_clauses(self) -> tuple[Clause, Clause, str]:
        tense = self._one_of(("present", "past"))
        main = self._clause(self._subject(), tense)
        assert main.subject is not None
        other = self._clause(self._other(main.subject, self._subject), tense)
        # "if" in the past would be wenn or ob or als.
        unfit = {"if"} if tense == "past" else set()
        if other.verb is lexicon.TO_BE:
            unfit.add("before")  # before he was old: hardly ever meant
        conjunction = self._one_of([c for c in lexicon.CONJUNCTIONS if c not in unfit])
        if conjunction == "before":
            other = replace(other, progressive=False)
        return main, other, conjunction

    def reason(self) -> Pair:
        """The man laughs because the dog sleeps."""
        main, other, conjunction = self._two_clauses()
        german = lexicon.CONJUNCTIONS[conjunction]
        return (
            f"{english_clause(main)} {conjunction} {english_clause(other)}.",
            f"{german_main(main)}, {german} {german_subordinate(other)}.",
        )

    def reason_first(self) -> Pair:
        """Because the dog sleeps, the man laughs: the clause takes the first place."""
        main, other, conjunction = self._two_clauses()
        german = lexicon.CONJUNCTIONS[conjunction]
        return (
            f"{conjunction} {english_clause(other)}, {english_clause(main)}.",
            f"{german} {german_subordinate(other)}, {german_question(main)}.",
        )

    def report(self) -> Pair:
        """The man says that the dog sleeps."""
        tense = self._one_of(("present", "past"))
        main = Clause(self._subject(), self._one_of(lexicon.SAYING), tense)
        assert main.subject is not None
        other = self._clause(self._other(main.subject, self._subject), tense)
        return (
            f"{english_clause(main)} that {english_clause(other)}.",
            f"{german_main(main)}, dass {german_subordinate(other)}.",
        )

    def _infinitive(self, subject: NounPhrase) -> Clause:
        while True:
            clause = self._frame(Clause(subject, lexicon.TO_BE))
            # Nobody hopes to know his neighbour: kennen is no deed.
            if clause.verb is not lexicon.TO_BE and clause.verb.german[0] != "kennen":
                return clause

    def intention(self) -> Pair:
        """The man hopes to see the dog."""
        tense = self._one_of(("present", "past"))
        main = Clause(self._subject(), self._one_of(lexicon.TRYING), tense)
        assert main.subject is not None
        clause = self._infinitive(main.subject)
        infinitive = german_infinitive(clause)
        # A bare infinitive takes no comma, one with companions does.
        comma = "," if clause.direct or clause.indirect or clause.place else ""
        return (
            f"{english_clause(main)} {english_infinitive(clause)}.",
            f"{german_main(main)}{comma} {infinitive}.",
        )

    def purpose(self) -> Pair:
        """The man goes to the city in order to buy a book."""
        subject = self._subject()
        tense = self._one_of(("present", "past"))
        main = self._going(Clause(subject, lexicon.TO_BE, tense), subject)
        clause = self._infinitive(subject)
        while clause.verb in lexicon.GOING:
            clause = self._infinitive(subject)
        return (
            f"{english_clause(main)} in order {english_infinitive(clause)}.",
            f"{german_main(main)}, um {german_infinitive(clause)}.",
        )

    def relative_subject(self) -> Pair:
        """The man who sees the dog laughs."""
        phrase = self._phrase(lexicon.PERSONS, lexicon.FOR_LIVING)
        antecedent = replace(phrase, determiner="the")
        relative = self._clause(antecedent, self._one_of(("present", "past")))
        main = self._clause(antecedent, self._one_of(("present", "past")))
        inner = english_relative(antecedent, relative, as_subject=True)
        german = german_relative(antecedent, relative, as_subject=True)
        return _insert(antecedent, main, f" {inner}", f", {german},")

    def relative_object(self) -> Pair:
        """The dog that the man sees is old."""
        things = self._chance(0.5)
        nouns, adjectives = (
            (lexicon.THINGS, lexicon.FOR_THINGS)
            if things
            else (lexicon.PERSONS, lexicon.FOR_LIVING)
        )
        phrase = replace(self._phrase(nouns, adjectives), determiner="the")
        verbs = lexicon.WITH_THING if things else lexicon.WITH_PERSON
        tense = self._one_of(("present", "past"))
        relative = Clause(self._other(phrase, self._subject), self._one_of(verbs), tense)
        predicates = [a for a in adjectives if a != phrase.adjective]
        main = Clause(phrase, lexicon.TO_BE, tense, predicate=self._one_of(predicates))
        # English leaves a gap where the object was: its particle stays with the verb.
        inner = english_relative(phrase, relative, as_subject=False)
        german = german_relative(phrase, relative, as_subject=False)
        return _insert(phrase, main, f" {inner}", f", {german},")


def _insert(phrase: NounPhrase, main: Clause, english: str, german: str) -> Pair:
    """Insert a relative clause after the subject of a main clause."""
    english_head = phrases.english(phrase)
    german_head = phrases.german(phrase, "nominative")
    return (
        f"{english_head}{english}{english_clause(main).removeprefix(english_head)}.",
        f"{german_head}{german}{german_main(main).removeprefix(german_head)}.",
    )
