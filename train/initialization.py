"""Initial weights with which deep post-norm models learn sooner than with Xavier's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from translate_trt.train.config import ModelConfig

#: Size of the batch of random tokens on which `admin_gains` measures variances.
_SENTENCES, _TOKENS = 16, 32


def deepnet_gains(config: ModelConfig) -> dict[str, float]:
    """Gains of matrices by stack (Wang et al. 2022, "DeepNet", beta of its figure 2).

    Unlike in DeepNet, residual connections are not scaled.
    """
    encoder, decoder = config.encoder_layers, config.decoder_layers
    return {
        "encoder": 0.87 * (encoder**4 * decoder) ** (-1 / 16),
        "decoder": (12 * decoder) ** (-1 / 4),
    }


def t_fixup_gains(config: ModelConfig) -> dict[str, float]:
    """Gains of matrices by stack, and of the embeddings (Huang et al. 2020, "T-Fixup").

    Unlike in T-Fixup, the model keeps its norms, and the learning rate its warm-up.
    """
    decoder = (9 * config.decoder_layers) ** (-1 / 4)
    tables = ("embedding", "source_embedding", "output_weight")
    return {
        "encoder": 0.67 * config.encoder_layers ** (-1 / 4),
        "decoder": decoder,
        **dict.fromkeys(tables, decoder),
    }


def admin_gains(model: nn.Module, config: ModelConfig) -> dict[nn.Module, float]:
    """Gains of the last matrix of each sub-layer (Liu et al. 2020, "Admin").

    Admin multiplies what a residual connection passes by the square root of 1 plus the variances of
    all earlier sub-layers' outputs. In a post-norm model, dividing the sub-layer's own output by it
    is the same but for the epsilon of the norm. The variances are measured on random tokens.
    """
    found: dict[nn.Module, float] = {}
    passed = {"encoder": 1.0, "decoder": 1.0}

    def measure(stack: str) -> Callable[[nn.Module, object, Tensor | tuple[Tensor, ...]], None]:
        def hook(module: nn.Module, _: object, output: Tensor | tuple[Tensor, ...]) -> None:
            found[module] = passed[stack] ** -0.5
            passed[stack] += float((output if isinstance(output, Tensor) else output[0]).var())

        return hook

    hooks = [
        module.register_forward_hook(measure(name.partition(".")[0]))
        for name, module in model.named_modules()
        if name.endswith((".output", ".outer", ".ssru"))
    ]
    draw = torch.Generator().manual_seed(1)
    size = (_SENTENCES, min(_TOKENS, config.longest or _TOKENS))
    source, target = (
        torch.randint(count, size, generator=draw)
        for count in (config.input_vocabulary_size, config.vocabulary_size)
    )
    training = model.training
    with torch.no_grad():
        model.eval()(source, None, target)
    model.train(training)
    for hook in hooks:
        hook.remove()
    return found


@torch.no_grad()
def scale_initial_weights(model: nn.Module, config: ModelConfig, initialization: str) -> None:
    """Scale the Xavier weights of a `Transformer` as `TrainConfig.initialization` says.

    Values, outputs and feed-forward matrices are scaled, and the input matrix of an SSRU, which is
    on the path of the values; what only weighs positions (queries, keys, forget gates) is not.
    """
    if initialization == "admin":
        for module, gain in admin_gains(model, config).items():
            matrix = module if isinstance(module, nn.Linear) else module.get_submodule("input")
            matrix.get_parameter("weight").mul_(gain)
    by_stack = {"deepnet": deepnet_gains, "t-fixup": t_fixup_gains}.get(initialization)
    gains = {} if by_stack is None else by_stack(config)
    for name, parameter in model.named_parameters():
        stack, *parts = name.split(".")
        if parameter.dim() > 1 and {"query", "key", "forget"}.isdisjoint(parts):
            parameter.mul_(gains.get(stack, 1.0))
