"""Grants of shared cards: time slices, MPS, MIG devices, before and after a change of the profile."""

from collections.abc import Mapping
from typing import Any

import pytest

from tessera.agent.inventory.device_state import DeviceUser
from tessera.api.names import MEMORY_ENFORCEMENT_ANNOTATION, MEMORY_LIMIT_ANNOTATION, PodUid
from tessera.api.sharing.advertisement import make_advertisement
from tessera.api.sharing.devices import Advertisement, GpuDescription, MigDevice
from tessera.api.sharing.profile import MigStrategy
from tessera.api.sharing.profile_parser import parse_profile
from tessera.kube.resources import Pod, Uid
from tessera.kube.resources.meta import ObjectMeta
from tessera.memory_limits.monitor import (
    MIRROR_ANNOTATION,
    MemoryGrants,
    cgroup_uid,
    shared_devices,
)
from tessera.memory_limits.policy import MemoryGrant

GIB = 2**30
GPU, OTHER, MIG = "GPU-1", "GPU-2", "MIG-1"
A, B = PodUid("1c5e1e1f-0f3e-4a0b-9a2e-5d1b6c7d8e9f"), PodUid("2c5e1e1f-0f3e-4a0b-9a2e-5d1b6c7d8e9f")
HASH = "0123456789abcdef0123456789abcdef"


def offer(
    block: str = "timeSlicing", replicas: int = 4, devices: str = "all", name: str = "nvidia.com/gpu"
) -> Advertisement:
    """Two whole cards and one that is cut."""
    cut = (MigDevice(uuid=MIG, index=0, profile="1g.5gb", gi_id=7, ci_id=0),)
    cards = [
        GpuDescription(uuid=GPU, index=0, product="A100", compute_capability=(8, 0)),
        GpuDescription(uuid=OTHER, index=1, product="A100", compute_capability=(8, 0)),
        GpuDescription(
            uuid="GPU-3", index=2, product="A100", compute_capability=(8, 0), mig_enabled=True, mig_devices=cut
        ),
    ]
    entry = f"{{name: {name}, replicas: {replicas}, devices: {devices}}}"
    profile = parse_profile(f"version: v1\nsharing: {{{block}: {{resources: [{entry}]}}}}")
    return make_advertisement(cards, profile, MigStrategy.MIXED)


def pod(uid: PodUid = A, *, name: str = "a", deleted: bool = False, annotations: dict[str, str] | None = None) -> Pod:
    meta = ObjectMeta(
        name=name,
        namespace="team",
        uid=Uid(uid),
        annotations=annotations or {},
        deletion_timestamp="2026-01-01T00:00:00Z" if deleted else None,
    )
    return Pod(metadata=meta)


def annotated(key: str, value: str) -> Pod:
    return pod(annotations={key: value})


def holder(uid: PodUid, *ids: str, container: str = "c") -> DeviceUser:
    return DeviceUser(pod=uid, namespace="team", name="a", container=container, resource="nvidia.com/gpu", ids=ids)


def given(
    held: Mapping[str, tuple[DeviceUser, ...]],
    *,
    shared: Advertisement | None = None,
    totals: dict[str, int] | None = None,
    **more: Any,
) -> tuple[MemoryGrant, ...]:
    totals = totals or {GPU: 40 * GIB}
    return MemoryGrants().update(held, shared or offer(), totals, more.get("pods", (pod(), pod(B, name="b"))))


def limits(*held: DeviceUser, shared: Advertisement | None = None, total: int = 40 * GIB) -> dict[str, float]:
    """GiB by pod on one card."""
    granted = given({GPU: held}, shared=shared, totals={GPU: total})
    return {grant.name: grant.limits[GPU] / GIB for grant in granted}


def test_a_share_is_the_card_divided_by_its_replicas() -> None:
    assert limits(holder(A, f"{GPU}::0"), holder(B, f"{GPU}::3")) == {"a": 10, "b": 10}


def test_several_entries_are_several_shares_all_containers_together() -> None:
    assert limits(holder(A, f"{GPU}::0", f"{GPU}::1"), holder(A, f"{GPU}::2", container="d")) == {"a": 30}


