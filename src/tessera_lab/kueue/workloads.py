"""Kueue's objects as the lab stores them: their kinds, their conditions, and the Workloads that it builds, in order.

Workloads are built as Kueue does: of Jobs from their templates, of pods and groups from the stored pods.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tessera.api.pod_annotations import KUEUE_COUNT_ANNOTATION, KUEUE_FAST_ANNOTATION, kueue_group
from tessera.kube.resources.meta import Resource
from tessera.kueue.objects import GROUP, QUEUE_LABEL
from tessera_lab.kueue.webhooks import MANAGED, ROLE_HASH, role_hash, workload_name

Json = dict[str, Any]
_ENDED = ("Succeeded", "Failed")


@dataclass(kw_only=True)
class Job:
    """A Job, a pod, or a group of pods, for which there is one Workload.

    Attributes:
        kind: ``Job``, ``Pod`` or ``Group``.
        name: the Workload's.
        namespace: of all of them.
        queue: the LocalQueue.
        owners: the Job, or the pods.
        pods: the pods that exist.
        pod_sets: as they are now.
        incomplete: why there can be no Workload; empty if there can.
    """

    kind: str
    name: str
    namespace: str
    queue: str
    owners: list[Json]
    pods: list[Json] = field(default_factory=list)
    pod_sets: list[Json] = field(default_factory=list)
    incomplete: str = ""

    @property
    def key(self) -> str:
        """``namespace/name`` of the Workload."""
        return f"{self.namespace}/{self.name}"

    @property
    def finished(self) -> bool:
        """True if it has ended."""
        if self.kind == "Job":
            conditions = self.owners[0].get("status", {}).get("conditions") or ()
            return any(each["type"] in {"Complete", "Failed"} and each["status"] == "True" for each in conditions)
        return bool(self.pods) and all(phase(pod) in _ENDED for pod in self.pods)

    @property
    def ready(self) -> bool:
        """True if all its pods run or have ended well."""
        wanted = sum(each["count"] for each in self.pod_sets)
        fine = sum(phase(pod) == "Succeeded" or is_ready(pod) for pod in self.pods)
        return bool(fine >= wanted)

    def priority(self) -> int:
        """Of its pods."""
        spec = self.owners[0]["spec"]
        spec = spec["template"]["spec"] if self.kind == "Job" else spec
        return int(spec.get("priority") or 0)


def find_jobs(jobs: Iterable[Json], pods: Iterable[Json]) -> Iterator[Job]:
    """Yields what Kueue manages in these objects."""
    pods = list(pods)
    for job in jobs:
        meta = job["metadata"]
        labels = meta.get("labels") or {}
        if QUEUE_LABEL in labels:
            yield Job(
                kind="Job",
                name=workload_name("job", meta["name"], meta["uid"]),
                namespace=meta["namespace"],
                queue=labels[QUEUE_LABEL],
                owners=[job],
                pods=[pod for pod in pods if _is_owned(pod, meta["uid"])],
                pod_sets=[pod_set("main", job["spec"]["template"], int(job["spec"].get("parallelism") or 1))],
            )
    groups: dict[tuple[str, str], list[Json]] = {}
    for pod in pods:
        meta = pod["metadata"]
        labels = meta.get("labels") or {}
        if labels.get(MANAGED) != "true":
            continue
        if group := kueue_group(labels, meta.get("annotations") or {}):
            groups.setdefault((meta["namespace"], group), []).append(pod)
            continue
        template = {"metadata": {"labels": labels}, "spec": pod["spec"]}
        yield Job(
            kind="Pod",
            name=workload_name("pod", meta["name"], meta["uid"]),
            namespace=meta["namespace"],
            queue=labels[QUEUE_LABEL],
            owners=[pod],
            pods=[pod],
            pod_sets=[pod_set("main", template, 1)],
        )
    for (namespace, name), members in groups.items():
        yield _group(namespace, name, members)


def _group(namespace: str, name: str, members: list[Json]) -> Job:
    """A group; without all of its pods there is no Workload, but for one that is admitted with its first pod."""
    first = members[0]["metadata"]
    annotations = first.get("annotations") or {}
    text, fast = annotations.get(KUEUE_COUNT_ANNOTATION, ""), annotations.get(KUEUE_FAST_ANNOTATION) == "true"
    wanted = int(text) if text.isascii() and text.isdecimal() else 0  # Kueue's webhook would refuse any other text
    roles: dict[str, list[Json]] = {}
    for pod in members:
        role = (pod["metadata"].get("annotations") or {}).get(ROLE_HASH) or role_hash(pod["spec"])
        roles.setdefault(role, []).append(pod)
    sets = [pod_set(role, {"spec": pods[0]["spec"]}, len(pods)) for role, pods in sorted(roles.items())]
    if fast:
        sets = [{**sets[0], "count": wanted}]
    missing = f"'{name}' group has fewer runnable pods than expected" if len(members) < wanted and not fast else ""
    return Job(
        kind="Group",
        name=name,
        namespace=namespace,
        queue=first["labels"][QUEUE_LABEL],
        owners=members,
        pods=members,
        pod_sets=sets,
        incomplete=missing,
    )


def pod_set(name: str, template: Json, count: int) -> Json:
    """A pod set."""
    return {"name": name, "template": template, "count": count}


def are_equal(stored: list[Json], present: list[Json]) -> bool:
    """True if the pod sets of a Workload are those of its object: counts, containers and init containers."""

    def shape(sets: list[Json]) -> list[Any]:
        specs = [(each["count"], each["template"]["spec"]) for each in sets]
        return [(count, spec["containers"], spec.get("initContainers") or []) for count, spec in specs]

    return shape(stored) == shape(present)


def phase(pod: Json) -> str:
    """A pod's phase."""
    return str(pod.get("status", {}).get("phase", ""))


