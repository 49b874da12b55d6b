"""Workloads of tenants: nothing in them stops the controller or costs it more than its limits."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kueue.test_check_decisions import Checks, spec, workload
from tests.support.cost import count_calls
from tests.support.slicer_cluster import SlicerCluster

from tessera.kueue.check_decisions import CHECKED_WORKLOADS
from tessera.kueue.objects import Workload, waiting_reason
from tessera.kueue.queued_workload import CHECKED_PODS, read_workload

QUANTITIES = st.sampled_from(["1", "-1", "1k", "0.5", "x", "", "9" * 80, "1e30", "0"])
RESOURCES = st.dictionaries(
    st.sampled_from(
        ["nvidia.com/mig-1g.5gb", "nvidia.com/mig-x", "nvidia.com/gpu", "cpu", "instaslice.redhat.com/mig"]
    ),
    QUANTITIES,
    max_size=3,
)
PODS = st.fixed_dictionaries(
    {
        "containers": st.lists(
            st.fixed_dictionaries(
                {"name": st.text(max_size=3), "resources": st.fixed_dictionaries({"limits": RESOURCES})}
            ),
            max_size=2,
        )
    }
)


@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), PODS), max_size=3), st.text(max_size=30), st.integers())
def test_any_workload_is_answered_or_left_alone(pod_sets: Any, created: str, priority: int) -> None:
    cluster = SlicerCluster()
    cluster.node("n")
    checks = Checks(cluster)
    checks.see(workload("a", *pod_sets, created=created, priority=priority))
    assert [state in {"Ready", "Pending", "Rejected"} for _, state, _ in checks.answers()] == [True]


@pytest.mark.parametrize("count", [-1, 0, 2**31 - 1])
def test_a_count_is_bounded(count: int) -> None:
    found = read_workload(workload("a", (count, spec("1g.5gb"))), {"packable": None}, {})
    assert found is not None
    assert len(found.pods) == max(0, min(count, CHECKED_PODS))


def test_workloads_beyond_the_limit_wait_and_cost_nothing() -> None:
    cluster = SlicerCluster()
    cluster.node("n")
    checks = Checks(cluster)
    for number in range(CHECKED_WORKLOADS + 10):
        checks.see(workload(f"w{number}", (1, spec("7g.40gb"))))
    assert len(checks.answers()) <= CHECKED_WORKLOADS
    checks.see(workload("late", (1, spec())))
    assert "late" not in [name for name, *_ in checks.answers(1.0)]


def test_a_huge_workload_costs_no_more_than_a_large_one() -> None:
    def cost(count: int) -> int:
        cluster = SlicerCluster()
        cluster.node("n", count=4)
        checks = Checks(cluster)
        checks.see(workload("a", (count, spec("1g.5gb"))))
        return count_calls(checks.answers)[0]

    assert cost(10**9) < 1.5 * cost(int(CHECKED_PODS))


@given(
    st.recursive(
        st.none() | st.text(max_size=5) | st.integers(),
        lambda each: st.lists(each) | st.dictionaries(st.text(max_size=8), each),
    )
)
def test_any_status_has_a_reason_or_is_no_workload(status: Any) -> None:
    try:
        item = msgspec.convert({"metadata": {"name": "w"}, "status": status}, Workload)
    except msgspec.ValidationError:
        return
    assert waiting_reason(item).case
