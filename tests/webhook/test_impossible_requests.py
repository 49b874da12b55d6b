"""What no node could hold, even if it were empty, is refused; what one might hold is admitted."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tessera.api.nodes.node_groups import NodeGroup, parse_node_groups
from tessera.mig.geometry import Geometry
from tessera.mig.models import model_by_short_name
from tessera.webhook.base import PodRefused, Rule
from tessera.webhook.capabilities import Capabilities, GpuNode
from tessera.webhook.decision import decide_admission


def cards(model: str, count: int) -> list[Geometry]:
    geometry = model_by_short_name(model).geometry
    return [Geometry(f"NVIDIA {model}", geometry.slots, geometry.profiles)] * count


def node(name: str, *listed: Geometry, **more: Any) -> GpuNode:
    profiles = frozenset(profile.spelling for card in listed for profile in card.profiles)
    return GpuNode(
        name=name, labels={"pool": name, "nvidia.com/mig.config": "dynamic"}, on_demand=profiles, cards=listed, **more
    )


SMALL, LARGE = node("small", *cards("A100-40GB", 1)), node("large", *cards("A100-40GB", 4))
MIXED = node("mixed", *cards("A100-40GB", 1), *cards("A30", 1))
FIXED = GpuNode(name="fixed", labels={"nvidia.com/mig.config": "all-1g.5gb"}, fixed=frozenset({"1g.5gb"}))
UNREAD = GpuNode(name="unread", labels={"nvidia.com/mig.config": "dynamic"}, unread=True)


def container(slices: dict[str, int], name: str = "c") -> dict[str, Any]:
    limits = {f"nvidia.com/mig-{profile}": str(count) for profile, count in slices.items()}
    return {"name": name, "resources": {"limits": limits, "requests": dict(limits)}}


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}}


def ask(slices: dict[str, int]) -> dict[str, Any]:
    return pod(container(slices))


ONE, ENGINES, SEVEN, A30 = "1g.5gb", "1g.5gb.me", "7g.40gb", "1g.6gb"


def groups(*listed: str) -> Sequence[NodeGroup]:
    """Groups ``g0``, ``g1`` and so on, each with such cards and the label ``pool``."""
    texts = [f"{{name: g{n}, selector: {{pool: g{n}}}, cards: {{model: {text}}}}}" for n, text in enumerate(listed)]
    return parse_node_groups(f"groups: [{', '.join(texts)}]")


def gated(pod: dict[str, Any], *nodes: GpuNode) -> bool:
    return any("schedulingGates" in each["path"] for each in decide_admission(pod, Capabilities.of(nodes)))


def refusal(pod: dict[str, Any], *nodes: GpuNode) -> str:
    with pytest.raises(PodRefused) as refused:
        decide_admission(pod, Capabilities.of(nodes))
    assert refused.value.rule is Rule.IMPOSSIBLE
    return str(refused.value)


def test_the_text_has_the_request_the_rule_the_largest_and_the_next_step() -> None:
    assert refusal(ask({ONE: 50}), SMALL, LARGE) == (
        "spec.containers: no node could hold 50 x 1g.5gb, even empty; all slices of a pod are on one node, and a node"
        " with 4 cards NVIDIA A100-40GB holds 28 x 1g.5gb: ask for no more, or divide the work among pods"
    )


@pytest.mark.parametrize(
    ("asked", "nodes", "largest"),
    [
        (ask({ONE: 8}), [SMALL], "1 card NVIDIA A100-40GB holds 7 x 1g.5gb"),
        (ask({ENGINES: 2}), [SMALL], "holds 1g.5gb.me"),
        (ask({ENGINES: 5}), [SMALL, LARGE], "4 cards NVIDIA A100-40GB holds 4 x 1g.5gb.me"),
        (ask({SEVEN: 1, ONE: 1}), [SMALL], "holds 7g.40gb"),
        (ask({SEVEN: 1, A30: 5}), [MIXED], "4 x 1g.6gb"),
        (
            ask({SEVEN: 1, A30: 1}),
            [SMALL, node("a30", *cards("A30", 1))],
            "NVIDIA A100-40GB holds 7g.40gb",
        ),
        (pod(container({SEVEN: 1}, "a"), container({ONE: 1}, "b")), [SMALL], "holds 7g.40gb"),
    ],
)
def test_what_no_empty_node_holds_is_refused(asked: dict[str, Any], nodes: list[GpuNode], largest: str) -> None:
    assert largest in refusal(asked, *nodes)


def test_init_containers_count_with_what_kubelet_keeps_for_them() -> None:
    """An init container leaves its slices to later containers, a sidecar keeps them."""
    init = container({SEVEN: 1}, "init")
    assert gated(pod(container({SEVEN: 1}), initContainers=[init]), SMALL)
    assert "2 x 7g.40gb" in refusal(
        pod(container({SEVEN: 1}), initContainers=[{**init, "restartPolicy": "Always"}]), SMALL
    )
    assert "could hold 1g.5gb + 7g.40gb, even" in refusal(pod(container({ONE: 1}), initContainers=[init]), SMALL)


@pytest.mark.parametrize(
    ("asked", "nodes"),
    [
        pytest.param(ask({ONE: 28}), [SMALL, LARGE], id="the largest node holds them"),
        pytest.param(ask({SEVEN: 1, ONE: 1}), [LARGE], id="two cards hold them"),
        pytest.param(ask({ONE: 50}), [], id="no node yet: the cluster may grow from zero"),
        pytest.param(ask({ONE: 50}), [UNREAD], id="no node has listed its cards yet"),
        pytest.param(ask({ONE: 50}), [SMALL, UNREAD], id="a node that starts may have more cards"),
    ],
)
def test_what_a_node_might_hold_is_admitted(asked: dict[str, Any], nodes: list[GpuNode]) -> None:
    assert gated(asked, *nodes)


def test_with_any_new_nodes_what_only_other_nodes_hold_is_admitted() -> None:
    for asked in (ask({ONE: 50}), ask({"7g.80gb": 8})):
        assert decide_admission(asked, Capabilities.of([SMALL], any_new_nodes=True))
        with pytest.raises(PodRefused):
            decide_admission(asked, Capabilities.of([SMALL]))
    with pytest.raises(PodRefused, match=r"3g.20b is not a MIG profile"):
        decide_admission(ask({"3g.20b": 1}), Capabilities.of([SMALL], any_new_nodes=True))


def test_nodes_of_known_groups_count_like_present_ones() -> None:
    capabilities = Capabilities.of([SMALL])
    large, foreign = ask({ONE: 28}), ask({"7g.80gb": 2})
    for asked in (large, foreign):
        with pytest.raises(PodRefused):
            decide_admission(asked, capabilities)
    capabilities.set_groups(groups("A100-40GB, count: 4", "A100-80GB, count: 2"))
    for asked in (large, foreign):
        assert decide_admission(asked, capabilities)
    with pytest.raises(PodRefused, match=r"no node could .* a new node of group g1, with 2 cards A100-80GB, holds 2 x"):
        decide_admission(ask({"7g.80gb": 3}), capabilities)
    capabilities.set_groups([])
    with pytest.raises(PodRefused):
        decide_admission(large, capabilities)


def test_groups_decide_whose_declared_labels_do_not_contradict_the_authors_selection() -> None:
    capabilities = Capabilities.of([SMALL])
    capabilities.set_groups(groups("A100-40GB, count: 4", "A100-40GB, count: 8"))

    def asking(count: int, **selector: str) -> dict[str, Any]:
        return pod(container({ONE: count}), nodeSelector=selector)

    for admitted in (asking(56), asking(56, zone="a"), asking(28, pool="g0"), asking(7, pool="small")):
        assert decide_admission(admitted, capabilities)
    for refused, text in (
        (
            asking(57),
            "no node could hold .* a new node of group g1, with 8 cards",
        ),
        (
            asking(29, pool="g0"),
            "no node that it selects could hold .* a new node of group g0",
        ),
        (
            asking(8, pool="small"),
            "no node that it selects could hold .* a node with 1 card",
        ),
    ):
        with pytest.raises(PodRefused, match=text):
            decide_admission(refused, capabilities)


def test_the_nodes_that_the_author_selects_decide() -> None:
    asked = {**ask({ONE: 8})["spec"], "nodeSelector": {"pool": "small"}}
    assert "no node that it selects could hold 8 x 1g.5gb" in refusal({"spec": asked}, SMALL, LARGE)
    assert gated({"spec": {**asked, "nodeSelector": {"pool": "large"}}}, SMALL, LARGE)
    assert gated({"spec": {**asked, "nodeSelector": {"pool": "of the future"}}}, SMALL, LARGE)


def test_a_pod_that_a_fixed_layout_may_serve_is_left_to_it() -> None:
    assert not decide_admission(ask({ONE: 8}), Capabilities.of([SMALL, FIXED]))
    assert refusal(ask({SEVEN: 2}), SMALL, FIXED)


def test_names_of_cards_are_shown_on_one_line() -> None:
    strange = msgspec.structs.replace(cards("A100-40GB", 1)[0], family="A\n100")
    assert "\n" not in refusal(ask({ONE: 8}), node("strange", strange))


def test_a_changed_node_counts_as_it_is_now() -> None:
    capabilities = Capabilities.of([SMALL, LARGE])
    capabilities.drop("large")
    with pytest.raises(PodRefused):
        decide_admission(ask({ONE: 28}), capabilities)
    capabilities.put(msgspec.structs.replace(SMALL, cards=LARGE.cards))
    assert decide_admission(ask({ONE: 28}), capabilities)
    capabilities.drop("small")
    assert not capabilities.shapes
