"""The value tessera.controller.nodeGroups becomes the ConfigMap that controller and webhook read."""

from typing import Any

import msgspec
import pytest
from charts.files import FOLDER
from tests.charts.conftest import Helm

from tessera.api.nodes.node_groups import NODE_GROUPS_KEY, NODE_GROUPS_MAP, NodeGroup, parse_node_groups

GROUPS: list[dict[str, Any]] = [
    {
        "name": "a100",
        "selector": {"pool": "a100"},
        "cards": {"model": "A100-40GB", "count": 8},
        "labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"},
        "taints": [{"key": "nvidia.com/gpu", "value": "true"}],
        "allocatable": {"cpu": 90, "memory": "1000Gi"},
        "max": 4,
    },
    {"name": "t4", "selector": {"pool": "t4"}, "cards": {"model": "T4", "kind": "shares", "replicas": 4}},
]


def config_maps(helm: Helm, groups: Any) -> list[dict[str, Any]]:
    rendered = helm.template({"tessera": {"controller": {"nodeGroups": groups}}}, "tessera-system")
    return [each for each in rendered if (each["kind"], each["metadata"]["name"]) == ("ConfigMap", NODE_GROUPS_MAP)]


def test_the_groups_are_read_as_they_were_stated(helm: Helm) -> None:
    (found,) = config_maps(helm, GROUPS)
    assert found["metadata"]["namespace"] == "tessera-system"
    assert parse_node_groups(found["data"][NODE_GROUPS_KEY]) == msgspec.convert(GROUPS, tuple[NodeGroup, ...])


def test_without_groups_there_is_no_config_map_and_one_made_by_hand_stays(helm: Helm) -> None:
    assert config_maps(helm, []) == []
    assert config_maps(helm, None) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"cards": {"model": "T4", "kind": "half"}}, "kind"),
        ({"cards": {"count": 2}}, "model"),
        ({"selector": {}}, "selector"),
        ({"size": 4}, "size"),
    ],
)
def test_a_wrong_group_is_refused_with_its_place(change: dict[str, Any], word: str, helm: Helm) -> None:
    values = {"tessera": {"controller": {"nodeGroups": [GROUPS[0] | change]}}}
    done = helm.run("template", "tessera", str(FOLDER), values=values)
    assert done.returncode != 0
    assert "tessera.controller.nodeGroups.0" in done.stderr
    assert word in done.stderr
