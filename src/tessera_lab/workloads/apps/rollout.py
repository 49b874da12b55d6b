"""The decisions of a Deployment's rollout, without I/O.

Names, hashes, revisions, and how many pods each ReplicaSet may have next. Rules of ``pkg/controller/deployment``:
during a rolling update there are never more than ``replicas + maxSurge`` pods and never fewer than
``replicas - maxUnavailable`` available ones; percentages round up for surge and down for unavailable, and not both may
be zero. A change of ``replicas`` in the middle of a rollout is spread by the same two bounds, not in proportion.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.workloads.base.ownership import Json, labels_of
from tessera_lab.workloads.base.pods import created_at

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAXIMUM = "deployment.kubernetes.io/max-replicas"

#: Annotations of a Deployment that its ReplicaSets do not get.
_NOT_COPIED = frozenset({REVISION, DESIRED, MAXIMUM, "kubectl.kubernetes.io/last-applied-configuration"})

#: Letters of generated names (``k8s.io/apimachinery/pkg/util/rand``): they form no words.
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


class RolloutBounds(msgspec.Struct, frozen=True):
    """Limits of a rolling update: pods above and below the number of replicas."""

    surge: int
    unavailable: int


class ReplicaSetScale(msgspec.Struct, frozen=True):
    """A new number of replicas for one ReplicaSet."""

    replicaset: str
    replicas: int


def template_hash(template: Json, collisions: int) -> str:
    """Returns the pod-template-hash: equal templates have equal hashes; another ``collisions`` gives another hash."""
    text = msgspec.json.encode(template, order="deterministic") + str(collisions).encode()
    digest = hashlib.blake2b(text, digest_size=10).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest)


def owner_hash(owner: Json) -> str:
    """The hash of an owner's template as it is now."""
    return template_hash(owner["spec"]["template"], int((owner.get("status") or {}).get("collisionCount") or 0))


def same_template(template: Json, replicaset: Json) -> bool:
    """True if the ReplicaSet has this template, without regard to the hash label."""
    own = replicaset["spec"]["template"]
    labels = {name: value for name, value in labels_of(own).items() if name != HASH_LABEL} if "metadata" in own else {}
    return (
        labels == ((template.get("metadata") or {}).get("labels") or {})
        and _annotations(own) == _annotations(template)
        and own["spec"] == template["spec"]
    )


def _annotations(template: Json) -> Mapping[str, str]:
    return (template.get("metadata") or {}).get("annotations") or {}


def split_replicasets(deployment: Json, replicasets: Sequence[Json]) -> tuple[Json | None, list[Json]]:
    """The ReplicaSet of the present template, if there is one, and the others, oldest first."""
    ordered = sorted(replicasets, key=lambda each: (created_at(each), each["metadata"]["name"]))
    new = next((each for each in ordered if same_template(deployment["spec"]["template"], each)), None)
    return new, [each for each in ordered if each is not new]


def revision(item: Json) -> int:
    """The rollout revision of a ReplicaSet or Deployment, 0 without one."""
    return int((item["metadata"].get("annotations") or {}).get(REVISION, "0"))


def replicas(item: Json) -> int:
    """``spec.replicas``, 1 if it is left out."""
    number = item["spec"].get("replicas")
    return 1 if number is None else int(number)


def available(item: Json) -> int:
    """``status.availableReplicas``."""
    return int((item.get("status") or {}).get("availableReplicas", 0))


def count_present(item: Json) -> int:
    """``status.replicas``."""
    return int((item.get("status") or {}).get("replicas", 0))


def bounds(deployment: Json) -> RolloutBounds:
    """MaxSurge and maxUnavailable in pods."""
    strategy = deployment["spec"].get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return RolloutBounds(0, replicas(deployment))
    rolling = strategy.get("rollingUpdate") or {}
    desired = replicas(deployment)
    surge = _number(rolling.get("maxSurge", "25%"), desired, up=True)
    unavailable = _number(rolling.get("maxUnavailable", "25%"), desired, up=False)
    return RolloutBounds(surge, 1) if not surge and not unavailable else RolloutBounds(surge, min(unavailable, desired))


