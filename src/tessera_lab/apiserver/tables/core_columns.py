"""Columns of the core group's kinds, and durations, as kubectl prints them.

A :class:`PodSummary` has the READY, STATUS and RESTARTS that ``kubectl get pods`` shows. STATUS is not a field: it is
computed from phase, reason, conditions and container states, in the order of Kubernetes' printers
(``pkg/printers/internalversion``, ``printPod``).

Durations are ``5s``, ``3m20s``, ``2d4h``, by the steps of ``k8s.io/apimachinery/pkg/util/duration.HumanDuration``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.clock import parse_rfc3339

Part = Mapping[str, Any]
NONE = "<none>"


def format_duration(seconds: float) -> str:
    """A duration with the two units that matter at its size."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 0:
        return "0s"
    if whole < 120:
        return f"{whole}s"
    minutes, hours = whole // 60, whole // 3600
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 24 * 8:
        return _two(hours // 24, "d", hours % 24, "h")
    if hours < 24 * 365 * 2:
        return f"{hours // 24}d"
    if hours < 24 * 365 * 8:
        return _two(hours // 24 // 365, "y", hours // 24 % 365, "d")
    return f"{hours // 24 // 365}y"


def _two(large: int, unit: str, small: int, below: str) -> str:
    return f"{large}{unit}{small}{below}" if small else f"{large}{unit}"


def format_age(timestamp: Any, now: float) -> str:
    """Time from a ``metav1.Time`` to ``now`` (seconds since 1970); ``<unknown>`` when there is none."""
    if not timestamp:
        return "<unknown>"
    try:
        return format_duration(now - parse_rfc3339(timestamp))
    except (ValueError, TypeError):
        return "<invalid>"


class PodSummary(msgspec.Struct, frozen=True):
    """Cells of the columns READY, STATUS and RESTARTS."""

    ready: str
    status: str
    restarts: str


class _Count(msgspec.Struct):
    """Counts of the containers seen so far, and the last time that one of them ended."""

    ready: int = 0
    restarts: int = 0
    last_end: float | None = None

    def add(self, status: Part) -> None:
        self.restarts += status.get("restartCount", 0)
        ended = ((status.get("lastState") or {}).get("terminated") or {}).get("finishedAt")
        if ended:
            self.last_end = max(self.last_end or 0.0, parse_rfc3339(ended))

    def text(self, now: float) -> str:
        if self.restarts and self.last_end is not None:
            return f"{self.restarts} ({format_duration(now - self.last_end)} ago)"
        return str(self.restarts)


def summarize_pod(pod: Part, now: float) -> PodSummary:
    """Columns of one pod; ``now`` in seconds since 1970."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    init = spec.get("initContainers") or []
    sidecars = {each.get("name") for each in init if each.get("restartPolicy") == "Always"}
    total = len(spec.get("containers") or ()) + len(sidecars)
    reason = status.get("reason") or status.get("phase") or ""
    if any(
        each.get("type") == "PodScheduled" and each.get("reason") == "SchedulingGated" for each in _conditions(status)
    ):
        reason = "SchedulingGated"
    started, running = _Count(), _Count()
    initializing = _init_reason(status, sidecars, len(init), started)
    if initializing and not _is_initialized(status):
        reason, count = initializing, started
    else:
        count = running
        count.ready = started.ready
        for each in status.get("initContainerStatuses") or ():
            if each.get("name") in sidecars:
                count.add(each)
        reason = _main_reason(status, reason, count)
    if (pod.get("metadata") or {}).get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            reason = "Unknown"
        elif status.get("phase") not in ("Succeeded", "Failed"):
            reason = "Terminating"
    return PodSummary(f"{count.ready}/{total}", reason, count.text(now))


def _conditions(status: Part) -> Sequence[Part]:
    return status.get("conditions") or ()


def _has(status: Part, kind: str) -> bool:
    return any(each.get("type") == kind and each.get("status") == "True" for each in _conditions(status))


def _is_initialized(status: Part) -> bool:
    return _has(status, "Initialized")


def _init_reason(status: Part, sidecars: set[Any], total: int, count: _Count) -> str:
    """Returns ``Init:...`` while an init container is not done, else empty."""
    for index, each in enumerate(status.get("initContainerStatuses") or ()):
        count.add(each)
        state = each.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting") or {}
        if ended is not None and not ended.get("exitCode"):
            continue
        if each.get("name") in sidecars and each.get("started"):
            count.ready += bool(each.get("ready"))
            continue
        if ended is not None:
            return "Init:" + _describe_end(ended)
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{total}"
    return ""


def _describe_end(ended: Part) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def _main_reason(status: Part, reason: str, count: _Count) -> str:
    """Returns the reason of the first container that has one, else ``reason``; counts from the last container on."""
    any_running = False
    for each in _backwards(status.get("containerStatuses") or ()):
        count.add(each)
        state = each.get("state") or {}
        if (state.get("waiting") or {}).get("reason"):
            reason = state["waiting"]["reason"]
        elif state.get("terminated") is not None:
            reason = _describe_end(state["terminated"])
        elif each.get("ready") and state.get("running") is not None:
            any_running = True
            count.ready += 1
    if reason == "Completed" and any_running:
        return "Running" if _has(status, "Ready") else "NotReady"
    return reason


def _backwards(statuses: Sequence[Part]) -> Iterator[Part]:
    return reversed(statuses)


def name_of(obj: Part) -> str:
    """The object's name."""
    return str(obj["metadata"].get("name", ""))


def age_of(obj: Part, now: float) -> str:
    """Time since its creation."""
    return format_age(obj["metadata"].get("creationTimestamp"), now)


def labels(found: Mapping[str, str] | None) -> str:
    """Labels as ``a=b,c=d``, sorted."""
    return ",".join(f"{key}={value}" for key, value in sorted((found or {}).items())) or NONE


def _pod(obj: Part, now: float) -> Sequence[Any]:
    shown, spec, status = summarize_pod(obj, now), obj.get("spec") or {}, obj.get("status") or {}
    gates = spec.get("readinessGates") or ()
    true = {each.get("type") for each in status.get("conditions") or () if each.get("status") == "True"}
    ready = f"{sum(each.get('conditionType') in true for each in gates)}/{len(gates)}" if gates else NONE
    ips = [each.get("ip") for each in status.get("podIPs") or ()]
    return [
        name_of(obj),
        shown.ready,
        shown.status,
        shown.restarts,
        age_of(obj, now),
        (ips[0] if ips else status.get("podIP")) or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        ready,
    ]


def _node(obj: Part, now: float) -> Sequence[Any]:
    status, meta = obj.get("status") or {}, obj["metadata"]
    info = status.get("nodeInfo") or {}
    ready = [each for each in status.get("conditions") or () if each.get("type") == "Ready"]
    state = ["Unknown"] if not ready else ["Ready" if ready[0].get("status") == "True" else "NotReady"]
    if (obj.get("spec") or {}).get("unschedulable"):
        state.append("SchedulingDisabled")
    found = meta.get("labels") or {}
    prefix = "node-role.kubernetes.io/"
    roles = {key.removeprefix(prefix) for key in found if key.startswith(prefix) and key != prefix}
    roles |= {value for key, value in found.items() if key == "kubernetes.io/role" and value}
    unknown = "<unknown>"
    return [
        name_of(obj),
        ",".join(state),
        ",".join(sorted(roles)) or NONE,
        age_of(obj, now),
        info.get("kubeletVersion", ""),
        _address(status, "InternalIP"),
        _address(status, "ExternalIP"),
        info.get("osImage") or unknown,
        info.get("kernelVersion") or unknown,
        info.get("containerRuntimeVersion") or unknown,
    ]


def _address(status: Part, kind: str) -> str:
    return next((each["address"] for each in status.get("addresses") or () if each.get("type") == kind), NONE)


def event_cells(obj: Part, now: float) -> Sequence[Any]:
    """Cells of a core/v1 Event."""
    about = obj.get("involvedObject") or {}
    source = obj.get("source") or {}
    component, host = source.get("component") or obj.get("reportingComponent") or "", source.get("host") or ""
    series = obj.get("series") or {}
    first = format_age(obj.get("firstTimestamp") or obj.get("eventTime"), now)
    last = format_age(series.get("lastObservedTime") or obj.get("lastTimestamp") or obj.get("eventTime"), now)
    count = series.get("count") or obj.get("count") or 1
    target = f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"
    if not about.get("name"):
        target = str(about.get("kind", "")).lower()
    shown = ", ".join(each for each in (component, host) if each)
    message = str(obj.get("message") or "").strip()
    return [
        last,
        obj.get("type", ""),
        obj.get("reason", ""),
        target,
        about.get("fieldPath", ""),
        shown,
        message,
        first,
        count,
        name_of(obj),
    ]


def _service(obj: Part, now: float) -> Sequence[Any]:
    spec = obj.get("spec") or {}
    kind = spec.get("type", "ClusterIP")
    ips = list(spec.get("externalIPs") or ())
    if kind == "LoadBalancer":
        ingress = ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
        ips = sorted(each.get("ip") or each.get("hostname", "") for each in ingress) + ips
    external = spec.get("externalName", "") if kind == "ExternalName" else ",".join(ips)
    return [
        name_of(obj),
        kind,
        spec.get("clusterIP") or NONE,
        external or ("<pending>" if kind == "LoadBalancer" else NONE),
        ",".join(_port(each) for each in spec.get("ports") or ()) or NONE,
        age_of(obj, now),
        labels(spec.get("selector")),
    ]


def _port(port: Part) -> str:
    node = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port.get('port')}{node}/{port.get('protocol', 'TCP')}"


def _endpoints(obj: Part, now: float) -> Sequence[Any]:
    found = [
        f"{address.get('ip')}:{port.get('port')}"
        for subset in obj.get("subsets") or ()
        for port in subset.get("ports") or ()
        for address in subset.get("addresses") or ()
    ]
    more = f" + {len(found) - 3} more..." if len(found) > 3 else ""
    return [name_of(obj), ",".join(found[:3]) + more or NONE, age_of(obj, now)]


def _namespace(obj: Part, now: float) -> Sequence[Any]:
    return [name_of(obj), (obj.get("status") or {}).get("phase", ""), age_of(obj, now)]


def _configmap(obj: Part, now: float) -> Sequence[Any]:
    return [name_of(obj), len(obj.get("data") or ()) + len(obj.get("binaryData") or ()), age_of(obj, now)]


def _secret(obj: Part, now: float) -> Sequence[Any]:
    return [name_of(obj), obj.get("type", ""), len(obj.get("data") or ()), age_of(obj, now)]


def _service_account(obj: Part, now: float) -> Sequence[Any]:
    return [name_of(obj), age_of(obj, now)]


def _quota(obj: Part, now: float) -> Sequence[Any]:
    status = obj.get("status") or {}
    hard = status.get("hard") or (obj.get("spec") or {}).get("hard") or {}
    used = status.get("used") or {}
    shown = {name: f"{name}: {used.get(name, '0')}/{hard[name]}" for name in sorted(hard)}
    limits = [text for name, text in shown.items() if name.startswith("limits.")]
    requests = [text for name, text in shown.items() if not name.startswith("limits.")]
    return [name_of(obj), ", ".join(requests), ", ".join(limits), age_of(obj, now)]


COLUMNS = {
    ("", "Pod"): (
        ("Name", "Ready", "Status", "Restarts", "Age", "+IP", "+Node", "+Nominated Node", "+Readiness Gates"),
        _pod,
    ),
    ("", "Node"): (
        (
            "Name",
            "Status",
            "Roles",
            "Age",
            "Version",
            "+Internal-IP",
            "+External-IP",
            "+OS-Image",
            "+Kernel-Version",
            "+Container-Runtime",
        ),
        _node,
    ),
    ("", "Event"): (
        (
            "Last Seen",
            "Type",
            "Reason",
            "Object",
            "+Subobject",
            "+Source",
            "Message",
            "+First Seen",
            "+Count",
            "+Name",
        ),
        event_cells,
    ),
    ("", "Service"): (("Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "+Selector"), _service),
    ("", "Endpoints"): (("Name", "Endpoints", "Age"), _endpoints),
    ("", "Namespace"): (("Name", "Status", "Age"), _namespace),
    ("", "ConfigMap"): (("Name", "Data", "Age"), _configmap),
    ("", "Secret"): (("Name", "Type", "Data", "Age"), _secret),
    ("", "ServiceAccount"): (("Name", "Age"), _service_account),
    ("", "ResourceQuota"): (("Name", "Request", "Limit", "Age"), _quota),
}