def is_ready(pod: Json) -> bool:
    """True if all containers of a pod run."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _is_owned(pod: Json, uid: str) -> bool:
    return any(each["uid"] == uid for each in pod["metadata"].get("ownerReferences") or ())


def kind(plural: str, name: str, version: str, *, namespaced: bool = False) -> Resource[Json]:
    """A kind of Kueue."""
    return Resource(GROUP, version, plural, name, namespaced, dict)


class Kinds(NamedTuple):
    """Kueue's kinds at one version of its API."""

    workloads: Resource[Json]
    local_queues: Resource[Json]
    cluster_queues: Resource[Json]
    checks: Resource[Json]
    flavors: Resource[Json]


def make_kinds(version: str) -> Kinds:
    """The kinds at a version."""
    return Kinds(
        workloads=kind("workloads", "Workload", version, namespaced=True),
        local_queues=kind("localqueues", "LocalQueue", version, namespaced=True),
        cluster_queues=kind("clusterqueues", "ClusterQueue", version),
        checks=kind("admissionchecks", "AdmissionCheck", version),
        flavors=kind("resourceflavors", "ResourceFlavor", version),
    )


def condition(item: Json, type_: str) -> Json | None:
    """A condition of an object; None if it has none of this type."""
    found = item.get("status", {}).get("conditions") or ()
    return next((each for each in found if each["type"] == type_), None)


def is_true(item: Json, type_: str) -> bool:
    """True if a condition holds."""
    found = condition(item, type_)
    return found is not None and found["status"] == "True"


def key_of(item: Json) -> str:
    """``namespace/name``."""
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def is_leaving(item: Json) -> bool:
    """True if it is being deleted."""
    return bool(item["metadata"].get("deletionTimestamp"))


def order(item: Json) -> tuple[int, str, str]:
    """Higher priority first, then age; a Workload that a check sent back counts from then on."""
    evicted = condition(item, "Evicted")
    since = item["metadata"]["creationTimestamp"]
    if evicted is not None and evicted["reason"] in {"AdmissionCheck", "PodsReadyTimeout"}:
        since = evicted["lastTransitionTime"]
    return -int(item["spec"].get("priority", 0)), since, item["metadata"]["uid"]
