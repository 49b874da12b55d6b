"""Containers find their slices when kubelet passes devices of finished init containers on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.searching import examples

from tessera.api.slice_requests import container_slices, pod_slices
from tessera.clock import rfc3339
from tessera.kubelet.interfaces import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from tests.agent.conftest import Place, Scene

Counts = dict[str, int]

#: On a node of three cards.
PLACES: dict[str, list[Place]] = {
    "1g.5gb": [("1g.5gb", 0, start) for start in range(7)],
    "2g.10gb": [("2g.10gb", 1, start) for start in (0, 2, 4)],
    "3g.20gb": [("3g.20gb", 2, start) for start in (0, 4)],
}
WAITS = {"waiting": {"reason": "PodInitializing"}}


class Life:
    """One pod on a node, from its admission on: the test is its kubelet's pod worker."""

    def __init__(
        self, scene: Scene, init: Mapping[str, Counts], apps: Mapping[str, Counts], sidecars: Collection[str] = ()
    ) -> None:
        self.scene = scene
        self.init = init
        self.apps = apps
        self.sidecars = sidecars
        self.states: dict[str, Mapping[str, Any]] = dict.fromkeys((*init, *apps), WAITS)

    async def begin(self) -> None:
        await self.scene.begin()
        await self.scene.joined()
        await self.scene.pod("web", self.apps, init=self.init, sidecars=self.sidecars)
        asked = [
            container_slices(
                name,
                {f"nvidia.com/mig-{profile}": str(count) for profile, count in counts.items()},
                {},
                init=name in self.init,
                sidecar=name in self.sidecars,
            )
            for name, counts in {**self.init, **self.apps}.items()
        ]
        needed = pod_slices(asked)
        places = [PLACES[each][needed[:n].count(each)] for n, each in enumerate(needed)]
        await self.scene.promise("web", *places)
        await self.scene.bind("web")
        await self.scene.admit("web")
        await self.tell(sandbox=False)

    async def tell(self, *, sandbox: bool = True) -> None:
        await self.scene.tell_states("web", self.states, sandbox=sandbox)

    async def start(self, container: str) -> list[str]:
        """Starts a container, which then runs; returns the profiles that its environment names."""
        uuids: list[str] = []
        if {**self.init, **self.apps}[container]:
            env = await self.scene.start("web", container)
            uuids = env["NVIDIA_VISIBLE_DEVICES"].split(",")
        self.states[container] = {"running": {"startedAt": rfc3339(self.scene.clock.now())}}
        await self.tell()
        kinds = {str(ci.mig_uuid): each.profile for _, each in self.scene.instances() for ci in each.compute_instances}
        assert len(set(uuids)) == len(uuids)
        return sorted(kinds[uuid] for uuid in uuids)

    async def end(self, container: str, code: int = 0) -> None:
        now = rfc3339(self.scene.clock.now())
        self.states[container] = {"terminated": {"exitCode": code, "startedAt": now, "finishedAt": now}}
        await self.tell()

    async def new_sandbox(self) -> None:
        """The sandbox died and everything with it. Kubelet leaves init containers in the status as they ended."""
        await self.scene.clock.sleep(20.0)
        for name, state in self.states.items():
            if "running" in state:
                await self.end(name, 137)
        await self.tell(sandbox=False)

    def asked(self, container: str) -> list[str]:
        """The profiles that a container asks for, each as often as it does."""
        counts = {**self.init, **self.apps}[container]
        return sorted(profile for profile, count in counts.items() for _ in range(count))


ONE, TWO = {"1g.5gb": 1}, {"1g.5gb": 1, "2g.10gb": 1}


@pytest.mark.parametrize("app", [TWO, dict(reversed(TWO.items()))], ids=["small first", "large first"])
@pytest.mark.scene("2xA100-40GB")
async def test_an_init_container_does_not_see_the_slice_beside_its_own(scene: Scene, app: Counts) -> None:
    life = Life(scene, {"load": ONE}, {"main": app})
    await life.begin()
    for code in (1, 0):
        assert await life.start("load") == ["1g.5gb"]
        await life.end("load", code)
    for code in (1, 0):
        assert await life.start("main") == ["1g.5gb", "2g.10gb"]
        await life.end("main", code)


@pytest.mark.scene("2xA100-40GB")
async def test_a_sidecar_is_not_mistaken_for_the_init_container_before_it(scene: Scene) -> None:
    life = Life(scene, {"load": ONE, "side": TWO, "warm": ONE}, {"main": ONE}, sidecars=["side"])
    await life.begin()
    assert await life.start("load") == ["1g.5gb"]
    await life.end("load")
    assert await life.start("side") == ["1g.5gb", "2g.10gb"]
    assert await life.start("warm") == ["1g.5gb"]
    await life.end("side", 1)
    assert await life.start("side") == ["1g.5gb", "2g.10gb"]
    await life.end("warm")
    assert await life.start("main") == ["1g.5gb"]


