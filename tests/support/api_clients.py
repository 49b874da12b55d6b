"""Clients of an API server in the same process."""

from tessera.clock import Clock
from tessera.kube.client import Client
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer

ADMINISTRATORS = "system:masters"


def in_process_client(server: ApiServer, clock: Clock, name: str, *groups: str) -> Client:
    """Returns a client for a user with this name, who is in the groups; the name is also its field manager."""
    return Client(InProcessTransport(server, UserInfo(name=name, groups=groups)), field_manager=name, clock=clock)
