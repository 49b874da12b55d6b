"""The agents' DaemonSet is kept off one node: within a minute nine places name the node, and none once it is back."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.nodes.node_marks import AGENT_CONDITIONS, is_marked_silent
from tessera.cli.base.usage import notes_of
from tessera.cli.idle import idle_lines
from tessera.controller import main as controller_process
from tessera.controller.main import Controller
from tessera.dashboard.feed import FeedGroup
from tessera.dashboard.source import ClusterSource
from tessera.dashboard.view.cluster_map import make_map
from tessera.doctor.examination import examine
from tessera.doctor.facts import Verdict
from tessera.explain.explanation import parse_query
from tessera.explain.query import explain
from tessera.kube.resources import DAEMONSETS, NODES
from tessera.observe.cluster_reading import read_cluster
from tessera.observe.health_rows import judge_fleet
from tessera.observe.reading import read_usage
from tessera.visibility import FULL

SYSTEM, DAEMON_SET = "tessera-system", "tessera-agent"
#: A selector that keeps the DaemonSet off node-1.
ELSEWHERE = {"kubernetes.io/hostname": "node-2"}
WHY = "no pod of DaemonSet tessera-system/tessera-agent is on it"
CARD = {"nvidia.com/mig-7g.40gb": 1}
#: Seconds in which every place names the node.
BAR = 60.0


async def select(lab: VirtualLab, selector: Mapping[str, str] | None) -> None:
    patch = {"spec": {"template": {"spec": {"nodeSelector": selector}}}}
    await lab.client.merge_patch(DAEMONSETS.as_dicts(), DAEMON_SET, patch, SYSTEM)


class Places:
    """Each place tells whether it says that the agent of node-1 is silent."""

    def __init__(
        self,
        lab: VirtualLab,
        page: Callable[[], str],
        controllers: Sequence[Controller],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self._lab = lab
        self._page = page
        self._controllers = controllers
        self._capsys = capsys

    async def health(self) -> bool:
        found = judge_fleet((await read_usage(self._lab.client)).fleet)
        assert found.complete == (not found.silent)
        return [(each.node, WHY in each.reason) for each in found.silent] == [("node-1", True)]

    async def top(self) -> bool:
        notes = "\n".join(notes_of(await read_usage(self._lab.client)))
        return f"node node-1 is not shown: {WHY}" in notes

    async def idle(self) -> bool:
        usage = await read_usage(self._lab.client)
        return "1 node did not answer" in "\n".join(idle_lines(usage, namespace="nobody", unknown=False))

    async def map(self) -> bool:
        (node,) = (each for each in make_map(await read_cluster(self._lab.client)).nodes if each.node == "node-1")
        silent = WHY in node.unread
        # The pod may go between its listing and its answer.
        assert silent or not node.unread or node.unread.endswith("not found")
        assert not (silent and any(any(card.possible.values()) for card in node.cards))
        return silent

    async def why(self) -> bool:
        node, pod = [await explain(self._lab.client, self._lab.clock, parse_query(what), "default")
                     for what in ("node/node-1", "waits")]  # fmt: skip
        first = pod.answers[0]
        return node.answers[0].case == "agent-down" and (first.case, WHY in first.facts[0]) == ("agent-silent", True)

    async def page(self) -> bool:
        return WHY in self._page()

    async def doctor(self) -> bool:
        found = await examine(self._lab.client, self._lab.clock)
        return any(
            each.check == "agents" and each.verdict is Verdict.ERROR and f"node-1: {WHY}" in each.text for each in found
        )

    async def conditions(self) -> bool:
        shown = (await self._lab.client.get(NODES, "node-1")).status.conditions
        of_agent = [each for each in shown if each.type in AGENT_CONDITIONS]
        assert {"GpuHealthy", "GpuNodeReady"} <= {each.type for each in of_agent}
        return all(is_marked_silent(each) and WHY in each.message for each in of_agent)

    async def metrics(self) -> bool:
        shown = self._controllers[-1].metrics_text().decode()
        return 'tessera_silent_nodes{node="node-1",reason="no_agent"} 1.0' in shown

    @property
    def all(self) -> dict[str, Callable[[], Awaitable[bool]]]:
        names = ("health", "top", "idle", "map", "why", "page", "doctor", "conditions", "metrics")
        return {name: getattr(self, name) for name in names}

    async def seconds_until(self, silent: bool, most: float) -> dict[str, float]:
        """Seconds until each place says so; a place that does not within ``most`` is missing."""
        began = self._lab.clock.now()
        found: dict[str, float] = {}
        while len(found) < len(self.all) and self._lab.clock.now() - began <= most:
            for name, ask in self.all.items():
                if name not in found and await ask() == silent:
                    found[name] = self._lab.clock.now() - began
            await self._lab.clock.sleep(2.0)
        return found


def test_a_node_without_its_agent_is_named_in_nine_places_within_a_minute_and_in_none_afterwards(
    in_lab: InLab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    controllers: list[Controller] = []

    class Listed(Controller):
        """A controller whose metrics can be read, since it does not listen."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            controllers.append(self)

    async def at_once(work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return work(*arguments, **named)

    monkeypatch.setattr(controller_process, "Controller", Listed)
    monkeypatch.setattr(asyncio, "to_thread", at_once)  # virtual time does not wait for threads

    async def scenario(lab: VirtualLab) -> None:
        for name in ("first", "second"):
            await lab.create(name, CARD)
        await lab.running("first", "second")
        await lab.create("waits", CARD)
        await lab.until(lambda: lab.events_of("waits", "SliceWaiting"), "it waits")
        feeds = FeedGroup()
        source = ClusterSource(lab.client, feeds, watched=lambda: True, clock=lab.clock, rng=random.Random(1))
        showing = asyncio.create_task(source.run())
        try:
            with feeds.join(FULL, "ann") as feed:

                def page() -> str:
                    update = feed.read(None)
                    return "" if update is None else b"".join(update.texts).decode()

                places = Places(lab, page, controllers, capsys)
                await lab.clock.sleep(30)
                assert [name for name, ask in places.all.items() if await ask()] == []
                await select(lab, ELSEWHERE)
                named = await places.seconds_until(True, BAR)
                assert named.keys() == places.all.keys(), named
                await select(lab, None)
                back = await places.seconds_until(False, 2 * BAR)
                assert back.keys() == places.all.keys(), back
                await lab.clock.sleep(60)
                assert [name for name, ask in places.all.items() if await ask()] == []
                conditions = (await lab.client.get(NODES, "node-1")).status.conditions
                assert {each.status for each in conditions if each.type in AGENT_CONDITIONS} == {"True"}
        finally:
            showing.cancel()
            await asyncio.wait([showing])

    in_lab(scenario, nodes="A100-40GB,A100-40GB", own=True, pages=True)
