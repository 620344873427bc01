"""Names of arguments in all commands, and options that several commands have.

- A command's main input is a positional argument: BUNDLE (`info`, `verify`, `triton`), CHECKPOINT
  (`export`), INPUT (`translate`, `corpus`, `bench`). If that input is text, `--bundle` or
  `--checkpoint` names the model. A bundle is a path or the name of an installed model.
- `-o` or `--output` is the result of a command, where lines are written "-" for standard output;
  `--target` is a target of a bundle.
- `--source` and `--reference` are the two sides of a test set.
- `--max-length` limits translations, `--max-pair-length` training pairs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from translate_trt.runtime.cli.command import together
from translate_trt.runtime.io.lines import STDIN, check_input

PATH = click.Path(path_type=Path)

_TYPES: dict[str, Any] = {
    "int": int, "float": float, "str": str, "Path": PATH,
    "tuple[int, ...]": int, "tuple[str, ...]": str,
}  # fmt: skip


def flag_of(field: dataclasses.Field[Any]) -> str:
    """Return the flag that sets a field of a configuration."""
    return str(field.metadata.get("flag") or "--" + field.name.replace("_", "-"))


def default_note(field: dataclasses.Field[Any]) -> str:
    """Return the default of a field in brackets, as help texts end."""
    return f"[{field.default:,}]" if isinstance(field.default, int) else f"[{field.default}]"


def note_of_value(field: dataclasses.Field[Any]) -> str:
    """Return `default_note`; nothing if the field has no value by default."""
    return "" if field.default in (None, ()) else default_note(field)


def field_options(
    fields: Iterable[dataclasses.Field[Any]],
    default: Callable[[dataclasses.Field[Any]], str],
    prefix: str = "",
) -> Callable[..., Any]:
    """Create the options that set fields of configurations, with the fields' help texts.

    Args:
        fields: Fields in the order of the help.
        default: Returns the note on a field's default, which ends its help text.
        prefix: Prefix of the parameters, for commands with other parameters of such names.
    """

    def option(field: dataclasses.Field[Any]) -> Callable[..., Any]:
        settings, text = _of_type(field), str(field.metadata["help"])
        if "is_flag" not in settings:
            text = f"{text} {default(field)}".rstrip()
        return click.option(
            flag_of(field), prefix + field.name, default=None, help=text, **settings
        )

    return together(*map(option, fields))


def _of_type(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Return the arguments of `click.option` that follow from the type of a field."""
    kind, choices = str(field.type).removesuffix(" | None"), field.metadata.get("choices")
    if kind == "bool":
        return {"is_flag": True}
    if (parse := field.metadata.get("parse")) is not None:
        return {"callback": lambda _, __, given: None if given is None else parse(given)}
    return {
        "type": click.Choice(choices) if choices else _TYPES[kind],
        "multiple": kind.startswith("tuple"),
    }


def described_options(options: type[Any]) -> Callable[..., Any]:
    """Create the options that set the fields of `setting`; see `field_option`."""
    fields = dataclasses.fields(options)
    return together(*(field_option(options, one.name) for one in fields if "help" in one.metadata))


def field_option(
    options: type[Any], name: str, help: str | None = None, **settings: Any
) -> Callable[..., Any]:
    """Create the option that sets a field of a dataclass, with the field's type and default.

    Args:
        options: The dataclass.
        name: Name of the field; that of the option is like it.
        help: Help text; None for that of `setting`.
        settings: Arguments of `click.option` that differ.
    """
    field = options.__dataclass_fields__[name]
    usual = _of_type(field) | {"help": help or field.metadata["help"], "default": field.default}
    usual["show_default"] = usual.get("multiple") is False
    return click.option(flag_of(field), name, **usual | settings)


def output_option(help: str, required: bool = True, stdout: bool = False) -> Callable[..., Any]:
    """Create the option for the result of a command: -o or --output.

    Args:
        help: Help text.
        required: Whether a path must be given.
        stdout: Whether "-" stands for standard output, whose path is None.
    """

    def path(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
        if value is None or str(value) != STDIN:
            return value
        if not stdout:
            raise click.BadParameter(
                "this result is not written to standard output; name a path.", ctx, param
            )
        return None

    return click.option(
        "-o", "--output", "out", type=PATH, required=required, callback=path, help=help
    )


threads_flag = click.option(
    "--threads", type=click.IntRange(min=1), help="CPU threads. [all cores]"
)
processes_flag = click.option(
    "--workers", type=click.IntRange(min=1), help="Number of processes. [all cores]"
)


def torch_device_option(help: str) -> Callable[..., Any]:
    """Create the option for the device on which PyTorch runs a model."""
    return click.option(
        "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True,
        help=f"{help}; auto: a GPU if there is one.",
    )  # fmt: skip


#: --output and --force of a command that writes lines.
lines_output_options = together(
    output_option("File to write. [standard output, also -]", required=False, stdout=True),
    click.option("--force", is_flag=True, help="Replace an existing output file."),
)


def checked_inputs(inputs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the inputs of a command that reads lines, by default standard input.

    Raises:
        InputError: An input is not readable.
    """
    for path in inputs:
        check_input(path)
    return inputs or (STDIN,)


inputs_argument = click.argument(
    "inputs", nargs=-1, metavar="[INPUT]...", callback=lambda _, __, inputs: checked_inputs(inputs)
)
