"""A world around the slicer; see :mod:`tests.support.slicer_world`."""

import pytest
from tests.support.slicer_world import SlicerWorld


@pytest.fixture
def world() -> SlicerWorld:
    return SlicerWorld()


@pytest.fixture
def new_world() -> type[SlicerWorld]:
    return SlicerWorld
