"""Rows of services: signals, queue and agents' pages joined; what one of them does not know is not known."""

from typing import Any

import pytest
from tests.observe.conftest import lease

from tessera.access.agent_pages import FleetUsage
from tessera.api.nodes.health import Finding
from tessera.api.nodes.usage import LeaseUsage, NodeUsage
from tessera.forecast.queue_page import ExpectedStart, QueuedPod, QueuePage
from tessera.observe.service_rows import SERVICE_ORDERS, ServiceRow, service_rows
from tessera.reasons.reason import OldPods, UpdateStep
from tessera.reasons.words import verdict, ways_out
from tessera.signals.page import JOULES, REQUESTS, ROOM, WAITING, Service, SignalsPage
from tessera.visibility import FULL, Redactor, Visibility

VLLM = "Deployment/vllm"
HOT = Finding(kind="throttled", text="its card is slow", advice="Ask.", window=600, lasts=1500)


def service(name: str = "vllm", **facts: Any) -> Service:
    given: dict[str, Any] = {"wanted": 2, "placed": 2, "ready": 2}
    return Service(namespace="team", kind="Deployment", name=name, **given | facts)


def held(pod: str, **facts: Any) -> LeaseUsage:
    given: dict[str, Any] = {"owner": VLLM, "share": 0.5, "busy": 0.4, "power": 100.0}
    return lease(pod, **given | facts)


def row(found: Service, *leases: LeaseUsage, queue: QueuePage | None = None) -> ServiceRow:
    pages = [NodeUsage(node=f"n{at}", leases=(each,)) for at, each in enumerate(leases, 1)]
    (made,) = service_rows(SignalsPage(services=(found,)), FleetUsage(nodes=tuple(pages)), queue)
    return made


def test_everything_that_is_known_of_a_service_stands_in_one_row() -> None:
    values = {REQUESTS: 12.345, WAITING: 3.0, ROOM: 5.0, JOULES: 16_200.4}
    found = row(
        service(values=values, wanted=3, waiting=("c",)),
        held("a", share=1.0, busy=0.2),
        held("b", share=0.5, busy=0.8, power=99.6, findings=(HOT,)),
        queue=QueuePage(pods=(QueuedPod(namespace="team", name="c", start=ExpectedStart(p50=601.0)),)),
    )
    assert (found.ready, found.wanted, found.requests, found.waiting, found.room) == (2, 3, 12.35, 3.0, 5)
    assert (found.starts, found.start, found.busy, found.power, found.joules) == (1, 660.0, 0.4, 200, 16_200)
    (finding,) = found.findings
    assert (finding.kind, finding.pods, finding.pod, finding.node) == ("throttled", 1, "b", "n2")
    assert finding.text == "throttled for 25m: its card is slow. Ask."


def test_a_service_wants_what_its_owner_states_and_its_pods_wait() -> None:
    short = row(service(stated=5, wanted=3, placed=2))
    assert (short.wanted, short.starts) == (5, 1)
    assert row(service(stated=0)).wanted == 0


def test_a_pod_of_which_no_agent_tells_makes_power_and_activity_unknown() -> None:
    found = row(service(placed=3), held("a"), held("b", findings=(HOT,)))
    assert (found.unknown, found.power, found.busy, len(found.findings)) == (1, None, None, 1)


def test_what_one_node_tells_makes_up_for_no_silent_one() -> None:
    """As a pod that is being deleted there, which counts no more; or a node that lies."""
    two = held("a"), held("ending")
    page = NodeUsage(node="n1", leases=two)
    signals = SignalsPage(services=(service(nodes={"n1": 1, "dead": 1}),))
    (found,) = service_rows(signals, FleetUsage(nodes=(page,)), None)
    assert (found.unknown, found.power) == (1, None)


def test_a_node_tells_nothing_of_pods_that_it_has_not() -> None:
    found = row(service(placed=1, nodes={"n1": 1}), held("a"), held("b", power=9e9, findings=(HOT,)))
    assert (found.unknown, found.power, found.findings) == (0, 100, ())


@pytest.mark.parametrize("missing", ["power", "busy"])
def test_one_pod_whose_value_is_not_measured_makes_the_sum_unknown(missing: str) -> None:
    found = row(service(), held("a"), held("b", **{missing: None}))
    assert (getattr(found, missing), found.unknown) == (None, 0)


def test_a_service_of_which_nothing_is_known_has_no_zeros() -> None:
    found = row(service(placed=0, ready=0))
    unknown = (found.requests, found.waiting, found.room, found.start, found.busy, found.power, found.joules)
    assert unknown == (None,) * 7
    assert found.starts == 2


