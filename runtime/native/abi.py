"""ctypes declarations of the C interface in translate_trt.h."""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

from translate_trt.runtime.interface.search_options import OPTIONS

# Types of search options by their kind.
_IN_C: dict[str, Any] = {
    "count": c_int32, "number": c_double, "flag": c_int32, "text": c_char_p, "choice": c_int32,
}  # fmt: skip


class Text(ctypes.Structure):
    """`tt_text`, input."""

    _fields_ = (("data", c_char_p), ("size", c_size_t))


class TextFound(ctypes.Structure):
    """`tt_text`, output."""

    _fields_ = (("data", c_void_p), ("size", c_size_t))


class Tokens(ctypes.Structure):
    """`tt_tokens`."""

    _fields_ = (("data", POINTER(c_int32)), ("size", c_size_t))


class Term(ctypes.Structure):
    """`tt_term`."""

    _fields_ = (
        ("source", TextFound),
        ("target", TextFound),
        ("translation", TextFound),
        ("found", c_int32),
        ("entry", c_uint32),
    )


class Span(ctypes.Structure):
    """`tt_span`."""

    _fields_ = (("begin", c_size_t), ("end", c_size_t))


class Segment(ctypes.Structure):
    """`tt_segment`."""

    _fields_ = (
        ("source", POINTER(Span)),
        ("target", POINTER(Span)),
        ("source_size", c_size_t),
        ("target_size", c_size_t),
        ("weights", POINTER(ctypes.c_float)),
    )


class Segments(ctypes.Structure):
    """`tt_segments`."""

    _fields_ = (("data", POINTER(Segment)), ("size", c_size_t), ("translation", TextFound))


class WordPairs(ctypes.Structure):
    """`tt_word_pairs`, whose pairs are two integers each."""

    _fields_ = (("data", POINTER(c_uint32 * 2)), ("size", c_size_t))


class Word(ctypes.Structure):
    """`tt_word`."""

    _fields_ = (("text", TextFound), ("log_prob", c_double), ("confidence", c_double))


class LogProbs(ctypes.Structure):
    """`tt_log_probs`."""

    _fields_ = (("data", POINTER(c_double)), ("size", c_size_t))


class Attention(ctypes.Structure):
    """`tt_attention`."""

    _fields_ = (("data", POINTER(ctypes.c_float)), ("rows", c_size_t), ("columns", c_size_t))


class Options(ctypes.Structure):
    """`tt_options`."""

    _fields_ = (
        ("struct_size", c_size_t),
        *((name, _IN_C[option.kind]) for name, option in OPTIONS.items()),
    )


LogFunction = ctypes.CFUNCTYPE(None, c_void_p, c_char_p)
GpuWork = ctypes.CFUNCTYPE(c_int32, c_void_p)


class LoadOptions(ctypes.Structure):
    """`tt_load_options`."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("target", c_char_p),
        ("shortlist", c_int32),
        ("threads", c_int32),
        ("workers", c_int32),
        ("batch_tokens", c_int32),
        ("device", c_char_p),
        ("check_hashes", c_int32),
        ("onnxruntime", c_char_p),
        ("kernels", c_char_p),
        ("log", LogFunction),
        ("log_context", c_void_p),
        ("batches", c_int32),
        ("capacity", c_int32),
        ("engines", c_void_p),
        ("provider", c_char_p),
        ("cache_mib", c_int32),
    )


class Lines(ctypes.Structure):
    """`tt_lines`."""

    _fields_ = (("data", POINTER(TextFound)), ("size", c_size_t))


class Split(ctypes.Structure):
    """`tt_split`."""

    _fields_ = (
        ("parts", POINTER(Text)),
        ("between", POINTER(Text)),
        ("offsets", POINTER(c_int64)),
        ("size", c_size_t),
    )


class ResultArrays(ctypes.Structure):
    """`tt_result_arrays`."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("lines", c_size_t),
        ("hypotheses", c_size_t),
        ("pieces", c_size_t),
        ("hypothesis_ends", POINTER(c_size_t)),
        ("sentences", POINTER(c_size_t)),
        ("piece_ends", POINTER(c_size_t)),
        ("scores", POINTER(c_double)),
        ("text_ends", POINTER(c_size_t)),
        ("texts", c_void_p),
        ("piece_scores", POINTER(c_double)),
        ("flags", POINTER(ctypes.c_uint8)),
        ("token_ends", POINTER(c_size_t)),
        ("tokens", POINTER(c_int32)),
        ("log_prob_ends", POINTER(c_size_t)),
        ("log_probs", POINTER(c_double)),
    )


