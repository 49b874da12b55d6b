"""Property: no card has two pods unless as shares of one kind, and the last profile wins, in any order of events."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.agent.sharing.conftest import GPU, SHARED, SLICE_4, SLICE_4_SAME_NAME, WHOLE
from tests.support.searching import examples

from tessera_lab.kubelet.devices.device_ledger import DeviceAllocationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.sharing.conftest import Scene

OTHER_NAME = SLICE_4.replace("renameByDefault: true", "renameByDefault: false").replace(
    "replicas: 4", "replicas: 3, rename: a100.part, devices: [0]"
)
#: What each profile comes to on two free cards.
COUNTS = {
    WHOLE: {GPU: 2},
    SLICE_4: {SHARED: 8},
    SLICE_4_SAME_NAME: {GPU: 8},
    OTHER_NAME: {GPU: 1, "nvidia.com/a100.part": 3},
}
STEPS = st.one_of(
    st.tuples(st.just("follow"), st.sampled_from(sorted(COUNTS))),
    st.tuples(st.just("admit"), st.sampled_from([GPU, SHARED, "nvidia.com/a100.part"])),
    st.tuples(st.just("admit"), st.sampled_from([GPU, SHARED])),
    st.tuples(st.just("finish"), st.just("")),
    st.tuples(st.just("restart kubelet"), st.just("")),
    st.tuples(st.just("restart agent"), st.just("")),
    st.tuples(st.just("wait"), st.sampled_from(["0.01", "0.3", "20"])),
)


@given(steps=st.lists(STEPS, max_size=25))
@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_card_is_given_out_in_two_forms(play_anew: Callable[..., None], steps: list[tuple[str, str]]) -> None:
    async def story(scene: Scene) -> None:
        names = (f"pod-{number}" for number in itertools.count())
        desired = WHOLE
        await scene.begin_offering(WHOLE, gpu=2)
        for step, what in steps:
            if step == "follow":
                desired = what
                scene.follow(what)
            elif step == "admit":
                await admit(scene, next(names), what)
                unmixed(scene)
            elif step == "finish" and scene.pods:
                name = next(iter(scene.pods))
                scene.finish(name)
                del scene.pods[name]
            elif step == "restart kubelet":
                scene.bus.stop()
                await scene.kubelet.restart()
                scene.bus.start(scene.kubelet.add_plugin, scene.kubelet)
            elif step == "restart agent":
                await scene.restart_advertiser()
            elif step == "wait":
                await scene.clock.sleep(float(what))
        for name in list(scene.pods):
            scene.finish(name)
        scene.changes.notify()
        await scene.until(lambda: {name: n for name, n in scene.allocatable.items() if n} == COUNTS[desired])

    play_anew(story, "2xA100-40GB")


async def admit(scene: Scene, name: str, resource: str) -> None:
    """A pod comes; kubelet may refuse it, and does not know what no plugin has registered."""
    try:
        await scene.admit(name, {resource: 1})
    except DeviceAllocationError:
        return
    if not scene.devices(name):
        del scene.pods[name]


def unmixed(scene: Scene) -> None:
    """Of each card there is one whole holder, or there are holders of different shares."""
    held = [entry for name in scene.pods for entry in scene.devices(name)]
    assert len(set(held)) == len(held), "an entry is one pod's"
    for card in {entry.partition("::")[0] for entry in held}:
        assert card not in held or len([each for each in held if each.startswith(card)]) == 1, held
