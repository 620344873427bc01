"""Options of other toolkits, for the message about an option that a command does not have.

docs/coming-from.md has every option of the toolkits, and what differs.
"""

from __future__ import annotations

import difflib

import click

#: Flags here by the name of the option there, without dashes in front and with "-" for "_".
FLAGS: dict[str, str] = {
    # CTranslate2
    "num-hypotheses": "--n-best",
    "sampling-topk": "--sampling-top-k",
    "sampling-topp": "--sampling-top-p",
    "max-decoding-length": "--max-length",
    "min-decoding-length": "--min-length",
    "return-alternatives": "--alternatives",
    "min-alternative-expansion-prob": "--min-alternative-prob",
    "return-attention": "--attention",
    "compute-type": "--target",
    "inter-threads": "--workers",
    "intra-threads": "--threads",
    "max-batch-size": "--batch-tokens",
    "use-vmap": "--shortlist",
    # Hugging Face
    "num-beams": "--beam-size",
    "num-return-sequences": "--n-best",
    "max-new-tokens": "--max-length",
    "min-new-tokens": "--min-length",
    "do-sample": "--sampling-top-k",
    "temperature": "--sampling-temperature",
    "top-k": "--sampling-top-k",
    "top-p": "--sampling-top-p",
    "bad-words-ids": "--suppress-sequences",
    "suppress-tokens": "--suppress-sequences",
    "force-words-ids": "--constraints",
    # Marian
    "normalize": "--length-penalty",
    "max-length-factor": "--max-length",
    "alignment": "--alignments",
    "force-decode": "--target-prefix",
    "word-scores": "--json",
    "tsv": "--input-format",
    "tsv-fields": "--column",
    "devices": "--device",
    "cpu-threads": "--workers",
    "mini-batch": "--batch-tokens",
    "mini-batch-words": "--batch-tokens",
    "maxi-batch": "--chunk-lines",
    "output-sampling": "--sampling-top-k",
    "seed": "--sampling-seed",
    # fairseq
    "beam": "--beam-size",
    "nbest": "--n-best",
    "lenpen": "--length-penalty",
    "unnormalized": "--length-penalty",
    "max-len-a": "--max-length",
    "max-len-b": "--max-extra-length",
    "min-len": "--min-length",
    "prefix-size": "--target-prefix",
    "sampling": "--sampling-top-k",
    "print-alignment": "--alignments",
    "replace-unk": "--disable-unk",
    "buffer-size": "--chunk-lines",
    "max-tokens": "--batch-tokens",
    "batch-size": "--batch-tokens",
    "num-workers": "--workers",
    "results-path": "--output",
}


def explained(error: click.NoSuchOption) -> click.NoSuchOption:
    """Return an error that names the flag for an option of another toolkit, or similar flags."""
    if error.ctx is None:
        return error
    given = error.option_name.lstrip("-").replace("_", "-")
    params = error.ctx.command.get_params(error.ctx)
    shown = [name for one in params for name in (*one.opts, *one.secondary_opts)]
    use = FLAGS.get(given)
    if given in ("model", "models", "model-path"):
        argument = any(isinstance(one, click.Argument) and one.name == "bundle" for one in params)
        use = "the argument BUNDLE" if argument else "--bundle"
    if use is not None and (use in shown or use.startswith("the ")):
        message = f"No such option '{error.option_name}'; use {use} (docs/coming-from.md)."
        return click.NoSuchOption(error.option_name, message, ctx=error.ctx)
    names = {name.lstrip("-"): name for name in shown if name.startswith("--")}
    near = [names[name] for name in difflib.get_close_matches(given, names)]
    return click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx)
