"""OpenAPI descriptions; routes read bodies themselves, within limits."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from translate_trt.runtime.serve.http.messages import ErrorAnswer

_ERRORS = {
    400: "The request is wrong; the message says how",
    403: "The API key is unknown, or may not do this",
    408: "The body arrived too slowly",
    413: "The request exceeds a limit",
    415: "Unsupported Content-Encoding; only gzip is accepted",
    429: "Too many requests; Retry-After says when to send it again",
    500: "The translation failed",
    501: "This server cannot do this",
    503: "The server is starting or shutting down",
    504: "The time to answer in is up",
}


def body_of(kind: type[BaseModel], forms: bool = True) -> dict[str, Any]:
    """Return the OpenAPI description of a request body.

    Args:
        kind: Class of the query.
        forms: Whether forms are accepted beside JSON.
    """
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    content = {"application/json": {"schema": schema}}
    if forms:
        # Fields of a form are text.
        fields = {
            name: field for name, field in schema["properties"].items()
            if field.get("type") != "object"
        }  # fmt: skip
        form = {"schema": {**schema, "properties": fields}}
        content |= {"application/x-www-form-urlencoded": form, "multipart/form-data": form}
    return {"requestBody": {"required": True, "content": content}}


def form_with_file(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a form with a file and the fields of a query."""
    form: dict[str, Any] = body_of(kind)["requestBody"]["content"]["multipart/form-data"]
    schema = form["schema"]
    file = {"type": "string", "format": "binary", "description": "File to translate"}
    schema |= {
        "properties": {"file": file, **schema["properties"]},
        "required": ["file", *schema["required"]],
    }
    return {"requestBody": {"required": True, "content": {"multipart/form-data": form}}}


def answers(success: type[BaseModel] | Any, *errors: int) -> dict[str, Any]:
    """Return the arguments of a route that describe its answers.

    Args:
        success: Class of the answer.
        errors: Status codes of errors.
    """
    described: dict[int, Any] = {
        status: {"model": ErrorAnswer, "description": _ERRORS[status]} for status in errors
    }
    described[200] = {"model": success}
    return {"responses": described, "response_model": None}


#: Errors of routes that read a body and translate.
TRANSLATING = (400, 403, 408, 413, 415, 429, 500, 501, 503, 504)
