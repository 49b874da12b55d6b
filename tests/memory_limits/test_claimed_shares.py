"""Shares of cards by ResourceClaims count for memory like those by limits."""

import msgspec
import pytest

from tessera.agent.inventory.card_ownership import CardShares
from tessera.agent.inventory.device_state import DeviceUser
from tessera.agent.inventory.sliceable_gpus import SliceableGpu, SliceableGpus, SlicePosition, claimed_geometry
from tessera.agent.slices.claimed_shares import add_offer, add_users
from tessera.api.names import PodUid
from tessera.api.sharing.devices import Advertisement, SharingKind
from tessera.kube.resources import Pod
from tessera.memory_limits.grants import MemoryGrants
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


def test_cards_that_claims_get_whole_or_cut_change_no_offer() -> None:
    (info,) = SimulatedMachine("1xA100-40GB", seed="n").devices()
    whole = SliceableGpus((SliceableGpu(info, claimed_geometry(info.name, info.memory_mib)),))
    offer = Advertisement(resources={})
    assert add_offer(offer, whole) is offer
