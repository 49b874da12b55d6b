"""A lab of its own for each test module; see :mod:`tests.support.running_lab`."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import start_lab
from tests.support.running_lab import RunningLab

from tessera_lab.daemon.lab_folder import stop


@pytest.fixture(scope="module")
def lab_folder() -> Iterator[Path]:
    """A short path, for the sockets below it; what runs there afterwards is ended."""
    top = Path(tempfile.mkdtemp(prefix="tl-", dir="/tmp"))
    try:
        yield top / "lab"
    finally:
        stop(top / "lab")
        shutil.rmtree(top, ignore_errors=True)


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    """The arguments with which the module's lab starts; a module may override them."""
    return ["--nodes", "4xA100-40GB"]


@pytest.fixture(scope="module")
def cluster(lab_folder: Path, lab_arguments: list[str]) -> RunningLab:
    """The module's lab with Tessera installed and its nodes joined."""
    return RunningLab(start_lab(lab_folder, lab_arguments))
