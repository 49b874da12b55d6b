"""Reads from a pod's labels and annotations its gang, and its requirements on a GPU.

Pods of a gang get their slices together or not at all. A gang has a name and a size. The first of these that a pod has
counts:

- the label ``tessera.dev/gang`` with the annotation ``tessera.dev/gang-size``;
- Kueue's annotation or label ``kueue.x-k8s.io/pod-group-name`` with ``kueue.x-k8s.io/pod-group-total-count``, unless
  Kueue admits the group with its first pod (``kueue.x-k8s.io/pod-group-fast-admission``, as of a StatefulSet): the next
  pod may not be made before that one runs;
- the labels ``pod-group.scheduling.sigs.k8s.io/name`` and ``.../min-available`` of early coscheduling;
- the label ``scheduling.x-k8s.io/pod-group`` of the coscheduling plugin, with ``tessera.dev/gang-size``, or without:
  then ``spec.minMember`` of the PodGroup object of that name counts;
- the plugin's former label ``pod-group.scheduling.sigs.k8s.io``, with ``tessera.dev/gang-size``;
- ``tessera.dev/gang-size`` alone, in the pod template of a Job or another controller: the pods of that controller.

Pods of one namespace with one name are one gang, whoever made them.

A LeaderWorkerSet may make the workers of a group only when their leader is ready (``startupPolicy: LeaderReady``) or
bound (``exclusive-topology``), and the pods do not say so. So a leader starts by itself as long as no worker exists.

A PodGroup object of the coscheduling plugin says how many pods of its group start together (:func:`read_pod_group`).

Requirements are ``tessera.dev/gpu-memory: 10Gi``, ``tessera.dev/nvlink: "true"``, ``tessera.dev/ecc: "true"``,
``tessera.dev/compute-capability: ">=8.0"`` (several bounds with commas), ``tessera.dev/product: A100|H100``. A pod has
either requirements or resources: if a pod had both and they differed, neither could be called wrong. A misspelt key is
refused, since an ignored requirement is worse than none.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from tessera.api.names import GPU_RESOURCES, MIG_RESOURCE_PREFIX, OWN_DOMAIN, POD_PREFLIGHT
from tessera.kube.quantity import parse_quantity
from tessera.kube.resources.meta import Resource
from tessera.limits import GANG_SIZE, OWN_ANNOTATIONS, PRODUCTS, REQUIRED_MEMORY, REQUIREMENT
from tessera.offers import OPERATORS, CapabilityBound, Requirements
from tessera.text import one_line

GANG_LABEL = "tessera.dev/gang"
GANG_SIZE_ANNOTATION = "tessera.dev/gang-size"
#: Names the group of a pod: the annotation since Kueue 0.18 (feature gate ``WorkloadIdentifierAnnotations``), and the
#: label, which Kueue reads where the annotation is missing (``pkg/util/pod/pod.go``).
KUEUE_GROUP_NAME = "kueue.x-k8s.io/pod-group-name"
KUEUE_COUNT_ANNOTATION = "kueue.x-k8s.io/pod-group-total-count"
#: Kueue writes ``true`` into the pods of a StatefulSet (``pkg/controller/jobs/statefulset/statefulset_webhook.go``).
KUEUE_FAST_ANNOTATION = "kueue.x-k8s.io/pod-group-fast-admission"
#: Label of a LeaderWorkerSet's pods: ``0`` is the leader of its group (``api/leaderworkerset/v1``).
WORKER_INDEX_LABEL = "leaderworkerset.sigs.k8s.io/worker-index"
POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
COSCHEDULING_LABELS = (POD_GROUP_LABEL, "pod-group.scheduling.sigs.k8s.io")
#: Labels of coscheduling before it had PodGroup objects: the name, and the number of pods that start together.
MIN_AVAILABLE_LABEL = "pod-group.scheduling.sigs.k8s.io/min-available"
GROUP_NAME_LABEL = "pod-group.scheduling.sigs.k8s.io/name"
#: A size that the webhook replaces by the number of pods that a Job runs at the same time.
SIZE_OF_JOB = "parallelism"

#: Most characters of a mistaken value that a message repeats.
_SHOWN = 40


class GangError(ValueError):
    """A pod's size of its gang is missing or wrong; the text is for the pod's author."""


@dataclass(frozen=True, slots=True)
class Gang:
    """The gang of a pod.

    Attributes:
        key: names the gang in the cluster; equal for all of its pods.
        name: the name that people gave it; the controller's name for the pods of a controller.
        size: the number of pods that start together; 0 if the PodGroup object of this name says it.
        leads: the pod starts by itself as long as no other pod of the gang exists.
    """

    key: str
    name: str
    size: int
    leads: bool = False


def kueue_group(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """Returns the name of a pod's group in Kueue; empty if it is in none."""
    return annotations.get(KUEUE_GROUP_NAME) or labels.get(KUEUE_GROUP_NAME, "")


