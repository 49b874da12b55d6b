"""A cluster's API server in this process, and its administrator."""

import pytest

from tessera.clock import SystemClock
from tessera.kube.client import Client
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer

ADMIN = UserInfo(name="admin", groups=("system:masters", "system:authenticated"))


class Place:
    """An API server that nobody else uses."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.server = ApiServer(self.clock)

    def client(self, name: str = "tessera-install", user: UserInfo = ADMIN) -> Client:
        return Client(InProcessTransport(self.server, user), field_manager=name, clock=self.clock)


@pytest.fixture
def place() -> Place:
    return Place()
