"""Random inputs of the fused operator SelectBeams: candidates, pools of hypotheses and options."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.bundle.contract import FREE, UNMARKED, unscored
from translate_trt.train.config import END

Array = NDArray[Any]

LOWEST = -np.inf


def candidates(
    rng: np.random.Generator, kind: str, n: int, k: int, b: int, r: int, u: int, d: int
) -> dict[str, Array]:
    """Random best candidates of each beam, and log-probabilities of the beams."""
    c = 2 * k + 1 + b + min(r, 6) + u  # fewer than ranks, as of a small vocabulary
    values = np.sort(rng.normal(-4, 2, (n, k, c)))[..., ::-1]
    choices = np.stack([rng.permutation(c + 3)[:c] for _ in range(n * k)]).reshape(n, k, c)
    log_probs = np.sort(rng.normal(-8, 3, (n, k)))[..., ::-1]
    if kind != "random":  # few different numbers, of which half the sums tie
        values, log_probs = np.ceil(values / 4), np.ceil(log_probs / 8)
    tail = rng.normal(-4, 2, (n, k, d))
    if kind == "ties":
        tail = np.ceil(tail / 4)
    if kind == "dead":
        log_probs[:, 1:] = LOWEST
        values[:, :, k:] = LOWEST
        log_probs[0] = LOWEST
    if kind == "ends":
        choices[:, :, : k + 1] = END
    return {
        "log_probabilities": values.astype(np.float32),
        "choices": choices,
        "looked_up": np.concatenate((rng.normal(-9, 1, (n, k, 1 + u)), tail), 2).astype(np.float32),
        "log_probs": log_probs.astype(np.float32),
    }


def pool(rng: np.random.Generator, n: int, k: int) -> dict[str, Array]:
    """Random pools of 0 to K finished hypotheses."""
    scores = np.sort(np.ceil(rng.normal(-3, 2, (n, k)) * 2) / 2)[..., ::-1]
    places = np.arange(k) < rng.integers(0, k + 1, (n, 1))
    return {
        "finished_scores": np.where(places, scores, LOWEST).astype(np.float32),
        "finished_lengths": np.where(places, rng.integers(1, 9, (n, k)), 0),
        "finished_parents": np.where(places, rng.integers(0, k, (n, k)), 0),
        "finished_truncated": places & (rng.random((n, k)) < 0.1),
    }


def forced_tokens(rng: np.random.Generator, n: int) -> Array:
    """Random forced tokens: free, forced and unscored."""
    tokens, kinds = rng.integers(4, 9, n), rng.random(n)
    return np.where(kinds < 0.2, tokens, np.where(kinds < 0.4, unscored(tokens), FREE))


def selection(
    kind: str, k: int, alpha: float, beta: float, n: int = 24, b: int = 0, r: int = 0, u: int = 0,
    d: int = 0,
) -> dict[str, Array]:  # fmt: skip
    rng = np.random.default_rng([k, len(kind), int(10 * alpha)])
    positions = rng.integers(0, 8, n)
    return {
        **candidates(rng, kind, n, k, b, r, u, d),
        **pool(rng, n, k),
        "end_token": np.array(END), "forced_tokens": forced_tokens(rng, n),
        "min_lengths": np.where(rng.random(n) < 0.3, positions + rng.integers(0, 4, n), 0),
        "max_lengths": positions + rng.integers(1, 30, n),
        "length_penalty_alpha": np.full(n, alpha, np.float32),
        "length_penalty_beta": np.full(n, beta, np.float32),
        "num_hypotheses": rng.integers(1, k + 1, n), "early_stopping": np.full(n, False),
        "positions": positions, "done": rng.random(n) < 0.2,
        **marks(rng, n, k, b),
        **noise(rng, n, r),
        **tail(rng, n, d),
        **constraints(rng, n, k, u),
    }  # fmt: skip


def marks(rng: np.random.Generator, n: int, k: int, b: int) -> dict[str, Array]:
    """Random marked tokens, a third of them banned; some entries are unused."""
    tokens = np.stack([rng.permutation(2 * k + 4)[:b] for _ in range(n * k)]).reshape(n, k, -1)
    tokens = np.where(rng.random(tokens.shape) < 0.2, UNMARKED, tokens)
    factors = np.where(rng.random(tokens.shape) < 0.3, np.inf, 1 + rng.random(tokens.shape))
    return {"marked_tokens": tokens.astype(np.int64), "marked_factors": factors.astype(np.float32)}


def noise(rng: np.random.Generator, n: int, r: int) -> dict[str, Array]:
    """Noise of r ranks or fewer, in three of four sentences."""
    values = (
        np.where(np.arange(r) < rng.integers(1, r + 1, (n, 1)), rng.gumbel(size=(n, r)), -np.inf)
        if r
        else np.zeros((n, 0))
    )
    values[rng.random(n) < 0.25] = -np.inf
    return {
        "sampling_noise": values.astype(np.float32),
        "sampling_temperature": rng.uniform(0.3, 3, n).astype(np.float32),
        "sampling_top_p": rng.choice([0.5, 0.9, 1], n).astype(np.float32),
    }


def tail(rng: np.random.Generator, n: int, d: int) -> dict[str, Array]:
    """Up to d further tokens of each sentence, some of them candidates, and their noise."""
    tokens = np.stack([rng.permutation(3 * d + 4)[:d] for _ in range(n)]).reshape(n, d)
    used = np.arange(d) < rng.integers(0, d + 1, (n, 1))
    return {
        "tail_tokens": np.where(used, tokens, UNMARKED).astype(np.int64),
        "tail_noise": np.where(used, rng.gumbel(size=(n, d)), -np.inf).astype(np.float32),
    }


def constraints(rng: np.random.Generator, n: int, k: int, u: int) -> dict[str, Array]:
    """Constraints of up to u different tokens, in three of four sentences."""
    tokens = np.stack([rng.permutation(2 * k + 4)[:u] for _ in range(n)]).reshape(n, u)
    used = np.arange(u) < rng.integers(1, u + 1, (n, 1)) if u else np.zeros((n, 0), bool)
    used[rng.random(n) < 0.25] = False
    return {
        "constraint_tokens": np.where(used, tokens, UNMARKED).astype(np.int64),
        "constraint_progress": rng.integers(0, 5, (n, k, u)),
        "other_progress": rng.integers(0, 4, (n, k)) * used.any(1, keepdims=True),
    }
