"""Tells which nodes should have an agent that answers, and why one does not. Pure.

Who should answer follows from what is there, never from who answers:

- an agent's pod is on the node; or
- the node has Tessera's traces: an Instaslice object, the annotations ``tessera.dev/cards`` or ``tessera.dev/offers``,
  or a condition that only an agent writes; or
- a label brings an agent to the node (``deploy/agent.yaml``).

A node that Tessera has left, at the request of ``tessera uninstall``, owes no answer; nor does one with a label
that keeps the agent off. Whether an agent answers is seen from the condition ``Ready`` of its pod
(docs/decisions/silent-agents.md), and of its node. A reader of the agents' pages knows more: a page that was read is
an answer, whatever the API server says.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

import msgspec

from tessera.api.names import INSTASLICE_NAMESPACE, SYSTEM_NAMESPACE
from tessera.api.nodes.card_faults import CARDS_ANNOTATION
from tessera.api.nodes.node_cards import brings_agent, keep_off_label
from tessera.api.nodes.node_marks import (
    ADVERTISED_CONDITION,
    AGENT_CONDITIONS,
    AGENT_DAEMON_SET,
    REMOVAL_ANNOTATION,
    RemovalState,
    is_agent,
    is_marked_silent,
    read_answer,
)
from tessera.api.nodes.offers import OFFERS_ANNOTATION
from tessera.clock import parse_time_or_zero
from tessera.kube.resources import Condition, Node, Pod
from tessera.limits import CONDITION_MESSAGE
from tessera.text import age, one_line

_DAEMON_SET = f"{SYSTEM_NAMESPACE}/{AGENT_DAEMON_SET[-1]}"


class Silence(Enum):
    """Why a node's agent does not answer; the value is a word for machines."""

    NODE_GONE = "node_gone"
    LEAVING = "leaving"
    NODE_NOT_READY = "node_not_ready"
    NO_AGENT = "no_agent"
    #: No agent's pod is there, and the node has no trace of an agent: it may just have joined.
    NEVER_RAN = "never_ran"
    AGENT_NOT_READY = "agent_not_ready"
    #: The agent runs and says so itself: it has no driver, or has not read the cards yet.
    WAITS = "waits"
    #: The agent's pod is ready, and its page was not read.
    UNREACHABLE = "unreachable"


