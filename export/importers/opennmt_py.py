"""Importer of OpenNMT-py's Transformer checkpoints.

Settings are under "opt", vocabularies under "vocab". Layers are pre-norm with a final LayerNorm,
and the encoder reads no end token.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from translate_trt.export.importers.imported import (
    Imported,
    ModelPart,
    build_model,
    first_heads,
    is_sinusoid,
)
from translate_trt.export.importers.matrices import Matrices
from translate_trt.export.importers.model_format import (
    ModelFormat,
    checkpoint_in,
    need,
    tokenizers_in,
)
from translate_trt.export.importers.settings_table import Config, SettingsTable
from translate_trt.export.importers.tensors import (
    STACKS,
    StackNames,
    Tensors,
    attention_names,
    read_modules,
)
from translate_trt.export.importers.torch_file import read_torch_file, settings_of, tensors_of
from translate_trt.export.importers.vocabulary import SpecialTokens, TokenMap, make_tokenizers
from translate_trt.runtime.errors import InputError
from translate_trt.train.config import ModelConfig

_EMBEDDING = "embeddings.make_embedding.emb_luts.0.weight"
_POSITIONS = "embeddings.make_embedding.pe.pe"
# Special tokens of onmt/constants.py.
_PAD, _UNKNOWN, _START, _END = "<blank>", "<unk>", "<s>", "</s>"
# Supported values of settings that change the layers.
_ONLY: dict[str, tuple[Any, ...]] = {
    "model_type": ("text",),
    "model_task": ("seq2seq",),
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "position_encoding": (True,),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "layer_norm": ("standard",),
    "generator_function": ("softmax",),
    "copy_attn": (False,),
    "max_relative_positions": (0,),
    "relative_positions_buckets": (0,),
    "parallel_residual": (False,),
    "shared_layer_norm": (False,),
    "multiquery": (False,),
    "num_kv": (0,),
    "sliding_window": (0,),
    "num_experts": (0,),
    "lora_layers": ([],),
    "lora_embedding": (False,),
    "quant_layers": ([],),
    # All others are gated: w_3 multiplies the activation.
    "pos_ffn_activation_fn": ("relu", "gelu"),
    "position_encoding_type": ("SinusoidalInterleaved", "SinusoidalConcat"),
}
# Settings that `_convert` and its helpers read.
_READ = (
    "layers", "enc_layers", "dec_layers", "heads", "transformer_ff", "norm_eps",
    "add_qkvbias", "add_ffnbias", "lambda_align", "alignment_layer", "alignment_heads",
)  # fmt: skip
# Settings of onmt's opts.py (versions 2 and 3) without effect on this model: sizes and ties, which
# the weights imply; layers of other kinds; vocabulary files; training, saving and logging; decoding
# by the trainer. Settings of transforms follow below.
_WITHOUT_EFFECT = """
    aan_useffn accum_count accum_steps adagrad_accumulator_init adam_beta1 adam_beta2
    align_debug alpha apex_opt_level attention_dropout
    attn_debug average_decay average_every ban_unk_token batch_size batch_size_multiple
    batch_type beam_size beta bidir_edges block_ngram_repeat both_embeddings bridge
    bridge_extra_node bucket_size bucket_size_increment bucket_size_init cnn_kernel_width config
    context_gate copy_attn_force copy_attn_type copy_loss_by_seqlength coverage_attn
    coverage_penalty data data_task data_type dec_hid_size dec_rnn_size decay_method decay_steps
    decoder_start_token default_specials dropout dropout_steps dump_beam dump_preds dump_samples
    dump_transforms early_stopping early_stopping_criteria embeddings_type enc_hid_size
    enc_rnn_size exp exp_host feat_merge feat_vec_exponent feat_vec_size fp32 freeze_decoder
    freeze_encoder freeze_word_vecs_dec freeze_word_vecs_enc full_context_alignment
    global_attention global_attention_function gpu_backend gpu_ranks gpu_verbose_level gpuid
    group_size hidden_size ignore_when_blocking input_feed int8 keep_checkpoint label_smoothing
    lambda_coverage learn_subwords learn_subwords_size learning_rate
    learning_rate_decay length_penalty lm_prior_lambda lm_prior_model lm_prior_tau local_rank
    log_file log_file_level lora_alpha lora_dropout lora_rank loss_scale master_ip master_port
    max_generator_batches max_grad_norm max_length max_length_ratio min_length model_dtype
    n_best n_edge_types n_node n_sample n_src_feats n_steps normalization num_experts_per_tok
    num_threads num_workers optim override_opts overwrite parallel_mode param_init
    param_init_glorot param_init_method phrase_table pool_factor pre_word_vecs_dec
    pre_word_vecs_enc precision prefetch_factor profile quant_type queue_size
    random_sampling_temp random_sampling_topk random_sampling_topp ratio replace_unk
    report_every report_time reset_optim reuse_copy_attn rnn_size rnn_type rotary_dim
    rotary_interleave rotary_theta save_checkpoint_steps save_config save_data save_format
    save_model scoring_debug seed share_decoder_embeddings share_embeddings share_vocab
    single_pass skip_empty_level src_embeddings src_feats_defaults src_feats_vocab src_ggnn_size
    src_seq_length_trunc src_vocab src_vocab_size src_word_vec_size src_words_min_frequency
    start_decay_steps state_dim stepwise_penalty tensorboard tensorboard_log_dir
    tensorboard_log_dir_dated tgt_embeddings tgt_seq_length_trunc tgt_vocab tgt_vocab_size
    tgt_word_vec_size tgt_words_min_frequency timeout train_eval_steps train_from train_metrics
    train_steps transforms transforms_per_dataset truncated_decoder update_vocab use_ckpting
    valid_batch_size valid_metrics valid_steps verbose vocab vocab_sample_queue_size
    vocab_size_multiple w_bit warmup_steps with_score word_vec_size world_size
    zero_out_prompt_loss
