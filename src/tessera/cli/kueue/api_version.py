"""The option ``--api-version`` of the commands that write objects for Kueue."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tessera.kueue.names import VERSIONS

F = TypeVar("F", bound=Callable[..., Any])


def api_version_option(kind: str) -> Callable[[F], F]:
    """Adds the option; the function gets ``version``.

    Args:
        kind: names in the help what has the version.
    """
    return click.option(
        "--api-version",
        "version",
        type=click.Choice(VERSIONS),
        default="v1beta2",
        show_default=True,
        help=f"Version of {kind}; v1beta1 for Kueue 0.14 and older.",
    )
