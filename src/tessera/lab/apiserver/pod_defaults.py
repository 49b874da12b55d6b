"""What a pod means where it says nothing: ``k8s.io/kubernetes/pkg/apis/core/v1/defaults.go``. Pure, in place."""

from collections.abc import Iterator
from typing import Any

from tessera.kube.quantity import format_quantity, parse_quantity
from tessera.lab.apiserver.seams import Obj

#: How long a pod may take to end, seconds.
TERMINATION_GRACE = 30


def default_pod(pod: Obj) -> None:
    """Defaults of a pod."""
    default_pod_spec(pod.setdefault("spec", {}))


def default_pod_spec(spec: Obj) -> None:
    """Defaults of a pod's spec, in a pod or a template."""
    _fill(
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
    canonical_amounts(spec, "overhead")
    for container in containers(spec):
        _default_container(container, host_network=bool(spec.get("hostNetwork")))
    for volume in spec.get("volumes") or ():
        _default_volume(volume)


def containers(spec: Obj) -> Iterator[Obj]:
    """All containers of a pod's spec, init and ephemeral ones included."""
    for key in ("initContainers", "containers", "ephemeralContainers"):
        for each in spec.get(key) or ():
            if isinstance(each, dict):
                yield each


def _fill(obj: Obj, **defaults: Any) -> None:
    for key, value in defaults.items():
        if obj.get(key) is None:
            obj[key] = value


def _default_container(container: Obj, *, host_network: bool) -> None:
    _fill(
        container,
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
        imagePullPolicy=_pull_policy(str(container.get("image") or "")),
        resources={},
    )
    for port in container.get("ports") or ():
        _fill(port, protocol="TCP")
        if host_network and not port.get("hostPort"):
            port["hostPort"] = port.get("containerPort")
    for each in container.get("env") or ():
        reference = (each.get("valueFrom") or {}).get("fieldRef")
        if reference is not None:
            _fill(reference, apiVersion="v1")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(name):
            _default_probe(container[name])
    canonical_amounts(container["resources"], "limits", "requests")
    _request_limits(container["resources"])


def _pull_policy(image: str) -> str:
    """Always for a tag that moves: ``latest``, or none."""
    if "@" in image:
        return "IfNotPresent"
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if tag in {"", "latest"} else "IfNotPresent"


def _default_probe(probe: Obj) -> None:
    _fill(probe, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
    if probe.get("httpGet"):
        _fill(probe["httpGet"], path="/", scheme="HTTP")
    if probe.get("grpc"):
        _fill(probe["grpc"], service="")


def _request_limits(resources: Obj) -> None:
    """What is limited and not requested is requested as much."""
    limits = resources.get("limits") or {}
    if limits:
        requests = resources.get("requests") or {}
        resources["requests"] = {**requests, **{k: v for k, v in limits.items() if k not in requests}}


def canonical_amounts(obj: Obj, *keys: str) -> None:
    """Quantities as Kubernetes writes them back: ``0.5`` is ``500m``, the number 1 is ``"1"``."""
    for key in keys:
        amounts = obj.get(key)
        if not isinstance(amounts, dict):
            continue
        for name, amount in amounts.items():
            try:
                text = str(amount)
                amounts[name] = format_quantity(parse_quantity(text), binary=text.endswith("i"))
            except ValueError:
                continue  # validation refuses it with its place


def _default_volume(volume: Obj) -> None:
    for kind in ("configMap", "secret", "downwardAPI", "projected"):
        if volume.get(kind) is not None:
            _fill(volume[kind], defaultMode=0o644)
    if volume.get("hostPath"):
        _fill(volume["hostPath"], type="")
    if not volume.keys() - {"name"}:
        volume["emptyDir"] = {}


def new_pod(pod: Obj) -> None:
    """The status that a new pod starts with."""
    pod["status"] = {"phase": "Pending", "qosClass": quality(pod["spec"])}
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


def quality(spec: Obj) -> str:
    """The pod's quality of service: Guaranteed, Burstable or BestEffort; only CPU and memory count."""
    counted = ("cpu", "memory")
    every = [each.get("resources") or {} for each in containers(spec)]
    limits = [{k: v for k, v in (r.get("limits") or {}).items() if k in counted} for r in every]
    requests = [{k: v for k, v in (r.get("requests") or {}).items() if k in counted} for r in every]
    if not any(limits) and not any(requests):
        return "BestEffort"
    if all(len(limit) == len(counted) and limit == request for limit, request in zip(limits, requests, strict=True)):
        return "Guaranteed"
    return "Burstable"