"""
# Settings of onmt/transforms, which change the text before the model reads it.
_TRANSFORMS = """
    avg_tok_max avg_tok_min doc_length fuzzy_corpus_ratio fuzzy_threshold fuzzy_token
    fuzzymatch_max_length fuzzymatch_min_length gpt2_pretok insert_ratio isolated_tag langid
    mask_length mask_ratio max_context max_tags norm_numbers norm_quote_commas paired_etag
    paired_stag penn permute_sent_ratio poisson_lambda post_remove_control_chars
    pre_replace_unicode_punct random_ratio replace_length response_patterns
    reversible_tokenization rotate_ratio same_char same_word scripts_nok scripts_ok
    src_delimiter src_eq_tgt src_lang src_onmttok_kwargs src_prefix src_seq_length
    src_spacy_language_model src_subword_alpha src_subword_model src_subword_nbest
    src_subword_type src_subword_vocab src_suffix src_term_stoken src_tgt_ratio
    src_vocab_threshold switchout_temperature tags_corpus_ratio tags_dictionary_path
    term_corpus_ratio term_example_ratio term_source_delimiter termbase_path tgt_lang
    tgt_onmttok_kwargs tgt_prefix tgt_seq_length tgt_spacy_language_model tgt_subword_alpha
    tgt_subword_model tgt_subword_nbest tgt_subword_type tgt_subword_vocab tgt_suffix
    tgt_term_etoken tgt_term_stoken tgt_vocab_threshold tm_delimiter tm_path
    tokendrop_temperature tokenmask_temperature upper_corpus_ratio
