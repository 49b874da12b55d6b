"""A cluster around the slicer; see :mod:`tests.support.slicer_cluster`."""

import pytest
from tests.support.slicer_cluster import SlicerCluster


@pytest.fixture
def cluster() -> SlicerCluster:
    return SlicerCluster()


@pytest.fixture
def new_cluster() -> type[SlicerCluster]:
    return SlicerCluster
