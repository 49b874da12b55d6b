"""A machine of its own for programs of images, on virtual time."""

from pathlib import Path

import pytest
from tests.support.driver_machine import DriverMachine


@pytest.fixture
def machine(tmp_path: Path, virtual_time: None) -> DriverMachine:
    """A machine whose virtual time begins at 0."""
    return DriverMachine(tmp_path)
