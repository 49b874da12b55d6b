"""A node's rule against a pod, as data: kube-scheduler's filters, and Tessera's own rules about nodes.

Refusals are counted by rule, so a rule is equal on every node that it closes. :mod:`tessera.reasons.words` has the text
and the remedy of each kind.
"""

from enum import StrEnum

import msgspec

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