def _number(value: int | str, total: int, *, up: bool) -> int:
    """An integer or a percentage of ``total``."""
    if isinstance(value, int):
        return value
    if not value.endswith("%"):
        return int(value)
    product = int(value[:-1]) * total
    return -(-product // 100) if up else product // 100


def annotations(deployment: Json, number: int) -> dict[str, str]:
    """The annotations that the Deployment's newest ReplicaSet has."""
    own = deployment["metadata"].get("annotations") or {}
    copied = {name: value for name, value in own.items() if name not in _NOT_COPIED}
    desired = replicas(deployment)
    return {
        **copied,
        REVISION: str(number),
        DESIRED: str(desired),
        MAXIMUM: str(desired + bounds(deployment).surge),
    }


def new_replicaset_size(deployment: Json, replicasets: Sequence[Json], current: int) -> int:
    """Number of replicas that the newest ReplicaSet may have now, if it has ``current``."""
    desired = replicas(deployment)
    if (deployment["spec"].get("strategy") or {}).get("type") == "Recreate":
        return desired
    room = desired + bounds(deployment).surge - sum(map(replicas, replicasets))
    if current > desired:
        return desired
    return min(desired, current + max(0, room))


def scale_down_old(deployment: Json, new: Json, old: Sequence[Json]) -> list[ReplicaSetScale]:
    """Scales old ReplicaSets down in a rolling update: first pods that are not available, then by age."""
    minimum = replicas(deployment) - bounds(deployment).unavailable
    everything = [new, *old]
    new_unavailable = max(0, replicas(new) - available(new))
    spare = sum(map(replicas, everything)) - minimum - new_unavailable
    if spare <= 0:
        return []
    sizes = {each["metadata"]["name"]: replicas(each) for each in old}
    for each in old:
        name = each["metadata"]["name"]
        unhealthy = min(max(0, replicas(each) - available(each)), spare)
        sizes[name] -= unhealthy
        spare -= unhealthy
    spare = min(spare, sum(map(available, everything)) - minimum)
    for each in old:
        name = each["metadata"]["name"]
        healthy = min(sizes[name], max(0, spare))
        sizes[name] -= healthy
        spare -= healthy
    return [
        ReplicaSetScale(each["metadata"]["name"], sizes[each["metadata"]["name"]])
        for each in old
        if sizes[each["metadata"]["name"]] != replicas(each)
    ]


def old_to_forget(deployment: Json, old: Sequence[Json]) -> list[Json]:
    """The old, empty ReplicaSets beyond ``revisionHistoryLimit``, oldest revision first."""
    limit = deployment["spec"].get("revisionHistoryLimit")
    limit = 10 if limit is None else int(limit)
    empty = [each for each in old if not replicas(each) and not count_present(each)]
    ordered = sorted(empty, key=revision)
    return ordered[: max(0, len(ordered) - limit)]


def is_complete(deployment: Json, new: Json | None, everything: Sequence[Json]) -> bool:
    """True if all replicas have the newest template and are available."""
    desired = replicas(deployment)
    updated = count_present(new) if new is not None else 0
    return updated == desired == sum(map(count_present, everything)) and sum(map(available, everything)) == desired


def count_totals(everything: Sequence[Json], new: Json | None) -> dict[str, Any]:
    """The counts of the Deployment's status, without the unavailable ones."""
    return {
        "replicas": sum(map(count_present, everything)),
        "updatedReplicas": count_present(new) if new is not None else 0,
        "readyReplicas": sum(int((each.get("status") or {}).get("readyReplicas", 0)) for each in everything),
        "availableReplicas": sum(map(available, everything)),
    }
