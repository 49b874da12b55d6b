"""Where the pod templates of Kueue's Job-like kinds are, and whether Kueue will hold such an object.

Kueue builds the Workload of these kinds from their templates, not from pods. Paths are those of the kinds' published
types. A kind that is not installed in a cluster costs nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import KUEUE_QUEUE_LABEL

#: Stands for every entry of a list or of a mapping.
EACH = "*"
Path = tuple[str, ...]
Json = Mapping[str, Any]


class TemplateKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind with pod templates.

    Attributes:
        group: its API group.
        plural: its name in paths and in rules of webhooks.
        kind: its kind.
        templates: paths of its templates, with :data:`EACH` where there are several.
        suspend: path of the field by which Kueue holds it; empty if it has none.
    """

    group: str
    plural: str
    kind: str
    templates: tuple[Path, ...]
    suspend: Path = ("spec", "suspend")


def _kubeflow(kind: str, replicas: str) -> TemplateKind:
    return TemplateKind(
        group="kubeflow.org",
        plural=f"{kind.lower()}s",
        kind=kind,
        templates=(("spec", replicas, EACH, "template"),),
        suspend=("spec", "runPolicy", "suspend"),
    )


def _ray(kind: str, cluster: Path, *more: Path) -> TemplateKind:
    return TemplateKind(
        group="ray.io",
        plural=f"{kind.lower()}s",
        kind=kind,
        templates=((*cluster, "headGroupSpec", "template"), (*cluster, "workerGroupSpecs", EACH, "template"), *more),
    )


#: The values of ``managedBy`` with which the controllers of the kinds run an object in its own cluster.
_OWN_CONTROLLERS = frozenset(
    {
        "kubernetes.io/job-controller",
        "jobset.sigs.k8s.io/jobset-controller",
        "ray.io/kuberay-operator",
        "kubeflow.org/training-operator",
        "kubeflow.org/mpi-operator",
    }
)
JOB = TemplateKind(group="batch", plural="jobs", kind="Job", templates=(("spec", "template"),))
KINDS: tuple[TemplateKind, ...] = (
    JOB,
    TemplateKind(
        group="jobset.x-k8s.io",
        plural="jobsets",
        kind="JobSet",
        templates=(("spec", "replicatedJobs", EACH, "template", "spec", "template"),),
    ),
    TemplateKind(
        group="leaderworkerset.x-k8s.io",
        plural="leaderworkersets",
        kind="LeaderWorkerSet",
        templates=(
            ("spec", "leaderWorkerTemplate", "leaderTemplate"),
            ("spec", "leaderWorkerTemplate", "workerTemplate"),
        ),
        suspend=(),
    ),
    _ray("RayCluster", ("spec",)),
    _ray("RayJob", ("spec", "rayClusterSpec"), ("spec", "submitterPodTemplate")),
    _ray("RayService", ("spec", "rayClusterConfig")),
    _kubeflow("PyTorchJob", "pytorchReplicaSpecs"),
    _kubeflow("TFJob", "tfReplicaSpecs"),
    _kubeflow("XGBoostJob", "xgbReplicaSpecs"),
    _kubeflow("PaddleJob", "paddleReplicaSpecs"),
    _kubeflow("JAXJob", "jaxReplicaSpecs"),
    _kubeflow("MPIJob", "mpiReplicaSpecs"),
)

#: Kubernetes' own kinds with templates. Kueue holds of them the Job only; others it holds by their pods.
WORKLOADS: tuple[TemplateKind, ...] = (
    *(
        TemplateKind(group="apps", plural=f"{kind.lower()}s", kind=kind, templates=(("spec", "template"),), suspend=())
        for kind in ("Deployment", "StatefulSet", "DaemonSet")
    ),
    JOB,
    TemplateKind(
        group="batch",
        plural="cronjobs",
        kind="CronJob",
        templates=(("spec", "jobTemplate", "spec", "template"),),
        suspend=(),
    ),
)

_BY_NAME = {(each.group, each.kind): each for each in (*WORKLOADS, *KINDS)}


def find_kind(group: str, kind: str) -> TemplateKind | None:
    """Returns the description of a kind; ``None`` for one without templates that Tessera knows."""
    return _BY_NAME.get((group, kind))


def find_templates(kind: TemplateKind, item: Json) -> Iterator[tuple[Path, Json]]:
    """Yields the templates of an object, each with its path; parts that are missing or of another type are left out.

    Args:
        kind: the object's kind.
        item: the object as JSON.
    """
    for pattern in kind.templates:
        yield from _follow(item, pattern, ())


def _follow(at: Any, pattern: Sequence[str], path: Path) -> Iterator[tuple[Path, Json]]:
    if not pattern:
        if isinstance(at, dict):
            yield path, at
        return
    head, rest = pattern[0], pattern[1:]
    if head == EACH:
        entries = enumerate(at) if isinstance(at, list) else at.items() if isinstance(at, dict) else ()
        for name, entry in entries:
            yield from _follow(entry, rest, (*path, str(name)))
    elif isinstance(at, dict) and head in at:
        yield from _follow(at[head], rest, (*path, head))


def has_pods(item: Json, path: Path) -> bool:
    """True if an object makes pods of one of its templates as it is.

    Not with a parallelism or completions of 0, nor with 0 replicas, unless they may grow to a stated maximum; nor those
    of workers of a LeaderWorkerSet whose groups are a leader of another template alone.

    Args:
        item: the object as JSON.
        path: the template's path, with the places in lists in digits.
    """
    at: Any = item
    for part in path:
        if isinstance(at, dict):
            none = _is_zero(at.get("parallelism")) or _is_zero(at.get("completions"))
            if none or (_is_zero(at.get("replicas")) and not at.get("maxReplicas")):
                return False
            if part == "workerTemplate" and at.get("size") == 1 and at.get("leaderTemplate"):
                return False
            at = at[part]
        else:
            at = at[int(part)]
    return True


def _is_zero(value: Any) -> bool:
    return value == 0 and type(value) is int


def runs_elsewhere(item: Json) -> bool:
    """True if an object names a controller that is not its kind's own, as Kueue does for another cluster."""
    named = _value(item, ("spec", "managedBy")) or _value(item, ("spec", "runPolicy", "managedBy"))
    return isinstance(named, str) and named not in _OWN_CONTROLLERS


def is_queued(kind: TemplateKind, item: Json) -> bool:
    """True if Kueue holds the object, or will: it names a queue, or is suspended.

    Kueue suspends each object that it manages, also one that names no queue (a namespace's default queue, or the
    setting ``manageJobsWithoutQueueName``).
    """
    labels = _value(item, ("metadata", "labels"))
    if isinstance(labels, dict) and KUEUE_QUEUE_LABEL in labels:
        return True
    return bool(kind.suspend) and _value(item, kind.suspend) is True


def _value(at: Any, path: Path) -> Any:
    for part in path:
        at = at.get(part) if isinstance(at, dict) else None
    return at