class SilentNode(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A node whose agent should answer and does not, so that the state of its cards is unknown.

    Attributes:
        node: its name.
        reason: why, as the end of the sentence "node X: ...".
        kind: the same for machines.
        since: Unix time since when; 0 if that is not known.
        next: what to do.
    """

    node: str
    reason: str
    kind: Silence = Silence.UNREACHABLE
    since: float = 0.0
    next: str = ""

    @property
    def speaks(self) -> bool:
        """True if the agent runs, so that its page may be asked for and its conditions hold."""
        return self.kind in (Silence.WAITS, Silence.LEAVING)

    def text(self, now: float) -> str:
        """The reason, and for how long.

        Of a missing agent only the time of the controller's mark is known, which is later: hence "more than".
        """
        if not 0 < self.since <= now:
            return self.reason
        return f"{self.reason} (for {'more than ' if self.kind is Silence.NO_AGENT else ''}{age(now - self.since)})"


#: Everybody who should answer does.
NONE_SILENT: Mapping[str, SilentNode] = {}


def silent_nodes(nodes: Iterable[Node], pods: Iterable[Pod], objects: Collection[str]) -> dict[str, SilentNode]:
    """Returns the nodes whose agents should answer and do not, by name.

    Args:
        nodes: all nodes.
        pods: pods with the agents' among them.
        objects: names of the nodes that have an Instaslice object.
    """
    agents = agents_by_node(pods)
    by_name: dict[str, Node | None] = dict.fromkeys((*objects, *agents))
    by_name |= {each.metadata.name: each for each in nodes}
    found = (
        find_silence(name, node, agents.get(name, ()), has_object=name in objects)
        for name, node in sorted(by_name.items())
    )
    return {each.node: each for each in found if each is not None}


def agents_by_node(pods: Iterable[Pod]) -> dict[str, list[Pod]]:
    """The agents' pods by node."""
    found: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.spec.node_name and is_agent(pod):
            found.setdefault(pod.spec.node_name, []).append(pod)
    return found


def find_silence(name: str, node: Node | None, agents: Sequence[Pod], *, has_object: bool) -> SilentNode | None:
    """Returns why a node's agent does not answer; None if it does, or owes no answer.

    Args:
        name: the node's name.
        node: the Node; None if there is none.
        agents: the pods of agents on it; in an upgrade there are two.
        has_object: True if it has an Instaslice object.
    """
    if node is None:
        return _gone(name) if has_object and not agents else None
    if not (agents or has_object or has_traces(node) or brings_agent(node.metadata.labels)):
        return None
    if REMOVAL_ANNOTATION in node.metadata.annotations:
        return _leaving(node)
    if keep_off_label(node.metadata.labels):
        return None
    if not node.status.is_ready:
        return _not_ready(node)
    if any(pod.status.is_ready for pod in agents):
        return None
    return _without_ready_agent(node, agents) if agents else _no_agent(node, has_object or has_traces(node))


def has_traces(node: Node) -> bool:
    """True if a Node shows what an agent has said."""
    annotations = node.metadata.annotations
    return (
        CARDS_ANNOTATION in annotations
        or OFFERS_ANNOTATION in annotations
        or any(each.type in AGENT_CONDITIONS for each in node.status.conditions)
    )


# The kinds of silence


def _gone(name: str) -> SilentNode:
    return SilentNode(
        node=name,
        kind=Silence.NODE_GONE,
        reason="there is no Node of this name any more, only its Instaslice object",
        next="the controller deletes the object; if it stays, read the controller's log, and then run"
        f" kubectl delete instaslices -n {INSTASLICE_NAMESPACE} {name}",
    )


def _leaving(node: Node) -> SilentNode | None:
    answer = read_answer(node.metadata.annotations)
    if answer is not None and answer.state is RemovalState.DONE:
        return None
    notes = "; ".join(answer.notes) if answer is not None else ""
    return SilentNode(
        node=node.metadata.name,
        kind=Silence.LEAVING,
        reason=_line(f"Tessera leaves this node, and its agent has not finished{f': {notes}' if notes else ''}"),
        next=f"run tessera uninstall again, or keep the node: kubectl annotate node {node.metadata.name}"
        f" {REMOVAL_ANNOTATION}-",
    )


def _not_ready(node: Node) -> SilentNode:
    return SilentNode(
        node=node.metadata.name,
        kind=Silence.NODE_NOT_READY,
        reason=_line(f"the node is not ready: {node.status.not_ready_reason}"),
        since=_since(node.status.condition("Ready")),
        next=f"kubectl describe node {node.metadata.name}",
    )


def _without_ready_agent(node: Node, agents: Sequence[Pod]) -> SilentNode:
    name = node.metadata.name
    pod = min(agents, key=lambda each: each.metadata.deletion_timestamp is not None)
    advertised = node.status.condition(ADVERTISED_CONDITION)
    if any(map(_runs, agents)) and advertised is not None and advertised.status == "False":
        return SilentNode(
            node=name,
            kind=Silence.WAITS,
            reason=_line(f"its agent runs, and has read no card: {advertised.message or advertised.reason}"),
            since=_since(advertised),
            next=f"tessera why node/{name}",
        )
    where = f"{pod.metadata.namespace}/{pod.metadata.name}"
    return SilentNode(
        node=name,
        kind=Silence.AGENT_NOT_READY,
        reason=_line(f"its agent's pod {where} is not ready ({_state(pod)})"),
        since=_since(pod.status.condition("Ready")),
        next=f"kubectl describe pod -n {pod.metadata.namespace} {pod.metadata.name}",
    )


def _no_agent(node: Node, ran: bool) -> SilentNode:
    name = node.metadata.name
    marked = next((each for each in node.status.conditions if is_marked_silent(each)), None)
    return SilentNode(
        node=name,
        kind=Silence.NO_AGENT if ran else Silence.NEVER_RAN,
        reason=f"no pod of DaemonSet {_DAEMON_SET} is on it" + ("" if ran else ", and none was since it joined"),
        since=_since(marked) if ran else parse_time_or_zero(node.metadata.creation_timestamp),
        next=f"compare the DaemonSet's selector and tolerations with the node's labels and taints: kubectl describe"
        f" daemonset -n {SYSTEM_NAMESPACE} {AGENT_DAEMON_SET[-1]}"
        + ("" if ran else "; tessera doctor says whether Tessera is installed")
        if brings_agent(node.metadata.labels)
        else f"no label brings an agent to it: kubectl label node {name} nvidia.com/gpu.present=true",
    )


def _runs(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is None and any(
        each.state is not None and each.state.running is not None for each in pod.status.container_statuses
    )


def _state(pod: Pod) -> str:
    """``CrashLoopBackOff``, ``Pending``, ``Running``."""
    waiting = [each.state.waiting for each in pod.status.container_statuses if each.state and each.state.waiting]
    return (waiting[0].reason if waiting else pod.status.phase) or "unknown"


def _since(condition: Condition | None) -> float:
    return 0.0 if condition is None else parse_time_or_zero(condition.last_transition_time)


def _line(text: str) -> str:
    return one_line(text, CONDITION_MESSAGE)
