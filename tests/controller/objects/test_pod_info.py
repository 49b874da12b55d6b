"""API objects reduced to what decides."""

import msgspec
import pytest

from tessera.api.names import MIG_CONFIG_LABEL, MIG_CONFIG_STATE_LABEL, NodeName
from tessera.api.nodes.card_faults import CARDS_ANNOTATION, ListedCard, encode_cards
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, encode_offers
from tessera.controller.objects.node_info import NodeInfo, read_node
from tessera.controller.objects.pod_info import read_pod
from tessera.controller.objects.resource_amounts import allocated_amounts, pod_amounts, pod_limits
from tessera.kube.resources import (
    ComputeQuantities,
    ComputeRequests,
    Condition,
    Container,
    ContainerStatus,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    SchedulingGate,
)
from tessera.kube.resources.meta import Uid


def container(restart: str = "", limits: dict[str, str] | None = None, **requests: str) -> Container:
    return Container(
        name="c", restart_policy=restart, resources=ResourceRequirements(limits=limits or {}, requests=requests)
    )


@pytest.mark.parametrize(
    ("spec", "amounts"),
    [
        (PodSpec(containers=(container(cpu="250m", memory="1Gi"),)), {"cpu": 250, "memory": 2**30, "pods": 1}),
        (PodSpec(containers=(container(cpu="1"), container(cpu="0.5"))), {"cpu": 1500, "pods": 1}),
        (PodSpec(containers=(container(limits={"cpu": "2"}),)), {"cpu": 2000, "pods": 1}),
        (PodSpec(containers=(container(cpu="1"),), init_containers=(container(cpu="3"),)), {"cpu": 3000, "pods": 1}),
        (
            PodSpec(containers=(container(cpu="1"),), init_containers=(container("Always", cpu="1"),)),
            {"cpu": 2000, "pods": 1},
        ),
        (
            PodSpec(
                containers=(container(cpu="1"),), init_containers=(container("Always", cpu="1"), container(cpu="3"))
            ),
            {"cpu": 4000, "pods": 1},
        ),
        (PodSpec(containers=(container(cpu="1"),), overhead={"cpu": "100m"}), {"cpu": 1100, "pods": 1}),
        (
            PodSpec(containers=(container(cpu="1"),), resources=ResourceRequirements(requests={"cpu": "4"})),
            {"cpu": 4000, "pods": 1},
        ),
        (
            PodSpec(containers=(container(limits={"nvidia.com/mig-1g.5gb": "1", "example.com/nic": "1"}),)),
            {"nvidia.com/mig-1g.5gb": 1, "example.com/nic": 1, "pods": 1},
        ),
    ],
)
def test_what_a_pod_holds_on_its_node(spec: PodSpec, amounts: dict[str, int]) -> None:
    assert pod_amounts(Pod(spec=spec)) == amounts
    assert allocated_amounts(Pod(spec=spec)) == amounts


def test_a_pods_limits_are_those_of_its_containers_or_its_own() -> None:
    own = ResourceRequirements(limits={"cpu": "500m", "memory": "1Gi"}, requests={"cpu": "100m"})
    spec = PodSpec(containers=(Container(resources=own), Container(resources=own)), overhead={"cpu": "250m", "x": "1"})
    assert pod_limits(Pod(spec=spec)) == {"cpu": 1250, "memory": 2 << 30}
    whole = msgspec.structs.replace(spec, resources=ResourceRequirements(limits={"cpu": "4"}))
    assert pod_limits(Pod(spec=whole)) == {"cpu": 4250, "memory": 2 << 30}


def state_of(name: str = "c", allocated: str = "", actual: str = "") -> ContainerStatus:
    """What kubelet reports of a container's CPU."""
    return ContainerStatus(
        name=name,
        allocated_resources=ComputeQuantities(cpu=allocated) if allocated else None,
        resources=ComputeRequests(requests=ComputeQuantities(cpu=actual)) if actual else None,
    )


def pending(reason: str) -> tuple[Condition, ...]:
    return (Condition(type="PodResizePending", status="True", reason=reason),) if reason else ()


