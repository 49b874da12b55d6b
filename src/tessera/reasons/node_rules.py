"""A node's rule against a pod, as data and in words: kube-scheduler's filters, and Tessera's own rules about nodes.

Refusals are counted by rule, so a rule is equal on every node that it closes.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from tessera.text import count_noun, list_names
from tessera.visibility import Public


class RuleKind(StrEnum):
    """Kinds of rules; in comments what :attr:`NodeRule.about` names."""

    # State of the node
    NO_DEVICE = "no-device"  # the resource
    NO_CARD = "no-card"  # the profiles
    NOT_ON_DEMAND = "not-on-demand"
    KEPT_OFF = "kept-off"  # the label
    NO_HOSTNAME = "no-hostname"  # the label
    NOT_READY = "not-ready"
    NO_AGENT = "no-agent"
    UNSCHEDULABLE = "unschedulable"
    TAINT = "taint"  # the taint, ``key: value``
    GONE = "gone"
    PINNED_ELSEWHERE = "pinned-elsewhere"
    RELEASING = "releasing"
    AVOIDED = "avoided"
    PAUSED = "paused"
    # The pod's constraints
    AFFINITY = "affinity"
    PORTS = "ports"
    SPREAD = "spread"
    SPREAD_LABEL = "spread-label"
    POD_AFFINITY = "pod-affinity"
    ANTI_AFFINITY = "anti-affinity"
    OTHERS_ANTI_AFFINITY = "others-anti-affinity"
    # Amounts
    TOO_SMALL = "too-small"  # the resource
    INSUFFICIENT = "insufficient"  # the resource
    TOO_MANY_PODS = "too-many-pods"
    # Volumes
    CLAIM = "claim"  # the claim, and what is wrong with it
    UNBOUND_CLAIM = "unbound-claim"
    CLAIM_IN_USE = "claim-in-use"
    VOLUME_AFFINITY = "volume-affinity"
    NO_VOLUME = "no-volume"
    VOLUME_ZONE = "volume-zone"
    VOLUME_COUNT = "volume-count"


#: A node has too little of something, now or even when empty.
_SHORT = frozenset({RuleKind.TOO_SMALL, RuleKind.INSUFFICIENT, RuleKind.TOO_MANY_PODS})
_VOLUMES = frozenset(
    {RuleKind.CLAIM, RuleKind.UNBOUND_CLAIM, RuleKind.CLAIM_IN_USE}
    | {RuleKind.VOLUME_AFFINITY, RuleKind.NO_VOLUME, RuleKind.VOLUME_ZONE, RuleKind.VOLUME_COUNT}
)


class NodeRule(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """One rule by which a node does not take a pod.

    Attributes:
        kind: the kind.
        about: the resource, label, taint or claim that it is about; empty for kinds that name none.
    """

    kind: RuleKind
    about: Public = ""

    @property
    def is_shortage(self) -> bool:
        """True if the node lacks an amount, also one of which it is too small."""
        return self.kind in _SHORT

    @property
    def ends_with_pods(self) -> bool:
        """True if the end of other pods on the node lifts the rule."""
        return self.kind in (RuleKind.INSUFFICIENT, RuleKind.TOO_MANY_PODS)

    @property
    def is_about_volumes(self) -> bool:
        """True if the pod's volumes keep it off the node."""
        return self.kind in _VOLUMES

    @property
    def is_absence(self) -> bool:
        """True if the node or its agent is away."""
        return self.kind in (RuleKind.NOT_READY, RuleKind.NO_AGENT)


def shortage(resource: str) -> NodeRule:
    """The rule of a node on which too little of a resource is free."""
    if resource == "pods":
        return NodeRule(RuleKind.TOO_MANY_PODS)
    return NodeRule(RuleKind.INSUFFICIENT, resource)


class _Rule(NamedTuple):
    """A kind of rule in words. ABOUT stands for what the rule is about, NODE for a node.

    Attributes:
        text: the rule, as it goes on after ``node(s)``.
        step: what lifts it; empty if no step is known.
        command: a command for that.
        nodes: False if the text does not go on after ``node(s)``.
    """

    text: str
    step: str = ""
    command: str = ""
    nodes: bool = True


