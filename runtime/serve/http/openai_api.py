"""OpenAI's API: chat completions that translate, and models that are pairs of languages.

The text of the last user message is translated as it is; other messages are no context. A first
paragraph of it such as "Translate from English to German, without comments:" is no part of the text
if an empty line follows; other prompts belong in the system message. The languages are those of the
first rule that names a target:

1. The name of the model: "en-de", or "de" for a text whose language is detected.
2. The system message, or that first paragraph: the last language after "to" or "into", by its name
   in English, or the only target that it names; the source is the last language after "from", or is
   detected.

Options of sampling and further fields are ignored. The answer has no `usage`, since its tokens are
not those of OpenAI's models.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, FailFast, Field

from translate_trt.runtime.serve.http import detection
from translate_trt.runtime.serve.http.api_schema import TRANSLATING, answers, body_of
from translate_trt.runtime.serve.http.extensions import EventStream, find_route
from translate_trt.runtime.serve.http.http_error import ApiKeyError, HttpError
from translate_trt.runtime.serve.http.messages import StreamQuery, TranslateQuery
from translate_trt.runtime.serve.http.receiving import receive
from translate_trt.runtime.serve.http.routing import Routes, Step
from translate_trt.runtime.serve.http.server_state import AUTO, ServerState, json_answer
from translate_trt.runtime.serve.http.text_answer import answer_texts
from translate_trt.runtime.text.languages import language_name

router = APIRouter(prefix="/v1", tags=["OpenAI"])

# Pairs of languages that are listed as models; the 40,000 of a model of 200 languages are not.
_MOST_PAIRS = 1_000
# Characters of a system message that are searched for languages.
_MOST_SYSTEM = 2_000
# A first paragraph that asks for a translation, and its largest number of characters.
_PROMPT = re.compile(r"(?:please\s+)?translate\b.*:", re.IGNORECASE | re.DOTALL)
_MOST_PROMPT = 500


class Message(BaseModel):
    """A message of a chat; its content is a text, or parts that each have the type "text"."""

    role: str
    content: str | list[Any] | None = None

    @property
    def text(self) -> str:
        """Text of the message.

        Raises:
            HttpError: The message has other parts than text.
        """
        if not isinstance(self.content, list):
            return self.content or ""
        texts = [one.get("text") for one in self.content if isinstance(one, dict)]
        if not all(isinstance(text, str) for text in texts) or len(texts) < len(self.content):
            raise HttpError(400, "messages: content has parts that are no text")
        return "".join(map(str, texts))


class ChatQuery(BaseModel):
    """A chat whose last user message is translated."""

    model: str = Field(
        default="", description='Languages such as "en-de", or any name', examples=["en-de"]
    )
    messages: Annotated[list[Message], FailFast()]
    stream: bool = Field(default=False, description="Send each sentence once it is translated")


def refusal(error: HttpError) -> Response:
    """Return the answer for an error in OpenAI's form."""
    status = 401 if isinstance(error, ApiKeyError) else error.status
    kind = "invalid_request_error" if status < 500 else "server_error"
    described = {"message": error.message, "type": kind, "param": None, "code": None}
    return json_answer({"error": described}, status, error.headers)


@router.get("/models", **answers(dict[str, Any], 400, 403, 429, 503))
async def models(request: Request) -> Response:
    """Return names of models, which are the languages that they translate between."""
    state: ServerState = request.app.state.server
    state.identify(request)
    routes = state.bundles.routes
    names = list(routes.targets) if detection.available() else []
    pairs = [f"{one['code']}-{to}" for one in routes.described for to in one["targets"]]
    names += pairs if len(pairs) <= _MOST_PAIRS else []
    fields = {"object": "model", "created": 0, "owned_by": "translate-trt"}
    return json_answer({"object": "list", "data": [{"id": name, **fields} for name in names]})


