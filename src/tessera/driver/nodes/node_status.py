"""Writes a node's driver status as annotation and as condition, and reads it back. Pure."""

from typing import Any

import msgspec

from tessera.api.driver.node_status import DRIVER_CONDITION, DriverPhase, DriverStatus
from tessera.clock import rfc3339
from tessera.kube.resources import Condition
from tessera.limits.drivers import DRIVER_STATUS
from tessera.limits.messages import CONDITION_MESSAGE
from tessera.text import one_line

#: Reason of the condition while a driver works that is not the wanted one.
OUTDATED = "Outdated"

_REASONS = {
    DriverPhase.WAITING: "Waiting",
    DriverPhase.PULLING: "Pulling",
    DriverPhase.STARTING: "Starting",
    DriverPhase.READY: "Ready",
    DriverPhase.UPGRADING: "Upgrading",
    DriverPhase.FAILED: "Failed",
    DriverPhase.BLOCKED: "Blocked",
}


def read_status(text: str) -> DriverStatus | None:
    """The status in a node's annotation, safe to show; None if there is none, or it cannot be decoded."""
    if not text or len(text) > DRIVER_STATUS:
        return None
    try:
        return sanitize_status(msgspec.json.decode(text, type=DriverStatus))
    except (msgspec.DecodeError, RecursionError):
        return None


def encode_status(status: DriverStatus) -> str:
    """The annotation's value."""
    return msgspec.json.encode(sanitize_status(status)).decode()


def sanitize_status(status: DriverStatus) -> DriverStatus:
    """The status with texts that are safe to show: long ones are cut, and none has a terminal's control characters.

    Texts come from registries and kubelets, and others may write annotations too.
    """
    words = {name: value for name, value in msgspec.structs.asdict(status).items() if isinstance(value, str)}
    clean = {name: _clean(value) for name, value in words.items()}
    rejected = tuple(msgspec.structs.replace(each, reason=_clean(each.reason)) for each in status.rejected)
    return msgspec.structs.replace(status, rejected=rejected, **clean)


def _clean(text: str) -> str:
    cut = text[:CONDITION_MESSAGE]
    return cut if cut.isprintable() else "".join(each if each.isprintable() else "?" for each in cut)


def add_dates(status: DriverStatus, before: DriverStatus | None, now: float) -> DriverStatus:
    """The status with the time at which its phase began; the old time stays while set and phase stay."""
    status = sanitize_status(status)
    same = before is not None and (before.strategy, before.set, before.phase, before.boot) == (
        status.strategy,
        status.set,
        status.phase,
        status.boot,
    )
    since = before.since if same and before is not None else rfc3339(now)
    return msgspec.structs.replace(status, since=since, proven=_validated_boot(status, before))


def _validated_boot(status: DriverStatus, before: DriverStatus | None) -> str:
    if status.serves:
        return status.boot
    return before.proven if before is not None else ""


def status_condition(status: DriverStatus) -> Condition:
    """The node's condition for a status; its time is that of the last change."""
    return Condition(
        type=DRIVER_CONDITION,
        status="True" if status.serves and not status.wanted else "False",
        reason=OUTDATED if status.outdated else _REASONS[status.phase],
        message=one_line(f"{status.strategy.value}: {status.text}", CONDITION_MESSAGE),
    )


def same_condition(condition: Condition | None, wanted: Condition) -> bool:
    """True if a node already has the condition, regardless of its time."""
    return condition is not None and (condition.status, condition.reason, condition.message) == (
        wanted.status,
        wanted.reason,
        wanted.message,
    )


def condition_body(wanted: Condition, shown: Condition | None, now: float) -> dict[str, Any]:
    """The patch of the node's status at this time. The time of the last change moves only if the status changes."""
    same = shown is not None and shown.status == wanted.status and shown.last_transition_time
    return {
        "type": wanted.type,
        "status": wanted.status,
        "reason": wanted.reason,
        "message": wanted.message,
        "lastHeartbeatTime": rfc3339(now),
        "lastTransitionTime": same or rfc3339(now),
    }
