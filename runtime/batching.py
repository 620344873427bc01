"""Length-sorted batching."""

from __future__ import annotations

from collections.abc import Sequence

# Minimum cost of a sentence in tokens: the decoder's work per step does not shrink with the source,
# and hundreds of one-word lines would need logits for all of them at once.
SMALLEST_COST = 8


def length_sorted_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Group sentences of similar length.

    Args:
        lengths: Source tokens of each sentence, the end symbol included.
        batch_tokens: Maximum tokens per batch, padding included. A sentence counts at least
            `SMALLEST_COST`; a sentence above the maximum forms a batch of its own.

    Returns:
        Batches of indices into `lengths`, each index exactly once. The longest sentences come
        first, which shows at once if a batch is too large for memory. Equal lengths keep their
        order.
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
