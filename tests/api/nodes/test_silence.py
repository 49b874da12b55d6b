"""Which nodes should have an agent that answers, and why one does not: every kind of silence has its own words."""

from typing import Any

import msgspec
import pytest

from tessera.api.nodes.silence import Silence, find_silence, silent_nodes
from tessera.kube.resources import Node, Pod

SINCE = "2030-01-01T00:00:00Z"
STAMP = 1_893_456_000.0
READY = {"type": "Ready", "status": "True"}
DEAD = {
    "type": "Ready",
    "status": "Unknown",
    "reason": "NodeStatusUnknown",
    "message": "Kubelet stopped posting node status.",
    "lastTransitionTime": SINCE,
}
HEALTHY = {"type": "GpuHealthy", "status": "True"}
MARKED = {"type": "GpuHealthy", "status": "Unknown", "reason": "AgentStatusUnknown", "lastTransitionTime": SINCE}
NO_DRIVER = {"type": "GpuNodeReady", "status": "False", "reason": "WaitingForDriver", "message": "no driver is loaded",
             "lastTransitionTime": SINCE}  # fmt: skip
GPU = {"nvidia.com/gpu.present": "true"}
CARDS = {"tessera.dev/cards": '{"count": 4}'}
RUNNING = {"name": "agent", "state": {"running": {}}}
CRASHED = {"name": "agent", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}


def node(
    *conditions: dict[str, Any], labels: dict[str, str] | None = None, notes: dict[str, str] | None = None
) -> Node:
    metadata = {"name": "n1", "creationTimestamp": SINCE, "labels": labels or {}, "annotations": notes or {}}
    shown = {"metadata": metadata, "status": {"conditions": list(conditions or (READY,))}}
    return msgspec.convert(shown, Node)


def agent(
    *, ready: bool = False, container: dict[str, Any] | None = None, owner: str = "tessera-agent", **meta: Any
) -> Pod:
    """The pod of an agent on n1."""
    of = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": owner, "uid": "u", "controller": True}
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": SINCE}
    shown = {
        "metadata": {"name": "agent-x", "namespace": "tessera-system", "ownerReferences": [of], **meta},
        "spec": {"nodeName": "n1"},
        "status": {
            "phase": "Running" if container else "Pending",
            "conditions": [condition],
            "containerStatuses": [container] if container else [],
        },
    }
    return msgspec.convert(shown, Pod)


REMOVAL = {"tessera.dev/removal": "keep-slices"}
GONE = {**REMOVAL, "tessera.dev/removed": '{"state": "done"}'}
WAITS = {**REMOVAL, "tessera.dev/removed": '{"state": "waiting", "notes": ["pod team/a uses GPU 0"]}'}
MISSING = "no pod of DaemonSet tessera-system/tessera-agent is on it"

