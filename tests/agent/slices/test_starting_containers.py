"""The containers that can be starting, by a pod's status."""

from typing import Any

import msgspec
import pytest

from tessera.agent.slices.container_finder import may_start
from tessera.kube.resources import Pod

WAITS: dict[str, Any] = {"waiting": {"reason": "PodInitializing"}}
RUNS: dict[str, Any] = {"running": {}}


def ended(second: int, code: int = 0) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "finishedAt": f"2026-01-01T00:00:{second:02}Z"}}


def pod(inits: dict[str, Any], apps: dict[str, Any], *, sandbox: str = "True") -> Pod:
    """Init containers whose name begins with ``side`` are sidecars."""

    def statuses(states: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"name": name, "state": state} for name, state in states.items() if state is not None]

    return msgspec.convert(
        {
            "spec": {
                "initContainers": [
                    {"name": name, **({"restartPolicy": "Always"} if name.startswith("side") else {})} for name in inits
                ],
                "containers": [{"name": name} for name in apps],
            },
            "status": {
                "conditions": [{"type": "PodReadyToStartContainers", "status": sandbox}] if sandbox else [],
                "initContainerStatuses": statuses(inits),
                "containerStatuses": statuses(apps),
            },
        },
        Pod,
    )


@pytest.mark.parametrize(
    ("inits", "apps", "expected"),
    [
        ({}, {"app": None}, "app"),
        ({"one": None, "two": None}, {"app": None}, "one"),
        ({"one": WAITS}, {"app": WAITS}, "one"),
        ({"one": RUNS, "two": WAITS}, {"app": WAITS}, ""),
        ({"one": ended(1, 1), "two": WAITS}, {"app": WAITS}, "one"),
        ({"one": ended(1), "two": WAITS}, {"app": WAITS}, "two"),
        ({"one": ended(1), "two": ended(1)}, {"app": WAITS, "other": RUNS}, "app"),
        ({"one": WAITS, "side": WAITS}, {"app": WAITS}, "one"),
        ({"one": ended(1), "side": WAITS}, {"app": WAITS}, "side app"),
        ({"one": ended(1), "side": RUNS, "two": WAITS}, {"app": WAITS}, "two"),
        ({"one": ended(1), "side": ended(2, 1), "two": RUNS}, {"app": WAITS}, "side"),
        ({"side": WAITS, "one": WAITS}, {"app": WAITS}, "side one"),
        ({"one": ended(5), "two": ended(3)}, {"app": ended(4)}, "two"),
    ],
)
def test_the_order_of_starts_is_kubelets(inits: dict[str, Any], apps: dict[str, Any], expected: str) -> None:
    assert may_start(pod(inits, apps)) == set(expected.split())


def test_without_a_sandbox_everything_begins_anew() -> None:
    states = ({"one": ended(1), "two": ended(2)}, {"app": ended(9, 1)})
    assert may_start(pod(*states, sandbox="False")) == {"one"}
    assert may_start(pod(*states, sandbox="")) == {"app"}  # a kubelet that does not tell


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        (30, "one"),  # "one" ended in the sandbox before this one
        (12, "app"),  # "one" ended 10 s before kubelet reported the sandbox, as it may when kubelet is slow
        (2, "app"),  # the sidecar was restarted in this sandbox
        (None, "app"),  # a kubelet that does not tell since when
    ],
)
def test_a_sidecar_in_front_shows_that_a_result_is_of_the_former_sandbox(since: int | None, expected: str) -> None:
    sidecar = {"running": {"startedAt": "2026-01-01T00:00:40Z"}}
    found = pod({"side": sidecar, "one": ended(2)}, {"app": ended(9, 1)})
    time = None if since is None else f"2026-01-01T00:00:{since:02}Z"
    (condition,) = found.status.conditions
    status = msgspec.structs.replace(
        found.status, conditions=(msgspec.structs.replace(condition, last_transition_time=time),)
    )
    assert may_start(msgspec.structs.replace(found, status=status)) == {expected}
