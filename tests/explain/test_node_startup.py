"""``tessera why node/NAME`` of a node on its way to usable cards. Plain objects."""

from typing import Any

import msgspec
from tests.explain.test_pods import OF_AGENTS
from tests.provisioning.conftest import T0, condition, driver, make_node, offering

from tessera.api.nodes.node_marks import PROVISIONED, DriverPhase, DriverStrategy
from tessera.explain.explanation import Explanation
from tessera.explain.nodes import explain_node
from tessera.explain.snapshot import ClusterView, Snapshot
from tessera.kube.resources import Pod
from tessera.provisioning.history import encode_record
from tessera.provisioning.milestones import PROVISIONING_ANNOTATION, Milestone, ProvisioningRecord
from tessera.provisioning.startup_deadline import EXTENDED

M = Milestone
READY = condition("Ready")
AGENT = msgspec.convert(
    {
        "metadata": {"name": "a", **OF_AGENTS},
        "spec": {"nodeName": "gpu-1"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    },
    Pod,
)


def record(strategy: str = "built", **at: float) -> ProvisioningRecord:
    moments = {M(name): T0 + seconds for name, seconds in at.items()}
    return ProvisioningRecord(node="gpu-1", uid="node-uid", strategy=strategy, at={M.REGISTERED: T0, **moments})


def history(*seconds: float) -> list[ProvisioningRecord]:
    return [
        ProvisioningRecord(
            node=f"h{n}", uid=f"h{n}", strategy="built", at={M.REGISTERED: 0, M.PULLED: 60, M.ALLOCATABLE: 60 + each}
        )
        for n, each in enumerate(seconds)
    ]


def asked(
    way: ProvisioningRecord | None, now: float, *, known: list[ProvisioningRecord] | None = None, **node: Any
) -> Explanation:
    kept = {PROVISIONING_ANNOTATION: encode_record(way)} if way is not None else {}
    told = {"conditions": (READY,), **node}
    told["annotations"] = {**kept, **told.get("annotations", {})}
    view = ClusterView(
        Snapshot(now=T0 + now, pods=[AGENT], nodes=[], history=known or [], forbidden=frozenset({"instaslices"}))
    )
    return explain_node(view, make_node(**told))


def test_the_phase_is_told_with_what_remains() -> None:
    way = record(ready=20, labelled=0, pulled=60)
    found = asked(way, 100, known=history(240, 260, 30), annotations=driver(reason="built on the node"))
    assert found.case == "starting-up"
    for fact in ("is starting up", "in phase driver for 40s", "building or loading its driver"):
        assert fact in found.verdict
    assert "driver (built) is starting: built on the node" in found.facts
    assert "until now: ready 20 s, pulled 40 s" in found.facts
    (rest,) = (each for each in found.facts if "as measured" in each)
    for fact in ("about 3m more", "on 3 nodes", "with the same driver strategy"):
        assert fact in rest
    assert any("app.kubernetes.io/name=tessera-driver" in each for each in found.help)


def test_a_node_that_takes_longer_than_any_other_is_told_so() -> None:
    found = asked(record(ready=20, labelled=0, pulled=60), 500, known=history(100))
    (slower,) = (each for each in found.facts if "slower" in each)
    for fact in ("already slower", "each of 1 node", "with the same driver strategy"):
        assert fact in slower


def test_without_others_nothing_is_expected() -> None:
    assert not any("more, as measured" in each for each in asked(record(), 5).facts)


def test_a_new_node_that_is_not_ready_is_on_its_way_not_down() -> None:
    found = asked(record(), 5, conditions=(condition("Ready", "False"),))
    assert found.verdict.startswith("is starting up, in phase ready for 5s")


def test_a_node_that_nobody_asks_a_driver_for_says_so() -> None:
    def reasons(way: Any, **told: Any) -> list[str]:
        """Returns the facts of why Tessera installs no driver."""
        return [each for each in asked(way, 600, **told).facts if "Tessera does not install its driver" in each]

    (reason,) = reasons(record(ready=20))
    for fact in ("no policy in force selects the node", "its host may have a driver"):
        assert fact in reason
    assert reasons(record(ready=20), annotations=driver()) == []
    assert reasons(record(ready=20, pulled=40)) == [], "others bring it"


def test_a_node_that_is_overdue_says_what_blocks_it() -> None:
    late = condition(PROVISIONED, "False", reason="DriverNotReady", message="900 s after it was registered")
    found = asked(record(ready=20, labelled=0, pulled=60), 7200, conditions=(READY, late))
    assert found.case == "overdue"
    for fact in ("has not come up in time", "(DriverNotReady)", "in phase driver for 119m"):
        assert fact in found.verdict
    assert found.facts[0] == "900 s after it was registered"


def test_a_node_that_waits_for_the_one_build_says_so_before_and_after_its_deadline_is_extended() -> None:
    reason = "Waits for the one build of registry.local/drivers/driver:525, Job tessera-system/driver-build-1."
    waits = driver(DriverStrategy.BLOCKED, phase=DriverPhase.WAITING, reason=reason)
    way = record(ready=20, labelled=0)
    facts = ("is starting up", "its driver waits for the same work as other nodes", "such as an image build")
    early = asked(way, 620, annotations=waits)
    assert early.case == "starting-up"
    for fact in (*facts, "in phase pulled for 10m"):
        assert fact in early.verdict
    assert f"driver waiting: {reason}" in early.facts
    text = "the deadline is stopped, and extended to 2027-01-15T08:55:00Z at most"
    extended = condition(PROVISIONED, "False", reason=EXTENDED, message=text)
    later = asked(way, 1220, annotations=waits, conditions=(READY, extended))
    assert later.case == "starting-up"
    for fact in (*facts, "in phase pulled for 20m"):
        assert fact in later.verdict
    assert later.facts[0] == text


def test_a_blocked_driver_says_why() -> None:
    """It is in the phase of the pull, and pulls nothing."""
    blocked = driver(DriverStrategy.BLOCKED, phase=DriverPhase.BLOCKED, reason="no image for 5.15.0-69-generic")
    found = asked(record(ready=20, labelled=0), 100, annotations=blocked)
    assert (found.case, found.verdict) == ("driver-blocked", "gets no driver from Tessera as things are")
    assert found.facts[0] == "driver blocked: no image for 5.15.0-69-generic"
    assert found.help[0].endswith("tessera driver status gpu-1 -v")


def test_a_node_that_stood_there_before_says_how_long_it_took_from_when_a_driver_was_asked_for() -> None:
    at = {M.LABELLED: T0 + 600, M.PULLED: T0 + 640, M.ALLOCATABLE: T0 + 695}
    way = ProvisioningRecord(node="gpu-1", uid="node-uid", asked=T0 + 600, at=at)
    found = asked(way, 900, annotations=offering(), allocatable={"nvidia.com/gpu": "1"})
    assert "came up 95 s after a driver was requested: pulled 40 s" in found.facts
    waiting = asked(ProvisioningRecord(node="gpu-1", uid="node-uid", asked=T0 + 600, at={M.LABELLED: T0 + 600}), 630)
    assert "in phase pulled for 30s" in waiting.verdict


def test_a_node_that_came_up_says_how_long_it_took() -> None:
    way = record(ready=20, labelled=0, pulled=60, driver=100, toolkit=105, validated=110, allocatable=115)
    told = (READY, condition("GpuSharingApplied", reason="NoProfile"))
    found = asked(way, 4000, conditions=told, annotations=offering(), allocatable={"nvidia.com/gpu": "1"})
    assert found.case == "as-configured"
    (duration,) = (each for each in found.facts if each.startswith("came up "))
    assert "115 s after it was registered" in duration
    assert duration.endswith(": ready 20 s, pulled 40 s, driver 40 s, toolkit 5 s, validated 5 s, allocatable 5 s")


def test_a_record_of_another_node_or_of_nothing_changes_no_answer() -> None:
    other = msgspec.structs.replace(record(), uid="another")
    assert asked(other, 5).case == asked(None, 5).case == "not-reported"
    assert asked(None, 5, annotations={PROVISIONING_ANNOTATION: "x"}).case == "not-reported"


def test_an_old_way_that_nobody_follows_any_more_changes_no_answer() -> None:
    assert asked(record(), 86400).case == "not-reported"


def test_a_node_that_was_there_at_once_has_no_phase_to_name() -> None:
    way = record(ready=0.2, labelled=0, pulled=0.3, driver=0.3, toolkit=0.3, validated=0.4, allocatable=0.6)
    told = (READY, condition("GpuSharingApplied", reason="NoProfile"))
    found = asked(way, 4000, conditions=told, annotations=offering(), allocatable={"nvidia.com/gpu": "1"})
    assert "came up 1 s after it was registered" in found.facts
