"""``tessera driver`` as a group: its help costs no more than click."""

import subprocess
import sys

import pytest

#: What asking a registry or a cluster needs, and telling about it does not.
HEAVY = {"aiohttp", "grpc", "cryptography", "prometheus_client", "uvloop", "yaml", "rich"}
SHOW = "import sys; from tessera.cli.main import main; main(sys.argv[1:]); print('\\n', *sys.modules, file=sys.stderr)"


def imported(*arguments: str) -> set[str]:
    """The top-level modules that one run has loaded at its end."""
    done = subprocess.run([sys.executable, "-c", SHOW, *arguments], check=True, capture_output=True, text=True)
    return {name.partition(".")[0] for name in done.stderr.split()}


def test_the_overview_loads_no_command() -> None:
    assert not imported("driver", "--help") & {*HEAVY, "msgspec", "asyncio"}


@pytest.mark.parametrize("command", ["images", "mirror"])
def test_a_commands_help_loads_nothing_that_only_its_work_needs(command: str) -> None:
    assert not imported("driver", command, "--help") & HEAVY
