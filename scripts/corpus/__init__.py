"""A small grammar that says the same thing in English and in German.

Sentences are drawn as structures (clauses.Clause, phrases.NounPhrase) and realized twice. German
has its inflection: gender, case, strong and weak adjectives, weak nouns, separable verbs,
verb-second and verb-final clauses, zu-infinitives, relative pronouns, kein and nicht. The English
sentence determines the German one.
"""
