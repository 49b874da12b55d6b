"""Keys of a pod, its namespace, its quotas or a node that stand in a section where nobody reads them.

Kubernetes takes any label, annotation and selector, so nothing refuses such a key. Each fact names the section in which
it stands, and the one in which it counts.
"""

from collections.abc import Iterable, Iterator, Mapping

from tessera.api.names import QUEUE_LABEL
from tessera.api.resource_advice import NAMESPACE_LABELS, NODE_LABELS
from tessera.kube.resources import Namespace, Node, Pod, ResourceQuota
from tessera.limits import FACT_SHOWN
from tessera.text import one_line

#: Annotation in which Kubernetes says what a LimitRange wrote into a pod.
_LIMIT_RANGER = "kubernetes.io/limit-ranger"


def misplaced_on_node(node: Node) -> Iterator[str]:
    """The keys of a node that have no effect as annotations."""
    for key in sorted(NODE_LABELS & node.metadata.annotations.keys() - node.metadata.labels.keys()):
        value = node.metadata.annotations[key]
        step = f"kubectl label node {node.metadata.name} {key}={value}"
        yield f"its annotation {key} has no effect: it is a label ({step})"


def misplaced_on_namespace(namespaces: Iterable[Namespace], name: str) -> Iterator[str]:
    """The keys of a namespace that have no effect as annotations."""
    for each in namespaces:
        if each.metadata.name == name:
            for key in sorted(({QUEUE_LABEL} | NAMESPACE_LABELS) & each.metadata.annotations.keys()):
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