def read_gang(
    namespace: str, labels: Mapping[str, str], annotations: Mapping[str, str], owner: tuple[str, str]
) -> Gang | None:
    """Returns the gang of a pod, None for a pod that starts by itself; a gang of one is none.

    Args:
        namespace: the pod's namespace.
        labels: its labels.
        annotations: its annotations.
        owner: name and UID of its controller; both empty if it has none.

    Raises:
        GangError: the size is missing, no number, or above the limit.
    """
    own = annotations.get(GANG_SIZE_ANNOTATION)
    if GANG_LABEL in labels:
        if own is None:
            raise GangError(
                f"label {GANG_LABEL}: the annotation {GANG_SIZE_ANNOTATION} is missing; write the number of pods that"
                " start together"
            )
        return _make(namespace, GANG_LABEL, labels[GANG_LABEL], _read_size(GANG_SIZE_ANNOTATION, own))
    fast = annotations.get(KUEUE_FAST_ANNOTATION) == "true"
    queued = kueue_group(labels, annotations)
    if queued and KUEUE_COUNT_ANNOTATION in annotations and not fast:
        size = _read_size(KUEUE_COUNT_ANNOTATION, annotations[KUEUE_COUNT_ANNOTATION])
        leads = labels.get(WORKER_INDEX_LABEL) == "0"
        return _make(namespace, KUEUE_GROUP_NAME, queued, size, leads=leads)
    if GROUP_NAME_LABEL in labels and MIN_AVAILABLE_LABEL in labels:
        size = _read_size(MIN_AVAILABLE_LABEL, labels[MIN_AVAILABLE_LABEL], "label")
        return _make(namespace, GROUP_NAME_LABEL, labels[GROUP_NAME_LABEL], size)
    if own is None:
        name = labels.get(POD_GROUP_LABEL, "")
        return Gang(pod_group_key(namespace, name), name, 0) if name else None
    size = _read_size(GANG_SIZE_ANNOTATION, own)
    group = next((each for each in COSCHEDULING_LABELS if each in labels), "")
    if group:
        return _make(namespace, group, labels[group], size)
    name, uid = owner
    if not uid:
        raise GangError(
            f"annotation {GANG_SIZE_ANNOTATION}: the pod has neither a controller nor the label {GANG_LABEL}, so"
            " nothing says which pods are of its gang; add the label"
        )
    found = _make(namespace, "owner", uid, size)
    return None if found is None else Gang(found.key, name, size)


def pod_group_key(namespace: str, name: str) -> str:
    """Returns the key of the gang of a PodGroup object."""
    return f"{namespace}/{POD_GROUP_LABEL}={name}"


def _make(namespace: str, kind: str, name: str, size: int, *, leads: bool = False) -> Gang | None:
    return Gang(f"{namespace}/{kind}={name}", name, size, leads) if size > 1 else None


