"""The kubectl plugin carries no library of the cluster's processes."""

import asyncio
import subprocess
import sys

import pytest

from tessera.cli.base.process import run_process

#: Runs the command line in a Python that does not find a module.
WITHOUT = "import sys; sys.modules[sys.argv.pop(1)] = None; from tessera.cli.main import main; sys.exit(main())"


@pytest.mark.parametrize(("installed", "expected"), [(True, "uvloop"), (False, "asyncio")])
def test_a_process_runs_on_uvloop_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, installed: bool, expected: str
) -> None:
    if not installed:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    found = []

    async def body() -> None:
        found.append(type(asyncio.get_running_loop()).__module__.partition(".")[0])

    run_process(body())
    assert found == [expected]


def test_a_command_names_the_library_that_it_misses_and_where_it_runs() -> None:
    command = [sys.executable, "-c", WITHOUT, "msgspec", "config", "check", "-"]
    done = subprocess.run(command, input="version: v1\n", capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: this command needs the library msgspec, which this installation does not have"
    )
    assert done.stderr.rstrip().endswith(
        "run it from Tessera's image, or in a checkout of Tessera after: pip install ./"
    )


def test_a_missing_part_of_tessera_itself_is_no_missing_library() -> None:
    command = [sys.executable, "-c", WITHOUT, "tessera.cli.plan", "plan", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.rstrip().splitlines()[-1].startswith("ModuleNotFoundError: import of tessera.cli.plan halted")
