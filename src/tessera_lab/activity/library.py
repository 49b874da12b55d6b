"""The scenarios that come with the lab, by name."""

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

from tessera_lab.activity.scenario import Scenario, parse_scenario

_SUFFIX = ".yaml"


def _files() -> Iterator[Traversable]:
    return (each for each in files(__package__).joinpath("library").iterdir() if each.name.endswith(_SUFFIX))


def builtin_names() -> list[str]:
    """Returns the names, sorted."""
    return sorted(each.name.removesuffix(_SUFFIX) for each in _files())


def builtin_text(name: str) -> str:
    """Returns the text of a scenario of :func:`builtin_names`."""
    return next(each for each in _files() if each.name == name + _SUFFIX).read_text(encoding="utf-8")


def builtin_scenario(name: str) -> Scenario:
    """Returns a scenario of :func:`builtin_names`."""
    return parse_scenario(builtin_text(name))
