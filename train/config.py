"""Model and training configuration, and the presets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from translate_trt.runtime.bundle.attention_heads import AttentionHeads
from translate_trt.runtime.errors import CheckpointError, OptionError
from translate_trt.runtime.settings import check_settings, setting
from translate_trt.train.selection import METRICS

# Ids of the special tokens, fixed when train/data/vocabulary.py trains a vocabulary.
PAD, UNKNOWN, START, END = 0, 1, 2, 3

#: SentencePiece models of runs, checkpoints and prepared data: a shared one, or one per language.
TOKENIZER, TOKENIZERS = "tokenizer.spm", ("source.spm", "target.spm")

#: Fields of ModelConfig that do not affect the shape, and may change in fine-tuning.
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")

#: Largest number of `corpus_weights`; the rows of an epoch are in memory.
MAX_CORPUS_WEIGHT = 1_000

#: Logit bias of a banned token. Its probability is zero beside any logit, and FP16 can hold it.
BANNED_BIAS = -1e4

#: `ModelConfig.activation` of feed-forward layers with a third matrix.
GATED = "gated-gelu"


def _check_ties(ties: str, layers: int) -> None:
    numbers = ties.split(",") if ties else []
    if ties and (len(numbers) != layers or not all(n.isascii() and n.isdigit() for n in numbers)):
        raise OptionError(
            f"decoder_ties {ties!r}: give each of the {layers} decoder layers a number, separated "
            "by commas, such as 1,1,2,2 for four layers of which two and two share weights."
        )


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a Transformer, with the symbols of the paper's Table 3. Defaults are `base`.

    docs/import.md maps the fields that the paper lacks to the settings of other toolkits.
    """

    vocabulary_size: int = setting(
        37_000, "V: tokens shared by source, target and output, or those of the target.", least=1
    )
    encoder_layers: int = setting(6, "N: layers of the encoder.", least=1)
    decoder_layers: int = setting(6, "N: layers of the decoder.", least=1)
    d_model: int = setting(512, "Width of every layer's input and output.", least=1)
    d_ff: int = setting(2048, "Inner width of the feed-forward layers.", least=1)
    decoder_d_ff: int = setting(
        0, "Inner width of the decoder's feed-forward layers; 0: d_ff.", least=0
    )
    heads: int = setting(
        8, "h: attention heads, with values of d_v = d_model / h columns.", least=1
    )
    key_size: int = setting(0, "d_k: columns of a head's queries and keys; 0: d_v.", least=0)
    dropout: float = setting(
        0.1, "P_drop: dropout of sub-layer outputs and embedding sums.", least=0, below=1
    )
    attention_dropout: float = setting(
        0.0, "Dropout of attention weights; the paper has none (tensor2tensor, fairseq: "
        "attention_dropout).", least=0, below=1,
    )  # fmt: skip
    activation_dropout: float = setting(
        0.0, "Dropout between the two matmuls of feed-forward layers; the paper has none "
        "(tensor2tensor: relu_dropout; fairseq: activation_dropout).", least=0, below=1,
    )  # fmt: skip
    norm: str = setting(
        "post", "LayerNorm after each residual sum (post, the paper) or before each sub-layer "
        "(pre).",
        ("post", "pre"),
    )  # fmt: skip
    layer_norm_epsilon: float = setting(1e-5, "Added to the variance in LayerNorm.", above=0)
    positions: str = setting(
        "sinusoidal", "Position encodings: sinusoidal, or learned (Table 3, row E).",
        ("sinusoidal", "learned"),
    )  # fmt: skip
    max_positions: int = setting(512, "Rows of a table of learned positions.", least=1)
    decoder_mixer: str = setting(
        "self-attention", "First sub-layer of decoder layers: self-attention (the paper), or ssru, "
        "a recurrent unit whose state is one vector (Kim et al. 2019).",
        ("self-attention", "ssru"),
    )  # fmt: skip
    decoder_ties: str = setting(
        "", "A number for each decoder layer, such as 1,1,2,2: layers of the same number share "
        "their weights; empty: none do.",
    )  # fmt: skip
    source_vocabulary_size: int = setting(
        0, "Size of a separate source vocabulary; 0: source and target share one.", least=0
    )
    tied: str = setting(
        "all", "Shared matrices among the three of section 3.4: all (the paper); output: target "
        "and output (fairseq's share_decoder_input_output_embed); input: source and target; none.",
        ("all", "output", "input", "none"),
    )  # fmt: skip

    # ---- settings of imported models only ----
    output_bias: bool = setting(
        False, "Add a bias to the logits: Marian's decoder_ff_logit_out_b, OpenNMT's generator.",
        imported=True,
    )  # fmt: skip
    activation: str = setting(
        "relu", "Activation between the two feed-forward matmuls: relu (the paper); gelu, exact "
        "(Hendrycks and Gimpel 2016; BART); swish (Ramachandran et al. 2017; Marian); gated-gelu, "
        "by tanh and times another matmul (Shazeer 2020; T5 1.1).",
        ("relu", "gelu", "swish", GATED), imported=True,
    )  # fmt: skip
    value_size: int = setting(
        0, "d_v: columns of a head's values; 0: d_model / heads.", imported=True, least=0
    )
    rms_norm: bool = setting(
        False, "Divide by the root mean square instead of LayerNorm, without a bias (Zhang and "
        "Sennrich 2019; T5).", imported=True,
    )  # fmt: skip
    relative_positions: int = setting(
        0, "Largest distance at which a bias of attention scores, one per head, tells two "
        "positions apart (T5), instead of position encodings; 0: encodings.",
        imported=True, least=0,
    )  # fmt: skip
    sinusoid: str = setting(
        "interleaved", "Layout of sinusoidal positions: interleaved sines and cosines (the paper); "
        "concatenated: all sines, then all cosines (Marian); tensor2tensor: concatenated, with a "
        "longest wavelength of exactly 10,000 * 2 pi (get_timing_signal_1d; fairseq, OpenNMT-tf).",
        ("interleaved", "concatenated", "tensor2tensor"), imported=True,
    )  # fmt: skip
    first_position: int = setting(
        0, "First sinusoidal position: 1 in OpenNMT-tf, 2 in fairseq (its padding_idx + 1).",
        imported=True, least=0,
    )  # fmt: skip
    own_target_positions: bool = setting(
        False, "Use a separate table of learned positions for the target (BART).", imported=True
    )
    scale_embedding: bool = setting(
        True, "Multiply embeddings by sqrt(d_model) (section 3.4; not in BART).", imported=True
    )
    norm_embedding: bool = setting(
        False, "Apply LayerNorm to the embedding sums (BART's layernorm_embedding).", imported=True
    )
    source_end: bool = setting(
        True, "Append the end symbol to the source (fairseq, Marian; not in OpenNMT).",
        imported=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_settings(self)
        _check_ties(self.decoder_ties, self.decoder_layers)
        if self.source_vocabulary_size and self.shares_input:
            raise OptionError(
                f"tied {self.tied}: a separate source vocabulary (source_vocabulary_size) needs a "
                "separate embedding matrix; choose output or none."
            )
        if self.sinusoid == "tensor2tensor" and self.d_model < 4:
            raise OptionError(f"d_model {self.d_model}: tensor2tensor's positions need 4 or more.")
        if not self.value_size and self.d_model % self.heads:
            raise OptionError(
                f"d_model {self.d_model} is not a multiple of heads {self.heads}; "
                "each head takes d_model / heads columns."
            )
        if self.d_model % 2:
            raise OptionError(
                f"d_model {self.d_model} is odd; positions come in sine-cosine pairs."
            )

    @property
    def d_k(self) -> int:
        """Columns of a head's queries and keys."""
        return self.key_size or self.d_v

    @property
    def d_v(self) -> int:
        """Columns of a head's values."""
        return self.value_size or self.d_model // self.heads

    @property
    def is_recurrent(self) -> bool:
        """Whether decoder layers have an SSRU in place of self-attention."""
        return self.decoder_mixer == "ssru"

    @property
    def decoder_inner(self) -> int:
        """Inner width of the decoder's feed-forward layers."""
        return self.decoder_d_ff or self.d_ff

    @property
    def decoder_weights(self) -> tuple[int, ...]:
        """Index of each decoder layer's weights among those of the distinct layers."""
        ties = self.decoder_ties.split(",") if self.decoder_ties else range(self.decoder_layers)
        numbers = [int(number) for number in ties]
        distinct: dict[int, int] = {}
        return tuple(distinct.setdefault(number, len(distinct)) for number in numbers)

    @property
    def distinct_decoder_layers(self) -> int:
        """Number of decoder layers with weights of their own."""
        return len(set(self.decoder_weights))

    @property
    def shares_input(self) -> bool:
        """Whether source and target share an embedding matrix."""
        return self.tied in ("all", "input")

    @property
    def shares_output(self) -> bool:
        """Whether the output projection shares the target's embedding matrix."""
        return self.tied in ("all", "output")

    @property
    def input_vocabulary_size(self) -> int:
        """Size of the source vocabulary."""
        return self.source_vocabulary_size or self.vocabulary_size

    def with_vocabularies(self, size: int, source_size: int) -> ModelConfig:
        """Return the shape for a vocabulary, or for one of source and one of target.

        Vocabularies that are not shared have embedding matrices of their own.

        Args:
            size: Size of the vocabulary, or that of the target.
            source_size: Size of a separate source vocabulary; 0 for none.
        """
        tied = self.tied
        if source_size and self.shares_input:
            tied = "output" if self.shares_output else "none"
        return dataclasses.replace(
            self, vocabulary_size=size, source_vocabulary_size=source_size, tied=tied
        )

    @property
    def longest(self) -> int | None:
        """Maximum sentence length in tokens; None without a limit (sinusoidal positions)."""
        return self.max_positions if self.positions == "learned" else None


@dataclass(frozen=True)
class TrainConfig:
    """Training recipe. Defaults are the paper's (sections 5.1 to 5.4 and 6.1) for `base`."""

    # ---- batches ----
    batch_tokens: int = setting(
        25_000, "Maximum source and target tokens per optimizer step, padding included.", least=1
    )
    micro_batch_tokens: int = setting(
        0, "Tokens per forward pass, of sentences of similar length; processes share the forward "
        "passes of a step, and gradients accumulate. 0: the step's tokens per process, if the "
        "GPU's memory can take them.", least=0,
    )  # fmt: skip
    max_length: int = setting(
        256, "Skip pairs with a side of more tokens (and count them).",
        flag="--max-pair-length", least=1,
    )  # fmt: skip
    seed: int = setting(
        1, "Seed of the initial weights, the order of batches, and dropout.", least=0
    )
    initialization: str = setting(
        "xavier", "Initial weights of a new model: xavier (tensor2tensor), or smaller ones, with "
        "which post-norm models learn sooner: deepnet (Wang et al. 2022), t-fixup (Huang et al. "
        "2020) or admin (Liu et al. 2020), each without its changes of the model.",
        ("xavier", "deepnet", "t-fixup", "admin"),
    )  # fmt: skip
    corpus_weights: str = setting(
        "", "How often an epoch has each pair of the corpora of --data, in their order, such as "
        "10,1 or 1,0.25; a quarter is another one in each epoch. Empty: once. The vocabulary of "
        "--data has been trained without weights.",
    )  # fmt: skip
    corpus_temperature: float = setting(
        1.0, "Temperature T of the corpora of --data: an epoch has each in proportion to its size "
        "to the power of 1/T, so that T = 5 favours small ones (Arivazhagan et al. 2019).", least=1,
    )  # fmt: skip

    # ---- optimizer: Adam with the schedule of equation 3 ----
    optimizer: str = setting(
        "adam", "Optimizer: adam (the paper), or muon for the matrices of the layers and Adam for "
        "embeddings, LayerNorm and biases (Jordan et al. 2024; torch 2.9).",
        ("adam", "muon"),
    )  # fmt: skip
    steps: int = setting(100_000, "Optimizer steps.", least=1)
    warmup_steps: int = setting(4_000, "Steps of learning-rate warm-up.", least=1)
    learning_rate: float = setting(
        0.0, "Learning rate at the end of warm-up; 0: that of equation 3, "
        "(d_model * warmup_steps)^-0.5.", least=0,
    )  # fmt: skip
    learning_rate_decay: str = setting(
        "inverse-sqrt", "Learning rate after warm-up: falling with the inverse square root of the "
        "step (equation 3), or constant up to the cooldown.",
        ("inverse-sqrt", "none"),
    )  # fmt: skip
    learning_rate_scale: float = setting(1.0, "Factor of the learning rate.", above=0)
    cooldown_steps: int = setting(0, "Last steps, in which the learning rate falls to 0.", least=0)
    cooldown_shape: str = setting(
        "linear", "Fall of the learning rate: linear, or with 1 minus the square root of the "
        "elapsed share (Hägele et al. 2024).",
        ("linear", "1-sqrt"),
    )  # fmt: skip
    adam_beta1: float = setting(0.9, "Adam's beta_1.", least=0, below=1)
    adam_beta2: float = setting(0.98, "Adam's beta_2.", least=0, below=1)
    adam_epsilon: float = setting(1e-9, "Adam's epsilon.", above=0)
    clip_norm: float = setting(
        0.0, "Largest L2 norm of the gradients of a step, over all weights; larger gradients are "
        "scaled down to it. 0: no limit.", least=0,
    )  # fmt: skip
    label_smoothing: float = setting(
        0.1, "Label smoothing: share of the target distribution spread over the vocabulary.",
        least=0, below=1,
    )  # fmt: skip
    guided_alignment: float = setting(
        0.0, "Weight of the loss of guided alignment, which trains a head of cross-attention on "
        "the alignments of --data (Chen et al. 2016). 0: none.", least=0,
    )  # fmt: skip
    guided_alignment_layer: int = setting(
        -1, "Decoder layer of that head, its first, from 0; -1: the last, -2: the one before.",
    )  # fmt: skip
    precision: str = setting(
        "auto", "Precision of matmuls; auto: bf16 where the processor has instructions for it, "
        "fp16 with loss scaling on older GPUs, fp32 otherwise.",
        ("auto", "fp32", "bf16", "fp16"),
    )  # fmt: skip
    compile: str = setting(
        "auto", "Compile the layers and the loss (torch.compile); auto: on a GPU.",
        ("auto", "on", "off"),
    )  # fmt: skip
    cudnn_attention: str = setting(
        "off", "cuDNN's attention on a GPU; it makes a plan for every new shape of a batch, which "
        "takes longer than a step (docs/train.md).",
        ("off", "on"),
    )  # fmt: skip
    packing: str = setting(
        "off", "Leave out padding where variable-length flash attention runs: on GPUs from Ampere "
        "on in bf16 or fp16. It has not run on a GPU yet.",
        ("off", "on"),
    )  # fmt: skip
    fused_norm: str = setting(
        "off", "Residual sum, dropout and LayerNorm of post-norm models as one kernel, on a GPU "
        "with Triton. It has not run on a GPU yet.",
        ("off", "on"),
    )  # fmt: skip
    cuda_graphs: str = setting(
        "off", "Replay the model as CUDA graphs on a GPU, of batches padded to few shapes. It has "
        "not run on a GPU yet.",
        ("off", "on"),
    )  # fmt: skip

    # ---- checkpoints, validation and logging ----
    checkpoint_every: int = setting(1_500, "Steps between checkpoints.", least=1)
    average_checkpoints: int = setting(
        5, "Number of last checkpoints to keep and average.", least=1
    )
    ema_decay: float = setting(
        0.0, "Decay of a moving average of the weights, which is saved in place of the average of "
        "the last checkpoints. 0: none.", least=0, below=1,
    )  # fmt: skip
    validate_every: int = setting(
        15_000, "Steps between validations; the last step is validated, too. 0: only the average "
        "of the last checkpoints.", least=0,
    )  # fmt: skip
    best_metric: str = setting(
        "bleu", "Validation metric that selects checkpoint-best: loss, or the BLEU or chrF of "
        "greedy search; for trees, the F1 of their brackets.",
        tuple(METRICS),
    )  # fmt: skip
    patience: int = setting(
        0, "Stop after this many validations in a row without a better best_metric. 0: never.",
        least=0,
    )  # fmt: skip
    log_every: int = setting(50, "Steps between lines of metrics.jsonl.", least=1)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.weights_of_corpora and self.corpus_temperature != 1:
            raise OptionError("give either corpus_weights or corpus_temperature.")
        if self.patience and not self.validate_every:
            raise OptionError(
                f"patience {self.patience} counts validations, but validate_every is 0; set it, or "
                "leave patience out."
            )

    @property
    def weights_of_corpora(self) -> tuple[float, ...]:
        """The weights in `corpus_weights`; none if all corpora have the same.

        Raises:
            OptionError: The text has another form.
        """
        parts = self.corpus_weights.split(",") if self.corpus_weights else []
        try:
            weights = tuple(float(part) for part in parts)
        except ValueError:
            weights = (-1.0,)
        if not all(0 <= weight <= MAX_CORPUS_WEIGHT for weight in weights) or (
            weights and not any(weights)
        ):
            raise OptionError(
                f"corpus_weights {self.corpus_weights!r}: give each corpus a number from 0 to "
                f"{MAX_CORPUS_WEIGHT:,}, not all 0, separated by commas, such as 10,1."
            )
        return weights

    def weights_by_size(self, sizes: Sequence[int]) -> tuple[float, ...]:
        """Return the weights of corpora of these sizes: `corpus_weights`, or by the temperature.

        The temperature leaves the number of pairs of an epoch as it is, but for rounding.
        """
        if self.corpus_temperature == 1:
            return self.weights_of_corpora
        shares = [size ** (1 / self.corpus_temperature) for size in sizes]
        scale = sum(sizes) / sum(shares)
        return tuple(
            scale * share / max(size, 1) for size, share in zip(sizes, shares, strict=True)
        )


Config = TypeVar("Config", ModelConfig, TrainConfig)


@dataclass(frozen=True)
class Preset:
    """Model configuration and training recipe."""

    model: ModelConfig
    train: TrainConfig


def _preset(model: dict[str, Any], train: dict[str, Any]) -> Preset:
    return Preset(ModelConfig(**model), TrainConfig(**train))


# Recipe of Firefox's students (mozilla/firefox-translations-training, its file
# pipeline/train/configs/training/student.train.yml): a learning rate of 3e-4 after 16,000 steps of
# warm-up, validation every 5,000 steps, the end after 20 validations without progress, and neither
# dropout nor label smoothing, since a teacher's translations of millions of lines need none.
_STUDENT_RECIPE: dict[str, Any] = {
    "steps": 500_000, "warmup_steps": 16_000, "learning_rate": 3e-4, "label_smoothing": 0.0,
    "validate_every": 5_000, "patience": 20,
}  # fmt: skip


# The labels of trees are a vocabulary of their own, whose size the data determines.
_PARSER: dict[str, Any] = {
    "vocabulary_size": 128, "tied": "output", "encoder_layers": 4, "decoder_layers": 4,
    "d_model": 1_024, "dropout": 0.2, "attention_dropout": 0.2,
}  # fmt: skip
_PARSER_RECIPE: dict[str, Any] = {
    "max_length": 512, "warmup_steps": 16_000, "validate_every": 1_000, "best_metric": "f1",
    "patience": 20,
}  # fmt: skip


#: Differences from the paper's `base`.
PRESETS: dict[str, Preset] = {
    "tiny": _preset(
        {"vocabulary_size": 2_000, "encoder_layers": 2, "decoder_layers": 2, "d_model": 128}
        | {"d_ff": 512, "heads": 4},
        {"batch_tokens": 2_048, "steps": 1_200, "warmup_steps": 300, "checkpoint_every": 100}
        | {"validate_every": 400, "log_every": 20, "learning_rate_scale": 0.8}
        | {"initialization": "t-fixup"},
    ),
    "small": _preset(
        {"vocabulary_size": 8_000, "encoder_layers": 3, "decoder_layers": 3, "d_model": 256}
        | {"d_ff": 1_024, "heads": 4, "dropout": 0.2},
        {"batch_tokens": 4_096, "steps": 2_000, "warmup_steps": 800, "checkpoint_every": 100}
        | {"validate_every": 500, "log_every": 20, "initialization": "t-fixup"},
    ),
    # `base` with half its layers and an eighth of its widths: CPUs can train all of Table 3. 16,000
    # steps are 14 epochs of Multi30k's 29,000 pairs. By Xavier's weights they were too few for the
    # deepest row and for the one with the most dropout. T-Fixup's weights, with which models of
    # this shape learn more in 1,500 steps (docs/results.md), have not been trained to the end.
    "miniature": _preset(
        {"vocabulary_size": 2_000, "encoder_layers": 3, "decoder_layers": 3, "d_model": 64}
        | {"d_ff": 256},
        {"batch_tokens": 512, "steps": 16_000, "warmup_steps": 600, "checkpoint_every": 1_000}
        | {"validate_every": 0, "log_every": 100, "learning_rate_scale": 0.6}
        | {"initialization": "deepnet"},
    ),
    "base": _preset({}, {}),
    # Checkpoints 10 minutes apart (section 6.1) at the paper's 1.0 seconds per step (base: 0.4).
    "big": _preset(
        {"d_model": 1_024, "d_ff": 4_096, "heads": 16, "dropout": 0.3},
        {"steps": 300_000, "checkpoint_every": 600, "average_checkpoints": 20},
    ),
    # Students of production translation: shapes of Bergamot's tiny11 and Mozilla's base-memory.
    "student-tiny": _preset(
        {"vocabulary_size": 32_000, "decoder_layers": 2, "d_model": 256, "d_ff": 1_536}
        | {"decoder_mixer": "ssru", "dropout": 0.0},
        _STUDENT_RECIPE,
    ),
    "student-base-memory": _preset(
        {"vocabulary_size": 32_000, "decoder_layers": 4, "d_model": 384, "d_ff": 1_536}
        | {"decoder_mixer": "ssru", "dropout": 0.0},
        _STUDENT_RECIPE,
    ),
    # Section 6.3 on the WSJ: base but for 4 layers, d_model and vocabulary. The paper chose the
    # dropout of residuals and attention and the learning rate on section 22, without naming them:
    # dropout and warm-up are tensor2tensor's (transformer_parsing_base). Training ends when F1 no
    # longer improves.
    "parsing": _preset(_PARSER | {"source_vocabulary_size": 16_000}, _PARSER_RECIPE),
    # The same with the larger vocabulary of semi-supervised training.
    "parsing-semi": _preset(_PARSER | {"source_vocabulary_size": 32_000}, _PARSER_RECIPE),
    # Kasai et al. 2021, "Deep Encoder, Shallow Decoder".
    "deep-shallow": _preset({"encoder_layers": 12, "decoder_layers": 1}, {}),
    # The shape of base and few, large steps, for one H100. Batches and warm-up of NVIDIA's `big` in
    # MLPerf 0.7: 101,000 tokens, 750 steps, and a rate of 1.9e-3 that falls with the inverse square
    # root, on average 1.1e-3 in so many steps. Ott et al. 2018 trained with 1e-3. Constant rate and
    # a cooldown over a fifth of the steps: Hägele et al. 2024. benchmarks/recipes.toml compares
    # optimizer, schedule and averaging on Multi30k.
    "speedrun": _preset(
        {},
        {"batch_tokens": 100_000, "steps": 9_000, "warmup_steps": 750, "learning_rate": 1e-3}
        | {"optimizer": "muon", "learning_rate_decay": "none", "cooldown_steps": 1_800}
        | {"checkpoint_every": 150, "validate_every": 1_500},
    ),
}


#: Recipe of `--from`. Equation 3 reaches this learning rate at step 195,000 of a `base` model,
#: about twice as far as the paper trained it (docs/train.md).
FINE_TUNE = TrainConfig(
    batch_tokens=4_096,
    steps=2_000,
    warmup_steps=200,
    learning_rate=1e-4,
    checkpoint_every=200,
    validate_every=400,
    log_every=20,
)
#: Name of the recipe, for --config.
FINE_TUNE_NAME = "fine-tune"


#: Differences of the paper's recipe for a corpus of `translate-trt data prepare` (section 6.1).
RECIPES: dict[tuple[str, str], dict[str, Any]] = {("big", "wmt14-en-fr"): {"dropout": 0.1}}


@dataclass(frozen=True)
class Table3Row:
    """Row of the paper's Table 3, with its results on newstest2013.

    Attributes:
        group: Letter of the group; empty for `base` and `big`.
        changes: Settings that differ from the base model.
        perplexity: Perplexity per token.
        bleu: Tokenized BLEU of a single checkpoint, without averaging.
        parameters: Parameters in millions; None where the paper leaves the column blank.
    """

    group: str
    changes: dict[str, Any]
    perplexity: float
    bleu: float
    parameters: int | None


#: Each row is available as preset `base-ROW`, and as a variation of the other presets, whose sizes
#: change in proportion: `miniature-k16`.
TABLE3: dict[str, Table3Row] = {
    "h1": Table3Row("A", {"heads": 1}, 5.29, 24.9, None),
    "h4": Table3Row("A", {"heads": 4}, 5.00, 25.5, None),
    "h16": Table3Row("A", {"heads": 16}, 4.91, 25.8, None),
    "h32": Table3Row("A", {"heads": 32}, 5.01, 25.4, None),
    "k16": Table3Row("B", {"key_size": 16}, 5.16, 25.1, 58),
    "k32": Table3Row("B", {"key_size": 32}, 5.01, 25.4, 60),
    "n2": Table3Row("C", {"encoder_layers": 2, "decoder_layers": 2}, 6.11, 23.7, 36),
    "n4": Table3Row("C", {"encoder_layers": 4, "decoder_layers": 4}, 5.19, 25.3, 50),
    "n8": Table3Row("C", {"encoder_layers": 8, "decoder_layers": 8}, 4.88, 25.5, 80),
    "d256": Table3Row("C", {"d_model": 256}, 5.75, 24.5, 28),
    "d1024": Table3Row("C", {"d_model": 1024}, 4.66, 26.0, 168),
    "ff1024": Table3Row("C", {"d_ff": 1024}, 5.12, 25.4, 53),
    "ff4096": Table3Row("C", {"d_ff": 4096}, 4.75, 26.2, 90),
    "dropout0.0": Table3Row("D", {"dropout": 0.0}, 5.77, 24.6, None),
    "dropout0.2": Table3Row("D", {"dropout": 0.2}, 4.95, 25.5, None),
    "smoothing0.0": Table3Row("D", {"label_smoothing": 0.0}, 4.67, 25.3, None),
    "smoothing0.2": Table3Row("D", {"label_smoothing": 0.2}, 5.47, 25.7, None),
    "learned": Table3Row("E", {"positions": "learned"}, 4.92, 25.7, None),
}

#: Models of Table 3's first and last row.
TABLE3_MODELS = {
    "base": Table3Row("", {}, 4.92, 25.8, 65),
    "big": Table3Row("", {}, 4.33, 26.4, 213),
}


def preset(name: str, corpus: str | None = None) -> Preset:
    """Look up a preset, or a variation `PRESET-ROW` of a preset by a row of Table 3.

    Args:
        name: Name of the preset.
        corpus: Name of the corpus, if it has one; the paper's recipe differs for some (RECIPES).

    Raises:
        OptionError: There is no such preset; the message lists them.
    """
    if name in PRESETS:
        chosen, changes = PRESETS[name], RECIPES.get((name, corpus or ""), {})
        return Preset(apply(chosen.model, changes), apply(chosen.train, changes))
    if name == FINE_TUNE_NAME:
        raise OptionError(
            f"{name} is a recipe for a trained model: name a model with --from, or choose one of "
            f"{', '.join(PRESETS)} for a new model."
        )
    base, _, row = name.partition("-")
    if base not in PRESETS or row not in TABLE3:
        raise OptionError(
            f"no preset {name!r}; choose one of {', '.join(PRESETS)}, or a variation from the "
            f"paper's Table 3: base-ROW with ROW one of {', '.join(TABLE3)}."
        )
    return _variation(base, row)


#: Fields of ModelConfig that rows of Table 3 change in proportion to `base`, with base's sizes.
_SIZES = {
    name: getattr(PRESETS["base"].model, name)
    for name in ("encoder_layers", "decoder_layers", "d_model", "d_ff")
} | {"key_size": PRESETS["base"].model.d_k}


def _variation(name: str, row: str) -> Preset:
    """Apply a row of Table 3 to a preset: 2 of base's 6 layers are 1 of 3.

    Raises:
        OptionError: A size in proportion is not a whole number.
    """
    chosen, changes = PRESETS[name], dict(TABLE3[row].changes)
    for field, size in _SIZES.items():
        if field in changes:
            own = chosen.model.d_k if field == "key_size" else getattr(chosen.model, field)
            changes[field], rest = divmod(own * changes[field], size)
            if rest:
                raise OptionError(
                    f"{name}-{row}: {TABLE3[row].changes[field]} of the {size} {field} of base "
                    f"would be a fraction of the {own} of {name}; choose another row, or a preset "
                    "such as miniature."
                )
    return Preset(apply(chosen.model, changes), apply(chosen.train, changes))


def recipe(name: str, corpus: str | None = None) -> TrainConfig:
    """Look up the training recipe of a preset, or "fine-tune".

    Args:
        name: Name of the recipe.
        corpus: Name of the corpus, if it has one.

    Raises:
        OptionError: There is no such recipe; the message lists them.
    """
    return FINE_TUNE if name == FINE_TUNE_NAME else preset(name, corpus).train


def default_recipe(fine_tunes: bool = False) -> str:
    """Return the name of the recipe of a run, or of one that fine-tunes, without --config."""
    return FINE_TUNE_NAME if fine_tunes else "base"


def apply(config: Config, changes: dict[str, Any]) -> Config:
    """Apply the changes that are fields of `config`; others are ignored."""
    names = {field.name for field in dataclasses.fields(config)}
    return dataclasses.replace(config, **{k: v for k, v in changes.items() if k in names})


def guided_head(model: ModelConfig, train: TrainConfig) -> AttentionHeads | None:
    """Return the head of cross-attention that learns alignments; None if none does.

    Raises:
        OptionError: The decoder has no such layer.
    """
    if not train.guided_alignment:
        return None
    head = AttentionHeads(train.guided_alignment_layer, (0,))
    return head.within(model.decoder_layers, model.heads, "guided_alignment_layer")


def check_trainable(config: ModelConfig) -> None:
    """Raise an OptionError if the configuration has a setting of imported models only."""
    for field in dataclasses.fields(config):
        if field.metadata["imported"] and getattr(config, field.name) != field.default:
            raise OptionError(
                f"{field.name} {getattr(config, field.name)}: only imported models have this "
                "setting. Fine-tune such a model with --from, or leave the setting out."
            )


def config_from_json(kind: type[Config], values: object, path: Path) -> Config:
    """Make a configuration from the JSON of a run or a checkpoint.

    Fields that came later than the file have their defaults, with which a model is what it was.

    Args:
        kind: Class of the configuration.
        values: JSON object of its fields.
        path: File of the JSON, for messages.

    Raises:
        CheckpointError: A field is unknown or out of range.
    """
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: the {kind.__name__} is damaged: it is not a JSON object.")
    unknown = set(values) - {field.name for field in dataclasses.fields(kind)}
    if unknown:
        raise CheckpointError(
            f"{path}: the {kind.__name__} has unknown fields {sorted(unknown)}; a later version "
            "made it. Update translate-trt, or train or import the model again."
        )
    try:
        return kind(**values)
    except (OptionError, TypeError) as error:
        raise CheckpointError(f"{path}: the {kind.__name__} is damaged: {error}") from error
