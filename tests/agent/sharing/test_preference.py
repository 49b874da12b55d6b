"""Preferred entries: joined cards, spread or packed shares, and always an answer."""

from tessera.agent.sharing.device_plugin import preferred_entries
from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource, SharingKind
from tessera.api.sharing.profile import AllocationPolicy
from tessera.kubelet.interfaces import PreferredRequest
from tessera.placement.topology import CardLink, PciPath, Topology

CARDS = [f"GPU-{number}" for number in range(4)]
#: 0 and 2 are joined by NVLink, and so are 1 and 3.
LINKED = Topology(
    CARDS, {(CARDS[0], CARDS[2]): CardLink(PciPath.SYS, 4), (CARDS[1], CARDS[3]): CardLink(PciPath.SYS, 4)}
)


def whole(*uuids: str) -> AdvertisedResource:
    devices = [AdvertisedDevice(id=each, uuid=each, gpu=each, index=str(number)) for number, each in enumerate(uuids)]
    return AdvertisedResource(name="nvidia.com/gpu", devices=tuple(devices))


def shared(uuids: list[str], replicas: int) -> AdvertisedResource:
    kind = SharingKind.TIME_SLICING
    devices = [
        AdvertisedDevice(id=f"{uuid}::{share}", uuid=uuid, gpu=uuid, index=str(number), replicas=replicas, kind=kind)
        for number, uuid in enumerate(uuids)
        for share in range(replicas)
    ]
    return AdvertisedResource(name="nvidia.com/gpu.shared", devices=tuple(devices))


def chosen(
    offered: AdvertisedResource,
    size: int,
    *,
    available: list[str] | None = None,
    must: tuple[str, ...] = (),
    refused: tuple[str, ...] = (),
    topology: Topology = LINKED,
    policy: AllocationPolicy = AllocationPolicy.DISTRIBUTED,
) -> tuple[str, ...]:
    free = tuple(each.id for each in offered.devices) if available is None else tuple(available)
    return preferred_entries(
        offered,
        PreferredRequest(available=free, must_include=must, size=size),
        refused=dict.fromkeys(refused, "why"),
        topology=topology,
        policy=policy,
    )


def test_whole_cards_go_by_their_links() -> None:
    assert chosen(whole(*CARDS), 2) == (CARDS[0], CARDS[2])
    assert chosen(whole(*CARDS), 2, must=(CARDS[3],)) == (CARDS[1], CARDS[3])


def test_a_card_that_must_not_be_given_is_not_preferred() -> None:
    assert chosen(whole(*CARDS), 2, refused=(CARDS[0],)) == (CARDS[1], CARDS[3])


def test_shares_are_spread_or_packed() -> None:
    offered = shared(CARDS[:2], 4)
    assert chosen(offered, 2) == ("GPU-0::0", "GPU-1::0")
    assert chosen(offered, 2, policy=AllocationPolicy.PACKED) == ("GPU-0::0", "GPU-0::1")


def test_a_resource_of_whole_cards_and_shares_goes_by_use() -> None:
    mixed = AdvertisedResource(
        name="nvidia.com/gpu", devices=(*whole(CARDS[0]).devices, *shared([CARDS[1]], 2).devices)
    )
    assert chosen(mixed, 1) == (CARDS[0],)
    assert chosen(mixed, 1, available=["GPU-1::0", "GPU-1::1"]) == ("GPU-1::0",)


def test_entries_of_an_older_list_are_taken_only_if_there_are_no_others() -> None:
    assert chosen(whole(*CARDS[:2]), 1, available=["GPU-9", CARDS[1]]) == (CARDS[1],)
    assert chosen(whole(*CARDS[:2]), 2, available=["GPU-9", CARDS[1]]) == (CARDS[1], "GPU-9")


def test_a_question_that_cannot_be_met_is_answered_with_what_there_is() -> None:
    assert chosen(shared(CARDS[:1], 2), 3) == ("GPU-0::0", "GPU-0::1")
    assert chosen(whole(CARDS[0]), 3) == (CARDS[0],)
