"""Groups of commands: their defaults, and the commands that other packages add to them.

A command's module is imported when the command runs or its own help is shown, never before.

The package ``tessera-gpu-lab`` adds the simulated cluster by entry points of the group ``tessera.extensions``:

- ``commands``: a mapping from a group's name (``""`` for the command line itself, ``autoscaler``) to its commands, a
  :data:`Table`; and from a command to modules that do a part of it, see :func:`added_module`;
- ``registries``: a function that commands of the product call, see :func:`extension`.

An installation without that package loads and carries nothing of it.

Defaults of options come from the user's file, ``$TESSERA_CONFIG`` or ``~/.config/tessera/config.yaml``. It maps a
command to its options, written as on the command line without the dashes::

    top: {sort: busy, namespace: team-a}
    map: {color: false}
    driver: {status: {output: json}}

The command line overrides it. A name that no command has is an error, since a default that is ignored misleads.
"""

import functools
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


_VARIABLE = "TESSERA_CONFIG"


def default_file() -> str:
    """The file's path, whether it exists or not."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")  # noqa: PTH111, PTH118
    return os.environ.get(_VARIABLE) or os.path.join(folder, "tessera", "config.yaml")  # noqa: PTH118


def read_defaults() -> Mapping[str, Any] | None:
    """Returns the defaults of commands that the file has; None if there is no file.

    Raises:
        ClickException: it is named and missing, or cannot be read.
    """
    path = default_file()
    if not os.path.exists(path) and _VARIABLE not in os.environ:  # noqa: PTH110 - pathlib costs every start
        return None
    import yaml

    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            found = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise click.ClickException(f"defaults in {path}: {' '.join(str(error).split())}") from error
    if found is not None and not isinstance(found, dict):
        raise click.ClickException(f"defaults in {path}: commands are expected, such as top: {{sort: busy}}")
    return found


def defaults_of(command: click.Command, name: str, given: object, known: Mapping[str, object]) -> Mapping[str, Any]:
    """The defaults of one command by click's names of its parameters.

    Args:
        command: the command.
        name: its name.
        given: what the file says of it.
        known: the commands below it.

    Raises:
        ClickException: it has no such option.
    """
    names = {text.lstrip("-"): each.name for each in command.params for text in (*each.opts, *each.secondary_opts)}
    options = dict(given) if isinstance(given, dict) else {"": given}
    wrong = next((each for each in options if each not in names and each not in known), None)
    if wrong is not None:
        raise click.ClickException(
            f"defaults in {default_file()}: {name} has no option {str(wrong)[:60]!r};"
            f" it has {', '.join(sorted(each for each in names if len(each) > 1))}"
        )
    loaded = command.commands if isinstance(command, click.Group) else {}
    return {
        str(names.get(each, each)): defaults_of(loaded[each], each, value, {}) if each in loaded else value
        for each, value in options.items()
    }


#: Command name -> (module, one line for the overview). The module has the command under the name ``command``, or under
#: the one in ``module:name``.
Table = Mapping[str, tuple[str, str]]

EXTENSIONS = "tessera.extensions"
#: The package of the simulated cluster, and how to install it: from a checkout, since no package index has it.
LAB_PACKAGE = "tessera-gpu-lab"
LAB_INSTALL = "in a checkout of Tessera, run: pip install ./ ./packaging/tessera-lab"
#: Its commands by group: users try them before they have installed it.
LAB_COMMANDS: Mapping[str | None, Sequence[str]] = {
    "": ("bench", "demo", "lab"),
    "autoscaler": ("simulate",),
}


def _import_msgspec() -> None:
    """Imports msgspec without typing_extensions, before a command's module imports it.

    Msgspec prefers it to typing, which has the same since Python 3.11. Its import takes 17 ms of CPU, a tenth of a
    command (bench/cli.py); whoever imports it later gets it.
    """
    if "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("msgspec")
    finally:
        del sys.modules["typing_extensions"]


class LazyCommands(click.Group):
    """A group that knows its commands' names and summaries without importing them.

    Args:
        table: the product's commands, in the order of the overview.
        group: the name under which other packages add commands; None if they may not.
        sections: the commands that the overview shows, by title; all under one title if None.
    """

    def __init__(
        self,
        *args: Any,
        table: Table,
        group: str | None = None,
        sections: Mapping[str, Table] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self._table = table
        self._sections = {"Commands": table} if sections is None else sections
        self._group = group

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of the overview: the product's, then those that other packages add."""
        del ctx
        return [*self._table, *self._added_commands()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, from the module's ``command``; its defaults get click's names of its parameters."""
        found = self._table.get(cmd_name) or self._added_commands().get(cmd_name)
        if found is None:
            return None
        _import_msgspec()
        command: click.Command = _load(found[0])
        given = (ctx.default_map or {}).get(cmd_name)
        if given is not None and isinstance(ctx.default_map, dict):
            below = dict.fromkeys(command.list_commands(ctx)) if isinstance(command, click.Group) else {}
            ctx.default_map[cmd_name] = defaults_of(command, cmd_name, given, below)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click has it; an error about an unknown name suggests the closest command, or the package that has it."""
        name = args[0]
        if name not in self._table and not name.startswith("-"):
            known = self.list_commands(ctx)
            if name not in known:
                ctx.fail(f"there is no command '{name}'; {self._advice(name, known)}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem[str]]":
        """The names and summaries that begin so, without importing any command; and the group's options."""
        from click.shell_completion import CompletionItem

        named = [*self._table.items(), *self._added_commands().items()]
        found = [CompletionItem(name, help=each[1]) for name, each in named if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the overview without importing any command."""
        del ctx
        for title, table in (*self._sections.items(), (f"Try, from the package {LAB_PACKAGE}", self._added_commands())):
            if table:
                with formatter.section(title):
                    formatter.write_dl([(name, summary) for name, (_, summary) in table.items()])

    def _added_commands(self) -> Table:
        return {} if self._group is None else added_commands(self._group)

    def _advice(self, name: str, known: list[str]) -> str:
        if name in LAB_COMMANDS.get(self._group, ()):
            return f"the package {LAB_PACKAGE} has it: {LAB_INSTALL}"
        from difflib import get_close_matches

        close = get_close_matches(name[:100], known, n=1, cutoff=0.6)
        return f"did you mean '{close[0]}'?" if close else f"the commands are {', '.join(known)}"


def added_commands(group: str) -> dict[str, tuple[str, str]]:
    """The commands that other packages add to one group of commands: module and summary by name.

    Args:
        group: its name; ``""`` for the command line itself.
    """
    found: dict[str, tuple[str, str]] = {}
    for name, target in _entry_points():
        if name == "commands":
            found.update(_load(target).get(group, {}))
    return found


def added_module(group: str, name: str) -> ModuleType | None:
    """The module that another package adds to a command of the product; None if no installed package has it.

    Args:
        group: the command.
        name: what the module does for it.
    """
    found = added_commands(group).get(name)
    return importlib.import_module(found[0]) if found is not None else None


def extension(name: str) -> Any:
    """The function that another package has under this name; None if no installed package has it."""
    return next((_load(target) for entry, target in _entry_points() if entry == name), None)


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute or "command")


@functools.cache
def _entry_points() -> tuple[tuple[str, str], ...]:
    """Name and ``module:attribute`` of each entry point of the group, from the metadata of the installed packages.

    Reads ``*.dist-info/entry_points.txt`` of the folders of :data:`sys.path` (PyPA, entry points specification). The
    import of ``importlib.metadata`` takes 28 ms of CPU, a quarter of ``tessera --help``; this takes 2 ms.
    """
    return tuple(entry for folder in dict.fromkeys(sys.path) for entry in _entries_in(folder))


def _entries_in(folder: str) -> Iterator[tuple[str, str]]:
    names: list[str] = []
    with suppress(OSError):  # a path of sys.path may be missing, or a zip file
        names = sorted(name for name in os.listdir(folder or ".") if name.endswith(".dist-info"))  # noqa: PTH208
    for name in names:
        with (
            suppress(FileNotFoundError),
            open(os.path.join(folder, name, "entry_points.txt"), encoding="utf-8") as file,  # noqa: PTH118, PTH123
        ):
            section = ""
            for line in map(str.strip, file):
                if line.startswith("["):
                    section = line.strip("[]")
                elif section == EXTENSIONS and "=" in line and not line.startswith(("#", ";")):
                    entry, _, target = line.partition("=")
                    yield entry.strip(), target.strip()
