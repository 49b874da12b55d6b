"""Options of ``tessera kueue``: the version of what it writes, and the models of cards that a command is about."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from tessera.kueue.names import VERSIONS
from tessera.mig.geometry import GpuModel, MigUnsupported
from tessera.mig.models import MODELS, model_by_short_name
from tessera.text import one_line

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


#: Stands for every model that Tessera knows.
ALL = "all"
_COUNTED = re.compile(r"([0-9]{1,6})x(.+)", re.ASCII)


def parse_models(text: str) -> Mapping[str, int]:
    """Reads ``4xA100-40GB,H100-80GB``: short names of models with the number of cards, 1 if none is given.

    Raises:
        ValueError: a part names no model, or one without MIG.
    """
    if text == ALL:
        return {model.short_name: 1 for model in MODELS}
    counts: dict[str, int] = {}
    for part in text.split(","):
        counted = _COUNTED.fullmatch(part.strip())
        model = model_by_short_name(counted[2] if counted else part.strip())
        if not model.mig_capable:
            raise MigUnsupported(f"{one_line(model.short_name)}: the card has no MIG, so Kueue has no slices to charge")
        counts[model.short_name] = counts.get(model.short_name, 0) + (int(counted[1]) if counted else 1)
    return counts


def profiles_of(models: Sequence[GpuModel]) -> list[str]:
    """Returns the profiles of the models, each once, in the order of their tables."""
    return list(dict.fromkeys(profile for model in models for profile in model.profile_names))
