"""Which sentences run together."""

from __future__ import annotations

from collections.abc import Sequence

# What a sentence costs at least, in tokens: the decoder's work per step does not shrink with the
# source, and hundreds of one-word lines would need logits for all of them at once.
SMALLEST_COST = 8


def length_sorted_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Group sentences of similar length.

    Args:
        lengths: source tokens of each sentence, the end symbol included.
        batch_tokens: tokens per batch, padding included and no sentence counted as less than
            `SMALLEST_COST`; a longer sentence runs alone.

    Returns:
        Indices into `lengths`, longest sentences first (so that a batch too large for memory shows
        at once), each index exactly once. Equal lengths keep the input's order.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batches: list[list[int]] = []
    widest = 0
    for index in order:
        if not batches or widest * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
            widest = max(lengths[index], SMALLEST_COST)
        batches[-1].append(index)
    return batches
