"""Every branch of ``tessera why`` about pods is walked: its sentence has a next step, and claims no untested cause."""

import ast
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.explain.test_fixed_resources import node as fixed_node
from tests.explain.test_foreign_pods import ROWS, SUSPENDED, answer_of, with_gpus
from tests.explain.test_pods import (
    NOW,
    agent,
    agents_of,
    answer,
    bound,
    cards,
    event,
    lease,
    node,
    pod,
    row_of,
    said,
    workload,
)
from tests.explain.test_rollouts import HELD, WHOLE, deployment, new, old
from tests.reasons.test_words import WORDS

from tessera import explain
from tessera.api.queues import Queue, Share
from tessera.explain.explanation import Explanation
from tessera.explain.pod_health import NO_ROOM
from tessera.explain.rollouts import WAITS
from tessera.explain.snapshot import ClusterView, OrderObjects, Snapshot
from tessera.explain.workloads import WorkloadState, explain_workload
from tessera.forecast.queue_page import QueuePage
from tessera.kube.resources import Condition, Pod
from tessera.reasons.reason import GangNoRoom, NeverFits, NoNode, UnknownProfile

LOST_KIND = UnknownProfile("3g.20gb", missing_kind="instaslices.example.com")
GANG: dict[str, Any] = {"labels": {"tessera.dev/gang": "g"}, "annotations": {"tessera.dev/gang-size": "2"}}
LIMIT = {"nvidia.com/gpu": "1"}
DEVICE_POLICY = "ValidatingAdmissionPolicy 'tessera-device-access' denied request: it chooses its GPUs itself"


def made(who: Pod, *others: Pod, record: str = "created", **seen: Any) -> Callable[[], Explanation]:
    """The answer about a pod whose slice is recorded."""
    held = [cards((who.metadata.name, "3g.20gb", 0, 4, record))]
    return lambda: answer(who, *others, **{"instaslices": held, **seen})


def told(who: Pod, *others: Pod, **seen: Any) -> Callable[[], Explanation]:
    return lambda: answer(who, *others, **seen)


def uncreated(message: str) -> Callable[[], Explanation]:
    """The answer about a workload whose pods the API server refuses."""
    failure = Condition(type="ReplicaFailure", status="True", message=message)
    view = ClusterView(Snapshot(now=NOW, nodes=[node()], pods=agents_of([node()]), leases=[lease()]))
    return lambda: explain_workload(view, workload(1, conditions=(failure,))).answers[0]


def suspended() -> Explanation:
    return explain_workload(ClusterView(Snapshot(now=NOW)), WorkloadState(**SUSPENDED)).answers[0]


