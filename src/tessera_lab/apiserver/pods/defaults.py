"""Defaults of a pod's fields: ``k8s.io/kubernetes/pkg/apis/core/v1/defaults.go``. Pure, in place.

A pod and a pod template do not get the same defaults. Requests from limits, service links and host ports are set in
pods only (``SetDefaults_Pod``). A template keeps the values of its author, so that a later ``kubectl apply`` of another
amount does not conflict with an old default.

The server writes a new pod's ``matchLabelKeys`` and ``mismatchLabelKeys`` into its label selectors, since the scheduler
reads only the selectors (``applyMatchLabelKeysAndMismatchLabelKeys`` of
``k8s.io/kubernetes/pkg/registry/core/pod/strategy.go``).
"""

import re
from collections.abc import Iterator, Mapping
from decimal import ROUND_UP, Context, Decimal
from functools import partial
from typing import Any

from tessera.kube.quantity import format_quantity, parse_quantity
from tessera_lab.apiserver.interfaces import Obj
from tessera_lab.apiserver.pods.amounts import of_pods, sum_of_containers

#: Default of ``terminationGracePeriodSeconds``.
TERMINATION_GRACE = 30
#: Amounts of resources are kept to a thousandth.
_MILLI = Decimal("0.001")
_WHOLE = Context(prec=200)
_EXPONENT = re.compile(r".*[0-9.][eE][+-]?[0-9]+")


def default_pod(pod: Obj) -> None:
    """Defaults of a pod (``SetDefaults_Pod``)."""
    spec = pod.setdefault("spec", {})
    default_pod_spec(spec)
    fill_in(spec, enableServiceLinks=True)
    for key in ("containers", "initContainers"):
        for container in spec.get(key) or ():
            _request_limits(container["resources"])
            for port in container.get("ports") or () if spec.get("hostNetwork") else ():
                if not port.get("hostPort"):
                    port["hostPort"] = port.get("containerPort")
    if spec.get("resources"):
        _request_of_pod(spec)


def _request_of_pod(spec: Obj) -> None:
    """Fills in requests of a pod with limits of its own: those of its containers, else its limits.

    So does ``defaultPodRequests``.
    """
    own = spec["resources"]
    if own.get("limits"):
        summed = {
            name: format_quantity(each, binary=True) for name, each in sum_of_containers(spec, "requests").items()
        }
        huge = {name: each for name, each in own["limits"].items() if name.startswith("hugepages-")}
        filled = own["limits"] | summed | huge
        own["requests"] = {name: each for name, each in filled.items() if of_pods(name)} | (own.get("requests") or {})


def default_pod_spec(spec: Obj) -> None:
    """Defaults of a pod's spec, in a pod or a template (``SetDefaults_PodSpec``)."""
    fill_in(
        spec,
        restartPolicy="Always",
        terminationGracePeriodSeconds=TERMINATION_GRACE,
        dnsPolicy="ClusterFirst",
        schedulerName="default-scheduler",
        securityContext={},
    )
    if spec.get("serviceAccountName"):
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    elif spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"]
    canonicalize_quantities(spec, "overhead")
    canonicalize_quantities(spec.get("resources") or {}, "limits", "requests")
    for container in containers(spec):
        _default_container(container)
    for volume in spec.get("volumes") or ():
        _default_volume(volume)


def containers(spec: Obj) -> Iterator[Obj]:
    """All containers of a pod's spec, init and ephemeral ones included."""
    for key in ("initContainers", "containers", "ephemeralContainers"):
        for each in spec.get(key) or ():
            if isinstance(each, dict):
                yield each


def fill_in(obj: Obj, **defaults: Any) -> None:
    """Sets the fields that are missing or null."""
    for key, value in defaults.items():
        if obj.get(key) is None:
            obj[key] = value


def _default_container(container: Obj) -> None:
    fill_in(
        container,
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
        imagePullPolicy=_pull_policy(str(container.get("image") or "")),
        resources={},
    )
    for port in container.get("ports") or ():
        fill_in(port, protocol="TCP")
    for each in container.get("env") or ():
        _default_field_reference(each.get("valueFrom") or {})
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(name):
            _default_probe(container[name])
    for hook in ("postStart", "preStop"):
        _default_http(((container.get("lifecycle") or {}).get(hook) or {}).get("httpGet"))
    canonicalize_quantities(container["resources"], "limits", "requests")


def _pull_policy(image: str) -> str:
    """Returns Always for the tag ``latest`` and for an image with neither tag nor digest, else IfNotPresent."""
    name, digest, _ = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return "Always" if name and (tag == "latest" or not (tag or digest)) else "IfNotPresent"


def _default_field_reference(source: Obj) -> None:
    if source.get("fieldRef") is not None:
        fill_in(source["fieldRef"], apiVersion="v1")


def _default_http(action: Obj | None) -> None:
    if action:
        fill_in(action, path="/", scheme="HTTP")


