"""Options of the live page as a process of the cluster, in ``tessera install`` and in ``tessera dashboard``."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def origin_option(name: str, *, text: str) -> Callable[[F], F]:
    """Adds the option of further names of the page; the function gets ``origins``.

    Args:
        name: the option's name.
        text: its help.
    """
    return click.option(name, "origins", multiple=True, metavar="URL", help=text)


def without_token_option(name: str, *, text: str) -> Callable[[F], F]:
    """Adds the option about visitors without a token; the function gets ``without_token``.

    Args:
        name: the option's name.
        text: its help.
    """
    choices = click.Choice(["refuse", "hide-names"])
    return click.option(name, "without_token", type=choices, default="refuse", show_default=True, help=text)