def test_leases_of_another_owner_or_namespace_are_none_of_it() -> None:
    found = row(service(placed=1), held("a", namespace="other"), held("b", owner="StatefulSet/vllm"))
    assert (found.unknown, found.findings) == (1, ())


def test_a_thousand_replicas_have_one_finding_of_each_kind_with_the_evidence_of_the_longest() -> None:
    idle = [held(f"p{at}", state="idle", held=100.0 + at, evidence=f"no process for {at} min") for at in range(1000)]
    sick = held("sick", fault="its card needs a reset: XID 48")
    found = row(service(wanted=1001, placed=1001), *idle, sick)
    assert [(each.kind, each.pods, each.pod, each.text) for each in found.findings] == [
        ("idle", 1000, "p999", "idle: no process for 999 min"),
        ("card fault", 1, "sick", "its card needs a reset: XID 48"),
    ]


def test_a_card_of_two_containers_counts_its_pod_once() -> None:
    two = held("a", findings=(HOT,)), held("a", container="side", findings=(HOT,))
    found = row(service(placed=2), *two)
    assert (found.unknown, found.findings[0].pods) == (1, 1)


def test_services_of_unknown_load_come_last_in_each_order() -> None:
    known = row(service(values={REQUESTS: 0.0, WAITING: 0.0, JOULES: 1.0}), held("a"), held("b", findings=(HOT,)))
    for name, order in SERVICE_ORDERS.items():
        assert order(known) > order(row(service(placed=0))), name


def test_pods_of_which_no_agent_tells_count_as_findings_do() -> None:
    silent, idle = row(service(placed=9)), row(service(placed=1), held("a", state="idle"))
    assert SERVICE_ORDERS["findings"](silent) == 9 > SERVICE_ORDERS["findings"](idle) == 1


def waits(name: str, step: UpdateStep, *old: str, **facts: Any) -> QueuedPod:
    return QueuedPod(namespace="team", name=name, why=OldPods("team", "vllm", old, step, **facts))


def test_an_update_says_what_its_next_pod_waits_for_in_the_words_of_why() -> None:
    first = waits("new-1", UpdateStep.PULL, "team/a", since=500.0)
    rows = (waits("new-2", UpdateStep.FOLLOW, "team/a"), first, QueuedPod(namespace="team", name="other"))
    found = row(service(), held("a"), held("b"), queue=QueuePage(pods=rows)).update
    assert found is not None
    assert first.why is not None
    assert (found.new, found.old, found.node, found.since) == (("new-2", "new-1"), ("a",), "n1", 500.0)
    assert (found.step, found.text, found.stuck) == ("pull", f"pod new-1 {verdict(first.why)}", False)
    assert row(service("another"), queue=QueuePage(pods=rows)).update is None


def test_a_deadlock_has_its_ways_out_and_counts_as_a_finding() -> None:
    stays = waits("new-1", UpdateStep.STAY, "team/a")
    found = row(service(), held("a"), held("b"), queue=QueuePage(pods=(stays,)))
    assert found.update is not None
    assert (found.update.stuck, found.update.help) == (True, ways_out("team", "vllm"))
    assert SERVICE_ORDERS["findings"](found) == 1


def test_while_a_new_pod_starts_the_old_one_is_the_one_that_waits() -> None:
    back = waits("old-1", UpdateStep.BACK, "team/new-1")
    found = row(service(), held("a"), held("b"), queue=QueuePage(pods=(back,))).update
    assert found is not None
    assert (found.new, found.old) == (("new-1",), ("old-1",))


@pytest.mark.parametrize("step", UpdateStep)
def test_each_step_of_an_update_has_its_words(step: UpdateStep) -> None:
    found = row(service(), held("a"), held("b"), queue=QueuePage(pods=(waits("p", step),))).update
    assert found is not None
    assert found.state
    assert found.text


def test_a_service_is_for_those_who_may_see_the_pods_of_its_namespace() -> None:
    found = row(service(), held("a", findings=(HOT,)), held("b"))
    theirs, own = Visibility(namespaces=frozenset({"other"})), Visibility(namespaces=frozenset({"team"}))
    assert [each.shows(found) for each in (Visibility(), theirs, own, FULL)] == [False, False, True, True]
    shown = Redactor(b"k").redact(found, own)
    assert shown.findings[0].node.startswith("~")
    assert shown.findings[0].pod == "a"
