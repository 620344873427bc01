"""Size of micro-batches: from the tokens of a step, the processes, and the memory of the GPU."""

from __future__ import annotations

import dataclasses
import logging

import torch

from translate_trt.train.config import ModelConfig
from translate_trt.train.loss import BYTES_AT_ONCE_ACCELERATOR, COLUMNS_AT_ONCE
from translate_trt.train.model import Transformer
from translate_trt.train.trainer.distributed import Group
from translate_trt.train.trainer.job import Job

log = logging.getLogger("translate_trt")

#: Limit on a CPU, the size of a step in the measurements of docs/results.md.
CPU_TOKENS = 4_096
#: Share of the free memory that the estimate may fill. Batches of ever new shapes fragment torch's
#: pool, and NCCL, cuBLAS and compiled code take memory of their own.
MEMORY_SHARE = 0.7
#: Least limit: a sentence of the default maximum length.
LEAST_TOKENS = 256


def activation_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Return the peak memory of activations per source position and target position together.

    Counts the tensors that autograd keeps without torch.compile, which keeps fewer, plus the
    gradients around the widest one. Letters: a and 4 bytes per element in the dtype of the matmuls
    and in float32. Residual sums and LayerNorm are float32. Each matmul keeps its input: in lower
    precision a copy of it, of which there are three for queries, keys and values; in float32 the
    output of LayerNorm, once. Fused attention keeps no mask of its dropout, but the state of the
    random numbers.
    """
    a, mixed = dtype.itemsize, dtype != torch.float32
    width, keys, values = config.d_model, config.heads * config.d_k, config.heads * config.d_v

    def inputs(matmuls: int) -> int:
        return a * width * (matmuls if mixed else 1)

    block = (4 + 1) * width  # the residual sum, and the mask of its dropout
    attended = a * values + 4 * config.heads  # what attention returns, and its log-sum-exp
    own = inputs(3) + a * (2 * keys + values) + attended + block
    # An SSRU keeps both gates, the candidate and its output; the recurrence, in float32, its
    # factors and states.
    recurrent = inputs(2) + (4 * a + 4 + (4 if mixed else 0)) * width + block
    inner = a * (1 if config.activation == "relu" else 2)  # per column
    if config.activation_dropout:  # what the activation keeps, what dropout returns, and its mask
        inner = 2 * a + 1
    feed_forward, decoder_feed_forward = (
        inputs(1) + inner * columns + block for columns in (config.d_ff, config.decoder_inner)
    )
    cross = inputs(1) + a * keys + attended + block
    memory = a * (keys + values) + (inputs(2) if mixed else 0)
    layers = config.encoder_layers * (own + feed_forward)
    past = recurrent if config.is_recurrent else own
    layers += config.decoder_layers * (past + cross + decoder_feed_forward)
    layers += config.distinct_decoder_layers * memory
    embeddings = 2 * block if config.norm_embedding else 2 * width
    outputs = (4 + 4 + 2 * a) * width  # of the encoder and the decoder; the loss's, and gradients
    gradients = 2 * a * max(config.d_ff, config.decoder_inner) + 8 * width
    return layers + embeddings + outputs + gradients


def fixed_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Return the memory that does not depend on the batch: weights, optimizer, and the loss's."""
    with torch.device("meta"):
        model = Transformer(config)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    a = 0 if dtype == torch.float32 else dtype.itemsize
    # Weights, gradients and two moments in float32, and autocast's copies of the weights.
    trained = (16 + a) * parameters
    # Of the projection: gradient and scaled gradient; in a bytes, weight and a chunk's gradient.
    projection = (8 + 2 * dtype.itemsize) * model.projection_weight.numel()
    rows = BYTES_AT_ONCE_ACCELERATOR // (config.vocabulary_size * dtype.itemsize)
    columns = min(COLUMNS_AT_ONCE, config.vocabulary_size)  # that are in float32 at once
    return trained + projection + BYTES_AT_ONCE_ACCELERATOR + 4 * rows * columns


def memory_limit(config: ModelConfig, dtype: torch.dtype, free_bytes: int) -> int:
    """Return the largest micro-batch, in tokens of each side, for that much free memory."""
    left = MEMORY_SHARE * free_bytes - fixed_bytes(config, dtype)
    return max(LEAST_TOKENS, int(left / activation_bytes(config, dtype)))


def divide(batch_tokens: int, processes: int, limit: int) -> int:
    """Return the size of micro-batches such that each process has equally many in a step.

    Their number per process is the least power of two for which they keep to the limit. (On a CPU,
    the 25,000 tokens of `base` become the paper's eight batches.)

    Args:
        batch_tokens: Tokens of a step.
        processes: Number of processes.
        limit: Largest micro-batch.
    """
    count = processes
    while batch_tokens > count * limit:
        count *= 2
    return max(1, batch_tokens // count)


def with_micro_batches(job: Job, group: Group, dtype: torch.dtype) -> Job:
    """Return the job with a size of micro-batches; choose and record one if it has none.

    All processes of the group take the size that suits the smallest of their GPUs (collective).
    A resumed run keeps the recorded size, and thereby the sentences of each step.
    """
    settings = job.settings
    if settings.train.micro_batch_tokens:
        return job
    if group.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(group.device)
        limit = memory_limit(settings.model, dtype, free)
    else:
        limit = CPU_TOKENS
    # Before the size is recorded: the other processes reopen the run, and write its settings.
    limit = group.smallest(limit)
    size = divide(settings.train.batch_tokens, group.size, limit)
    train = dataclasses.replace(settings.train, micro_batch_tokens=size)
    settings = dataclasses.replace(settings, train=train)
    if group.leads:
        settings.write(job.out)
        log.info(
            "micro-batches of %d tokens: a step of %d is %d, for %d process(es) that can take %d",
            size, train.batch_tokens, train.batch_tokens // size, group.size, limit,
        )  # fmt: skip
    return dataclasses.replace(job, settings=settings)
