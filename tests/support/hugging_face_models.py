"""Random M2M100, NLLB, BART and mBART models of Hugging Face, and pairs with their imports."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from click.testing import CliRunner

from support.compiled import compile_once
from support.shared import SharedFiles
from translate_trt.export.build_options import BuildOptions
from translate_trt.runtime.cli import main
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint
from translate_trt.train.config import END, START, UNKNOWN
from translate_trt.train.model import Transformer, pad

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
BEGIN_ID, END_ID = 0, 2
MODEL = "sentencepiece.bpe.model"

#: Of models with layers of a few numbers.
SMALL = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "init_std": 0.15,
    "max_position_embeddings": 128, "decoder_start_token_id": END_ID,
}  # fmt: skip


def change(path: Path, **values: Any) -> None:
    """Change fields of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def train_pieces(lines: Iterable[str], kind: str, size: int, **settings: Any) -> bytes:
    """Train a SentencePiece model like that of M2M100, NLLB (both "bpe") or mBART ("unigram")."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=size, model_type=kind,
        hard_vocab_limit=False, minloglevel=2, **settings,
    )  # fmt: skip
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    """Return the pieces of a SentencePiece model without the special pieces at its head."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(place) for place in range(3, processor.get_piece_size())]


def save_m2m100_tokenizer(directory: Path, model: bytes) -> Any:
    """Save an M2M100 tokenizer whose vocabulary ends with all languages and lacks one piece."""
    import transformers

    directory.mkdir(exist_ok=True)
    (directory / MODEL).write_bytes(model)
    ids = {token: place for place, token in enumerate([*SPECIAL, *pieces_of(model)[:-1]])}
    (directory / "vocab.json").write_text(json.dumps(ids))
    tokenizer = transformers.M2M100Tokenizer(
        str(directory / "vocab.json"), str(directory / MODEL), src_lang="en"
    )
    tokenizer.save_pretrained(directory)
    return tokenizer


def save_fast_tokenizer(directory: Path, model: bytes, name: str, languages: Sequence[str]) -> Any:
    """Save an NLLB, mBART-50 or BARThez tokenizer, with the files of older directories.

    Args:
        directory: where the files go.
        model: SentencePiece's.
        name: of the class.
        languages: tokens behind its pieces.
    """
    import transformers
    from transformers.convert_slow_tokenizer import SentencePieceExtractor

    directory.mkdir(exist_ok=True)
    (directory / MODEL).write_bytes(model)
    listed = {"additional_special_tokens": [*languages], "mask_token": "<mask>"}
    (directory / "special_tokens_map.json").write_text(json.dumps(listed))
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    if name != "NllbTokenizer":
        return getattr(transformers, name).from_pretrained(directory)
    # transformers 5 puts languages elsewhere unless it is told where they are.
    found = SentencePieceExtractor(str(directory / MODEL)).extract(transformers.NllbTokenizer.model)
    tokens = [*SPECIAL, *pieces_of(model), *languages, "<mask>"]
    return transformers.NllbTokenizer(
        vocab={token: place for place, token in enumerate(tokens)}, merges=found["merges"],
        _spm_precompiled_charsmap=found["_spm_precompiled_charsmap"],
        extra_special_tokens=[*languages],
    )  # fmt: skip


def make_lively(
    model: Any, known: Sequence[int], prompts: Sequence[tuple[list[int], list[int]]]
) -> None:
    """Train a model for seconds to copy its source, reversed or not.

    A random model hardly ends a sentence, and rounding would decide between its candidates.

    Args:
        model: of transformers, which may be Marian's.
        known: tokens of texts.
        prompts: what sources and what translations begin with; after the first texts come
            backwards, after the others as they are.
    """
    rng = random.Random(1)
    padding, end = model.config.pad_token_id, model.config.eos_token_id
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    model.train()
    for _ in range(200):
        ids, labels = [], []
        for _ in range(32):
            text = rng.choices(known, k=rng.randint(1, 12))
            kind = rng.randrange(len(prompts))
            source, target = prompts[kind]
            ids.append([*source, *text, end])
            labels.append([*target, *(text if kind else text[::-1]), end])
        longest = max(map(len, ids))
        rows = torch.tensor([row + [padding] * (longest - len(row)) for row in ids])
        longest = max(map(len, labels))
        wanted = torch.tensor([row + [-100] * (longest - len(row)) for row in labels])
        model(input_ids=rows, attention_mask=rows != padding, labels=wanted).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


