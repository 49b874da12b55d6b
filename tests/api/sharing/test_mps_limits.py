"""The number of MPS clients of a card, and the limits of each client."""

import pytest

from tessera.api.sharing.devices import SHARING_RULES, SharingKind
from tessera.api.sharing.profile import ClientShare, client_share


@pytest.mark.parametrize(
    ("capability", "most"), [((6, 1), 16), ((7, 0), 48), ((7, 5), 48), ((9, 0), 48), ((12, 0), 48)]
)
def test_the_number_of_clients_follows_from_compute_capability(capability: tuple[int, int], most: int) -> None:
    clients = SHARING_RULES[SharingKind.MPS].clients
    assert clients is not None
    assert clients.of(capability) == most


@pytest.mark.parametrize(
    ("memory", "replicas", "share"),
    [(40960, 4, ClientShare(10240, 25)), (15360, 3, ClientShare(5120, 33)), (81559, 48, ClientShare(1699, 2))],
)
def test_each_client_gets_an_equal_share(memory: int, replicas: int, share: ClientShare) -> None:
    assert client_share(memory, replicas) == share
