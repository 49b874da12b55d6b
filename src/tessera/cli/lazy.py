"""Groups of commands whose modules are imported when they run or when their own help is asked for, never before."""

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import click

#: Command name -> (module, one line for the overview). The module has the command under the name ``command``.
Table = Mapping[str, tuple[str, str]]


class LazyCommands(click.Group):
    """Knows its commands' names and summaries; imports a command's module when it is needed.

    Args:
        table: the commands, in the order of the overview.
    """

    def __init__(self, *args: Any, table: Table, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of the overview."""
        del ctx
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, from the module's ``command``."""
        del ctx
        if cmd_name not in self._table:
            return None
        command: click.Command = importlib.import_module(self._table[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click has it; a name that is not known is refused with the closest that is."""
        name = args[0]
        if name not in self._table and not name.startswith("-"):
            close = get_close_matches(name[:100], self._table, n=1, cutoff=0.6)
            meant = f"did you mean '{close[0]}'?" if close else f"commands are {', '.join(self._table)}"
            ctx.fail(f"there is no command '{name}'; {meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the overview without importing anything."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._table.items()])
