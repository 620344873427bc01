"""Grammar that generates sentences in English and German.

Sentences are drawn as structures (clauses.Clause, phrases.NounPhrase) and realized in both
languages. The German ones are inflected: gender, case, strong and weak adjectives, weak nouns,
separable verbs, verb-second and verb-final clauses, zu-infinitives, relative pronouns, kein and
nicht. The English sentence determines the German one.
"""