@pytest.mark.scene("2xA100-40GB")
async def test_an_init_container_adds_slices_to_those_of_the_one_before_it(scene: Scene) -> None:
    """No app container holds any of them, so pod-resources lists nobody."""
    life = Life(scene, {"load": ONE, "warm": {"1g.5gb": 2}}, {"main": {}})
    await life.begin()
    for _ in ("first sandbox", "second"):
        assert await life.start("load") == ["1g.5gb"]
        await life.end("load")
        for code in (1, 0):
            assert await life.start("warm") == ["1g.5gb", "1g.5gb"]
            await life.end("warm", code)
        assert await life.start("main") == []
        await life.new_sandbox()


@pytest.mark.scene("2xA100-40GB")
async def test_after_a_new_sandbox_the_init_containers_run_again(scene: Scene) -> None:
    life = Life(scene, {"load": ONE, "warm": {"2g.10gb": 1}}, {"main": TWO})
    await life.begin()
    for _ in ("first sandbox", "second"):
        assert await life.start("load") == ["1g.5gb"]
        await life.end("load")
        assert await life.start("warm") == ["2g.10gb"]
        await life.end("warm")
        assert await life.start("main") == ["1g.5gb", "2g.10gb"]
        await life.new_sandbox()


@pytest.mark.scene("2xA100-40GB")
async def test_a_status_that_is_behind_is_waited_for(scene: Scene) -> None:
    """Kubelet starts the app as soon as the init container has ended, and writes the status meanwhile."""
    life = Life(scene, {"load": ONE}, {"main": TWO})
    await life.begin()
    await life.start("load")
    starting = asyncio.create_task(scene.start("web", "main", tries=1))
    await scene.clock.sleep(3.0)
    assert not starting.done()
    await life.end("load")
    assert len((await starting)["NVIDIA_VISIBLE_DEVICES"].split(",")) == 2


@pytest.mark.scene("2xA100-40GB")
async def test_a_status_that_stays_behind_is_named(scene: Scene) -> None:
    life = Life(scene, {"load": ONE}, {"main": TWO})
    await life.begin()
    await life.start("load")
    refusal = "pod default/web: its status does not show yet which of its containers load, main starts"
    with pytest.raises(PluginError, match=refusal):
        await scene.start("web", "main", tries=1)


def counts() -> st.SearchStrategy[Counts]:
    most = {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}
    return st.permutations(list(most)).flatmap(
        lambda names: st.fixed_dictionaries({name: st.integers(0, most[name]) for name in names})
    )


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    init=st.lists(st.tuples(counts(), st.booleans()), max_size=3),
    apps=st.lists(counts(), min_size=1, max_size=2),
    data=st.data(),
)
def test_each_container_of_any_pod_finds_its_slices_at_each_start(
    play_anew: Callable[..., None], init: list[tuple[Counts, bool]], apps: list[Counts], data: st.DataObject
) -> None:
    inits = {f"init{n}": {p: c for p, c in each.items() if c} for n, (each, _) in enumerate(init)}
    sidecars = [f"init{n}" for n, (_, sidecar) in enumerate(init) if sidecar]
    mains = {f"app{n}": {p: c for p, c in each.items() if c} for n, each in enumerate(apps)}
    total = {p: sum(each.get(p, 0) for each in (*inits.values(), *mains.values())) for p in PLACES}
    if not any(total.values()) or any(count > len(PLACES[p]) for p, count in total.items()):
        return

    async def story(scene: Scene) -> None:
        life = Life(scene, inits, mains, sidecars)
        await life.begin()
        for _ in range(data.draw(st.integers(1, 2), label="sandboxes")):
            for name in (*inits, *mains):
                if name in sidecars or name in mains:
                    assert await life.start(name) == life.asked(name)
                    continue
                for code in data.draw(st.sampled_from([(0,), (1, 0)]), label=f"exit codes of {name}"):
                    assert await life.start(name) == life.asked(name)
                    for sidecar in (each for each in sidecars if "running" in life.states[each]):
                        if data.draw(st.booleans(), label=f"{sidecar} crashes"):
                            await life.end(sidecar, 1)
                            assert await life.start(sidecar) == life.asked(sidecar)
                    await life.end(name, code)
            if data.draw(st.booleans(), label="agent is killed"):
                await scene.restart_agent()
            for name in mains:
                await life.end(name, 1)
                assert await life.start(name) == life.asked(name)
            await life.new_sandbox()

    play_anew(story, "3xA100-40GB")
