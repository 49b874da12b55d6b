"""Shares of cards by ResourceClaims count for memory like those by limits."""

import msgspec
import pytest

from tessera.agent.base.host import ProcessId
from tessera.agent.inventory.device_state import DeviceUser
from tessera.agent.inventory.gpu_inventory import CardShares
from tessera.agent.inventory.sliceable_gpus import SliceableGpu, SliceableGpus, SlicePosition, claimed_geometry
from tessera.api.names import PodUid
from tessera.api.sharing.devices import Advertisement, SharingKind
from tessera.kube.resources import Pod
from tessera.memory_limits.monitor import MemoryGrants, add_offer, add_users
from tessera.memory_limits.policy import CardUse, ProcessUse
from tessera.mig.names import CLAIMED_SHARE
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

GIB = 2**30
PODS = [
    msgspec.convert({"metadata": {"uid": f"uid-{name}", "name": name, "namespace": "team"}}, Pod) for name in ("a", "b")
]
HELD = [("a", 0), ("a", 1), ("b", 2), ("gone", 3)]


def cards(kind: SharingKind) -> SliceableGpus:
    (info,) = SimulatedMachine("1xA100-40GB", seed="n").devices()
    return SliceableGpus((SliceableGpu(info, claimed_geometry(info.name, info.memory_mib, 4), CardShares(kind, 4)),))


@pytest.mark.parametrize("kind", [SharingKind.TIME_SLICING, SharingKind.MPS])
def test_a_pod_may_use_the_part_of_memory_of_its_shares(kind: SharingKind) -> None:
    found = cards(kind)
    (card,) = found.gpus
    other = DeviceUser(pod=PodUid("uid-b"), namespace="team", name="b", container="c", resource="r", ids=("GPU-x::0",))
    held = [(PodUid(f"uid-{pod}"), SlicePosition(card.uuid, CLAIMED_SHARE, start)) for pod, start in HELD]
    users = add_users({"GPU-x": [other]}, [*held, (PodUid("uid-a"), SlicePosition("GPU-y", "1g.5gb", 0))], PODS)
    assert users.keys() == {"GPU-x", card.uuid}
    offer = add_offer(Advertisement(resources={}), found)
    grants = MemoryGrants().update(users, offer, {card.uuid: 40 * GIB}, PODS)
    assert {each.name: dict(each.limits) for each in grants} == {"a": {card.uuid: 20 * GIB}, "b": {card.uuid: 10 * GIB}}


@pytest.mark.parametrize(
    ("used", "limits"),
    [
        ({"a": 4, "b": 5}, {"a": 10, "b": 10, "c": 20}),
        ({"a": 6, "b": 9}, {"a": 4, "b": 6, "c": 20}),
        ({"a": 20, "b": 0}, {"a": 10, "b": 10, "c": 20}),
        ({"a": 1, "b": 1, "c": 25}, {"a": 10, "b": 10, "c": 20}),
    ],
)
def test_pods_of_one_claim_may_use_its_part_together(used: dict[str, int], limits: dict[str, int]) -> None:
    """A tenant with one share and many pods that use it gets no more of the card than by one pod."""
    found = cards(SharingKind.TIME_SLICING)
    (card,) = found.gpus
    pods = [
        msgspec.convert({"metadata": {"uid": f"uid-{name}", "name": name, "namespace": "team"}}, Pod) for name in "abc"
    ]
    held = [("a", 0), ("b", 0), ("c", 1), ("c", 2)]
    users = add_users({}, [(PodUid(f"uid-{pod}"), SlicePosition(card.uuid, CLAIMED_SHARE, n)) for pod, n in held], pods)
    grants = MemoryGrants()
    given = grants.update(users, add_offer(Advertisement(resources={}), found), {card.uuid: 40 * GIB}, pods)
    uses = tuple(
        ProcessUse(process=ProcessId(number, 1), bytes=size * GIB, pod=PodUid(f"uid-{name}"))
        for number, (name, size) in enumerate(used.items(), 1)
    )
    seen = CardUse(device=card.uuid, total=40 * GIB, used=sum(used.values()) * GIB, uses=uses)
    divided = grants.divide(given, users, [seen])
    assert {each.name: each.limits[card.uuid] // GIB for each in divided} == limits


def test_cards_that_claims_get_whole_or_cut_change_no_offer() -> None:
    (info,) = SimulatedMachine("1xA100-40GB", seed="n").devices()
    whole = SliceableGpus((SliceableGpu(info, claimed_geometry(info.name, info.memory_mib)),))
    offer = Advertisement(resources={})
    assert add_offer(offer, whole) is offer
