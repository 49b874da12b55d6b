"""Rows of cards and leases: what is not measured is absent, parts of a card sum up, owners are workloads."""

import msgspec
import pytest
from tests.observe.conftest import GIB, card, lease, mig_card

from tessera.api.nodes.usage import DeviceUsage, NodeUsage
from tessera.kube.resources import Pod
from tessera.observe.usage_rows import CARD_ORDERS, LEASE_ORDERS, card_rows, lease_rows


def device(uuid: str, share: float, **values: float) -> DeviceUsage:
    return DeviceUsage(uuid=uuid, profile="1g.10gb", share=share, values={"memory_total": 10 * GIB, **values})


def test_a_card_in_mig_mode_is_as_busy_as_its_devices_by_size() -> None:
    devices = device("MIG-1", 0.5, engine_active=0.8), device("MIG-2", 0.25, engine_active=0.4)
    (row,) = card_rows([NodeUsage(node="n", cards=(mig_card(*devices),))])
    assert row.busy == pytest.approx(0.5)


def test_activity_that_one_device_does_not_measure_is_unknown_for_the_card() -> None:
    devices = device("MIG-1", 0.5, engine_active=0.8), device("MIG-2", 0.25)
    (row,) = card_rows([NodeUsage(node="n", cards=(mig_card(*devices),))])
    assert row.busy is None


def test_parts_of_a_card_sum_up() -> None:
    leases = lease("a", share=0.25), lease("b", share=0.25), lease("b", share=0.25, container="side")
    (row,) = card_rows([NodeUsage(node="n", cards=(card(),), leases=leases)])
    assert (row.held, row.pods) == (0.75, 2)


def test_a_card_that_idles_is_not_throttled() -> None:
    idle = msgspec.structs.replace(card(), throttled=("gpu_idle", "sw_power_cap"))
    (row,) = card_rows([NodeUsage(node="n", cards=(idle,))])
    assert row.throttled == ("sw_power_cap",)


def test_a_lease_of_a_device_that_the_page_does_not_list_has_no_card() -> None:
    (row,) = lease_rows([NodeUsage(node="n", leases=(lease("a", "MIG-9"),))])
    assert (row.card, row.device_memory) == (None, None)


def test_values_that_are_not_measured_sort_last() -> None:
    cards = card_rows([NodeUsage(node="n", cards=(card(), card("GPU-2", 1, power=1.0), card("GPU-3", 2, power=9.0)))])
    assert [row.uuid for row in sorted(cards, key=CARD_ORDERS["power"], reverse=True)] == ["GPU-3", "GPU-2", "GPU-1"]
    leases = lease_rows([NodeUsage(node="n", leases=(lease("a"), lease("b", busy=0.0), lease("c", busy=0.5)))])
    assert [row.lease.pod for row in sorted(leases, key=LEASE_ORDERS["busy"], reverse=True)] == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("labels", "owner", "shown"),
    [
        ({}, None, ""),
        ({"pod-template-hash": "abc"}, ("ReplicaSet", "web-abc"), "Deployment/web"),
        ({}, ("ReplicaSet", "web-abc"), "ReplicaSet/web-abc"),
        ({}, ("Job", "train"), "Job/train"),
    ],
)
def test_the_owner_is_the_workload_that_a_user_made(
    labels: dict[str, str], owner: tuple[str, str] | None, shown: str
) -> None:
    references = (
        [{"apiVersion": "v1", "kind": owner[0], "name": owner[1], "uid": "u", "controller": True}] if owner else []
    )
    metadata = {"name": "a", "namespace": "team", "uid": "uid-a", "labels": labels, "ownerReferences": references}
    pod = msgspec.convert({"metadata": metadata}, Pod)
    assert pod.workload == shown
