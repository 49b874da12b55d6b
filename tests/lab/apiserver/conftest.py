"""A server in this process, and a client that sends it JSON."""

from typing import Any

import pytest
from tests.support.api_user import ApiUser, ManualClock, config_map, pod

from tessera_lab.apiserver.main.server import ApiServer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> ApiServer:
    return ApiServer(clock)


@pytest.fixture
def api(server: ApiServer) -> ApiUser:
    return ApiUser(server)


@pytest.fixture
def make_pod() -> Any:
    return pod


@pytest.fixture
def make_map() -> Any:
    return config_map