"""
_SETTINGS = SettingsTable({*_READ, *_WITHOUT_EFFECT.split(), *_TRANSFORMS.split()}, _ONLY)
_SINUSOIDS = {"SinusoidalInterleaved": "interleaved", "SinusoidalConcat": "tensor2tensor"}
# Later positions have float32 rounding errors in the file.
_COMPARED_POSITIONS = 256
# LayerNorm parameters before version 0.5.
_OLD_NORMS = {".a_2": ".weight", ".b_2": ".bias"}
# Projections that have a bias if the setting is on, or if it is in the file.
_OPTIONAL_BIAS = {"_attn.": "add_qkvbias", "feed_forward.w_": "add_ffnbias"}

_PROJECTIONS = (".linear_query", ".linear_keys", ".linear_values", ".final_linear")
_FEED_FORWARD = {
    "feed_forward.inner": "feed_forward.w_1", "feed_forward.outer": "feed_forward.w_2",
    "feed_forward_norm.norm": "feed_forward.layer_norm",
}  # fmt: skip
_NAMES = {
    "encoder": StackNames(
        "encoder.transformer.{}.",
        attention_names("self_attention", "self_attn", _PROJECTIONS, "layer_norm") | _FEED_FORWARD,
        "encoder.layer_norm",
    ),
    "decoder": StackNames(
        "decoder.transformer_layers.{}.",
        attention_names("self_attention", "self_attn", _PROJECTIONS, "layer_norm_1")
        | attention_names("cross_attention", "context_attn", _PROJECTIONS, "layer_norm_2")
        | _FEED_FORWARD,
        "decoder.layer_norm",
    ),
}
# Of onmt_translate, as fields of `SearchOptions`.
_SEARCH = {"beam_size": 5, "length_penalty": 1.0, "length_penalty_form": "length"}


def import_opennmt_py(
    path: Path, tokenizers: tuple[Path | None, Path | None] = (None, None)
) -> Imported:
    """Import a checkpoint that onmt_train wrote.

    Args:
        path: Path of the checkpoint.
        tokenizers: SentencePiece models of source and target. The target's defaults to the
            source's; without either, tokens are words.

    Raises:
        InputError: The file is missing or damaged, or the model is not supported.
    """
    checkpoint = read_torch_file(path, ["argparse.Namespace"], "OpenNMT-py")
    config = Config(path, settings_of(path, checkpoint.get("opt")))
    if not config.values:
        raise InputError(
            f"{path} has no settings under 'opt'; pass a checkpoint that onmt_train wrote."
        )
    config.check(_SETTINGS)
    tensors = Tensors(path, _weights(path, checkpoint))
    source, target = _token_maps(path, checkpoint.get("vocab"))
    matrices = Matrices(
        tensors.take(f"encoder.{_EMBEDDING}"), tensors.take(f"decoder.{_EMBEDDING}"),
        tensors.take("generator.weight"), tensors.take("generator.bias"),
    )  # fmt: skip
    matrices.check(path, source, target)
    (source, target), models = make_tokenizers(tokenizers, (source, target))
    model, weights = _convert(config, tensors, matrices.remap(source, target))
    tensors.check_all_used()
    made = build_model(model, weights, path)
    heads = None
    if config.values.get("lambda_align"):  # trained with guided alignment
        heads = first_heads(
            path, model, config.integer("alignment_layer"), config.values.get("alignment_heads")
        )
    return Imported(made, models, "opennmt-py", _SEARCH, alignment_heads=heads)


def _weights(path: Path, checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """Return the weights of the layers and, as "generator.*", of the output."""
    if "model" not in checkpoint and "opt" in checkpoint:
        raise InputError(
            f"{path} has no weights; they are in a .safetensors file. Save the model with "
            "save_format: pytorch in OpenNMT-py."
        )
    found = {}
    for name, tensor in tensors_of(path, checkpoint["model"], "model").items():
        end = next((end for end in _OLD_NORMS if name.endswith(end)), None)
        found[name if end is None else name.removesuffix(end) + _OLD_NORMS[end]] = tensor
    for name, tensor in tensors_of(path, checkpoint.get("generator"), "generator").items():
        found[f"generator.{re.sub(r'^0[.]', '', name)}"] = tensor
    return found


def _token_maps(path: Path, vocabularies: Any) -> tuple[TokenMap, TokenMap]:
    """Read the maps of source and target; the same object for a shared vocabulary."""
    if not isinstance(vocabularies, dict):
        raise InputError(f"{path} has no vocabularies under 'vocab'; it is damaged.")
    if vocabularies.get("src_feats"):
        raise InputError(
            f"{path}: the vocabularies contain src_feats; tokens with several features are not "
            "supported."
        )
    start = vocabularies.get("decoder_start_token", _START)
    sides = []
    for side in ("src", "tgt"):
        tokens = vocabularies.get(side)
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise InputError(
                f"{path}: {side} under 'vocab' is not a list of tokens; the file is damaged."
            )
        sides.append(tokens)
    if start not in sides[1] or _END not in sides[1]:
        raise InputError(
            f"{path}: the target's vocabulary lacks the end token {_END!r} or the start token "
            f"{start!r} (decoder_start_token)."
        )
    if start == _PAD:
        raise InputError(
            f"{path}: decoder_start_token is {start!r}, the padding token, which OpenNMT-py masks "
            "in the decoder's attention; translate-trt does not support that."
        )
    target = _token_map(sides[1], start)
    return (target if sides[0] == sides[1] else _token_map(sides[0], start)), target


def _token_map(tokens: list[str], start: str) -> TokenMap:
    names = ((_PAD,), (_UNKNOWN,), (start,), (_END,))
    return TokenMap(tokens, SpecialTokens.named(tokens, *names))


def _convert(
    config: Config, tensors: Tensors, embeddings: ModelPart
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the configuration, and the weights by their names in `Transformer`."""
    epsilon = config.values.get("norm_eps", 1e-6)
    if not isinstance(epsilon, int | float):
        raise config.setting_error("norm_eps", "a number is required")
    model = ModelConfig(
        encoder_layers=_layers(config, "enc_layers"),
        decoder_layers=_layers(config, "dec_layers"),
        d_ff=config.integer("transformer_ff"),
        heads=config.integer("heads"),
        dropout=0.0,
        norm="pre",
        activation=config.values.get("pos_ffn_activation_fn", "relu"),
        layer_norm_epsilon=float(epsilon),
        sinusoid=_sinusoid(config, tensors),
        source_end=False,
        **embeddings.fields,
    )
    return model, embeddings.weights | read_modules(model, _NAMES, partial(_read, config, tensors))