class Pair:
    """Hugging Face model and its import.

    Args:
        directory: of the model and its tokenizer; the checkpoint goes beside it.
        theirs: the model.
        names: their tokens by id.
        command: of `translate-trt import`.
        known: their tokens of texts.
    """

    def __init__(
        self, directory: Path, theirs: Any, names: list[str], command: str,
        known: range = range(4, 40),
    ) -> None:  # fmt: skip
        self.directory, self.theirs, self.known = directory, theirs, known
        self.end, self.padding = theirs.config.eos_token_id, theirs.config.pad_token_id
        self.unknown = names.index("<unk>")
        theirs.save_pretrained(directory)
        path = directory.parent / f"{directory.name}-checkpoint"
        arguments = ["import", command, str(directory), "--output", str(path)]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
        self.checkpoint: Checkpoint = open_checkpoint(path)
        self.tokenizer = Tokenizer(*self.checkpoint.tokenizers)
        ids = {name: place for place, name in enumerate(names)}
        spare = {f"<unused-{place}>": place for place in range(theirs.config.vocab_size)}
        pieces = self.tokenizer.target_pieces(range(self.tokenizer.vocabulary_size))
        start = {pieces[START]: theirs.config.decoder_start_token_id}
        #: By our id, theirs; the token that decoding starts with has two of ours.
        self.ids = [(spare | ids | start).get(name, self.unknown) for name in pieces]

    def compiled(self, shared: SharedFiles) -> Translator:
        bundle = compile_once(shared, self.checkpoint, BuildOptions(("onnx-fp32",)))
        return Translator(bundle, threads=1)

    def random_sentences(self, count: int, seed: int) -> list[list[int]]:
        """Draw sentences of 1 to 14 of the tokens that both sides know, as our ids."""
        rng = random.Random(seed)
        known = [self.ids.index(theirs) for theirs in self.known]
        return [rng.choices(known, k=rng.randint(1, 14)) for _ in range(count)]

    def inputs(self, sources: list[list[int]]) -> dict[str, torch.Tensor]:
        """Convert sources to Hugging Face's ids, with our prompt before the text."""
        rows = [[*(self.ids[token] for token in source), self.end] for source in sources]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [self.padding] * (longest - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids != self.padding).long()}

    def texts_of(self, sequences: torch.Tensor) -> list[list[int]]:
        """Return translations of `generate`, in Hugging Face's ids, up to the end."""
        rows = [[*row, self.end] for row in sequences[:, 1:].tolist()]
        return [row[: row.index(self.end)] for row in rows]

    @torch.inference_mode()
    def assert_same_logits(self, model: Transformer | None = None, theirs: Any = None) -> None:
        """Compare the logits of 200 random pairs, of these models or others."""
        model = model or self.checkpoint.load_model()
        banned = [] if model.banned_tokens is None else model.banned_tokens.tolist()
        sources, targets = self.random_sentences(200, 1), self.random_sentences(200, 2)
        previous, _ = pad([[START, *target] for target in targets])
        begin = torch.tensor(self.ids)[previous]
        wanted = (theirs or self.theirs)(**self.inputs(sources), decoder_input_ids=begin).logits
        source, lengths = pad([[*tokens, END] for tokens in sources])
        cache = model.start_cache(source, lengths)
        hidden = model.decode(previous, model.encode(source, cache.source_bias), cache.source_bias)
        ours = model.project(hidden)
        known = [
            place
            for place, row in enumerate(self.ids)
            if place not in (START, UNKNOWN, *banned) and row != self.unknown
        ]
        assert len(known) > self.theirs.config.vocab_size - 3
        wanted = wanted[:, :, [self.ids[place] for place in known]]
        for row, target in enumerate(targets):
            end = len(target) + 1
            torch.testing.assert_close(
                ours[row, :end][:, known], wanted[row, :end], atol=1e-4, rtol=1e-5
            )

    def assert_same_search(
        self,
        translator: Translator,
        options: SearchOptions,
        most_truncated: int = 5,
        **generate: Any,
    ) -> set[tuple[int, ...]]:
        """Compare tokens and scores of 200 random sentences; return ours.

        Args:
            translator: of our bundle.
            options: of the search.
            most_truncated: fewer sentences reach the maximum length.
            generate: further options of theirs.
        """
        sources = self.random_sentences(200, 3)
        found = translator.translate_ids(sources, options)
        prompt = self.checkpoint.prompt.of_source(options)
        beams = options.beam_size
        stop = {"early_stopping": True} if beams > 1 else {}
        with torch.inference_mode():
            expected = self.theirs.generate(
                **self.inputs([[*prompt, *source] for source in sources]), num_beams=beams,
                length_penalty=options.length_penalty, max_new_tokens=60, output_scores=True,
                return_dict_in_generate=True, **stop, **generate,
            )  # fmt: skip
        tokens = [[self.ids[token] for token in ours.tokens] for [ours] in found]
        assert tokens == self.texts_of(expected.sequences)
        if beams > 1:
            scores = [ours.score for [ours] in found]
            assert scores == pytest.approx(expected.sequences_scores.tolist(), abs=1e-4)
        assert sum(one[0].truncated for one in found) < most_truncated
        assert len({len(one[0].tokens) for one in found}) > 5
        return {one[0].tokens for one in found}

    def assert_same_tokens(self, theirs: Any, lines: Sequence[str]) -> None:
        """Compare tokenization with Hugging Face's tokenizer, and the text of the tokens."""
        wanted = theirs(list(lines), add_special_tokens=False).input_ids
        found = self.tokenizer.encode_source_batch(lines)
        for line, ours, right in zip(lines, found, wanted, strict=True):
            assert [self.ids[token] for token in ours] == right, line
        shown = theirs.batch_decode(wanted, skip_special_tokens=True)
        for line, ours, right, text in zip(lines, found, wanted, shown, strict=True):
            if self.unknown not in right:  # we show unknown characters
                assert self.tokenizer.decode(ours) == text, line


def nllb_languages() -> list[str]:
    from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

    return list(FAIRSEQ_LANGUAGE_CODES)


def mbart_languages() -> list[str]:
    from transformers.models.mbart50.tokenization_mbart50 import FAIRSEQ_LANGUAGE_CODES

    return list(FAIRSEQ_LANGUAGE_CODES)


def save_random_m2m100(directory: Path, size: int, **changes: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    settings = SMALL | {"vocab_size": size} | changes
    model = transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**settings))
    model.generation_config.num_beams = 5
    model.generation_config.early_stopping = True
    model.eval().save_pretrained(directory)
    return model


def random_bart(kind: str, size: int, **changes: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")
    model_class = getattr(transformers, f"{kind}ForConditionalGeneration")
    model = model_class(
        config(**(SMALL | {"vocab_size": size, "forced_eos_token_id": None} | changes))
    )
    model.final_logits_bias.normal_()
    return model.eval()
