"""The assignment of devices to containers."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.kubelet.interfaces import ContainerDevices, Device
from tessera_lab.kubelet.devices.device_ledger import (
    DeviceAllocationError,
    DeviceHolding,
    DeviceLedger,
    PodUid,
    Reusable,
    copy_allocations,
    pod_resources,
    requested_devices,
)

MIG = "nvidia.com/mig-1g.5gb"
ONE, TWO = PodUid("one"), PodUid("two")


def ledger(*healthy: str, unhealthy: Sequence[str] = ()) -> DeviceLedger:
    made = DeviceLedger()
    made.set_devices(MIG, [*(Device(id=name) for name in healthy), *(Device(id=n, healthy=False) for n in unhealthy)])
    return made


def give(made: DeviceLedger, uid: PodUid, container: str, *devices: str) -> DeviceHolding:
    holding = DeviceHolding(container=container, resource=MIG, device_ids=devices)
    made.hold(uid, "default", str(uid), holding)
    return holding


def test_capacity_counts_all_devices_and_allocatable_the_healthy_ones() -> None:
    assert ledger("a", "b", unhealthy=["c"]).counts() == ({MIG: 3}, {MIG: 2})


def test_a_held_device_is_not_offered_to_another_pod() -> None:
    made = ledger("a", "b")
    give(made, ONE, "c", "a")
    assert made.choose(MIG, 1, ()).available == ("b",)
    made.release(ONE)
    assert made.choose(MIG, 1, ()).available == ("a", "b")


@pytest.mark.parametrize(
    ("made", "resource", "text"),
    [
        (ledger("a"), "other.com/x", "cannot allocate unregistered device other.com/x"),
        (ledger(), MIG, f"no healthy devices present; cannot allocate unhealthy devices {MIG}"),
        (
            ledger("a", unhealthy=["b"]),
            MIG,
            f"requested number of devices unavailable for {MIG}. Requested: 2, Available: 1",
        ),
    ],
)
def test_refusals_are_kubelets(made: DeviceLedger, resource: str, text: str) -> None:
    with pytest.raises(DeviceAllocationError) as refusal:
        made.choose(resource, 2, ())
    assert str(refusal.value) == text


def test_what_an_init_container_left_is_used_first() -> None:
    made = ledger("a", "b", "c")
    give(made, ONE, "init", "b")
    choice = made.choose(MIG, 2, {"b"})
    assert (choice.given, choice.available) == (("b",), ("a", "c"))


def test_what_an_init_container_left_is_used_again_also_when_it_is_no_longer_healthy() -> None:
    made = ledger("a", "b")
    give(made, ONE, "init", "a")
    made.set_devices(MIG, [Device(id="a", healthy=False), Device(id="b")])
    assert made.choose(MIG, 1, {"a"}).given == ("a",)


def test_devices_pass_from_init_containers_to_app_containers_but_not_from_sidecars() -> None:
    spec: dict[str, Any] = {
        "initContainers": [{"name": "init"}, {"name": "side", "restartPolicy": "Always"}],
        "containers": [{"name": "app"}],
    }
    made, reusable = ledger("a", "b"), Reusable()
    copy_allocations(spec, "init", reusable, [give(made, ONE, "init", "a", "b")])
    assert reusable == {MIG: {"a", "b"}}
    copy_allocations(spec, "side", reusable, [give(made, ONE, "side", "a")])
    assert reusable == {MIG: {"b"}}
    copy_allocations(spec, "app", reusable, [give(made, ONE, "app", "b")])
    assert reusable == {MIG: set()}


def test_an_ended_plugin_leaves_capacity_and_takes_allocatable() -> None:
    made = ledger("a", "b")
    made.note_plugin_end(MIG)
    assert made.counts() == ({MIG: 2}, {MIG: 0})
    made.forget(MIG)
    assert made.counts() == ({}, {})


def test_after_a_restart_holders_are_known_and_devices_are_not() -> None:
    made = ledger("a", "b")
    give(made, ONE, "c", "a")
    restarted = made.after_restart()
    assert restarted.counts() == ({MIG: 0}, {MIG: 0})
    assert restarted.holdings(ONE, "c") == made.holdings(ONE, "c")
    restarted.set_devices(MIG, [Device(id="a"), Device(id="b")])
    assert restarted.choose(MIG, 1, ()).available == ("b",)


def test_only_resources_of_plugins_are_kubelets() -> None:
    container = {"resources": {"limits": {MIG: "2", "cpu": "1", "example.com/patched": "3"}}}
    assert requested_devices(container, ledger("a")) == [(MIG, 2)]


def test_pod_resources_list_app_containers_and_sidecars() -> None:
    pod = {
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {
            "initContainers": [{"name": "init"}, {"name": "side", "restartPolicy": "Always"}],
            "containers": [{"name": "app"}],
        },
    }
    made = ledger("a")
    give(made, ONE, "app", "a")
    (listed,) = pod_resources([(pod, ONE)], made)
    assert (listed.namespace, listed.name) == ("ns", "p")
    assert [(each.name, each.devices) for each in listed.containers] == [
        ("side", ()),
        ("app", (ContainerDevices(resource_name=MIG, device_ids=("a",)),)),
    ]


@given(st.lists(st.tuples(st.sampled_from(["take", "free"]), st.sampled_from(["p1", "p2", "p3"])), max_size=30))
def test_no_device_ever_belongs_to_two_pods(steps: list[tuple[str, str]]) -> None:
    made = ledger("a", "b", "c", "d")
    for step, name in steps:
        uid = PodUid(name)
        if step == "free":
            made.release(uid)
            continue
        try:
            choice = made.choose(MIG, 2, ())
        except DeviceAllocationError:
            continue
        give(made, uid, "c", *choice.available[:2])
    held = [device for pod in made.pods() for holding in pod.holdings for device in holding.device_ids]
    assert len(held) == len(set(held))


def test_the_holders_of_devices_with_another_health_are_named_and_the_end_of_a_plugin_changes_none() -> None:
    made = ledger("a", "b", "c")
    give(made, ONE, "c", "a", "b")
    give(made, TWO, "c", "c")
    worse = [Device(id="a", healthy=False), Device(id="b"), Device(id="c")]
    assert made.set_devices(MIG, worse) == {ONE}
    assert made.set_devices(MIG, worse) == frozenset()
    assert made.health(ONE, "c") == {MIG: {"a": False, "b": True}}
    made.note_plugin_end(MIG)
    assert made.health(TWO, "c") == {MIG: {"c": True}}
    assert made.set_devices(MIG, []) == frozenset()
    assert made.health(ONE, "c") == {MIG: {"a": True, "b": True}}
    assert made.set_devices(MIG, worse) == {ONE, TWO}
