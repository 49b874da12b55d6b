"""The command line as a whole: it starts with what it needs. What that costs in CPU is measured by bench/cli.py."""

import subprocess
import sys

import pytest

#: Each of these costs more than all that an overview or a help text needs.
HEAVY = {"aiohttp", "grpc", "cryptography", "prometheus_client", "uvloop", "yaml", "rich"}
SHOW = "import sys; from tessera.cli.main import main; main(sys.argv[1:]); print('\\n', *sys.modules, file=sys.stderr)"


def imported(*arguments: str) -> set[str]:
    """The top-level modules that one run has loaded at its end."""
    done = subprocess.run([sys.executable, "-c", SHOW, *arguments], check=True, capture_output=True, text=True)
    return {name.partition(".")[0] for name in done.stderr.split()}


@pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
def test_an_overview_loads_click_and_nothing_of_the_clusters(arguments: list[str]) -> None:
    assert not imported(*arguments) & {*HEAVY, "msgspec", "asyncio", "email"}


@pytest.mark.parametrize(
    "command",
    ["map", "why", "plan", "config", "install", "autoscaler", "lab", "controller", "webhook", "agent"],
)
def test_a_commands_help_loads_nothing_that_only_its_work_needs(command: str) -> None:
    assert not imported(command, "--help") & HEAVY