@pytest.mark.parametrize(
    ("asked", "reported", "reason", "counted", "present"),
    [
        ("2", ("2", "2"), "", 2000, 2000),
        ("100000", ("1", ""), "Infeasible", 1000, 1000),
        ("100000", ("1", "3"), "Infeasible", 3000, 3000),  # an earlier resize to less is not in force yet
        ("100000", ("", "1"), "Infeasible", 1000, 1000),
        ("8", ("1", "1"), "Deferred", 8000, 1000),
        ("8", ("8", "1"), "", 8000, 8000),
        ("1", ("8", "8"), "Deferred", 8000, 8000),
        ("1", ("1", "8"), "", 8000, 8000),
        ("8", ("", ""), "Infeasible", 8000, 8000),  # kubelet reports no amounts
    ],
)
def test_a_resize_counts_as_in_the_scheduler(
    asked: str, reported: tuple[str, str], reason: str, counted: int, present: int
) -> None:
    """k8s.io/component-helpers/resource: PodRequests with UseStatusResources. Reported: allocated, in force."""
    spec = PodSpec(containers=(container(cpu=asked, memory="1Gi", limits={"nvidia.com/gpu": "1"}),))
    status = PodStatus(conditions=pending(reason), container_statuses=(state_of("c", *reported),))
    pod = Pod(spec=spec, status=status)
    memory = 2**30 if not any(reported) or reason != "Infeasible" else 0
    others = {"memory": memory, "nvidia.com/gpu": 1, "pods": 1}
    assert pod_amounts(pod) == {name: value for name, value in {"cpu": counted, **others}.items() if value}
    assert allocated_amounts(pod)["cpu"] == present


@pytest.mark.parametrize(
    ("allocated", "reason", "cpu"),
    [("1100m", "Infeasible", 1100), ("1100m", "Deferred", 100_100), ("", "Infeasible", 100_100)],
)
def test_a_resize_of_a_pods_own_resources_counts_as_in_the_scheduler(allocated: str, reason: str, cpu: int) -> None:
    """What kubelet reports includes the overhead."""
    own = ResourceRequirements(requests={"cpu": "100"})
    spec = PodSpec(containers=(container(),), resources=own, overhead={"cpu": "100m"})
    amounts = ComputeQuantities(cpu=allocated) if allocated else None
    assert pod_amounts(Pod(spec=spec, status=PodStatus(conditions=pending(reason), allocated_resources=amounts))) == {
        "cpu": cpu,
        "pods": 1,
    }


def test_a_sidecar_that_is_resized_counts_beside_the_containers() -> None:
    sidecar = Container(name="s", restart_policy="Always", resources=ResourceRequirements(requests={"cpu": "100000"}))
    status = PodStatus(
        conditions=pending("Infeasible"),
        init_container_statuses=(state_of("s", "1"),),
        container_statuses=(state_of("c", "2"),),
    )
    pod = Pod(spec=PodSpec(init_containers=(sidecar,), containers=(container(cpu="2"),)), status=status)
    assert pod_amounts(pod) == {"cpu": 3000, "pods": 1}


def test_only_a_pod_with_cards_keeps_what_it_has_apart_from_what_it_asks_for() -> None:
    status = PodStatus(conditions=pending("Deferred"), container_statuses=(state_of("c", "1"),))
    cards = [container(cpu="8"), container(cpu="8", limits={"nvidia.com/gpu": "1"})]
    found = [read_pod(Pod(spec=PodSpec(node_name="n", containers=(each,)), status=status)) for each in cards]
    assert [each.allocated for each in found] == [None, {"cpu": 1000, "nvidia.com/gpu": 1, "pods": 1}]


def test_a_pod_that_asks_for_slices() -> None:
    found = read_pod(
        Pod(
            metadata=ObjectMeta(name="p", namespace="ns", resource_version="7"),
            spec=PodSpec(
                containers=(container(limits={"nvidia.com/mig-1g.5gb": "2"}),),
                scheduling_gates=(SchedulingGate(name="instaslice.redhat.com/accelerator"),),
                node_selector={"kubernetes.io/hostname": "h"},
            ),
        )
    )
    assert (found.profiles, found.ready_to_place, found.hostname, found.version) == (("1g.5gb", "1g.5gb"), True, "h", 7)


