"""Pods with whole cards or shares of managed namespaces are gated, and nothing else of them changes."""

from typing import Any

import pytest

from tessera.api.names import GATE
from tessera.webhook.base import PodRefused, Rule
from tessera.webhook.capabilities import Capabilities
from tessera.webhook.device_admission import decide_device_admission

ADD_FIRST = [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}]
ADD_LAST = [{"op": "add", "path": "/spec/schedulingGates/-", "value": {"name": GATE}}]


def pod(*limits: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "c", "resources": {"limits": each}} for each in limits], **spec}}


@pytest.mark.parametrize(
    ("found", "operations"),
    [
        (pod({"nvidia.com/gpu": "1"}), ADD_FIRST),
        (pod({"cpu": "1"}, {"nvidia.com/gpu.shared": 2}), ADD_FIRST),
        (pod({}, initContainers=[{"name": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]), ADD_FIRST),
        (pod({"nvidia.com/gpu": "1"}, schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]), ADD_LAST),
        (pod({"nvidia.com/gpu": "1"}, schedulingGates=[{"name": GATE}]), []),
        (pod({"nvidia.com/gpu": "0"}), []),
        (pod({"cpu": "1"}), []),
        (pod({"nvidia.com/gpu": "1"}, {"nvidia.com/mig-1g.5gb": "1"}), []),
        ({}, []),
        ({"spec": {"containers": [{"name": "c", "resources": None}], "initContainers": None}}, []),
    ],
)
def test_a_pod_with_whole_cards_or_shares_gets_the_gate(found: dict[str, Any], operations: list[Any]) -> None:
    assert list(decide_device_admission(found, Capabilities())) == operations


def test_a_pod_that_its_author_has_bound_is_refused() -> None:
    with pytest.raises(PodRefused, match="Tessera places pods with whole cards") as refused:
        decide_device_admission(pod({"nvidia.com/gpu": "1"}, nodeName="n1"), Capabilities())
    assert refused.value.rule is Rule.BOUND