STUCK = {"containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
REJECTED = {"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough resource: cpu"}
CONDITION = {"type": "tessera.dev/SlicePromised", "status": "False", "reason": "Reserved", "message": "Reserved"}
RESERVED = {"conditions": [CONDITION]}
QUEUED = OrderObjects(queues=[Queue(name="team", maximum=Share(1), namespaces=frozenset({"team"}))])

ANSWERS: Mapping[str, Callable[[], Explanation]] = {
    **{f"{row.case}: {name}": partial(answer_of, row) for name, row in ROWS.items()},
    "bad-request": told(pod(limits={"nvidia.com/mig-1g.5gb": "0.5"})),
    "finished": told(pod(gates=(), status={"phase": "Succeeded"})),
    "failed": told(pod(gates=(), status={"phase": "Failed", "reason": "Evicted"})),
    "rejected": told(bound(status=REJECTED)),
    "leaving: without a node": told(pod(deletionTimestamp="2026-11-29T00:00:00Z", finalizers=["a/b"])),
    "leaving": made(bound(deletionTimestamp="2026-11-29T00:00:00Z")),
    "held": told(pod(profile="")),
    "held: few rights": told(pod(), nodes=[], forbidden=frozenset({"nodes"})),
    "unscheduled: few rights": told(pod(gates=()), nodes=[], forbidden=frozenset({"nodes"})),
    "starting: few rights": told(bound(), nodes=[], forbidden=frozenset({"nodes"})),
    "no-controller": told(pod(), leases=[]),
    "no-such-profile": told(pod(profile="3g.20g")),
    "never-fits: slices": told(pod(limits={"nvidia.com/mig-7g.40gb": "1"})),
    "never-fits: cards": told(pod(profile="", limits={"nvidia.com/gpu": "9"}), nodes=[fixed_node(gives=LIMIT)]),
    "never-fits: CPU": told(pod(limits={"cpu": "400"})),
    "no-node": told(pod(), nodes=[node(unschedulable=True)]),
    "no-card-reported: no node joined": told(pod(), nodes=[node(labels={})], instaslices=[]),
    "kind-missing": told(pod(), page=QueuePage(leads=True, pods=(row_of("a", why=LOST_KIND),))),
    "no-card-reported": told(pod(), agent(), instaslices=[]),
    "never-fits: a queue": told(pod(), order=QUEUED),
    "full": told(pod(), bound("b", WHOLE), instaslices=[cards(("b", WHOLE, 0, 8, "created"))]),
    "fragmented": told(
        pod(),
        bound("b", "1g.5gb"),
        bound("c", "1g.5gb"),
        instaslices=[cards(("b", "1g.5gb", 2, 1, "created"), ("c", "1g.5gb", 5, 1, "created"))],
    ),
    "gang-incomplete": told(pod(**GANG)),
    "never-fits: a gang": told(pod("a", WHOLE, **GANG), pod("b", WHOLE, **GANG), nodes=[node()], instaslices=[cards()]),
    "gang-no-room": told(
        pod("a", **GANG),
        pod("b", **GANG),
        bound("c"),
        instaslices=[cards(("c", "3g.20gb", 0, 4, "created"))],
    ),
    "reserved": told(
        pod(profile="", limits=LIMIT, status=RESERVED), nodes=[with_gpus(gives={**LIMIT, "pods": "9"})], instaslices=[]
    ),
    "other-gate": told(pod(gates=("example.com/hold",))),
    "placing": told(pod()),
    "placing: no record": told(bound()),
    "no-record": told(bound(), bound("old", WHOLE), instaslices=[cards(("old", WHOLE, 0, 8, "created"))]),
    "not-gated": told(pod(gates=())),
    "unscheduled": made(pod(gates=())),
    "other-scheduler: promised": made(pod(gates=(), spec={"schedulerName": "kai-scheduler"})),
    "agent-down: not bound": made(pod(gates=()), record="", silent=True),
    "agent-down": made(bound(), record="", silent=True),
    "agent-silent": told(pod(), instaslices=[], silent=True),
    "node-down": made(bound(), agent(), nodes=[node(ready="False")]),
    "slice-being-made": made(bound(), record=""),
    "slice-failed": made(bound(), record="", events=[event("a", "SliceFailed", "GPU is lost")]),
    "container-waits": made(bound(status=STUCK)),
    "container-waits: a card": told(bound(profile="", limits=LIMIT, status=STUCK)),
    "starting": made(bound()),
    "starting: a card": told(bound(profile="", limits=LIMIT)),
    "runs": made(bound(status={"phase": "Running"})),
    "runs: a card": told(bound(profile="", limits=LIMIT, status={"phase": "Running"})),
    "runs: nothing requested": told(bound(profile="", status={"phase": "Running"})),
    "own-rollout": told(new(), old(), instaslices=HELD, **deployment({})),
    "quota": uncreated('pods "x" is forbidden: exceeded quota: gpu, used: 1'),
    "refused": uncreated("something of the future"),
    "webhook-down": uncreated('failed calling webhook "x": no endpoints'),
    "device-access": uncreated(DEVICE_POLICY),
    "suspended": suspended,
}
#: Cases in which nothing has to be done.
FINE = frozenset({"finished", "leaving", "runs", "starting"})
#: What branches once claimed without a test.
UNTESTED = (
    "without Tessera's gate",
    "though a node has enough free",
    "has a slice and waits",
    "Kueue suspends a job until",
    "scheduling gates",
    "kube-scheduler says",
)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_has_a_sentence_and_a_step_and_claims_nothing_untested(name: str) -> None:
    found = ANSWERS[name]()
    assert found.case == name.partition(":")[0]
    assert found.verdict
    assert found.help or found.case in FINE
    assert not any(
        "  " in each or each.endswith((":", ", ", "; ")) for each in (found.verdict, *found.facts, *found.help)
    )
    for words in UNTESTED:
        assert words not in said(found)


#: Modules whose answers have tables of their own.
OTHERS = frozenset({"nodes.py", "node_startup.py", "queue.py", "claims.py", "pod_claims.py"})


def cases_of(modules: Iterable[Path]) -> set[str]:
    """The cases that modules write."""
    return {
        constant.value
        for path in modules
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.keyword) and each.arg == "case"
        for constant in ast.walk(each.value)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    }


def test_no_branch_is_left_out() -> None:
    written = cases_of(path for path in Path(explain.__path__[0]).glob("*.py") if path.name not in OTHERS)
    assert written - {name.partition(":")[0] for name in ANSWERS} == set()


def test_every_reason_about_room_or_nodes_is_asked_for_silent_nodes_and_for_old_pods_of_an_update() -> None:
    """A reason that is in one word for scripts must not be missing where these words decide."""
    of_nodes = {each.case for each in WORDS if isinstance(each, NoNode) or each.waits_for_room}
    assert of_nodes - {"reserved"} <= NO_ROOM
    assert of_nodes - {"never-fits", "own-rollout", "hand-over"} <= WAITS  # these name old pods themselves
    assert {each.case for each in WORDS if isinstance(each, UnknownProfile | NeverFits | GangNoRoom)} <= NO_ROOM
