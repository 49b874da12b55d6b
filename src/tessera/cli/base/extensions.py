"""What other packages add to the command line: entry points of the group ``tessera.extensions``.

The package ``tessera-lab`` adds the simulated cluster this way, so that an installation without it loads and carries
nothing of it. The entry points of a package are:

- ``commands``: a mapping from a group's name (``""`` for the command line itself, ``bench``, ``autoscaler``) to its
  commands, see :class:`tessera.cli.base.command_group.LazyCommands`.
- ``experiments`` and ``registries``: functions that a command of the product calls, see :func:`extension`.

Reading the installed packages costs some milliseconds; only an overview and a name that the product does not have
lead here.
"""

import functools
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any

GROUP = "tessera.extensions"
#: The package that has the simulated cluster, and the commands that people look for before they have installed it.
LAB_PACKAGE = "tessera-lab"
LAB_COMMANDS: Mapping[str | None, Sequence[str]] = {
    "": ("demo", "lab"),
    "bench": ("costs",),
    "autoscaler": ("simulate",),
}


@functools.cache
def _entry_points() -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def added_commands(group: str) -> dict[str, tuple[str, str]]:
    """The commands that other packages add to one group of commands: module and summary by name.

    Args:
        group: its name; ``""`` for the command line itself.
    """
    found: dict[str, tuple[str, str]] = {}
    for entry in _entry_points():
        if entry.name == "commands":
            found.update(entry.load().get(group, {}))
    return found


def extension(name: str) -> Any:
    """The function that another package has under this name; None if no installed package has it."""
    return next((entry.load() for entry in _entry_points() if entry.name == name), None)
