"""Hugging Face transformers as a peer: our checkpoint in its classes, behind `System`.

A post-norm model becomes a MarianMTModel, a pre-norm one an M2M100ForConditionalGeneration. Their
position tables are replaced by the checkpoint's, and their LayerNorm epsilon by its epsilon, so any
layout of sinusoids and learned positions fit. int8 is PyTorch's dynamic quantization of all linear
layers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from systems import Models, Setting
from torch import nn

from translate_trt.runtime.batching import length_sorted_batches
from translate_trt.runtime.errors import OptionError
from translate_trt.train.config import END, PAD, START, ModelConfig

#: Folder of the converted model among those of all systems.
FOLDER = "transformers"
#: Positions of a model whose own are not limited.
POSITIONS = 1024
_PROJECTIONS = {"q": "query", "k": "key", "v": "value", "out": "output"}
_TABLES = ("encoder_positions.npy", "decoder_positions.npy")


class Transformers:
    """A model's `generate`, called with a batch of sentences of similar length at a time.

    A call has one maximum length for all its sentences. Finished sentences stay in the batch.
    """

    def __init__(self, setting: Setting, models: Models) -> None:
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.set_num_threads(setting.threads)
        folder = models.converted / FOLDER
        self._setting = setting
        self._model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(
            folder, local_files_only=True, use_safetensors=True
        ).eval()
        tables = [torch.from_numpy(np.load(folder / name)) for name in _TABLES]
        self._longest = len(tables[1])
        stacks = (self._model.model.encoder, self._model.model.decoder)
        for stack, table in zip(stacks, tables, strict=True):
            positions = stack.embed_positions
            if isinstance(positions, nn.Embedding):
                positions.weight = nn.Parameter(table, requires_grad=False)
            else:  # M2M100: positions follow that of the padding token
                positions.weights = torch.cat((table[: positions.padding_idx + 1], table))
        for module in self._model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = self._model.config.layer_norm_epsilon
        if setting.precision == "int8":
            warnings.simplefilter("ignore", UserWarning)  # of its removal from torch
            self._model = torch.ao.quantization.quantize_dynamic(self._model, {nn.Linear})
        elif setting.precision == "fp16":
            self._model.to("cuda", torch.float16)

    @torch.inference_mode()
    def translate(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """Translate token ids, see `System`."""
        setting = self._setting
        results: list[list[int]] = [[] for _ in sources]
        device = "cuda" if setting.precision == "fp16" else "cpu"
        begin = torch.tensor([[START, *setting.target_prefix]], device=device)
        end = [END] if self._model.config.source_end else []
        for rows in length_sorted_batches([len(one) + 1 for one in sources], setting.batch_tokens):
            batch = [[*setting.source_prefix, *sources[row], *end] for row in rows]
            longest = max(map(len, batch))
            padded = [[*one, *[PAD] * (longest - len(one))] for one in batch]
            tokens = torch.tensor(padded, device=device)
            found = self._model.generate(
                input_ids=tokens,
                attention_mask=(tokens != PAD).long(),
                decoder_input_ids=begin.expand(len(batch), -1),
                num_beams=setting.beam_size,
                length_penalty=setting.length_penalty,
                early_stopping=setting.beam_size > 1,
                do_sample=False,
                max_new_tokens=min(longest + 50, self._longest - begin.shape[1]),
            )
            for row, tokens_found in zip(rows, found[:, 1:].tolist(), strict=True):
                stop = tokens_found.index(END) if END in tokens_found else len(tokens_found)
                results[row] = tokens_found[:stop]
        return results


def convert(checkpoint: Path, out: Path) -> None:
    """Write a checkpoint as a model of transformers.

    Raises:
        OptionError: No class of transformers that is known here computes the model.
    """
    import transformers

    from translate_trt.train.checkpoint import open_checkpoint

    transformers.logging.disable_progress_bar()
    ours = open_checkpoint(checkpoint).load_model()
    shape = ours.config
    _check(shape)
    pre = shape.norm == "pre"
    common = {
        "d_model": shape.d_model, "encoder_layers": shape.encoder_layers,
        "decoder_layers": shape.decoder_layers, "encoder_ffn_dim": shape.d_ff,
        "decoder_ffn_dim": shape.decoder_inner, "encoder_attention_heads": shape.heads,
        "decoder_attention_heads": shape.heads, "scale_embedding": shape.scale_embedding,
        "activation_function": shape.activation, "pad_token_id": PAD,
        "bos_token_id": START, "eos_token_id": END, "decoder_start_token_id": START,
        "forced_eos_token_id": None, "vocab_size": shape.input_vocabulary_size,
        "source_end": shape.source_end, "layer_norm_epsilon": shape.layer_norm_epsilon,
    }  # fmt: skip
    positions = [
        one(0, one.longest or POSITIONS).detach() for one in (ours.positions, ours.target_positions)
    ]
    if pre:
        config = transformers.M2M100Config(**common, max_position_embeddings=len(positions[0]))
        theirs: Any = transformers.M2M100ForConditionalGeneration(config)
    else:
        config = transformers.MarianConfig(
            **common, decoder_vocab_size=shape.vocabulary_size, tie_word_embeddings=True,
            share_encoder_decoder_embeddings=shape.shares_input,
            max_position_embeddings=len(positions[0]),
        )  # fmt: skip
        theirs = transformers.MarianMTModel(config)
        if ours.output_bias is not None:
            theirs.final_logits_bias.copy_(ours.output_bias.detach()[None])
    encoder, decoder = theirs.model.encoder, theirs.model.decoder
    encoder.embed_tokens.load_state_dict(ours.source_table.state_dict())
    decoder.embed_tokens.load_state_dict(ours.embedding.state_dict())
    if pre:
        encoder.layer_norm.load_state_dict(ours.encoder_norm.state_dict())
        decoder.layer_norm.load_state_dict(ours.decoder_norm.state_dict())
    for peer, layer in zip(
        (*encoder.layers, *decoder.layers), (*ours.encoder_layers, *ours.decoder_layers),
        strict=True,
    ):  # fmt: skip
        _fill(peer, layer)
    theirs.save_pretrained(out)
    for name, table in zip(_TABLES, positions, strict=True):
        np.save(out / name, table.numpy())


def _check(shape: ModelConfig) -> None:
    """Raise an OptionError for models of no known class."""
    wanted: dict[str, tuple[object, ...]] = {
        "decoder_mixer": ("self-attention",), "norm_embedding": (False,),
        "key_size": (0, shape.d_v),
        "tied": ("all",) if shape.norm == "pre" else ("all", "output"),
        "output_bias": (False,) if shape.norm == "pre" else (False, True),
    }  # fmt: skip
    for name, allowed in wanted.items():
        if getattr(shape, name) not in allowed:
            raise OptionError(
                f"transformers has no class for this model: {name} is {getattr(shape, name)!r}, "
                f"and a {shape.norm}-norm model needs {' or '.join(map(repr, allowed))}."
            )


def _fill(theirs: Any, ours: Any) -> None:
    """Copy the weights of a layer."""
    pairs = [(theirs.fc1, ours.feed_forward.inner), (theirs.fc2, ours.feed_forward.outer),
             (theirs.final_layer_norm, ours.feed_forward_norm.norm)]  # fmt: skip
    for name, own in (("self_attn", "self_attention"), ("encoder_attn", "cross_attention")):
        if hasattr(theirs, name):
            pairs.append((getattr(theirs, f"{name}_layer_norm"), getattr(ours, f"{own}_norm").norm))
            pairs += [
                (getattr(getattr(theirs, name), f"{short}_proj"), getattr(getattr(ours, own), part))
                for short, part in _PROJECTIONS.items()
            ]
    for peer, module in pairs:
        peer.load_state_dict(module.state_dict())
