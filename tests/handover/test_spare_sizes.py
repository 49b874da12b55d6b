"""How many spare slices a queue keeps with ``auto``: by arrivals, replacement times and the price of waiting."""

import math
import re
from dataclasses import replace

import pytest
from tests.handover.test_spares import SERVICE, gone, pod, run, spares
from tests.support.forecast_cluster import ForecastCluster
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.queues import read_queue
from tessera.cli.queue import Queues, lines_of
from tessera.controller.objects.pod_info import Workload
from tessera.explain.kueue_rows import KueueRows
from tessera.handover.spare_sizes import AUTO_MOST, SpareDemand, cheapest
from tessera.limits import SPARE_SLICES
from tessera.observe.queue_reading import QueueReading

HOUR, DAY = 3600.0, 86_400.0


def cost(number: int, load: float, waits: float, price: float) -> float:
    """Idle slices and waiting pods, by the definition of Erlang's loss formula."""
    weights = [load**each / math.factorial(each) for each in range(number + 1)]
    lost = weights[-1] / sum(weights)
    return number - load * (1 - lost) + price * lost * load * waits


@pytest.mark.parametrize("load", [0.0, 0.05, 0.4, 1.7, 5.0])
@pytest.mark.parametrize("waits", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("price", [1, 10, 100])
def test_the_number_is_the_cheapest(load: float, waits: float, price: int) -> None:
    """Seconds are counted in times for which a slice is missing."""
    costs = [cost(number, load, waits, price) for number in range(AUTO_MOST + 1)]
    assert costs[cheapest(load, 1.0, waits, price)] == pytest.approx(min(costs))


def test_the_number_is_bounded() -> None:
    assert cheapest(1e6, 1.0, 1.0, 1000) == AUTO_MOST


def test_a_rate_grows_at_once_and_shrinks_slowly() -> None:
    demand = SpareDemand()
    for each in (0.0, 60.0, 120.0):
        assert demand.note_pod("svc", each)
    assert [demand.rate(now) for now in (130.0, HOUR + 130, DAY + 130)] == [3.0, 3 / 24, 0.0]


def test_a_pod_in_the_place_of_one_that_ended_is_no_demand() -> None:
    demand = SpareDemand()
    demand.note_pod("svc", 0.0)
    for restart in range(1, 1000):
        demand.note_end("svc", 10.0 * restart)
        assert not demand.note_pod("svc", 10.0 * restart + 1)
    assert demand.rate(10_000.0) <= 1.0
    demand.note_end("svc", 10_000.0)
    assert demand.note_pod("other", 10_001.0), "it is of another owner"
    assert demand.note_pod("svc", 10_031.0), "too late"


def test_ends_are_forgotten_when_no_pod_can_take_their_place() -> None:
    """Thousands of owners may come and go in a second: each end looks at those that are forgotten alone."""
    demand = SpareDemand()
    for second in range(100):
        for owner in range(10):
            demand.note_end(f"{second}-{owner}", float(second))
    demand.note_end("69-0", 99.0)
    assert {name.partition("-")[0] for name in demand._ended} == {str(second) for second in range(69, 100)}
    assert not demand.note_pod("69-0", 99.5)
    demand.note_end("last", 1_000.0)
    assert list(demand._ended) == ["last"]


def test_a_queue_says_auto_and_a_price() -> None:
    found = read_queue({"metadata": {"name": "q"}, "spec": {"spare": {"3g.20gb": "auto", "1g.5gb": 2}}})
    assert (found.spare, found.auto, found.waiting_price) == ({"1g.5gb": 2}, frozenset({"3g.20gb"}), 10)
    spec = {"spare": {"3g.20gb": "some"}, "waitingPrice": 0}
    assert read_queue({"metadata": {"name": "q"}, "spec": spec}).faults == (
        "spec.spare is {'3g.20gb': 'some'}: write a number of slices by profile, or auto: {3g.20gb: 1}",
        "spec.waitingPrice is 0: write a whole number from 1 to 1,000",
    )


@pytest.fixture
def cluster() -> SlicerCluster:
    """Two full A100 cards, and a service that grows now and then."""
    made = SlicerCluster(reserve_after=60)
    made.pass_time(0)
    made.node("n1", count=2)
    made.queue("serving", spare={"3g.20gb": "auto"})
    made.workloads = {"svc": Workload("svc", 100, 1)}
    made.settle()
    return made


def wanted(cluster: SlicerCluster) -> tuple[int, str]:
    found: tuple[int, str] = cluster.slicer.state.ledger.reckoned["serving", "3g.20gb"]
    return found


def later(cluster: SlicerCluster, seconds: float) -> None:
    cluster.pass_time(seconds)
    cluster.settle()


def test_a_queue_without_services_keeps_none(cluster: SlicerCluster) -> None:
    assert wanted(cluster) == (0, "auto: no pod of a service came in a day")
    assert spares(cluster) == []


def test_a_queue_whose_pods_find_room_keeps_none(cluster: SlicerCluster) -> None:
    for number in range(3):
        run(cluster, pod(cluster, f"svc-1-{number}", "3g.20gb", **SERVICE))
        later(cluster, 61)
    assert wanted(cluster)[0] == 0
    assert wanted(cluster)[1].startswith("auto: 3 new pods of services an hour; on average, one without a spare slice")


def test_a_queue_whose_pods_wait_keeps_what_costs_least(cluster: SlicerCluster) -> None:
    batch = [run(cluster, pod(cluster, f"batch-{number}", "3g.20gb")) for number in range(4)]
    for number in range(3):
        waits = pod(cluster, f"svc-1-{number}", "3g.20gb", **SERVICE)
        later(cluster, 600)
        gone(cluster, batch.pop())
        assert cluster.where(waits)
        run(cluster, waits)
    later(cluster, 61)
    number, why = wanted(cluster)
    found = re.fullmatch(
        r"auto: 3 new pods of services an hour; on average, one without a spare slice waits (\d+) s, and a taken slice"
        r" is replaced after (\d+) s; a second of waiting costs 10 seconds of an idle slice",
        why,
    )
    assert found is not None, why
    assert number == cheapest(3 / HOUR, float(found[2]), float(found[1]), 10) >= 1
    later(cluster, DAY + HOUR)
    assert wanted(cluster)[0] == 0
    assert spares(cluster) == []


def test_a_pod_that_another_gate_holds_does_not_wait_for_a_slice(cluster: SlicerCluster) -> None:
    gated = pod(
        cluster, "svc-1-0", "3g.20gb", **SERVICE, gates=("team.example/gate", "instaslice.redhat.com/accelerator")
    )
    later(cluster, 600)
    cluster.put(replace(gated, gates=gated.gates[1:]))
    cluster.settle()
    later(cluster, 61)
    assert "waits 0 s" in wanted(cluster)[1]


def test_a_new_controller_knows_arrivals_by_the_pods_that_live(cluster: SlicerCluster) -> None:
    run(cluster, pod(cluster, "svc-1-0", "3g.20gb", **SERVICE))
    cluster.restart()
    later(cluster, 61)
    assert wanted(cluster) == (
        1,
        "auto: 1 new pods of services an hour; how long they wait is not known yet",
    )
    assert len(spares(cluster)) == 1


def test_all_profiles_of_a_queue_share_its_spare_slices() -> None:
    cluster = SlicerCluster()
    cluster.pass_time(0)
    profiles = ["1g.5gb", "2g.10gb", "3g.20gb"]
    cluster.queue("serving", spare={"7g.40gb": SPARE_SLICES - 10, **dict.fromkeys(profiles, "auto")})
    ledger = cluster.slicer.state.ledger
    for profile in profiles:
        ledger.reckon("serving", profile, AUTO_MOST, "auto")
    assert [ledger.reckoned["serving", each] for each in profiles] == [
        (AUTO_MOST, "auto"),
        (2, "auto; at most 64 slices of all profiles together"),
        (0, "auto; at most 64 slices of all profiles together"),
    ]
    ledger.reckon("serving", profiles[0], 0, "auto")
    ledger.reckon("serving", profiles[2], 5, "auto")
    assert sum(ledger.spares["serving"].values()) == SPARE_SLICES - 3


def test_a_number_that_a_person_sets_again_counts_at_once(cluster: SlicerCluster) -> None:
    cluster.queue("serving", spare={"3g.20gb": 2})
    cluster.settle()
    assert len(spares(cluster)) == 2
    assert cluster.slicer.state.ledger.reckoned == {}


def test_auto_has_its_number_at_once(cluster: SlicerCluster) -> None:
    """Without one, the queue said nothing of its spare slices for up to a minute."""
    later(cluster, 61)
    cluster.queue("serving", spare={"3g.20gb": 2, "1g.5gb": "auto"})
    cluster.settle()
    assert cluster.slicer.state.ledger.reckoned.keys() == {("serving", "1g.5gb")}
    cluster.queue("serving", spare={"3g.20gb": "auto"})
    cluster.settle()
    assert wanted(cluster) == (0, "auto: no pod of a service came in a day")


def test_the_queue_s_page_says_how_the_number_came() -> None:
    cluster = ForecastCluster()
    cluster.node("n1")
    cluster.queue("serving", spare={"3g.20gb": "auto"})
    cluster.pass_time(61)
    cluster.settle()
    shown = Queues(QueueReading(page=cluster.forecast()), KueueRows())
    assert list(lines_of(shown))[1:] == [
        "Kept spare for services of queue serving: 0 of 0 3g.20gb; auto: no pod of a service came in a day"
    ]