#: Node, its agents' pods, whether it has an Instaslice object; kind, words of the reason, since, words of the step.
SILENT: dict[str, tuple[Node | None, list[Pod], bool, Silence, str, float, str]] = {
    "no pod, by the annotation": (node(notes=CARDS), [], False, Silence.NO_AGENT, MISSING, 0.0, "no label brings"),
    "no pod, by a condition": (node(READY, HEALTHY, labels=GPU), [], False, Silence.NO_AGENT, MISSING, 0.0,
                               "kubectl describe daemonset -n tessera-system tessera-agent"),
    "no pod, by the object": (node(), [], True, Silence.NO_AGENT, MISSING, 0.0, "kubectl label node n1"),
    "no pod, marked": (node(READY, MARKED), [], False, Silence.NO_AGENT, MISSING, STAMP, "kubectl label node n1"),
    "no pod since it joined": (node(labels=GPU), [], False, Silence.NEVER_RAN, "none was since it joined", STAMP,
                               "taints: kubectl describe daemonset -n tessera-system tessera-agent; tessera doctor"),
    "a tenant's pod is none": (node(notes=CARDS), [agent(ready=True, owner="other")], False, Silence.NO_AGENT, MISSING,
                               0.0, ""),
    "another namespace's pod is none": (node(notes=CARDS), [agent(ready=True, namespace="team")], False,
                                        Silence.NO_AGENT, MISSING, 0.0, ""),
    "crashes": (node(labels=GPU), [agent(container=CRASHED)], False, Silence.AGENT_NOT_READY,
                "its agent's pod tessera-system/agent-x is not ready (CrashLoopBackOff)", STAMP, "describe pod"),
    "starts": (node(), [agent()], False, Silence.AGENT_NOT_READY, "is not ready (Pending)", STAMP, ""),
    "hangs": (node(READY, {"type": "GpuNodeReady", "status": "True"}), [agent(container=RUNNING)], False,
              Silence.AGENT_NOT_READY, "is not ready (Running)", STAMP, ""),
    "waits for a driver": (node(READY, NO_DRIVER), [agent(container=RUNNING)], False, Silence.WAITS,
                           "its agent runs, and has read no card: no driver is loaded", STAMP, "tessera why node/n1"),
    "crashes without a driver": (node(READY, NO_DRIVER), [agent(container=CRASHED)], False, Silence.AGENT_NOT_READY,
                                 "CrashLoopBackOff", STAMP, ""),
    "dead kubelet": (node(DEAD, labels=GPU), [agent(ready=True)], False, Silence.NODE_NOT_READY,
                     "the node is not ready: Kubelet stopped posting node status.", STAMP, "kubectl describe node n1"),
    "dead kubelet, no agent": (node(DEAD, HEALTHY), [], False, Silence.NODE_NOT_READY, "Kubelet stopped", STAMP, ""),
    "no Ready condition": (node(HEALTHY), [], False, Silence.NODE_NOT_READY, "it has no Ready condition", 0.0, ""),
    "leaves": (node(notes=REMOVAL | CARDS), [agent(container=RUNNING)], False, Silence.LEAVING, "has not finished", 0.0,
               "tessera.dev/removal-"),
    "waits to leave": (node(notes=WAITS), [agent()], False, Silence.LEAVING, "pod team/a uses GPU 0", 0.0, ""),
    "no such node": (None, [], True, Silence.NODE_GONE, "there is no Node of this name any more", 0.0,
                     "kubectl delete instaslices -n instaslice-system n1"),
}  # fmt: skip

ANSWERS: dict[str, tuple[Node | None, list[Pod], bool]] = {
    "ready": (node(notes=CARDS), [agent(ready=True)], True),
    "one of two in an upgrade": (node(labels=GPU), [agent(), agent(ready=True)], True),
    "no card": (node(), [], False),
    "no card, not ready": (node(DEAD), [], False),
    "its cards are nobody's": (node(labels=GPU | {"nvidia.com/gpu.deploy.operands": "false"}), [], False),
    "label that says no": (node(labels={"nvidia.com/gpu.present": "false"}), [], False),
    "left by uninstall": (node(HEALTHY, labels=GPU, notes=GONE | CARDS), [], False),
    "pod of a node that is gone": (None, [agent()], True),
}


@pytest.mark.parametrize("name", SILENT)
def test_every_kind_of_silence_has_its_own_words(name: str) -> None:
    shown, agents, has_object, kind, reason, since, step = SILENT[name]
    found = silent_nodes([shown] if shown else [], agents, {"n1"} if has_object else set())["n1"]
    assert (found.node, found.kind, found.since) == ("n1", kind, since)
    assert reason in found.reason
    assert step in found.next
    assert found.speaks == (kind in {Silence.WAITS, Silence.LEAVING})


def test_the_table_has_every_kind_but_that_of_unread_pages() -> None:
    assert {row[3] for row in SILENT.values()} == set(Silence) - {Silence.UNREACHABLE}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_node_that_answers_or_owes_no_answer_is_not_silent(name: str) -> None:
    shown, agents, has_object = ANSWERS[name]
    assert find_silence("n1", shown, agents, has_object=has_object) is None


def test_the_text_says_since_when() -> None:
    marked = silent_nodes([node(READY, MARKED)], [], set())["n1"]
    assert marked.text(STAMP + 90) == f"{MISSING} (for more than 90s)"
    assert marked.text(STAMP - 90) == MISSING  # two clocks are compared


def test_words_of_others_are_one_bounded_line() -> None:
    hostile = {**DEAD, "message": "\x1b[2J" + "x" * 100_000}
    found = silent_nodes([node(hostile, labels=GPU)], [], set())["n1"]
    assert found.reason.isprintable()
    assert len(found.reason) <= 1_000