def test_a_client_of_mps_has_the_limit_of_its_daemon_per_pod_and_not_per_process() -> None:
    (granted,) = given({GPU: (holder(A, f"{GPU}::0"),)}, shared=offer("mps", 3))
    assert granted.limits == {GPU: (40 * 1024 // 3) * 2**20}


def test_shares_of_a_mig_device_are_of_its_memory() -> None:
    sliced = offer(name="nvidia.com/mig-1g.5gb", replicas=2)
    assert list(shared_devices(sliced)) == [MIG]
    (granted,) = given({MIG: (holder(A, f"{MIG}::1"),)}, shared=sliced, totals={MIG: 5 * GIB})
    assert granted.limits == {MIG: 5 * GIB // 2}


def test_cards_that_are_not_shared_are_not_watched() -> None:
    assert list(shared_devices(offer(devices="[0]"))) == [GPU]


def test_a_pod_on_two_cards_has_a_limit_on_each() -> None:
    held = {GPU: (holder(A, f"{GPU}::0"),), OTHER: (holder(A, f"{OTHER}::0", f"{OTHER}::1"),)}
    (granted,) = given(held, totals={GPU: 40 * GIB, OTHER: 80 * GIB})
    assert granted.limits == {GPU: 10 * GIB, OTHER: 40 * GIB}


def test_a_pod_that_the_node_does_not_know_is_no_tenant() -> None:
    assert given({GPU: (holder(A, f"{GPU}::0"),)}, pods=()) == ()


def test_a_pod_that_held_the_whole_card_before_it_was_shared_is_not_limited() -> None:
    assert limits(holder(A, GPU)) == {"a": 40}


def test_another_profile_does_not_lower_the_limit_of_a_running_pod() -> None:
    grants, held, pods = MemoryGrants(), {GPU: (holder(A, f"{GPU}::0"),)}, (pod(), pod(B, name="b"))

    def now(shared: Advertisement, *more: DeviceUser) -> dict[str, float]:
        granted = grants.update({GPU: (*held[GPU], *more)}, shared, {GPU: 40 * GIB}, pods)
        return {grant.name: grant.limits[GPU] / GIB for grant in granted}

    assert now(offer(replicas=4)) == {"a": 10}
    assert now(offer(replicas=8), holder(B, f"{GPU}::7")) == {"a": 10, "b": 5}
    assert now(offer(replicas=2)) == {"a": 20}
    assert now(offer(devices="[1]")) == {"a": 20}, "its card is not shared any more"


def test_shares_of_pods_outlive_the_agent() -> None:
    before = MemoryGrants()
    held = {GPU: (holder(A, f"{GPU}::0"),)}
    before.update(held, offer(replicas=4), {GPU: 40 * GIB}, [pod()])
    (granted,) = MemoryGrants(before.shares).update(held, offer(replicas=8), {GPU: 40 * GIB}, [pod()])
    assert granted.limits == {GPU: 10 * GIB}


def test_a_pod_without_a_recorded_share_may_use_the_card() -> None:
    assert limits(holder(A, f"{GPU}::0"), shared=offer(devices="[1]")) == {"a": 40}


def test_the_share_of_a_pod_is_kept_while_its_card_cannot_be_read() -> None:
    grants, held = MemoryGrants(), {GPU: (holder(A, f"{GPU}::0"),)}
    grants.update(held, offer(replicas=4), {GPU: 40 * GIB}, [pod()])
    grants.update(held, offer(replicas=8), {}, [pod()])
    assert grants.shares == {GPU: {A: 10 * GIB}}
    grants.update({}, offer(replicas=8), {}, [])
    assert grants.shares == {GPU: {}}


@pytest.mark.parametrize(
    ("text", "limit"),
    [("8Gi", 8 * GIB), ("500M", 500_000_000), ("20Gi", 10 * GIB)],
)
def test_a_pod_may_be_held_to_less_but_not_to_more(text: str, limit: int) -> None:
    (granted,) = given({GPU: (holder(A, f"{GPU}::0"),)}, pods=[annotated(MEMORY_LIMIT_ANNOTATION, text)])
    assert granted.limits == {GPU: limit}


@pytest.mark.parametrize("text", ["much", "0", "-1Gi", ""])
def test_an_invalid_limit_is_ignored_with_its_reason(text: str) -> None:
    grants = MemoryGrants()
    held = {GPU: (holder(A, f"{GPU}::0"),)}
    (granted,) = grants.update(held, offer(), {GPU: 40 * GIB}, [annotated(MEMORY_LIMIT_ANNOTATION, text)])
    assert granted.limits == {GPU: 10 * GIB}
    assert grants.rejected_limits[A].startswith(f"annotation {MEMORY_LIMIT_ANNOTATION} is ignored: ")


@pytest.mark.parametrize(("text", "opted_out"), [("off", True), ("Off ", True), ("on", False), ("", False)])
def test_a_pod_may_opt_out_of_the_consequences(text: str, opted_out: bool) -> None:
    (granted,) = given({GPU: (holder(A, f"{GPU}::0"),)}, pods=[annotated(MEMORY_ENFORCEMENT_ANNOTATION, text)])
    assert granted.opted_out is opted_out


def test_a_pod_that_is_being_deleted_is_leaving() -> None:
    (granted,) = given({GPU: (holder(A, f"{GPU}::0"),)}, pods=[pod(deleted=True)])
    assert granted.leaving


def test_a_static_pod_is_known_by_the_hash_that_its_cgroups_carry() -> None:
    (granted,) = given({GPU: (holder(A, f"{GPU}::0"),)}, pods=[annotated(MIRROR_ANNOTATION, HASH)])
    assert granted.pod == HASH


def test_no_pod_passes_for_another_by_an_annotation() -> None:
    assert cgroup_uid(annotated(MIRROR_ANNOTATION, B)) == A
