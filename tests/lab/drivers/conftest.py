"""A machine of its own for programs of images, on virtual time."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.driver_machine import DriverMachine

from tessera_lab.simulation.virtual_time import run_virtual


@pytest.fixture
def on_stage(tmp_path: Path) -> Callable[[Callable[[DriverMachine], Awaitable[None]]], None]:
    """Runs a story on virtual time that begins at 0."""

    def play(story: Callable[[DriverMachine], Awaitable[None]]) -> None:
        async def main() -> None:
            await story(DriverMachine(tmp_path))

        run_virtual(main())

    return play
