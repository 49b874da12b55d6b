"""A lab in one process on virtual time, for tests of controllers, scheduler and nodes."""

from collections.abc import AsyncIterator

import pytest
from tests.support.control_plane_lab import ControlPlaneLab


@pytest.fixture
async def lab(virtual_time: None) -> AsyncIterator[ControlPlaneLab]:
    """A lab on virtual time; a part of it that was started and has failed fails the test."""
    made = ControlPlaneLab()
    yield made
    await made.end()
