"""The processes of the version before start with the arguments that the manifests of this version give.

Image and arguments may differ in version: ``kubectl set image`` changes the first only, as tests/e2e/test_skew.py does.
The live page, an option, is not among them.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.deploy.conftest import Installation
from tests.support.previous_version import unpack_previous


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_previous(tmp_path_factory.mktemp("previous"))


def refusal(code: Path, *arguments: str) -> str:
    """What the command line of the version before says against arguments; it reads all of them before ``--help``."""
    done = subprocess.run(
        [sys.executable, "-m", "tessera", *arguments, "--help"],
        env={**os.environ, "PYTHONPATH": str(code)},
        cwd=code,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr if done.returncode else ""


def command_lines(installation: Installation) -> Iterator[tuple[str, ...]]:
    for owner in installation.of_kind("Deployment", "DaemonSet"):
        for container in owner["spec"]["template"]["spec"]["containers"]:
            program, *command = container["command"]
            assert program == "tessera"
            yield (*command, *container["args"])


def test_the_version_before_knows_every_argument(installation: Installation, code: Path) -> None:
    refused = {line: said for line in command_lines(installation) if (said := refusal(code, *line))}
    assert not refused, "give a new setting by an environment variable: the version before ignores those"


def test_an_argument_that_the_version_before_does_not_know_would_be_seen(code: Path) -> None:
    assert "--later" in refusal(code, "agent", "--later=1")
