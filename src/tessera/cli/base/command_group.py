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
        table: the product's commands, in the order of the overview.
        group: the name under which other packages add commands (:mod:`tessera.cli.base.extensions`); None if they
            may not.
    """

    def __init__(self, *args: Any, table: Table, group: str | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._table = table
        self._group = group

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of the overview: the product's, then those that other packages add."""
        del ctx
        return [*self._table, *self._added()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, from the module's ``command``."""
        del ctx
        found = self._table.get(cmd_name) or self._added().get(cmd_name)
        if found is None:
            return None
        command: click.Command = importlib.import_module(found[0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click has it; an unknown name is refused with the closest known one, or the package that would have it."""
        name = args[0]
        if name not in self._table and not name.startswith("-"):
            known = self.list_commands(ctx)
            if name not in known:
                ctx.fail(f"there is no command '{name}'; {self._advice(name, known)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the overview without importing any command."""
        del ctx
        for title, table in (("Commands", self._table), ("Commands of the lab (simulated)", self._added())):
            if table:
                with formatter.section(title):
                    formatter.write_dl([(name, summary) for name, (_, summary) in table.items()])

    def _added(self) -> Table:
        from tessera.cli.base.extensions import added_commands

        return {} if self._group is None else added_commands(self._group)

    def _advice(self, name: str, known: list[str]) -> str:
        from tessera.cli.base.extensions import LAB_COMMANDS, LAB_PACKAGE

        if name in LAB_COMMANDS.get(self._group, ()):
            return f"the package {LAB_PACKAGE} has it: pip install {LAB_PACKAGE}"
        close = get_close_matches(name[:100], known, n=1, cutoff=0.6)
        return f"did you mean '{close[0]}'?" if close else f"commands are {', '.join(known)}"
