"""The parts of a pod that say which other pods it stands beside: pod affinity and topology spread (core/v1)."""

import msgspec

from tessera.kube.meta import Wire
from tessera.kube.objects import LabelSelector


class PodAffinityTerm(Wire, frozen=True, kw_only=True):
    """Pods that are meant, and the node label whose equal values are one place.

    Label keys (``matchLabelKeys``, ``mismatchLabelKeys``) are not read: the API server writes them into the selector.
    """

    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    topology_key: str = ""
    namespace_selector: LabelSelector | None = None


class PodAffinity(Wire, frozen=True, kw_only=True):
    """Affinity or anti-affinity to other pods; the preferred terms are the scheduler's business."""

    required: tuple[PodAffinityTerm, ...] = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=()
    )


class TopologySpreadConstraint(Wire, frozen=True, kw_only=True):
    """A rule that spreads pods evenly over the values of a node label."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str = ""
    node_taints_policy: str = ""
    match_label_keys: tuple[str, ...] = ()
