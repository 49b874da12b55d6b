"""Any events in any order: in the end the Node shows the true state, and the fields of others stay."""

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.searching import examples

from tessera.agent.base.node_objects import NodeCondition, bound_messages, read_conditions
from tessera.agent.node_status.label_facts import SIMULATED_MACHINE, collect_label_facts
from tessera.agent.node_status.labels import node_labels
from tessera.agent.node_status.node_facts import node_offers
from tessera.agent.node_status.publisher import REPAIR_PAUSE
from tessera.api.nodes.offers import encode_offers
from tessera.kube.resources import NODES, Condition

SLICED = "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
CONDITIONS = [
    NodeCondition("GpuHealthy", "True", "CardsHealthy", "all is well"),
    NodeCondition("GpuHealthy", "False", "CardUnhealthy", "GPU 1 is lost"),
    NodeCondition("GpuMpsReady", "True", "DaemonsReady", "MPS serves"),
    NodeCondition("GpuMigLayoutApplied", "Unknown", "LayoutPending", "at work"),
]
#: What can happen, with its argument.
Step = tuple[str, Any]
STEPS = st.one_of(
    st.tuples(st.just("profile"), st.sampled_from(["", SLICED])),
    st.tuples(st.just("mode"), st.booleans()),
    st.tuples(st.just("conditions"), st.lists(st.sampled_from(CONDITIONS), unique_by=lambda each: each.type)),
    st.tuples(st.just("state"), st.sampled_from(["", "pending", "success"])),
    st.tuples(st.just("on demand"), st.booleans()),
    st.tuples(st.just("edit"), st.sampled_from(["nvidia.com/gpu.count", "nvidia.com/mig.config.state", "theirs"])),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("away"), st.booleans()),
)
#: Seconds until the next step.
PAUSES = st.sampled_from([0.0, 0.01, 1.0, 40.0])


async def _away(*_request: object) -> None:
    raise ConnectionError("no route to host")


class Story:
    """One run of steps."""

    def __init__(self, stage: Any) -> None:
        self._stage = stage
        self._working = stage.server.handle

    async def play(self, step: Step, pause: float = 0.0) -> None:
        kind, value = step
        stage = self._stage
        if kind == "profile":
            await self._sharing(value)
        elif kind == "mode":
            stage.machine.cards.set_mig_mode(stage.machine.cards.uuids()[0], enabled=value)
            await self._sharing("")
        elif kind == "conditions":
            stage.conditions = value
        elif kind == "state":
            stage.mig_state = value
        elif kind == "on demand":
            stage.on_demand = frozenset(stage.machine.uuids[:1] if value else ())
        elif kind == "edit":
            await self.with_server(
                stage.admin.merge_patch(NODES, "node-1", {"metadata": {"labels": {value: "edited"}}})
            )
        elif kind == "restart":
            await stage.start()
        else:
            stage.server.handle = _away if value else self._working
        stage.changes.notify()
        await stage.clock.sleep(pause)

    async def with_server(self, request: Any) -> None:
        """Somebody who always reaches the server asks for something."""
        now, self._stage.server.handle = self._stage.server.handle, self._working
        await request
        self._stage.server.handle = now

    async def _sharing(self, profile: str) -> None:
        self._stage.known = await self._stage.machine.stock()
        self._stage.sharing = self._stage.offered(self._stage.known, profile)

    async def end(self) -> None:
        self._stage.server.handle = self._working
        await self._stage.clock.sleep(3 * REPAIR_PAUSE)


@settings(max_examples=examples(60), deadline=None)
@given(steps=st.lists(st.tuples(STEPS, PAUSES), max_size=12))
def test_in_the_end_the_node_shows_the_true_state(play: Callable[..., None], steps: list[tuple[Step, float]]) -> None:
    async def story(stage: Any) -> None:
        await stage.begin(layout="all-1g.5gb")
        stage.conditions = []
        told = Story(stage)
        await told.play(("profile", ""))
        for step, pause in steps:
            await told.play(step, pause)
        await told.end()
        node = await stage.node()
        facts = collect_label_facts(stage.known, stage.sharing, on_demand=stage.on_demand, machine=SIMULATED_MACHINE)
        state = {"nvidia.com/mig.config.state": stage.mig_state} if stage.mig_state else {}
        labels = {name: value for name, value in node["metadata"]["labels"].items() if not name.endswith("timestamp")}
        theirs = {name for name, value in labels.items() if value == "edited"}
        assert theirs <= {"theirs", "nvidia.com/mig.config.state"}
        assert labels.pop("nvidia.com/mig.config") == "all-1g.5gb"
        assert {name: labels[name] for name in labels.keys() - theirs} == node_labels(facts) | state
        offers = node_offers(stage.known, stage.sharing.offer, on_demand=stage.on_demand)
        assert node["metadata"]["annotations"]["tessera.dev/offers"] == encode_offers(offers)
        shown = [
            Condition(**{key: each[key] for key in ("type", "status", "reason", "message")})
            for each in node["status"]["conditions"]
        ]
        assert read_conditions(shown) == bound_messages(stage.conditions)
        assert "Ready" in {each.type for each in shown}
        asked = stage.requests()
        await stage.clock.sleep(10 * REPAIR_PAUSE)
        assert stage.requests() == asked

    play(story, "2xA100-40GB")