def _read_size(key: str, text: str, kind: str = "annotation") -> int:
    plain = text.isascii() and text.isdecimal() and len(text) <= _SHOWN
    size = int(text) if plain else 0
    if text == SIZE_OF_JOB:
        raise GangError(
            f'{kind} {key}: "{text}" counts in the pod template of a Job (batch/v1) alone, when the Job is created:'
            " write the number of pods"
        )
    if size < 1:
        shown = one_line(text, _SHOWN)
        raise GangError(f'{kind} {key}: "{shown}" is no number of pods; write for example "4"')
    if size > GANG_SIZE:
        raise GangError(f"{kind} {key}: a gang of {size} pods is too large; {GANG_SIZE} are allowed")
    return size


#: The kind, of scheduler-plugins (``scheduling.x-k8s.io``).
POD_GROUPS: Resource[dict[str, Any]] = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", True, dict)


def read_pod_group(item: Mapping[str, Any]) -> tuple[str, int]:
    """Returns the key of the gang of a PodGroup, and its size.

    The size is 1 if ``spec.minMember`` is missing or no number, and 0, which is no size, if it is above the limit.
    """
    meta, spec = (found if isinstance(found := item.get(each), dict) else {} for each in ("metadata", "spec"))
    size = spec.get("minMember")
    key = pod_group_key(str(meta.get("namespace", "")), str(meta.get("name", "")))
    size = max(1, size) if isinstance(size, int) else 1
    return key, size if size <= GANG_SIZE else 0


MEMORY = OWN_DOMAIN + "gpu-memory"
NVLINK = OWN_DOMAIN + "nvlink"
ECC = OWN_DOMAIN + "ecc"
CAPABILITY = OWN_DOMAIN + "compute-capability"
PRODUCT = OWN_DOMAIN + "product"
KEYS = (MEMORY, NVLINK, ECC, CAPABILITY, PRODUCT)

#: With the value :data:`SLICE`, whole cards become slices of whole cards where no node offers those.
WHOLE_CARD, SLICE = OWN_DOMAIN + "whole-card", "slice"

#: Annotations that record the choice for a pod, and its reason.
CHOSEN = OWN_DOMAIN + "chosen-resource"
CHOSEN_REASON = OWN_DOMAIN + "chosen-resource-reason"

#: A smaller amount counts as a forgotten unit: no slice of any card is smaller.
_LEAST_MEMORY = 2**20
#: After the sign and without blanks around it. Compute capabilities have two digits at most before the dot.
_VERSION = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")
#: Longest name of an annotation, without its prefix (Kubernetes, qualified names).
_LONGEST_NAME = 63


class RequirementError(ValueError):
    """An annotation is malformed; the text is for the pod's author."""


def requirements_of(
    annotations: Mapping[str, str], resources: Iterable[str] = (), gpus: Collection[str] = GPU_RESOURCES
) -> Requirements | None:
    """Returns the requirements of a pod, ``None`` if it has none.

    Args:
        annotations: the pod's.
        resources: names of the resources that its containers ask for.
        gpus: names of GPU resources besides those of MIG slices.

    Raises:
        RequirementError: a value is malformed, a key is a misspelling of ours, or the pod also asks for GPUs by name.
    """
    own = [key for key in annotations if key.startswith(OWN_DOMAIN)]
    if len(own) > OWN_ANNOTATIONS:
        allowed = f"{OWN_ANNOTATIONS} are allowed: remove some"
        raise RequirementError(f"the pod has {len(own)} annotations under {OWN_DOMAIN}; {allowed}")
    for key in own:
        _refuse_misspelt(key)
    if not any(key in annotations for key in KEYS):
        return None
    for key in KEYS:
        _refuse_long(key, annotations.get(key, ""))
    for resource in resources:
        if resource in gpus or resource.startswith(MIG_RESOURCE_PREFIX):
            written = next(key for key in KEYS if key in annotations)
            raise RequirementError(
                f'annotation {written} and a container\'s resource "{one_line(resource)}" both say which GPU the pod '
                "gets; keep one of them"
            )
    found = Requirements(
        memory=_read_memory(annotations[MEMORY]) if MEMORY in annotations else 0,
        nvlink=_read_boolean(NVLINK, annotations.get(NVLINK, "false")),
        ecc=_read_boolean(ECC, annotations.get(ECC, "false")),
        capability=_read_capability(annotations[CAPABILITY]) if CAPABILITY in annotations else (),
        products=_read_products(annotations[PRODUCT]) if PRODUCT in annotations else (),
    )
    return found if found != Requirements() else None


