"""``tessera map``: filters that select nothing, names that no card knows, and frames that fit the screen."""

import click
import pytest

from tessera.api.nodes.usage import CardUsage, DeviceUsage, NodeUsage
from tessera.cli.map import choose, picture
from tessera.dashboard.view.cluster_map import ClusterMap
from tessera.explain.fleet_map import CardFilter, map_fleet

DEVICE = DeviceUsage(uuid="MIG-1", profile="3g.20gb", start=0, size=4)
CARD = CardUsage(uuid="GPU-1", model="NVIDIA A100", kind="mig", mig=True, slots=8, devices=(DEVICE,))
FOUND = ClusterMap(
    nodes=tuple(map_fleet([], [NodeUsage(node="n1", cards=(CARD,))])), pending=(), waiting=0, note="", simulated=False
)


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        (CardFilter(namespace="nope"), "none is held by a pod of namespace nope."),
        (CardFilter(model="V100"), "none is of a model with 'V100' in its name."),
        (CardFilter(free="gpu"), "none has room for gpu."),
        (CardFilter(pods=frozenset()), "none is held by a pod with these labels."),
        (CardFilter(free="share", held_by="a/b"), "room for share and is held by a pod with 'a/b' in its NAMESPACE"),
    ],
)
def test_a_filter_that_selects_nothing_is_named(chosen: CardFilter, why: str) -> None:
    (line,) = picture(choose(FOUND, (), chosen), chosen, colour=False, summary=False, width=80)
    assert line.startswith("No card is shown: ")
    assert why in line


def test_a_profile_that_no_card_can_have_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(click.BadParameter, match=r"'foo'; known are 3g\.20gb, gpu or share"):
        choose(FOUND, (), CardFilter(free="foo"))
    assert choose(FOUND, (), CardFilter(free="3g.20gb")).nodes
