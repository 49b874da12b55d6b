"""The READY, STATUS and RESTARTS that ``kubectl get pods`` shows.

STATUS is not a field: it is computed from phase, reason, conditions and container states, in the order of Kubernetes'
printers (pkg/printers/internalversion, ``printPod``).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.clock import parse_rfc3339
from tessera_lab.apiserver.tables.ages import format_duration

Part = Mapping[str, Any]


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