class SubmitOptions(ctypes.Structure):
    """`tt_submit_options`."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("options", POINTER(Options)),
        ("caller", c_uint64),
        ("timeout", c_double),
        ("finished", c_void_p),
        ("finished_context", c_void_p),
        ("completions", c_void_p),
        ("first_line", c_uint64),
        ("prefix_tokens", POINTER(Tokens)),
        ("score", c_int32),
        ("constraints", POINTER(Text)),
        ("constraint_tokens", POINTER(Tokens)),
        ("alignments", c_int32),
        ("alignment_threshold", c_double),
        ("line_names", POINTER(Text)),
        ("words", c_int32),
        ("terminology", c_void_p),
        ("markup", c_void_p),
        ("translate_all", c_int32),
        ("splits", POINTER(Split)),
        ("terms", c_int32),
        ("segments", c_int32),
    )


class Statistics(ctypes.Structure):
    """`tt_statistics`."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("pending", c_uint64),
        ("running", c_uint64),
        ("sentences", c_uint64),
        ("source_tokens", c_uint64),
        ("target_tokens", c_uint64),
        ("steps", c_uint64),
        ("rows", c_uint64),
        ("worker_seconds", c_double),
        ("graph_seconds", c_double),
        ("repeated", c_uint64),
    )


class EngineMemory(ctypes.Structure):
    """`tt_engine_memory`."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("device_bytes", c_uint64),
        ("pinned_bytes", c_uint64),
        ("workers", c_int32),
        ("batches", c_int32),
    )


class Status(c_int32):
    """`tt_status`; `open_library` makes functions that return one raise errors."""


_STATUS = Status
_HANDLE = c_void_p
#: Return type and argument types of each function.
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "tt_last_error": (c_char_p, ()),
    "tt_version": (c_char_p, ()),
    "tt_device_fail": (c_int32, (c_int32, c_char_p)),
    "tt_cuda_functions": (_STATUS, (c_void_p, c_void_p)),
    "tt_cuda_call": (_STATUS, (c_int32, GpuWork, c_void_p)),
    "tt_load_options_default": (_STATUS, (POINTER(LoadOptions), c_size_t)),
    "tt_submit_options_default": (_STATUS, (POINTER(SubmitOptions), c_size_t)),
    "tt_translator_load": (_STATUS, (c_char_p, POINTER(LoadOptions), POINTER(_HANDLE))),
    "tt_translator_free": (None, (_HANDLE,)),
    "tt_bundle_engine_memory": (
        _STATUS, (c_char_p, c_char_p, POINTER(EngineMemory), c_size_t)
    ),
    "tt_translator_workers": (c_int32, (_HANDLE,)),
    "tt_translator_batch_tokens": (c_int64, (_HANDLE,)),
    "tt_translator_statistics": (_STATUS, (_HANDLE, POINTER(Statistics), c_size_t)),
    "tt_submit": (
        _STATUS,
        (_HANDLE, POINTER(Text), c_size_t, POINTER(SubmitOptions), POINTER(Text),
         POINTER(_HANDLE)),
    ),
    "tt_submit_ids": (
        _STATUS,
        (_HANDLE, POINTER(Tokens), c_size_t, POINTER(SubmitOptions), POINTER(Tokens),
         POINTER(_HANDLE)),
    ),
    "tt_completions_new": (_STATUS, (POINTER(_HANDLE),)),
    "tt_completions_wait": (
        _STATUS, (_HANDLE, c_double, POINTER(c_void_p), c_size_t, POINTER(c_size_t))
    ),
    "tt_completions_add": (_STATUS, (_HANDLE, c_void_p)),
    "tt_completions_free": (None, (_HANDLE,)),
    "tt_job_wait": (_STATUS, (_HANDLE, c_double, POINTER(c_int32))),
    "tt_job_cancel": (_STATUS, (_HANDLE,)),
    "tt_job_result": (_STATUS, (_HANDLE, POINTER(_HANDLE))),
    "tt_job_free": (None, (_HANDLE,)),
    "tt_result_free": (None, (_HANDLE,)),
    "tt_result_as_arrays": (_STATUS, (_HANDLE, POINTER(ResultArrays), c_size_t)),
    "tt_result_attention": (Attention, (_HANDLE, *[c_size_t] * 3)),
    "tt_result_segments": (Segments, (_HANDLE, c_size_t, c_size_t)),
    "tt_result_alignment": (WordPairs, (_HANDLE, c_size_t, c_size_t)),
    "tt_result_words": (c_size_t, (_HANDLE, c_size_t, c_size_t)),
    "tt_result_word": (Word, (_HANDLE, *[c_size_t] * 3)),
    "tt_result_terms": (c_size_t, (_HANDLE, c_size_t, c_size_t)),
    "tt_result_term": (Term, (_HANDLE, *[c_size_t] * 3)),
    "tt_translator_words": (
        _STATUS, (_HANDLE, POINTER(Tokens), POINTER(LogProbs), c_size_t, POINTER(_HANDLE))
    ),
    "tt_align_words": (_STATUS, (Text, Segments, c_double, POINTER(_HANDLE))),
    "tt_check": (
        _STATUS, (_HANDLE, POINTER(Text), c_size_t, POINTER(SubmitOptions), POINTER(Text))
    ),
    "tt_check_ids": (
        _STATUS, (_HANDLE, POINTER(Tokens), c_size_t, POINTER(SubmitOptions), POINTER(Tokens))
    ),
    "tt_bundle_check": (_STATUS, (c_char_p, c_char_p, POINTER(SubmitOptions))),
    "tt_markup_new_named": (
        _STATUS,
        (POINTER(Text), POINTER(Text), c_size_t, c_int32, c_int32, POINTER(_HANDLE)),
    ),
    "tt_markup_lines": (Lines, (_HANDLE,)),
    "tt_markup_receive": (_STATUS, (_HANDLE, _HANDLE)),
    "tt_markup_result": (_STATUS, (_HANDLE, POINTER(_HANDLE))),
    "tt_markup_free": (None, (_HANDLE,)),
    "tt_glossary_new": (
        _STATUS, (POINTER(Text), POINTER(c_size_t), c_size_t, c_int32, POINTER(_HANDLE))
    ),
    "tt_glossary_parse": (_STATUS, (Text, c_char_p, c_int32, POINTER(_HANDLE))),
    "tt_glossary_free": (None, (_HANDLE,)),
    "tt_glossary_size": (c_size_t, (_HANDLE,)),
    "tt_glossary_phrases": (c_size_t, (_HANDLE, c_size_t)),
    "tt_glossary_phrase": (TextFound, (_HANDLE, c_size_t, c_size_t)),
    "tt_glossary_terms": (_STATUS, (_HANDLE, Text, Text, POINTER(_HANDLE))),
    "tt_glossary_annotate": (
        _STATUS, (_HANDLE, Text, POINTER(Text), c_int32, Text, POINTER(_HANDLE))
    ),
    "tt_terms_size": (c_size_t, (_HANDLE,)),
    "tt_terms_term": (Term, (_HANDLE, c_size_t)),
    "tt_terms_span": (Span, (_HANDLE, c_size_t)),
    "tt_terms_annotated": (TextFound, (_HANDLE,)),
    "tt_terms_free": (None, (_HANDLE,)),
    "tt_is_translatable": (_STATUS, (Text, POINTER(c_int32))),
}  # fmt: skip
