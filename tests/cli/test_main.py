"""The command line as a whole: it starts with what it needs. What that costs in CPU is measured by bench/cli.py."""

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner
from tests.support.imported_modules import HEAVY, imported_modules

from tessera.cli.main import tessera


@pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
def test_an_overview_loads_click_and_nothing_of_the_clusters(arguments: list[str]) -> None:
    assert not imported_modules(*arguments) & {*HEAVY, "msgspec", "asyncio", "email"}


@pytest.mark.parametrize(
    "command",
    ["map", "why", "plan", "config", "install", "autoscaler", "lab", "controller", "webhook", "agent"],
)
def test_a_commands_help_loads_nothing_that_only_its_work_needs(command: str) -> None:
    assert not imported_modules(command, "--help") & {*HEAVY, "typing_extensions"}


def list_commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, ...]]:
    """The words of every command below a group, those of the lab too."""
    for name in group.list_commands(context):
        yield (name,)
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from ((name, *rest) for rest in list_commands(command, context))


COMMANDS = list(list_commands(tessera, click.Context(tessera)))


def test_the_labs_commands_are_among_them() -> None:
    assert {("map",), ("config", "check"), ("lab", "up"), ("driver", "status")} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_explains_itself(command: tuple[str, ...]) -> None:
    done = CliRunner().invoke(tessera, [*command, "--help"], prog_name="tessera")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: tessera {' '.join(command)} ")
    assert len(done.stdout.splitlines()) > 5
