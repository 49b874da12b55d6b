"""The control plane taints a node by the conditions that the node reports."""

from typing import Any

import pytest

from tessera_lab.workloads.nodes import desired_taints

NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
UNREACHABLE = [{"key": "node.kubernetes.io/unreachable", "effect": each} for each in ("NoSchedule", "NoExecute")]
OTHER = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}


def node(ready: str | None, *taints: dict[str, str]) -> dict[str, Any]:
    conditions = [] if ready is None else [{"type": "Ready", "status": ready}]
    return {"spec": {"taints": list(taints)}, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (node("False", OTHER), [OTHER, NOT_READY]),
        (node("Unknown"), UNREACHABLE),
        (node("Unknown", OTHER, NOT_READY), [OTHER, *UNREACHABLE]),
        (node("Unknown", *UNREACHABLE), None),
        (node("False", *UNREACHABLE), [NOT_READY]),
        (node("True", OTHER, *UNREACHABLE), [OTHER]),
        (node("False", NOT_READY), None),
        (node("True", OTHER, NOT_READY), [OTHER]),
        (node("True", NOT_READY), []),
        (node("True", OTHER), None),
        (node(None), None),
        ({"status": {}}, None),
    ],
)
def test_only_nodes_that_are_not_ready_are_tainted(found: dict[str, Any], wanted: list[Any] | None) -> None:
    assert desired_taints(found) == wanted
