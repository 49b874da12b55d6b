"""Keys of a pod, its namespace, its quotas or a node that stand in a section where nobody reads them.

Kubernetes takes any label, annotation and selector, so nothing refuses such a key. Each fact names the section in which
it stands, and the one in which it counts.
"""

from collections.abc import Iterable, Iterator, Mapping

from tessera.api.names import (
    DEVICE_ACCESS_LABEL,
    FAULT_TOLERATION,
    GPU_RESOURCES,
    KUEUE_QUEUE_LABEL,
    MEMORY_ENFORCEMENT_ANNOTATION,
    MEMORY_LIMIT_ANNOTATION,
    MIG_CONFIG_LABEL,
    MIG_RESOURCE_PREFIX,
    MOVABLE_ANNOTATION,
    PLACEMENT_LABEL,
    POD_PREFLIGHT,
    QUEUE_LABEL,
    UPDATE_ANNOTATION,
    YIELDS_ANNOTATION,
)
from tessera.api.pods.gangs import GANG_LABEL, GANG_SIZE_ANNOTATION, POD_GROUP_LABEL
from tessera.api.pods.requirements import KEYS, MEMORY
from tessera.api.pods.resource_advice import is_part
from tessera.api.sharing.profile import PROFILE_LABEL
from tessera.kube.resources import Namespace, Node, Pod, ResourceQuota
from tessera.kube.resources.pods import DEFAULT_SCHEDULER
from tessera.limits.messages import FACT_SHOWN
from tessera.text import one_line

#: Where the keys count that Tessera and Kueue read of a pod, and those of other objects.
_ANNOTATIONS = frozenset(
    {
        *KEYS,
        GANG_SIZE_ANNOTATION,
        MOVABLE_ANNOTATION,
        UPDATE_ANNOTATION,
        YIELDS_ANNOTATION,
        FAULT_TOLERATION,
        POD_PREFLIGHT,
        MEMORY_LIMIT_ANNOTATION,
        MEMORY_ENFORCEMENT_ANNOTATION,
    }
)
_LABELS = frozenset({QUEUE_LABEL, GANG_LABEL, POD_GROUP_LABEL, KUEUE_QUEUE_LABEL})
_NODE_LABELS = frozenset({MIG_CONFIG_LABEL, PROFILE_LABEL})
_NAMESPACE_LABELS = frozenset({PLACEMENT_LABEL, DEVICE_ACCESS_LABEL})
#: Annotation in which Kubernetes says what a LimitRange wrote into a pod.
_LIMIT_RANGER = "kubernetes.io/limit-ranger"
#: Annotations by which KAI and Run:ai share a card.
_KAI = frozenset({"gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"})


def misplaced_on_pod(pod: Pod, nodes: Iterable[Node]) -> Iterator[str]:
    """The keys of a pod that have no effect where they stand; a selector by the name of a resource selects no node."""
    meta, kai = pod.metadata, pod.spec.scheduler_name in {"", DEFAULT_SCHEDULER}
    for section, keys in (("annotation", meta.annotations), ("label", meta.labels)):
        for key in sorted(keys):
            if right := _right_section(section, key, kai=kai):
                yield f"its {section} {key} has no effect: {right}"
    for key in sorted(pod.spec.node_selector):
        right = _right_section("nodeSelector", key, kai=kai)
        if right and not any(key in each.metadata.labels for each in nodes):
            yield f"its nodeSelector {key} matches no node: {right}"


def _right_section(section: str, key: str, *, kai: bool) -> str:
    if key in _ANNOTATIONS and section != "annotation":
        return "it is an annotation, in metadata.annotations of the pod or of the pod template"
    if key in _LABELS and section != "label":
        return "it is a label, in metadata.labels of the pod or of the pod template"
    if key in _NODE_LABELS and section != "nodeSelector":
        return f"it is a label of nodes (kubectl label node NODE {key}=VALUE); a pod selects such nodes by nodeSelector"
    if key in _NAMESPACE_LABELS:
        return f"it is a label of the namespace (kubectl label namespace NAMESPACE {key}=VALUE)"
    if is_part(key) or (kai and section == "annotation" and key in _KAI):
        return f"other systems share a card by it; here the annotation {MEMORY} asks for a part of a card"
    if key in GPU_RESOURCES or key.startswith(MIG_RESOURCE_PREFIX):
        return "it is a resource, in resources.limits of a container"
    return ""


def misplaced_on_node(node: Node) -> Iterator[str]:
    """The keys of a node that have no effect as annotations."""
    for key in sorted(_NODE_LABELS & node.metadata.annotations.keys() - node.metadata.labels.keys()):
        value = node.metadata.annotations[key]
        step = f"kubectl label node {node.metadata.name} {key}={value}"
        yield f"its annotation {key} has no effect: it is a label ({step})"


def misplaced_on_namespace(namespaces: Iterable[Namespace], name: str) -> Iterator[str]:
    """The keys of a namespace that have no effect as annotations."""
    for each in namespaces:
        if each.metadata.name == name:
            for key in sorted(({QUEUE_LABEL} | _NAMESPACE_LABELS) & each.metadata.annotations.keys()):
                if key not in each.metadata.labels:
                    step = f"kubectl label namespace {name} {key}={each.metadata.annotations[key]}"
                    yield f"the annotation {key} of namespace {name} has no effect: it is a label ({step})"


def set_by_limit_range(pod: Pod, asked: Mapping[str, int]) -> Iterator[str]:
    """The resources that a LimitRange of the namespace wrote into a pod that did not ask for them.

    A maximum without a default is the default of each container (``SetDefaults_LimitRangeItem`` of Kubernetes).
    """
    told = pod.metadata.annotations.get(_LIMIT_RANGER, "").partition(": ")[2]
    named = {name for name, count in asked.items() if count}
    parts = [part for part in told.split("; ") if named & {*part.partition(" limit for ")[0].split(", ")}]
    if parts:
        look = f"kubectl get limitranges -n {pod.metadata.namespace} -o yaml"
        yield (
            f"a LimitRange of its namespace wrote a limit into it: {one_line('; '.join(parts), FACT_SHOWN)}; a maximum"
            f" without a default is given to every container ({look})"
        )


def uncounted_quotas(quotas: Iterable[ResourceQuota], asked: Mapping[str, int]) -> Iterator[str]:
    """The quotas for resources of a pod that count nothing, since the key has another prefix than ``requests.``.

    Kubernetes counts an extended resource under this name only (``pkg/quota/v1/evaluator/core/pods.go``).
    """
    for quota in quotas:
        for name in sorted(asked):
            for key in (name, f"limits.{name}"):
                if key in quota.spec.hard:
                    yield (
                        f"quota {quota.metadata.name} counts nothing for {key}: Kubernetes counts such a resource as"
                        f" requests.{name} (kubectl edit resourcequota -n {quota.metadata.namespace}"
                        f" {quota.metadata.name})"
                    )
