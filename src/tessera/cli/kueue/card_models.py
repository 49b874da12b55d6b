"""The cards that a command of ``tessera kueue`` is about: models on the command line, or the cluster's."""

import re
from collections.abc import Mapping, Sequence

from tessera.mig.geometry import GpuModel, MigUnsupported
from tessera.mig.models import MODELS, model_by_short_name
from tessera.text import one_line

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
