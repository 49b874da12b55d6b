"""Simulated cards read as an agent reads them, and a Node on an API server in this process, on virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from tests.support.agent_runtime import make_parts
from tests.support.api_clients import in_process_client
from tests.support.scenes import marked_scene
from tests.support.tasks import cancel_tasks

from tessera.agent.base.node_objects import NodeCondition
from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.agent.inventory.gpu_inventory import (
    GpuInventory,
    read_gpu_inventory,
    sharing_gpus,
)
from tessera.agent.node_status.label_facts import SIMULATED_MACHINE, SharingFacts
from tessera.agent.node_status.node_facts import MachineFacts, NodeFacts
from tessera.agent.node_status.publisher import NodeStatusPublisher
from tessera.api.nodes.card_faults import CardFault
from tessera.api.nodes.node_cards import CardLinks
from tessera.api.nodes.preflights import CardTest
from tessera.api.sharing.advertisement import make_advertisement
from tessera.api.sharing.profile import MigStrategy
from tessera.api.sharing.profile_parser import parse_profile
from tessera.clock import LoopClock
from tessera.kube.client import Client
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.informer import Informer
from tessera.kube.resources import EVENTS, NODES, Node
from tessera.mig.names import ci_profile_index
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.simulation.virtual_time import run_virtual

NODE = "node-1"
#: A slice: profile and start.
Place = tuple[str, int]


class Machine:
    """The cards of a node."""

    def __init__(self, cards: str) -> None:
        self.cards = SimulatedMachine(cards, seed=NODE)
        self.uuids = [str(uuid) for uuid in self.cards.uuids()]

    def cut(self, card: int, *places: Place) -> None:
        """MIG mode is on and the card is cut so."""
        uuid = self.cards.uuids()[card]
        self.cards.set_mig_mode(uuid, enabled=True)
        slices = {profile.name: profile.compute_slices for profile in self.cards.gi_profiles(uuid)}
        for profile, start in places:
            gi_id = self.cards.create_gpu_instance(uuid, profile, start)
            self.cards.create_compute_instance(uuid, gi_id, ci_profile_index(slices[profile]))

    async def stock(self) -> GpuInventory:
        """The agent's reading of the cards."""
        return await read_gpu_inventory(InlineNvml(self.cards, LoopClock(0)))

    def read(self) -> GpuInventory:
        """The same, outside of any loop."""
        return run_virtual(self.stock())


def offered(stock: GpuInventory, profile: str = "", strategy: MigStrategy = MigStrategy.MIXED) -> SharingFacts:
    """The sharing of the cards by a profile."""
    parsed = parse_profile(profile)
    return SharingFacts(
        offer=make_advertisement(sharing_gpus(stock.gpus), parsed, strategy), profile=parsed, mig_strategy=strategy
    )


class ShownNode:
    """The Node as the agent's watch shows it; a test may hold an older one before it."""

    node_name = NODE

    def __init__(self, scene: "Stage", nodes: Informer[Node]) -> None:
        self._scene, self._nodes = scene, nodes

    def node(self) -> Node | None:
        return self._scene.behind or self._nodes.cache.get(NODE)


