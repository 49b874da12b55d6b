"""The value tessera.controller.nodeGroups becomes the ConfigMap that controller and webhook read."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from charts.files import FOLDER
from hypothesis import example, given
from hypothesis import strategies as st
from tests.api.nodes.test_node_groups import IMPOSSIBLE, MISTAKES
from tests.charts.conftest import Helm

from charts import group_rules
from tessera.api.documents import load_document
from tessera.api.names import NODE_GROUPS_KEY, NODE_GROUPS_MAP
from tessera.api.nodes.node_groups import NodeGroup, check_amounts, parse_node_groups

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


def refusal(helm: Helm, groups: Sequence[Any]) -> str:
    """What Helm says about these groups; empty if it renders them."""
    values = {"tessera": {"controller": {"nodeGroups": groups}}}
    done = helm.run("template", "tessera", str(FOLDER), values=values)
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cards": {"model": "T4", "kind": "half"}}, "0.cards.kind"),
        ({"cards": {"count": 2}}, "model"),
        ({"cards": {"model": "T4", "kind": "whole", "count": 65}}, "0.cards.count: Must be less than or equal to 64"),
        ({"cards": {"model": "T4", "kind": "shares"}}, "0.cards: kind shares with replicas 1: replicas of 2 or more"),
        ({"cards": {"model": "T4"}}, '0.cards.model: "T4": the models of kind slices are A100-40GB, '),
        ({"cards": {"model": "X1", "kind": "whole"}}, '0.cards.model: "X1": the models of kind whole are A100-40GB, '),
        ({"selector": {}}, "0.selector: Must have at least 1 properties"),
        ({"selector": {"a b": "x"}}, '0.selector: "a b": a key is at most 63 letters'),
        ({"labels": {"pool": "b"}}, '0.labels.pool: "b": selector says "a100"; a node has one value for each'),
        ({"labels": {"zone": "x y"}}, '0.labels.zone: "x y": a value is empty, or at most 63 letters'),
        ({"taints": [{"key": "a", "value": "-"}]}, '0.taints.0.value: "-": a value is empty'),
        ({"taints": [{"key": "a", "effect": "NoStart"}]}, "0.taints.0.effect"),
        ({"allocatable": {"cpu": "-4"}}, '0.allocatable.cpu: "-4": an amount is 0 or more; write a number'),
        ({"allocatable": {"cpu": 0.5}}, "0.allocatable.cpu: Invalid type. Expected: [string,integer], given: number"),
        ({"name": "A b"}, '0.name: "A b": a name is at most 40 small letters'),
        ({"size": 4}, "size"),
    ],
)
def test_a_wrong_group_is_refused_with_its_place_and_the_rule(change: dict[str, Any], words: str, helm: Helm) -> None:
    said = refusal(helm, [GROUPS[0] | change])
    assert "tessera.controller.nodeGroups.0" in said
    assert words in said


def test_a_name_may_stand_once(helm: Helm) -> None:
    said = refusal(helm, [GROUPS[0], GROUPS[0]])
    assert 'tessera.controller.nodeGroups.1.name: two groups are named "a100"; names must differ' in said


def wrong_groups() -> Iterator[Sequence[Any]]:
    """The groups of each file that the program refuses, if they can be a value of the chart."""
    for more, _ in IMPOSSIBLE:
        selector = "" if more.startswith("selector") else "selector: {pool: a}, "
        yield load_document(f"[{{name: a, {selector}{more}, cards: {{model: A100-40GB}}}}]")
    for text, _ in MISTAKES:
        try:
            found = load_document(text)
        except ValueError:
            continue
        if "groups" in found:
            yield found["groups"]


@pytest.mark.parametrize("groups", list(wrong_groups()), ids=lambda each: str(each)[:60])
def test_the_chart_refuses_what_tessera_install_refuses(groups: Sequence[Any], helm: Helm) -> None:
    assert "nodeGroups" in refusal(helm, groups)


@given(st.text("0123456789.+-eEKMGPTinumk ", max_size=12))
@example("-0")
@example("-.0Ki")
@example("1e30")
@example("1e-31")
@example("007e+030")
def test_the_chart_reads_amounts_as_the_program_does(text: str) -> None:
    try:
        check_amounts("allocatable", {"cpu": text})
        fits = True
    except ValueError:
        fits = False
    assert bool(re.fullmatch(group_rules.AMOUNT, text)) == fits
