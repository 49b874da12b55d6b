"""Keys of a pod that nobody reads: in a wrong section, or under Tessera's domain and unknown.

Kubernetes takes any label, annotation and selector, so nothing refuses such a key. Each sentence names the section in
which it stands, and the one in which it counts.
"""

from collections.abc import Callable, Iterator
from difflib import get_close_matches

from tessera.api.names import (
    DEVICE_ACCESS_LABEL,
    FAULT_TOLERATION,
    GPU_RESOURCES,
    KUEUE_QUEUE_LABEL,
    LENDS_ANNOTATION,
    MEMORY_ENFORCEMENT_ANNOTATION,
    MEMORY_LIMIT_ANNOTATION,
    MIG_CONFIG_LABEL,
    MIG_RESOURCE_PREFIX,
    MOVABLE_ANNOTATION,
    OWN_DOMAIN,
    PINNED_ANNOTATION,
    PLACEMENT_LABEL,
    POD_PREFLIGHT,
    QUEUE_LABEL,
    SYSTEM_NAMESPACE,
    UPDATE_ANNOTATION,
    USER_KEY,
    YIELDS_ANNOTATION,
)
from tessera.api.pods.gangs import GANG_LABEL, GANG_SIZE_ANNOTATION, POD_GROUP_LABEL
from tessera.api.pods.requirements import CHOSEN, CHOSEN_REASON, KEYS, MEMORY, WHOLE_CARD
from tessera.api.pods.resource_advice import is_part
from tessera.api.sharing.profile import PROFILE_LABEL
from tessera.kube.resources import Pod
from tessera.kube.resources.pods import DEFAULT_SCHEDULER

#: Where the keys count that Tessera and Kueue read of a pod, and those of other objects.
_ANNOTATIONS = (
    frozenset(KEYS)
    | {GANG_SIZE_ANNOTATION, MOVABLE_ANNOTATION, UPDATE_ANNOTATION, YIELDS_ANNOTATION, FAULT_TOLERATION}
    | {POD_PREFLIGHT, MEMORY_LIMIT_ANNOTATION, MEMORY_ENFORCEMENT_ANNOTATION}
)
_LABELS = frozenset({QUEUE_LABEL, GANG_LABEL, POD_GROUP_LABEL, KUEUE_QUEUE_LABEL})
NODE_LABELS = frozenset({MIG_CONFIG_LABEL, PROFILE_LABEL})
NAMESPACE_LABELS = frozenset({PLACEMENT_LABEL, DEVICE_ACCESS_LABEL})
#: Further keys of Tessera that a pod may have: some are read in either section, others are written by Tessera.
_OTHERS = frozenset({WHOLE_CARD, CHOSEN, CHOSEN_REASON, LENDS_ANNOTATION, PINNED_ANNOTATION, USER_KEY})
#: Longest name of a key after its domain (Kubernetes, qualified names).
_LONGEST = 63
#: Annotations by which KAI and Run:ai share a card.
_KAI = frozenset({"gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"})


def misplaced_on_pod(pod: Pod, is_node_label: Callable[[str], object]) -> Iterator[str]:
    """The keys of a pod that have no effect where they stand; a selector by the name of a resource selects no node."""
    meta, kai = pod.metadata, pod.spec.scheduler_name in {"", DEFAULT_SCHEDULER}
    of_tessera = meta.namespace == SYSTEM_NAMESPACE
    for section, keys in (("annotation", meta.annotations), ("label", meta.labels)):
        for key in sorted(keys):
            if right := _right_section(section, key, kai=kai) or ("" if of_tessera else _unknown(section, key)):
                yield f"its {section} {key} has no effect: {right}"
    for key in sorted(pod.spec.node_selector):
        if (right := _right_section("nodeSelector", key, kai=kai)) and not is_node_label(key):
            yield f"its nodeSelector {key} matches no node: {right}"


def _right_section(section: str, key: str, *, kai: bool) -> str:
    if key in _ANNOTATIONS and section != "annotation":
        return "it is an annotation, in metadata.annotations of the pod or of the pod template"
    if key in _LABELS and section != "label":
        return "it is a label, in metadata.labels of the pod or of the pod template"
    if key in NODE_LABELS and section != "nodeSelector":
        return f"it is a label of nodes (kubectl label node NODE {key}=VALUE); a pod selects such nodes by nodeSelector"
    if key in NAMESPACE_LABELS:
        return f"it is a label of the namespace (kubectl label namespace NAMESPACE {key}=VALUE)"
    if is_part(key) or (kai and section == "annotation" and key in _KAI):
        return f"other systems share a card by it; here the annotation {MEMORY} asks for a part of a card"
    if key in GPU_RESOURCES or key.startswith(MIG_RESOURCE_PREFIX):
        return "it is a resource, in resources.limits of a container"
    return ""


def _unknown(section: str, key: str) -> str:
    known = _ANNOTATIONS if section == "annotation" else _LABELS
    if not key.startswith(OWN_DOMAIN) or key in known or key in _OTHERS:
        return ""
    names = sorted(each.removeprefix(OWN_DOMAIN) for each in known if each.startswith(OWN_DOMAIN))
    close = get_close_matches(key.removeprefix(OWN_DOMAIN)[:_LONGEST], names, n=1, cutoff=0.6)
    meant = f"; did you mean {OWN_DOMAIN}{close[0]}?" if close else ""
    return f"Tessera reads no {section} of this name{meant}"
