"""Requests and answers of the API."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field

_API_KEY = Field(default=None, description="API key, where the server has keys", max_length=512)
_SOURCE = Field(description='Source language code, or "auto" to detect it', examples=["en"])
_TARGET = Field(description="Target language code", examples=["de"])
_MODEL = Field(
    default=None, description="Name of the only model to use, as `model` of an answer has it"
)
_TIMEOUT = Field(
    default=None, gt=0, allow_inf_nan=False, description="Seconds to answer in, up to the server's"
)


class Query(BaseModel):
    """Fields of all requests that translate. Unknown fields are ignored."""

    source: str = _SOURCE
    target: str = _TARGET
    api_key: str | None = _API_KEY
    model: str | None = _MODEL
    timeout: float | None = _TIMEOUT
    options: dict[str, Any] = Field(
        default={},
        description="Search options by name, such as beam_size and length_penalty "
        "(docs/beam-search.md)",
    )
    terminology: dict[str, str] = Field(
        default={},
        description="Phrases of the source with the phrase that translates each; together they "
        "may have as many characters as the text.",
    )


class TextQuery(Query):
    """Requests whose answers may say more about the words of translations."""

    format: str = "text"
    words: bool = Field(default=False, description="Add the words with the confidence of each")
    alignments: bool = Field(
        default=False, description="Add pairs of aligned words (source, translation), from 0"
    )


class TranslateQuery(TextQuery):
    """A text or several to translate.

    `q`, `source`, `target`, `format`, `alternatives` and `api_key` are those of LibreTranslate.
    `details`, `num_hypotheses`, `words`, `tokens` and `alignments` add `hypotheses`, `model` and
    `seconds` to the answer.
    """

    q: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)] = Field(
        description="Text, or array of texts", examples=["Hello world!"]
    )
    REPEATED: ClassVar[str] = "q"  # field of a form that may be there several times

    format: Literal["text", "html", "xml"] = Field(
        default="text", description="Format of the texts; xml for fragments"
    )
    alternatives: int = Field(default=0, ge=0, description="Number of further translations")
    details: bool = Field(default=False, description="Add scores of translations")
    num_hypotheses: int | None = Field(
        default=None, ge=1, description="Number of best translations in `hypotheses`"
    )
    tokens: bool = Field(default=False, description="Add the log-probabilities of the tokens")


class TargetsQuery(TranslateQuery):
    """A text or several to translate, into one language or several."""

    target: str | Annotated[list[str], Field(min_length=1)] = Field(  # type: ignore[assignment]
        description="Target language code; or an array of codes, each of which has an answer of "
        "its own in `translations`. Limits hold for the sum over the languages.",
        examples=["de"],
    )


class StreamQuery(TextQuery):
    """A text whose translation is sent sentence by sentence."""

    format: Literal["text"] = Field(default="text", description="Format of the text")
    q: str = Field(
        min_length=1, description="Text of any number of lines", examples=["A dog runs. It barks."]
    )


class AlternativesQuery(TextQuery):
    """A sentence and the beginning of its translation, whose next words are asked for."""

    format: Literal["text"] = Field(default="text", description="Format of the sentence")
    q: str = Field(min_length=1, description="One sentence", examples=["A dog runs."])
    prefix: str = Field(default="", description="Text that the translations must begin with")
    count: int = Field(default=5, ge=1, description="Number of alternatives")
    min_prob: float = Field(
        default=0.0, ge=0, le=1, description="Leave out alternatives less likely than this"
    )


class FileQuery(Query):
    """A form with a file, whose name tells its format."""


class DetectQuery(BaseModel):
    """A text whose language is asked for."""

    q: str = Field(min_length=1, description="Text", examples=["Bonjour"])
    api_key: str | None = _API_KEY


class ErrorAnswer(BaseModel):
    """Reason why a request was not answered."""

    error: str


class DetectedLanguage(BaseModel):
    """A language and the confidence in it, in percent."""

    confidence: float
    language: str


class Language(BaseModel):
    """A language and those that it can be translated into: none if it is only a target."""

    code: str
    name: str
    targets: list[str]


class Word(BaseModel):
    """A word of a translation and its probability."""

    text: str
    confidence: float


class Token(BaseModel):
    """A token of a translation; the log-probability of a forced token is 0."""

    text: str
    log_prob: float


class HypothesisAnswer(BaseModel):
    """A translation of a text; the last three fields are there if they were asked for."""

    text: str
    score: float
    truncated: bool
    looped: bool
    words: list[Word] | None = None
    tokens: list[Token] | None = None
    alignments: list[tuple[int, int]] | None = None


class TranslateAnswer(BaseModel):
    """Translations in the form of `q`: arrays if `q` is an array."""

    translatedText: str | list[str]  # noqa: N815
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None
    hypotheses: list[HypothesisAnswer] | list[list[HypothesisAnswer]] | None = None
    model: str | list[str] | None = None
    seconds: float | None = None


class TranslationsAnswer(BaseModel):
    """Answers by target language, if `target` is an array."""

    translations: dict[str, TranslateAnswer]
    seconds: float


class FileAnswer(BaseModel):
    """Address from which the translated file can be downloaded for half an hour."""

    translatedFileUrl: str  # noqa: N815


class Alternative(BaseModel):
    """A translation that begins with the prefix and another next token.

    `next` is the text of the word that follows the prefix, `probability` that of its first token.
    The last two fields are there if they were asked for.
    """

    text: str
    next: str
    score: float
    probability: float
    words: list[Word] | None = None
    alignments: list[tuple[int, int]] | None = None


class AlternativesAnswer(BaseModel):
    """Alternatives, the most likely next token first."""

    alternatives: list[Alternative]
    model: str
    seconds: float
