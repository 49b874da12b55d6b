"""A card must be reset: its pod is evicted and starts on another card, and the card comes back, whoever is killed."""

import json
from typing import Any

import pytest
from tests.support.mortal_process import MortalAgent, MortalController, die_at, fate_of
from tests.support.virtual_lab import InLab, Scenario, VirtualLab

from tessera.api.names import GPU_CONDITION, REPAIRS_KEY, REPAIRS_MAP
from tessera.api.nodes.preflights import decode_tests
from tessera.kube.resources import CONFIGMAPS, PODS
from tessera.nvml.interface import CardAttributes, GpuEventKind
from tessera.nvml.simulated.machine_state import SimEvent

#: More writes of the controller, and NVML calls of the agent, than the whole story has; the test proves that they are.
WRITES, CALLS = 8, 60
#: `make soak` kills the agent at each fourth of its calls; `make test` does in other stories (``test_kills.py``).
PARTS = [("before", 0), ("after", 1), ("before", 2)]


async def evicting(lab: VirtualLab, **more: Any) -> None:
    """The administrator writes the file of repairs, which controller and agents follow."""
    text = json.dumps({"evict": True} | more)
    await lab.client.apply(CONFIGMAPS, REPAIRS_MAP, {"data": {REPAIRS_KEY: text}}, "tessera-system")


TESTED = {"preflight": "repairs", "reboot": "systemctl"}


def preflights(lab: VirtualLab, node: str) -> list[str]:
    """The preflights of a node's cards, each by what was not tested: nothing can be in MIG mode."""
    return [each.skipped for each in decode_tests(lab.existing_node(node).metadata.annotations)]


def expected(resource: str, *, tests_repairs: bool = True) -> list[str]:
    return ["" if resource == "nvidia.com/gpu" else "the card is in MIG mode"] if tests_repairs else []


def break_card(lab: VirtualLab, node: str) -> None:
    machine = lab.machine(node)
    (gpu,) = machine.uuids()
    machine.set_attributes(gpu, CardAttributes(recovery_action=None))
    machine.report(SimEvent(GpuEventKind.XID, gpu, 48, None))


@pytest.mark.parametrize(
    ("resource", "mig_config"), [("nvidia.com/gpu", ""), ("nvidia.com/mig-3g.20gb", "dynamic")], ids=["whole", "slice"]
)
def test_a_node_is_rebooted_for_its_lost_card_and_the_card_is_tested(
    in_lab: InLab, resource: str, mig_config: str
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await evicting(lab, **TESTED)
        await lab.create_owned("web", {resource: 1})
        await lab.until(lambda: lab.ready_of("web"), "the pod runs")
        home = lab.existing_pod(lab.ready_of("web")).spec.node_name
        boot = _boot(lab, home)
        machine = lab.machine(home)
        machine.lose(machine.uuids()[0])
        await lab.until(lambda: _runs_elsewhere(lab, home), "the pod runs on the other card", 900)
        await lab.until(lambda: _boot(lab, home) != boot, "the node was rebooted", 900)
        await lab.until(lambda: lab.gpus(home).get(resource), "the card is offered again", 900)
        await lab.until(lambda: preflights(lab, home) == expected(resource), "its preflight is shown")

    in_lab(scenario, nodes="A100-40GB,A100-40GB", mig_config=mig_config)


def _boot(lab: VirtualLab, node: str) -> str:
    boot: str = lab.existing_node(node).status.node_info.boot_id
    return boot


def story(resource: str, at: int = 0, *, after: bool = False, tests_repairs: bool = True) -> Scenario:
    async def scenario(lab: VirtualLab) -> bool:
        fate = fate_of(lab)
        made: set[str] = set()
        lab.pods.add_handler(lambda event: made.add(event.object.metadata.uid))
        await evicting(lab, **(TESTED if tests_repairs else {}))
        await lab.create_owned("web", {resource: 1})
        await lab.until(lambda: lab.ready_of("web"), "the pod runs")
        home = lab.existing_pod(lab.ready_of("web")).spec.node_name
        before = made.copy()
        fate.arm(at, after=after)
        break_card(lab, home)
        await lab.until(lambda: _runs_elsewhere(lab, home), "the pod runs on the other card", 900)
        await lab.until(lambda: lab.gpus(home).get(resource), "the card is offered again", 900)
        wanted = expected(resource, tests_repairs=tests_repairs)
        await lab.until(lambda: preflights(lab, home) == wanted, "its preflight is shown, if it had one")
        await lab.until(lambda: lab.condition("GpuHealthy", home)[1] == "CardsHealthy", "nothing is wrong with it")
        await lab.clock.sleep(300)
        assert len(made - before) == 1, "one eviction, one new pod"
        assert _runs_elsewhere(lab, home)
        fate.armed = False
        return fate.struck

    return scenario


def _runs_elsewhere(lab: VirtualLab, home: str) -> bool:
    name = lab.ready_of("web")
    return bool(name) and lab.existing_pod(name).spec.node_name != home


@pytest.mark.parametrize(
    ("resource", "mig_config"), [("nvidia.com/gpu", ""), ("nvidia.com/mig-3g.20gb", "dynamic")], ids=["whole", "slice"]
)
def test_pod_and_card_do_not_wait_for_each_other(in_lab: InLab, resource: str, mig_config: str) -> None:
    in_lab(story(resource), nodes="A100-40GB,A100-40GB", mig_config=mig_config)


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_controller_may_die_at_any_write(in_lab: InLab, when: str) -> None:
    def outlives(at: int) -> bool:
        told = story("nvidia.com/gpu", at, after=when == "after")
        return bool(in_lab(told, nodes="A100-40GB,A100-40GB", mig_config="", cluster_type=MortalController))

    die_at(range(1, WRITES + 1), outlives, to_the_end=False, every=9)


@pytest.mark.soak
@pytest.mark.parametrize(("when", "part"), PARTS)
def test_the_agent_may_die_at_any_nvml_call(in_lab: InLab, when: str, part: int) -> None:
    def outlives(at: int) -> bool:
        # The preflight finds no simulated machine behind the calls that kill an agent.
        told = story("nvidia.com/gpu", at, after=when == "after", tests_repairs=False)
        return bool(in_lab(told, nodes="A100-40GB,A100-40GB", mig_config="", cluster_type=MortalAgent))

    die_at(range(part + 1, CALLS + 1, 12), outlives, to_the_end=False)


def test_a_pod_without_an_owner_stays_and_its_card_is_reset_when_it_ends(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await evicting(lab, evictNodes=2)
        await lab.create("alone", {"nvidia.com/gpu": 1})
        await lab.running("alone")
        home = lab.existing_pod("alone").spec.node_name
        break_card(lab, home)
        await lab.clock.sleep(1800)
        assert lab.phase("alone") == "Running"
        told = next(each for each in lab.existing_pod("alone").status.conditions if each.type == GPU_CONDITION)
        assert (told.status, told.reason) == ("False", "GpuNeedsReset")
        await lab.client.delete(PODS, "alone", "default", grace_seconds=0)
        await lab.until(lambda: lab.gpus(home).get("nvidia.com/gpu") == 1, "the empty card was reset", 300)

    in_lab(scenario, nodes="A100-40GB", mig_config="")
