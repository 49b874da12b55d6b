"""Short texts about the driver of an object, and about its changes."""

from collections.abc import Iterator, Mapping
from typing import Any

from tessera.api.nodes.node_marks import DRIVER_ANNOTATION, DRIVER_SET_LABEL, PAUSE_LABEL, UPGRADE_STATE_LABEL
from tessera.clock import parse_rfc3339
from tessera.driver.driver_sets import DRIVER_CONTAINER
from tessera.driver.node_facts import CORDONED_ANNOTATION, RECORD_ANNOTATION, UpgradeState
from tessera.driver.node_facts import parse_upgrade_state as state_named
from tessera.driver.node_status import read_status
from tessera.gpu_operator.policy_objects import OWNER_LABEL

Node = Mapping[str, Any]


def labels(obj: Mapping[str, Any]) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def annotations(obj: Mapping[str, Any]) -> Mapping[str, str]:
    return obj["metadata"].get("annotations") or {}


def cordoned(node: Node) -> bool:
    return bool((node.get("spec") or {}).get("unschedulable"))


def ours(node: Node) -> bool:
    """True if the rollout's annotation claims the cordon."""
    return annotations(node).get(CORDONED_ANNOTATION) == "true"


def state_of(node: Node) -> UpgradeState:
    return state_named(labels(node).get(UPGRADE_STATE_LABEL, ""))


def cards(node: Node) -> int:
    """Returns the number of cards that a node offers."""
    told = (node.get("status") or {}).get("allocatable") or {}
    return sum(int(count) for name, count in told.items() if name.startswith("nvidia.com/"))


def started(pod: Mapping[str, Any]) -> float:
    """Since when its driver container runs; 0 if it does not."""
    for each in (pod.get("status") or {}).get("containerStatuses") or ():
        running = (each.get("state") or {}).get("running")
        if each["name"] == DRIVER_CONTAINER and running:
            return parse_rfc3339(running["startedAt"])
    return 0.0


def boot(node: Node) -> str:
    return str(((node.get("status") or {}).get("nodeInfo") or {}).get("bootID", ""))


def shape(pod: Mapping[str, Any]) -> str:
    """Describes a pod in a few words."""
    status = pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    parts = [f"{each['name']} {_container(each)}" for each in containers]
    ends = " ends" if pod["metadata"].get("deletionTimestamp") else ""
    return f"{status.get('phase', '')}{ends} ({', '.join(parts)})"


def _container(status: Mapping[str, Any]) -> str:
    state = status.get("state") or {}
    name = next(iter(state), "unknown")
    reason = state.get(name, {}).get("reason", "") if name != "running" else ""
    restarts = status.get("restartCount", 0)
    count = "" if not restarts else f" x{restarts}" if restarts < 4 else " again and again"
    return f"{name}{f' {reason}' if reason else ''}{' ready' if status.get('ready') else ''}{count}"


def _told(node: Node) -> str:
    """Returns the driver status of a node, shortened."""
    status = read_status(annotations(node).get(DRIVER_ANNOTATION, ""))
    return f"{status.phase.value}, {status.set or 'no set'}, {status.reason[:200]}" if status is not None else "nothing"


def differences(old: Node, new: Node) -> Iterator[str]:
    """Lists the changes of a node that concern its driver."""
    for key in (DRIVER_SET_LABEL, UPGRADE_STATE_LABEL, PAUSE_LABEL, OWNER_LABEL):
        before, now = labels(old).get(key), labels(new).get(key)
        if before != now:
            yield f"{key.partition('/')[2]}: {before} -> {now}"
    for key in (CORDONED_ANNOTATION, RECORD_ANNOTATION):
        before, now = annotations(old).get(key), annotations(new).get(key)
        if before != now:
            yield f"{key.partition('/')[2]} = {(now or 'nothing')[:300]}"
    if _told(old) != _told(new):
        yield f"is told: {_told(new)}"
    if cordoned(old) != cordoned(new):
        yield "cordoned" if cordoned(new) else "uncordoned"
    if cards(old) != cards(new):
        yield f"offers {cards(new)}"
    if boot(old) != boot(new):
        yield "has booted"