def _default_probe(probe: Obj) -> None:
    fill_in(probe, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
    _default_http(probe.get("httpGet"))
    if probe.get("grpc"):
        fill_in(probe["grpc"], service="")


def _request_limits(resources: Obj) -> None:
    """Sets each request that is missing to the container's limit."""
    limits = resources.get("limits") or {}
    if limits:
        requests = resources.get("requests") or {}
        resources["requests"] = {**requests, **{k: v for k, v in limits.items() if k not in requests}}


def canonicalize_quantities(obj: Obj, *keys: str) -> None:
    """Writes quantities as Kubernetes stores them: ``0.5`` is ``500m``, the number 1 is ``"1"``, ``1u`` is ``1m``."""
    for key in keys:
        amounts = obj.get(key)
        if not isinstance(amounts, dict):
            continue
        for name, amount in amounts.items():
            try:
                text = str(amount)
                value = _WHOLE.normalize(parse_quantity(text))
                if _exponent(value) < _exponent(_MILLI):
                    value = value.quantize(_MILLI, ROUND_UP, _WHOLE)
                form = (
                    _with_exponent if _EXPONENT.fullmatch(text) else partial(format_quantity, binary=text.endswith("i"))
                )
                amounts[name] = form(value)
            except ValueError:
                continue  # validation refuses it later and names its path


def _exponent(value: Decimal) -> int:
    return int(value.as_tuple().exponent)


def _with_exponent(value: Decimal) -> str:
    """The form of a quantity that was written with an exponent, a multiple of three: ``100e18``."""
    value = _WHOLE.normalize(value)
    exponent = _exponent(value) // 3 * 3
    return f"{int(value.scaleb(-exponent, _WHOLE))}e{exponent}".removesuffix("e0")


#: Fields of volumes that have a default of their own, by the kind of volume.
_VOLUMES: Mapping[str, Mapping[str, Any]] = {
    "configMap": {"defaultMode": 0o644},
    "secret": {"defaultMode": 0o644},
    "downwardAPI": {"defaultMode": 0o644},
    "projected": {"defaultMode": 0o644},
    "hostPath": {"type": ""},
    "iscsi": {"iscsiInterface": "default"},
    "rbd": {"pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"},
}


def _default_volume(volume: Obj) -> None:
    for kind, defaults in _VOLUMES.items():
        if volume.get(kind) is not None:
            fill_in(volume[kind], **defaults)
    sources = [volume, *((volume.get("projected") or {}).get("sources") or ())]
    for source in sources:
        for item in (source.get("downwardAPI") or {}).get("items") or ():
            _default_field_reference(item)
        if source.get("serviceAccountToken") is not None:
            fill_in(source["serviceAccountToken"], expirationSeconds=3600)
    if volume.get("image") is not None:
        fill_in(volume["image"], pullPolicy=_pull_policy(str(volume["image"].get("reference") or "")))
    claim = (volume.get("ephemeral") or {}).get("volumeClaimTemplate") or {}
    if claim.get("spec") is not None:
        fill_in(claim["spec"], volumeMode="Filesystem")
    if not volume.keys() - {"name"}:
        volume["emptyDir"] = {}


def prepare_new_pod(pod: Obj) -> None:
    """Sets a new pod's status, and writes its label keys into its selectors."""
    merge_label_keys(pod)
    pod["status"] = {"phase": "Pending", "qosClass": qos_class(pod["spec"])}
    if pod["spec"].get("schedulingGates"):
        pod["status"]["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "lastProbeTime": None,
                "lastTransitionTime": None,
            }
        ]


def qos_class(spec: Obj) -> str:
    """Returns the pod's quality of service: Guaranteed, Burstable or BestEffort; only CPU and memory count."""
    counted = ("cpu", "memory")
    own = spec.get("resources")
    every = [own] if own else [each.get("resources") or {} for each in containers(spec)]
    limits = [{k: v for k, v in (r.get("limits") or {}).items() if k in counted} for r in every]
    requests = [{k: v for k, v in (r.get("requests") or {}).items() if k in counted} for r in every]
    if not any(limits) and not any(requests):
        return "BestEffort"
    if all(len(limit) == len(counted) and limit == request for limit, request in zip(limits, requests, strict=True)):
        return "Guaranteed"
    return "Burstable"


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def merge_label_keys(pod: Obj) -> None:
    """Adds to each selector one requirement for each of its label keys that the pod has as a label."""
    labels = pod["metadata"].get("labels") or {}
    for rule in _rules(pod["spec"]):
        selector = rule.get("labelSelector")
        if selector is None:
            continue
        added = [
            {"key": key, "operator": operator, "values": [labels[key]]}
            for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
            for key in rule.get(field) or ()
            if key in labels
        ]
        if added:
            selector["matchExpressions"] = [*(selector.get("matchExpressions") or ()), *added]


def _rules(spec: Mapping[str, Any]) -> Iterator[Obj]:
    """Pod affinity terms of all kinds, and spread constraints."""
    affinity = spec.get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(kind) or {}
        yield from terms.get(_REQUIRED) or ()
        yield from (each["podAffinityTerm"] for each in terms.get(_PREFERRED) or () if each.get("podAffinityTerm"))
    yield from spec.get("topologySpreadConstraints") or ()