@router.post(
    "/chat/completions",
    openapi_extra=body_of(ChatQuery, forms=False),
    **answers(dict[str, Any], *TRANSLATING),
)
async def chat_completions(request: Request) -> Response:
    """Translate the last user message; a stream has a chunk for each sentence."""
    state, query, key = await receive(request, ChatQuery)
    text = next((one.text for one in reversed(query.messages) if one.role == "user"), "")
    if not text.strip():
        raise HttpError(400, "there is no user message with text, which would be translated")
    prompt, text = _split_prompt(state.bundles.routes, text)
    source, target = _languages(state.bundles.routes, query, prompt)
    fields = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()),
              "model": query.model}  # fmt: skip
    if not query.stream:
        of_text = TranslateQuery(q=text, source=source, target=target)
        answer = await answer_texts(state, request, of_text, key)
        message = {"role": "assistant", "content": answer["translatedText"], "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return json_answer({"object": "chat.completion", **fields, "choices": [choice]})
    of_stream = StreamQuery(q=text, source=source, target=target)
    size = state.check_texts([text], key, of_stream)
    route, _ = find_route(state, of_stream)
    steps = route.steps(of_stream)
    request.state.log.update(model=route.model, characters=size)
    translating = state.translating(request, of_stream, [([size], steps)])
    return EventStream(request, translating, _chunks(state, text, steps, fields), refusal)


async def _chunks(
    state: ServerState, text: str, steps: tuple[Step, ...], fields: dict[str, Any]
) -> AsyncIterator[bytes]:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        described = {"object": "chat.completion.chunk", **fields, "choices": [choice]}
        return f"data: {json.dumps(described, ensure_ascii=False)}\n\n".encode()

    role: dict[str, Any] = {"role": "assistant"}
    async for before, _, found in state.translation.stream(text, steps):
        written = before + (found[-1].text if found else "")
        if written:
            yield chunk({**role, "content": written})
            role = {}
    yield chunk(role, "stop")
    yield b"data: [DONE]\n\n"


def _split_prompt(routes: Routes, text: str) -> tuple[str, str]:
    """Return a first paragraph that asks for a translation, and the text to translate."""
    prompt, _, rest = text.lstrip().partition("\n\n")
    if len(prompt) > _MOST_PROMPT or not _PROMPT.fullmatch(prompt.strip()) or not rest.strip():
        return "", text
    return (prompt, rest) if _named(routes, prompt)[1] else ("", text)


def _named(routes: Routes, text: str) -> tuple[list[str], list[str]]:
    """Return the source and the target languages that a prompt names in English."""
    codes = {language_name(code).lower(): code for code in routes.languages}
    named = "|".join(re.escape(name) for name in sorted(codes, key=len, reverse=True))
    found = re.findall(rf"\b(?:(to|into|from)\s+)?({named})\b", text[:_MOST_SYSTEM].lower())
    sources = [codes[name] for before, name in found if before == "from"]
    targets = [codes[name] for before, name in found if before in ("to", "into")]
    mentioned = {codes[name] for before, name in found if not before}
    if not targets and len(mentioned) == 1:
        targets = [*mentioned]
    return sources, targets


def _languages(routes: Routes, query: ChatQuery, prompt: str) -> tuple[str, str]:
    """Return the source and the target language of a chat.

    Raises:
        HttpError: Neither model nor messages name a target language.
    """
    if query.model in routes.targets:
        return AUTO, query.model
    for source in routes.sources:
        target = query.model.removeprefix(f"{source}-")
        if target != query.model and target in routes.targets:
            return source, target
    system = "\n".join(one.text for one in query.messages if one.role in ("system", "developer"))
    sources, targets = _named(routes, system)
    if not targets:
        sources, targets = _named(routes, prompt)
    if not targets:
        raise HttpError(
            400, "no target language: name one as the model, such as "
            f"{routes.targets[0]}, or in the system message, such as "
            f"'Translate to {language_name(routes.targets[0])}.'",
        )  # fmt: skip
    return (sources or [AUTO])[-1], targets[-1]
