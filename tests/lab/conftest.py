"""A lab in one process on virtual time, for stories about controllers, scheduler and nodes."""

from collections.abc import Awaitable, Callable

import pytest
from tests.support.control_plane_lab import ControlPlaneLab

from tessera_lab.simulation.virtual_time import run_virtual

Story = Callable[[ControlPlaneLab], Awaitable[None]]


@pytest.fixture
def in_lab() -> Callable[[Story], None]:
    """Runs a story on virtual time; fails if a part that was started has failed."""

    def run(story: Story) -> None:
        async def main() -> None:
            lab = ControlPlaneLab()
            try:
                await story(lab)
            finally:
                await lab.end()

        run_virtual(main())

    return run