def _read(config: Config, tensors: Tensors, name: str, ours: str) -> dict[str, Tensor]:
    """Read a module; a projection without a bias gets one of zeros."""
    setting = next((flag for part, flag in _OPTIONAL_BIAS.items() if part in name), None)
    if setting is None or f"{name}.bias" in tensors or config.flag(setting):
        return tensors.renamed(name, ours)
    weight = tensors.table(f"{name}.weight")
    return {f"{ours}.weight": weight, f"{ours}.bias": torch.zeros(len(weight))}


def _layers(config: Config, name: str) -> int:
    """Return a stack's number of layers; `layers` sets it for both stacks."""
    both = config.values.get("layers", -1)
    return both if isinstance(both, int) and both > 0 else config.integer(name)


def _sinusoid(config: Config, tensors: Tensors) -> str:
    """Return the kind of sinusoids, checked against the tables [positions, 1, d_model]."""
    kind = _SINUSOIDS[config.values.get("position_encoding_type", "SinusoidalInterleaved")]
    for stack in STACKS:
        name = f"{stack}.{_POSITIONS}"
        table = tensors.take(name)
        if table.dim() != 3 or not is_sinusoid(table[:_COMPARED_POSITIONS].squeeze(1), kind):
            raise InputError(
                f"{config.path}: {name} differs from the sinusoids of position_encoding_type, "
                "which translate-trt does not support."
            )
    return kind


#: Recognized by a checkpoint without the dictionaries of fairseq.
FORMAT = ModelFormat(
    "opennmt-py",
    "a model of OpenNMT-py",
    (need("*.pt"),),
    ("*.spm", "*.model"),
    ("dict.*.txt",),
    load=lambda directory, languages: import_opennmt_py(
        checkpoint_in(directory, "opennmt-py", "*.pt"), tokenizers_in(directory, "opennmt-py")
    ),
)