_OTHER_RULE = "change this rule of the pod, or end the pods that it is about"
#: Those of kube-scheduler in the words of its events (``pkg/scheduler/framework/plugins``).
_RULES: Mapping[RuleKind, _Rule] = {
    RuleKind.NO_DEVICE: _Rule("had no ABOUT"),
    RuleKind.NO_CARD: _Rule("had no card that can make ABOUT"),
    RuleKind.NOT_ON_DEMAND: _Rule("did not offer on-demand slices (label nvidia.com/mig.config=dynamic)"),
    RuleKind.KEPT_OFF: _Rule("had the label ABOUT, which keeps Tessera off"),
    RuleKind.NO_HOSTNAME: _Rule("had no label ABOUT, which a pod is pinned by"),
    RuleKind.NOT_READY: _Rule("were not ready", "see why the node is not ready", "kubectl describe node NODE"),
    RuleKind.NO_AGENT: _Rule(
        "had no agent that is ready",
        "see what keeps the node's agent",
        "kubectl get pods -n tessera-system --field-selector spec.nodeName=NODE",
    ),
    RuleKind.UNSCHEDULABLE: _Rule("were unschedulable", "open the node again", "kubectl uncordon NODE"),
    RuleKind.TAINT: _Rule("had untolerated taint {ABOUT}"),
    RuleKind.GONE: _Rule("were gone"),
    RuleKind.PINNED_ELSEWHERE: _Rule("are not the one that the pod is pinned to"),
    RuleKind.RELEASING: _Rule("still take back the pod's former slices"),
    RuleKind.AVOIDED: _Rule("where the scheduler refused the owner's last pod"),
    RuleKind.PAUSED: _Rule("closed for a while, since the scheduler refused the owner's pods several times"),
    RuleKind.AFFINITY: _Rule(
        "didn't match Pod's node affinity/selector",
        "change the pod's nodeSelector or node affinity, or the node's labels",
        "kubectl get node NODE --show-labels",
    ),
    RuleKind.PORTS: _Rule("didn't have free ports for the requested pod ports"),
    RuleKind.SPREAD: _Rule("didn't match pod topology spread constraints", _OTHER_RULE),
    RuleKind.SPREAD_LABEL: _Rule("didn't match pod topology spread constraints (missing required label)", _OTHER_RULE),
    RuleKind.POD_AFFINITY: _Rule("didn't match pod affinity rules", _OTHER_RULE),
    RuleKind.ANTI_AFFINITY: _Rule("didn't match pod anti-affinity rules", _OTHER_RULE),
    RuleKind.OTHERS_ANTI_AFFINITY: _Rule("didn't satisfy existing pods anti-affinity rules"),
    RuleKind.TOO_SMALL: _Rule("were too small: ABOUT", "request less of it, or add a larger node"),
    RuleKind.INSUFFICIENT: _Rule(
        "Insufficient ABOUT",
        "request less of it, or end other pods on the node",
        "kubectl describe node NODE",
        nodes=False,
    ),
    RuleKind.TOO_MANY_PODS: _Rule("Too many pods", "end other pods on the node", nodes=False),
    RuleKind.CLAIM: _Rule("persistentvolumeclaim ABOUT", nodes=False),
    RuleKind.UNBOUND_CLAIM: _Rule("pod has unbound immediate PersistentVolumeClaims", nodes=False),
    RuleKind.CLAIM_IN_USE: _Rule(
        "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode", nodes=False
    ),
    RuleKind.VOLUME_AFFINITY: _Rule("didn't match PersistentVolume's node affinity", _OTHER_RULE),
    RuleKind.NO_VOLUME: _Rule("didn't find available persistent volumes to bind"),
    RuleKind.VOLUME_ZONE: _Rule("had no available volume zone"),
    RuleKind.VOLUME_COUNT: _Rule("exceed max volume count"),
}


def name_rule(rule: NodeRule) -> str:
    """The rule as it is counted: ``node(s) had untolerated taint {gpu: down}``."""
    words = _RULES[rule.kind]
    return f"{'node(s) ' if words.nodes else ''}{words.text.replace('ABOUT', rule.about)}"


def rule_fact(rule: NodeRule, nodes: Sequence[str]) -> str:
    """The rule with the nodes that refuse by it."""
    words, count = _RULES[rule.kind], count_noun(len(nodes), "node")
    text = words.text.replace("were ", "was ", 1) if len(nodes) == 1 else words.text
    text = text.replace("ABOUT", rule.about)
    return f"{count} {text}: {list_names(nodes)}" if words.nodes else f"{count}: {text}: {list_names(nodes)}"


def remedy(rule: NodeRule, node: str) -> tuple[str, str]:
    """The step that lifts a rule on a node, and its command; the rule itself where no step is known."""
    words = _RULES[rule.kind]
    if words.step:
        return words.step, words.command.replace("NODE", node)
    return f"on node {node}: {words.text.replace('ABOUT', rule.about)}", ""