def test_a_broken_quantity_stops_the_pod_and_nothing_else() -> None:
    found = read_pod(Pod(spec=PodSpec(containers=(container(cpu="much"),))))
    assert "much" in found.fault
    assert not found.ready_to_place


@pytest.mark.parametrize(
    ("seconds", "grace", "deadline"),
    [(None, 1_000_000, None), (60, None, 90.0), (60, 0, 60.0), (60, -1, 60.0), (60, 1_000_000, 1_000_060.0)],
)
def test_a_deadline_includes_the_grace_period_in_which_a_pod_may_hold_its_slices(
    seconds: int | None, grace: int | None, deadline: float | None
) -> None:
    sliced = container(limits={"nvidia.com/mig-1g.5gb": "1"})
    spec = PodSpec(containers=(sliced,), active_deadline_seconds=seconds, termination_grace_period_seconds=grace)
    assert read_pod(Pod(spec=spec)).deadline == deadline


def test_a_pod_in_its_last_phase_is_finished() -> None:
    assert read_pod(Pod(status=PodStatus(phase="Failed"))).finished
    assert not read_pod(Pod(status=PodStatus(phase="Running"))).finished


def test_a_node_without_hostname_label_goes_by_its_name() -> None:
    assert read_node(Node(metadata=ObjectMeta(name="n"))).hostname == "n"


def test_a_node_is_ready_when_it_says_so() -> None:
    ready = NodeStatus(conditions=(Condition(type="Ready", status="True"),))
    unknown = NodeStatus(conditions=(Condition(type="Ready", status="Unknown"),))
    assert [read_node(Node(status=status)).ready for status in (ready, unknown, NodeStatus())] == [True, False, False]


@pytest.mark.parametrize(
    ("labels", "may"),
    [
        ({}, False),
        ({"nvidia.com/mig.config": "dynamic"}, True),
        ({"nvidia.com/mig.config": "dynamic-half"}, True),
        ({"nvidia.com/mig.config": "dynamics"}, False),
        ({"nvidia.com/mig.config": "all-disabled", "nvidia.com/mig.config.state": "success"}, False),
        ({"nvidia.com/mig.config": "no-such-layout", "nvidia.com/mig.config.state": "failed"}, True),
    ],
)
def test_a_node_may_have_cards_on_demand_by_its_layout_or_when_another_one_failed(
    labels: dict[str, str], may: bool
) -> None:
    assert NodeInfo(name=NodeName("n"), hostname="n", labels=labels).offers_on_demand is may


def offer(kind: OfferKind, resource: str = "nvidia.com/mig-1g.5gb") -> NodeOffer:
    return NodeOffer(
        resource=resource,
        kind=kind,
        product="NVIDIA A100-SXM4-40GB",
        card_memory_mib=40960,
        memory_mib=4864,
        compute_capability="8.0",
        count=7,
        profile="1g.5gb",
    )


@pytest.mark.parametrize(
    ("told", "fixed"),
    [
        (None, {"1g.5gb"}),  # somebody else's device plugin
        (encode_offers([offer(OfferKind.SLICE)]), {"1g.5gb"}),
        (encode_offers([offer(OfferKind.SHARE)]), {"1g.5gb"}),
        (encode_offers([offer(OfferKind.DYNAMIC_SLICE)]), set()),  # it has just left, kubelet counts them still
        (encode_offers([offer(OfferKind.WHOLE, "nvidia.com/gpu")]), set()),  # the same, a moment later
        ("[{", {"1g.5gb"}),
    ],
)
def test_slices_that_are_no_longer_made_on_demand_are_no_fixed_ones(told: str | None, fixed: set[str]) -> None:
    annotations = {} if told is None else {OFFERS_ANNOTATION: told}
    meta = ObjectMeta(name="n", labels={MIG_CONFIG_LABEL: "all-disabled"}, annotations=annotations)
    status = NodeStatus(allocatable={"nvidia.com/mig-1g.5gb": "7", "nvidia.com/mig-2g.10gb": "0"})
    assert read_node(Node(metadata=meta, status=status)).fixed_profiles == fixed


