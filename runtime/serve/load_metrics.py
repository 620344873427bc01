"""Metrics of a service's load, for Prometheus."""

from __future__ import annotations

#: Name without the suffix of counters, and description, by field of `Statistics`.
COUNTERS = {
    "sentences": ("translate_trt_sentences", "Translated sentences, each segment of a long one"),
    "repeated": (
        "translate_trt_repeated_sentences",
        "Translated sentences with the result of an equal one",
    ),
    "source_tokens": ("translate_trt_source_tokens", "Translated source tokens"),
    "target_tokens": ("translate_trt_target_tokens", "Tokens of the best translations"),
    "steps": ("translate_trt_batch_steps", "Decoding steps of all batches"),
    "rows": ("translate_trt_batch_rows", "Sum of the batch sizes over all steps"),
}
GAUGES = {
    "waiting": ("translate_trt_waiting_sentences", "Sentences in the pending queue"),
    "running": ("translate_trt_running_sentences", "Sentences in batches"),
}