def asks_for_preflight(annotations: Mapping[str, str]) -> bool:
    """True if a pod asks for tests of its cards before its first container starts."""
    return annotations.get(POD_PREFLIGHT) == "true"


def _refuse_long(key: str, text: str) -> None:
    if len(text) > REQUIREMENT:
        raise RequirementError(f"annotation {key}: has {len(text):,} characters; {REQUIREMENT} are allowed: shorten it")


def _refuse_misspelt(key: str) -> None:
    if key in {*KEYS, WHOLE_CARD} or len(key) > len(OWN_DOMAIN) + _LONGEST_NAME:
        return  # the API server refuses the longer ones
    names = [known.removeprefix(OWN_DOMAIN) for known in (*KEYS, WHOLE_CARD)]
    close = get_close_matches(key.removeprefix(OWN_DOMAIN), names, n=1, cutoff=0.75)
    if close:
        raise RequirementError(f"annotation {one_line(key)}: unknown; did you mean {OWN_DOMAIN}{close[0]}?")


def _read_memory(text: str) -> int:
    shown = one_line(text, _SHOWN)
    try:
        amount = parse_quantity(text)
    except ValueError:
        raise RequirementError(f'annotation {MEMORY}: "{shown}" is no quantity; write for example 10Gi') from None
    if amount <= 0:
        raise RequirementError(f'annotation {MEMORY}: "{shown}" must be positive; write for example 10Gi')
    if amount < _LEAST_MEMORY:
        raise RequirementError(f'annotation {MEMORY}: "{shown}" is in bytes; is a unit missing, as in {shown}Gi?')
    if amount > REQUIRED_MEMORY:
        raise RequirementError(
            f'annotation {MEMORY}: "{shown}" is more than any GPU will have; {REQUIRED_MEMORY} are allowed, '
            "write for example 10Gi"
        )
    return int(amount)


def _read_boolean(key: str, text: str) -> bool:
    if text not in {"true", "false"}:
        raise RequirementError(f'annotation {key}: "{one_line(text, _SHOWN)}" must be "true" or "false", in quotes')
    return text == "true"


def _read_capability(text: str) -> tuple[CapabilityBound, ...]:
    return tuple(_read_comparison(part.strip()) for part in text.split(","))


def _read_comparison(part: str) -> CapabilityBound:
    sign = next((each for each in OPERATORS if part.startswith(each)), "")
    version = _VERSION.fullmatch(part.removeprefix(sign).strip())
    if version is None:
        raise RequirementError(
            f'annotation {CAPABILITY}: "{one_line(part, _SHOWN)}" is no bound; write one of {" ".join(OPERATORS)} and '
            'a version, for example ">=8.0" or ">=8.0,<10.0"'
        )
    return CapabilityBound(sign or "==", (int(version[1]), int(version[2])))


def _read_products(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split("|"))
    if len(names) > PRODUCTS:
        allowed = f"{PRODUCTS} are allowed: name families"
        raise RequirementError(f"annotation {PRODUCT}: names {len(names)} models; {allowed}")
    if not all(re.search("[A-Za-z0-9]", name) for name in names):
        raise RequirementError(
            f'annotation {PRODUCT}: "{one_line(text)}" has an empty name; write models divided by |, for example '
            "A100|H100"
        )
    return names
