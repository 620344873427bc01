"""Known settings of config.json and generation_config.json.

A setting is either read by the importers, supported with a single value, or without effect. Unknown
settings are refused because they may change what the model computes.
"""

from __future__ import annotations

from typing import Any

from translate_trt.export.importers.json_file import shown
from translate_trt.runtime.errors import InputError

# ---- generation_config.json ----

_GENERATION_READ = {
    "bad_words_ids", "decoder_start_token_id", "early_stopping", "eos_token_id",
    "forced_bos_token_id", "length_penalty", "min_length", "min_new_tokens", "num_beams",
    "suppress_tokens",
}  # fmt: skip
#: Unsupported options of `generate` that change translations, and their values without effect. An
#: import logs a warning for any other value.
GENERATION_OFF: dict[str, tuple[Any, ...]] = {
    "no_repeat_ngram_size": (0,), "encoder_no_repeat_ngram_size": (0,),
    "repetition_penalty": (1.0,), "encoder_repetition_penalty": (1.0,),
    "exponential_decay_length_penalty": (), "do_sample": (False,), "num_beam_groups": (1,),
    "diversity_penalty": (0.0,), "guidance_scale": (1.0,), "penalty_alpha": (0.0,),
    "sequence_bias": ({},), "begin_suppress_tokens": ([],), "force_words_ids": ([],),
    "constraints": ([],), "forced_decoder_ids": ([],), "max_time": (), "stop_strings": ([],),
    "token_healing": (False,), "use_mtp": (False,), "watermarking_config": (),
    "dola_layers": (), "generation_kwargs": ({},), "cache_config": (),
    "cache_implementation": ("static", "dynamic", "hybrid", "offloaded", "offloaded_static"),
    "speculation_type": (), "max_new_tokens": (),
}  # fmt: skip
# Settings without effect on a search, settings of sampling (`do_sample` logs a warning), and those
# that docs/import.md lists under "Differences to know": the maximum length and the padding token.
_GENERATION_HARMLESS = {
    "max_length", "forced_eos_token_id", "renormalize_logits",
    "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff",
    "bos_token_id", "pad_token_id", "use_cache", "max_cache_len", "low_memory",
    "return_legacy_cache", "prefill_chunk_size", "remove_invalid_values",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_scores",
    "output_logits", "return_dict_in_generate",
    "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size",
    "assistant_early_exit", "assistant_lookbehind", "target_lookbehind",
    "assistant_ensemble_weight", "compile_config", "disable_compile", "continuous_batching_config",
    "transformers_version", "_from_model_config", "_commit_hash",
}  # fmt: skip
_GENERATION = {*_GENERATION_READ, *GENERATION_OFF, *_GENERATION_HARMLESS}

# ---- config.json ----

_READ = {
    "model_type", "vocab_size", "d_model", "activation_function", "scale_embedding",
    "encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim",
    "encoder_attention_heads", "decoder_attention_heads", "tie_word_embeddings", "pad_token_id",
    "bos_token_id", "tokenizer_class",
}  # fmt: skip
# Aliases, which must have the value of the setting.
_SECOND_NAMES = {
    "hidden_size": "d_model", "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
}  # fmt: skip
_ONLY: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (True,), "is_decoder": (False,), "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,), "cross_attention_hidden_size": (None,),
    "add_bias_logits": (False,), "force_bos_token_to_be_generated": (False,),
    "pruned_heads": ({},), "quantization_config": (None,), "per_layer_config": (None, {}),
    "prefix": (None, "", " "), "decoder": (None,), "encoder": (None,),
}  # fmt: skip
# Settings of training, of transformers' runtime and of other heads, and metadata.
_HARMLESS = {
    "_name_or_path", "_attn_implementation", "_attn_implementation_autoset", "_num_labels",
    "activation_dropout", "architectures", "attention_dropout", "attn_implementation",
    "chunk_size_feed_forward", "classif_dropout", "classifier_dropout", "cls_token_id",
    "decoder_layerdrop", "dropout", "dtype", "encoder_layerdrop", "experts_implementation",
    "extra_pos_embeddings", "finetuning_task", "gradient_checkpointing", "id2label", "init_std",
    "label2id", "language", "layerdrop", "mask_token_id", "max_position_embeddings", "name_or_path",
    "num_labels", "output_past", "problem_type", "return_dict", "save_step", "sep_token_id",
    "task_specific_params", "tf_legacy_loss", "torch_dtype", "torchscript",
    "transformers.js_config", "unk_token_id", "use_bfloat16", "xla_device",
}  # fmt: skip
# Layer variants, which transformers derives from model_type since version 4.0. Other variants have
# other tensors; Marian has a single variant.
_FORM = {
    "normalize_before", "normalize_embedding", "add_final_layer_norm", "static_position_embeddings",
}  # fmt: skip
_FORM_OF_MARIAN: dict[str, tuple[Any, ...]] = {
    "normalize_before": (False,), "add_final_layer_norm": (False,)
}  # fmt: skip
_READ_OF_MARIAN = {"share_encoder_decoder_embeddings", "decoder_vocab_size"}


def check_model_settings(path: object, values: dict[str, Any]) -> None:
    """Check that the importers support every setting of a config.json.

    Args:
        path: Path of the file, for error messages.
        values: Values of the file, with a supported model_type.

    Raises:
        InputError: A setting is unknown, or its value is not supported.
    """
    kind = values["model_type"]
    only = _ONLY | (_FORM_OF_MARIAN if kind == "marian" else {})
    known = {*_READ, *_SECOND_NAMES, *only, *_FORM, *_HARMLESS, *_GENERATION}
    known |= _READ_OF_MARIAN if kind == "marian" else set()
    _check_names(path, values, known)
    for name, allowed in only.items():
        if name in values and not _is_one_of(values[name], allowed):
            raise InputError(
                f"{path}: {name} is {shown(values[name])}; supported: "
                f"{' or '.join(shown(value) for value in allowed)}."
            )
    for name, first in _SECOND_NAMES.items():
        if name in values and values[name] != values.get(first):
            raise InputError(
                f"{path}: {name} is {shown(values[name])} and {first} "
                f"{shown(values.get(first))}; both names must have the same value."
            )


def check_generation_settings(path: object, values: dict[str, Any]) -> None:
    """Check that the importers know every setting of a generation_config.json.

    Raises:
        InputError: A setting is unknown.
    """
    _check_names(path, values, _GENERATION)


def _check_names(path: object, values: dict[str, Any], known: set[str]) -> None:
    # A null value means that the setting is not set.
    unknown = sorted(name for name in values if name not in known and values[name] is not None)
    if unknown:
        raise InputError(
            f"{path}: {shown(unknown[0])} is {shown(values[unknown[0]])}; this setting is unknown "
            "and may change translations. If you know that it does not, remove it from the file."
        )


def _is_one_of(value: object, allowed: tuple[Any, ...]) -> bool:
    """Return whether a value is allowed, distinguishing 0 from false."""
    return any(type(value) is type(other) and value == other for other in allowed)