class Stage:
    """One Node, what is true of it, and the part of an agent that tells.

    Attributes:
        machine: the cards.
        sharing: what is in force; ``None`` while nothing is known.
        conditions: all that shall stand on the Node; ``None`` likewise.
        mig_state: of the layout.
        card_faults: the faults that take cards away.
        card_tests: the last preflights.
        needs_mps_host: true if the node needs an MPS host.
        changes: wakes the publisher.
        behind: the Node as a watch shows it that is behind; ``None`` for one that is not.
    """

    def __init__(self, cards: str = "4xA100-40GB") -> None:
        self.clock = LoopClock(1_700_000_000.0)
        self.server = ApiServer(self.clock)
        self.admin = self.user("admin", "system:masters")
        self.machine = Machine(cards)
        self.known = GpuInventory()
        self.sharing: SharingFacts | None = None
        self.conditions: Sequence[NodeCondition] | None = None
        self.mig_state = ""
        self.on_demand: frozenset[str] = frozenset()
        self.card_links: CardLinks | None = None
        self.held_withheld: dict[str, int] = {}
        self.changes = ChangeNotifier()
        self.leaving_gpus: frozenset[str] = frozenset()
        self.card_faults: tuple[CardFault, ...] = ()
        self.card_tests: tuple[CardTest, ...] = ()
        self.needs_mps_host: bool | None = False
        self.behind: Node | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._starts = 0

    def facts(self) -> NodeFacts | None:
        """What the agent knows."""
        if self.sharing is None or self.needs_mps_host is None or not self.known.driver_version:
            return None
        return NodeFacts(
            inventory=self.known,
            sharing=self.sharing,
            on_demand=self.on_demand,
            leaving=self.leaving_gpus,
            mig_state=self.mig_state,
            needs_mps_host=self.needs_mps_host,
            faults=self.card_faults,
            tests=self.card_tests,
            links=self.card_links,
            held_withheld=self.held_withheld,
        )

    def user(self, name: str, *groups: str) -> Client:
        return in_process_client(self.server, self.clock, name, *groups, "system:authenticated")

    async def begin(self, **labels: str) -> None:
        """Kubelet registers the Node; an agent starts and reads the cards."""
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is ready"}
        names = {"layout": "nvidia.com/mig.config", "profile": "nvidia.com/device-plugin.config"}
        node = {
            "metadata": {"name": NODE, "labels": {names[key]: value for key, value in labels.items()}},
            "status": {"conditions": [ready]},
        }
        await self.admin.create(NODES.as_dicts(), node)
        await self.start()

    async def start(self, *, groups: Sequence[str] = ("system:masters",)) -> None:
        """An agent starts, in place of the one before."""
        await self.stop()
        client = self.user("tessera-agent", *groups)
        self._starts += 1
        rng = random.Random(self._starts)
        nodes: Informer[Node] = Informer(self.admin, NODES, clock=self.clock, rng=rng)
        nodes.add_handler(lambda _event: self.changes.notify())
        events = EventRecorder(client, component="tessera-agent", clock=self.clock, rng=rng)
        publisher = NodeStatusPublisher(
            make_parts(
                client=client,
                mirror=ShownNode(self, nodes),
                events=events,
                changes=self.changes,
                clock=self.clock,
                rng=rng,
            ),
            facts=self.facts,
            conditions=lambda: self.conditions,
            machine=MachineFacts(SIMULATED_MACHINE),
        )
        self._tasks = [asyncio.create_task(each) for each in (nodes.run(), events.run(), publisher.run())]

    async def stop(self) -> None:
        await cancel_tasks(self._tasks)
        self._tasks = []

    def offered(self, stock: GpuInventory, profile: str) -> SharingFacts:
        """The sharing of the cards by a profile."""
        return offered(stock, profile)

    async def offer(self, profile: str = "", strategy: MigStrategy = MigStrategy.MIXED) -> None:
        """The cards are read anew and the profile is in force."""
        self.known = await self.machine.stock()
        self.sharing = offered(self.known, profile, strategy)
        await self.changed()

    async def tell(self, *conditions: NodeCondition) -> None:
        """These conditions hold from now on."""
        self.conditions = conditions
        await self.changed()

    async def changed(self) -> None:
        self.changes.notify()
        await self.clock.sleep(1)

    # What everybody can see ----------------------------------------------------------------------------------------

    async def node(self) -> dict[str, Any]:
        return await self.admin.get(NODES.as_dicts(), NODE)

    async def labels(self) -> Mapping[str, str]:
        labels: Mapping[str, str] = (await self.node())["metadata"].get("labels", {})
        return labels

    async def shown(self) -> dict[str, dict[str, str]]:
        """The conditions by type."""
        return {each["type"]: each for each in (await self.node())["status"]["conditions"]}

    async def events(self) -> list[tuple[str, str, str]]:
        """Type, reason and message of the Node's events, oldest first."""
        listing = await self.admin.list(EVENTS, "default")
        found = sorted(listing.items, key=lambda each: int(each.metadata.resource_version))
        return [(each.type, each.reason, each.message) for each in found]

    def writes(self) -> list[str]:
        """The writes of the agent to the Node."""
        found = self.server.audit.writes(user="tessera-agent", resource="nodes")
        return [each.subresource or "metadata" for each in found]

    def requests(self) -> int:
        """The number of attempts to write to the Node."""
        return sum(each.resource == "nodes" for each in self.server.audit if each.user == "tessera-agent")


@pytest.fixture
def make_machine() -> type[Machine]:
    return Machine


@pytest.fixture
def make_sharing() -> Callable[..., SharingFacts]:
    return offered


@pytest.fixture
async def stage(request: pytest.FixtureRequest, virtual_time: None) -> AsyncIterator[Stage]:
    """A stage on virtual time."""
    made = marked_scene(request, Stage)
    yield made
    await made.stop()


@pytest.fixture(scope="session")
def play() -> Callable[..., None]:
    """Plays a story on a stage of its own, on virtual time, and ends everything."""

    def play_on(story: Callable[[Stage], Awaitable[None]], *args: str) -> None:
        async def whole() -> None:
            stage = Stage(*args)
            try:
                await story(stage)
            finally:
                await stage.stop()

        run_virtual(whole())

    return play_on


@pytest.fixture
def reordered() -> Callable[[GpuInventory], GpuInventory]:
    """The same cards, listed the other way round."""
    return lambda stock: msgspec.structs.replace(stock, gpus=stock.gpus[::-1])
