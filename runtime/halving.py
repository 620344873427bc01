"""Work on many items of which a few are refused, without the results of the others being lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def halving(
    items: Sequence[_Item],
    work: Callable[[Sequence[_Item]], Sequence[_Result]],
    refused: Callable[[_Item, Exception], _Result],
    errors: tuple[type[Exception], ...],
) -> list[_Result]:
    """Work on all items at once, or after an error on both halves, down to those that are refused.

    Args:
        items: The items.
        work: Returns a result for each item. It checks all items before it works on any, so that
            halving takes little time.
        refused: Returns the result of an item that is refused, from its error.
        errors: Classes of the errors that refuse an item; others are raised.
    """
    try:
        return list(work(items))
    except errors as error:
        if len(items) == 1:
            return [refused(items[0], error)]
    half = len(items) // 2
    return [
        *halving(items[:half], work, refused, errors),
        *halving(items[half:], work, refused, errors),
    ]