@pytest.mark.parametrize(
    ("layout", "state", "told", "expected"),
    [
        ("", "", None, False),
        ("", "", encode_offers([offer(OfferKind.DYNAMIC_SLICE)]), True),  # the cluster's default layout
        ("dynamic", "", None, True),
        ("dynamic-half", "", "[{", True),
        ("dynamic", "pending", encode_offers([offer(OfferKind.SLICE)]), True),
        ("dynamic", "success", encode_offers([offer(OfferKind.WHOLE, "nvidia.com/gpu")]), False),  # no card can be cut
        ("all-1g.5gb", "", None, False),
    ],
)
def test_whether_an_object_will_list_the_cards_of_a_node(
    layout: str, state: str, told: str | None, expected: bool
) -> None:
    labels = {name: value for name, value in ((MIG_CONFIG_LABEL, layout), (MIG_CONFIG_STATE_LABEL, state)) if value}
    annotations = {} if told is None else {OFFERS_ANNOTATION: told}
    found = read_node(Node(metadata=ObjectMeta(name="n", labels=labels, annotations=annotations)))
    assert found.object_expected is expected


@pytest.mark.parametrize(
    ("kinds", "count"),
    [
        ([OfferKind.DYNAMIC_SLICE], 4),
        ([OfferKind.DYNAMIC_SLICE, OfferKind.WHOLE], 0),  # nobody says how many of them are whole
        ([], 0),
    ],
)
def test_a_node_whose_cards_are_all_cut_on_demand_says_how_many_it_has(kinds: list[OfferKind], count: int) -> None:
    annotations = {
        OFFERS_ANNOTATION: encode_offers(map(offer, kinds)),
        CARDS_ANNOTATION: encode_cards([ListedCard(at, f"GPU-{at}") for at in range(4)], ()),
    }
    assert read_node(Node(metadata=ObjectMeta(name="n", annotations=annotations))).sliced_cards == count


@pytest.mark.parametrize(
    ("scheduler", "condition", "message"),
    [
        ("", None, ""),
        ("default-scheduler", ("False", "SchedulingGated"), ""),  # kube-scheduler may be down
        ("none", None, "no answer from scheduler none"),
        ("none", ("False", "SchedulingGated"), "no answer from scheduler none"),
        ("none", ("True", ""), ""),
        ("none", ("False", "Unschedulable"), "no room"),
        ("default-scheduler", ("False", "Unschedulable"), "no room"),
        ("default-scheduler", ("False", "SchedulerError"), "no room"),  # a volume that is not made in time
        ("default-scheduler", ("True", ""), ""),
    ],
)
def test_a_scheduler_that_nobody_runs_counts_as_a_refusal(
    scheduler: str, condition: tuple[str, str] | None, message: str
) -> None:
    conditions = (
        (Condition(type="PodScheduled", status=condition[0], reason=condition[1], message="no room"),)
        if condition
        else ()
    )
    pod = Pod(spec=PodSpec(scheduler_name=scheduler), status=PodStatus(phase="Pending", conditions=conditions))
    assert read_pod(pod).unschedulable_message == message
    bound = Pod(spec=PodSpec(scheduler_name=scheduler, node_name="n1"), status=pod.status)
    assert read_pod(bound).unschedulable_message == ""


@pytest.mark.parametrize(
    ("annotation", "resource", "pinned"),
    [
        ("u1", "nvidia.com/gpu", True),
        ("u1", "nvidia.com/gpu.shared", True),
        ("u2", "nvidia.com/gpu", False),
        ("", "nvidia.com/gpu", False),
        ("u1", "nvidia.com/mig-1g.5gb", False),
    ],
)
def test_a_pod_is_pinned_by_tessera_if_its_mark_is_its_own_uid(annotation: str, resource: str, pinned: bool) -> None:
    meta = ObjectMeta(name="p", uid=Uid("u1"), annotations={"tessera.dev/pinned": annotation})
    limits = {resource: "1"}
    assert read_pod(Pod(metadata=meta, spec=PodSpec(containers=(container(limits=limits, **limits),)))).pinned is pinned
