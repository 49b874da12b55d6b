"""A device plugin whose devices and answers a story decides."""

import pytest
from tests.support.kubelet_plugins import SlicePlugin


@pytest.fixture
def slices() -> type[SlicePlugin]:
    return SlicePlugin
