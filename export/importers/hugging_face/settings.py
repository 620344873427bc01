"""Known settings of config.json and generation_config.json.

A setting is either read by the importers, supported with a single value, or without effect. Unknown
settings are refused because they may change what the model computes.
"""

from __future__ import annotations

from typing import Any

from translate_trt.export.importers.settings_table import Config, SettingsTable

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
# A null value means that the setting is not set.
_NULL = (None,)
#: Settings of generation_config.json.
GENERATION = SettingsTable(_GENERATION, off=_NULL)

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
_KNOWN = {*_READ, *_SECOND_NAMES, *_FORM, *_HARMLESS, *_GENERATION}
_MODEL = SettingsTable(_KNOWN, _ONLY, _NULL)
_MODEL_OF_MARIAN = SettingsTable(
    {*_KNOWN, "share_encoder_decoder_embeddings", "decoder_vocab_size"},
    _ONLY | {"normalize_before": (False,), "add_final_layer_norm": (False,)},
    _NULL,
)
_T5 = {
    "model_type", "vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers",
    "num_heads", "relative_attention_num_buckets", "relative_attention_max_distance",
    "layer_norm_epsilon", "feed_forward_proj", "tie_word_embeddings", "scale_decoder_outputs",
    "pad_token_id", "bos_token_id", "tokenizer_class",
    # Derived from others, of training, or without effect.
    "dense_act_fn", "is_gated_act", "dropout_rate", "initializer_factor", "n_positions",
}  # fmt: skip
_MODEL_OF_T5 = SettingsTable({*_T5, *_HARMLESS, *_GENERATION}, _ONLY, _NULL)


def check_model_settings(config: Config) -> None:
    """Check that the importers support every setting of a config.json with a known model_type.

    Raises:
        InputError: A setting is unknown, or its value is not supported.
    """
    of_type = {"marian": _MODEL_OF_MARIAN, "t5": _MODEL_OF_T5, "mt5": _MODEL_OF_T5}
    config.check(of_type.get(config.values["model_type"], _MODEL))
    for name, first in _SECOND_NAMES.items():
        if name in config.values:
            config.check_equal(first, name, config.values.get)
