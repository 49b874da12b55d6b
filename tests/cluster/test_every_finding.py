"""Each finding of the product can be made to come in the lab: a fault of a card, a person's deed, or a scenario."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.cluster.test_cordons import annotate
from tests.cluster.test_scenarios import Play
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.agent.monitoring.findings import MEMORY_OVER_LIMIT, RULES
from tessera.api.names import POD_PREFLIGHT, REPAIRS_KEY, REPAIRS_MAP
from tessera.api.nodes.health import SOURCE_WORDS, Finding
from tessera.api.nodes.usage import NodeUsage
from tessera.kube.resources import CONFIGMAPS, NODES, PODS
from tessera_lab.activity.lab_cards import LabCards
from tessera_lab.activity.scenario import builtin_scenario

#: By source of a card's fault, what `tessera lab break gpu` is told; an XID is one source for each number.
FAULTS: Mapping[str, Mapping[str, Any]] = {
    "XID 95": {"xid": 95},
    "double-bit-ecc": {"fault": "ecc"},
    "driver": {"fault": "ecc"},
    "events": {"fault": "silent"},
    "fabric": {"fault": "fabric"},
    "hw-power-brake": {"fault": "power"},
    "hw-slowdown": {"fault": "slow"},
    "hw-thermal": {"fault": "heat"},
    "no-spare-row": {"fault": "no-spare-row"},
    "nvlink-errors": {"fault": "nvlink-errors"},
    "probe": {"fault": "lost"},
    "row-remapping": {"fault": "spare-row"},
    "sram-ecc": {"fault": "sram"},
    "sw-thermal": {"fault": "warm"},
    "unreadable": {"fault": "unreadable"},
}
#: By kind of finding of a pod, the scenario of the library.
SCENARIOS: Mapping[str, str] = {
    **dict.fromkeys(("cpu_bound", "pcie_bound", "memory_bound", "low_occupancy", "power_wasted"), "bottlenecks"),
    "memory_nearly_full": "full-memory",
    "memory_over_limit": "memory-hog",
    "power_capped": "power-capped",
    "throttled": "hot-card",
}


_PART = r", in [0-9]+% of the samples"
#: By kind of finding, the pod of its scenario, and the figures that show it.
EVIDENCE: Mapping[str, tuple[str, str]] = {
    "cpu_bound": ("host-1", rf"the card computes 20% of the time while .* 1[.]0 CPU cores busy{_PART}"),
    "pcie_bound": ("copies-1", rf"PCIe carries 23 of [0-9]+ GB/s while 2[0-9]% of the SMs work{_PART}"),
    "memory_bound": ("memory-1", rf"memory of the card sends or receives 8[0-9]% of the time{_PART}"),
    "low_occupancy": ("small-1", rf"the card is busy 90% of the time with 7% of the warps that it can hold{_PART}"),
    "power_wasted": ("spinning-1", rf"draws 420 of 700 W while it uses [0-9]% of the card{_PART}"),
    "memory_nearly_full": ("full-1", rf"holds 4[.][0-9] of 4[.][0-9] GiB{_PART}"),
    "memory_over_limit": ("hog-1", r"holds [0-9.]+ GiB, its part of the shared card is [0-9.]+ GiB"),
    "power_capped": ("trainer", rf"its card draws its limit of 700 W, so clocks are lowered{_PART}"),
    "throttled": ("trainer", rf"its card is slowed down by heat or power supply{_PART}"),
}


def pages(lab: VirtualLab) -> list[NodeUsage]:
    """The page of each agent."""
    return [msgspec.json.decode(documents["/usage"](), type=NodeUsage) for documents in lab.cluster.documents.values()]


def sources(lab: VirtualLab) -> list[set[str]]:
    """By card of the node, the sources of its faults."""
    (page,) = pages(lab)
    return [{each.source for each in card.health.evidence} for card in page.cards]


async def allow(lab: VirtualLab, **repairs: Any) -> None:
    data = {REPAIRS_KEY: json.dumps(repairs)}
    await lab.client.apply(CONFIGMAPS, REPAIRS_MAP, {"data": data}, "tessera-system")
    await lab.clock.sleep(15)


def test_each_fault_of_a_card_can_be_made(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        cards = LabCards(lab.cluster.nodes)
        for index, how in enumerate(FAULTS.values()):
            cards.break_card(f"node-1/{index}", **how)
        missing = set(FAULTS)
        for _ in range(60):  # a card that nobody holds is reset soon
            await lab.clock.sleep(1)
            missing -= {source for source, found in zip(FAULTS, sources(lab), strict=True) if source in found}
        assert not missing

    in_lab(scenario, nodes=f"{len(FAULTS)}xH100-80GB", mig_config="", pages=True)


async def cordon(lab: VirtualLab) -> None:
    (page,) = pages(lab)
    await annotate(lab, page.cards[0].uuid, "looks odd")


async def skip_preflight(lab: VirtualLab) -> None:
    """A card that was reset waits for its test, which a faulty card does not pass."""
    await allow(lab, preflight="repairs")
    cards = LabCards(lab.cluster.nodes)
    cards.break_card("node-1/0", fault="computing")
    cards.break_card("node-1/0", xid=95)


async def fail_preflight_of_pod(lab: VirtualLab) -> None:
    await allow(lab, podPreflight=True)
    LabCards(lab.cluster.nodes).break_card("node-1/0", fault="computing")
    container = {"name": "c", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    metadata = {"name": "asks", "annotations": {POD_PREFLIGHT: "true"}}
    await lab.client.create(PODS.as_dicts(), {"metadata": metadata, "spec": {"containers": [container]}}, "default")


async def wear_out(lab: VirtualLab) -> None:
    await Play(lab, builtin_scenario("worn-out")).player.run()


#: By source that is no single fault, what makes it come.
DEEDS: Mapping[str, Callable[[VirtualLab], Awaitable[None]]] = {
    "cordon": cordon,
    "preflight": skip_preflight,
    "pod-preflight": fail_preflight_of_pod,
    "replace": wear_out,
}


@pytest.mark.soak
def test_what_persons_tests_and_time_find_can_be_made(in_lab: InLab) -> None:
    for source, deed in DEEDS.items():

        async def scenario(lab: VirtualLab, source: str, deed: Callable[[VirtualLab], Awaitable[None]]) -> None:
            await deed(lab)
            for _ in range(100):
                await lab.clock.sleep(3)
                if source in sources(lab)[0]:
                    return
            raise AssertionError(f"{source} is not shown")

        in_lab(partial(scenario, source=source, deed=deed), nodes="1xH100-80GB", mig_config="", pages=True)


def test_each_source_has_a_way() -> None:
    assert {"XID" if each.startswith("XID") else each for each in (*FAULTS, *DEEDS)} == {"XID", *SOURCE_WORDS}
    assert SCENARIOS.keys() == {*RULES, MEMORY_OVER_LIMIT}


def test_each_finding_of_a_pod_can_be_made(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab, name: str) -> Mapping[str, Mapping[str, Finding]]:
        play = Play(lab, builtin_scenario(name))
        if name in {"power-capped", "hot-card"}:
            await lab.create("trainer", {"nvidia.com/gpu": 1})
            await lab.running("trainer")
        if name == "memory-hog":
            labels = {"nvidia.com/device-plugin.config": "slice-2"}
            await lab.client.merge_patch(NODES, "node-1", {"metadata": {"labels": labels}})
            await lab.until(lambda: lab.gpus("node-1").get("nvidia.com/gpu.shared"), "the card is shared", 60)
        await play.player.run()
        found: dict[str, dict[str, Finding]] = {}
        for lease in (lease for page in pages(lab) for lease in page.leases):
            for each in lease.findings:
                found.setdefault(each.kind, {})[lease.pod] = each
        return found

    settings: Mapping[str, Mapping[str, Any]] = {
        "full-memory": {"nodes": "1xA100-40GB"},
        "memory-hog": {"nodes": "1xA30", "mig_config": ""},
        "bottlenecks": {"nodes": "8xH100-80GB", "mig_config": ""},
    }
    found: dict[str, Mapping[str, Mapping[str, Finding]]] = {}
    for name in dict.fromkeys(SCENARIOS.values()):
        chosen = settings.get(name, {"nodes": "1xH100-80GB", "mig_config": ""})
        found[name] = in_lab(partial(scenario, name=name), pages=True, **chosen)
    missing = {kind: name for kind, name in SCENARIOS.items() if kind not in found[name]}
    assert not missing, found
    for kind, (pod, evidence) in EVIDENCE.items():
        finding = found[SCENARIOS[kind]][kind][pod]
        assert re.fullmatch(f"{finding.name} for [0-9]+m: {evidence}[.] [A-Z].+[.]", finding.sentence), finding.sentence
    assert "single-1" in found["bottlenecks"]["power_wasted"], "many warps or few: one block wastes power too"
    assert EVIDENCE.keys() == SCENARIOS.keys()


def test_a_finding_of_memory_says_what_the_same_sample_measured(in_lab: InLab) -> None:
    """The memory monitor looks at other times than the sampler: a growing hog has one size on one page."""

    async def scenario(lab: VirtualLab) -> set[float]:
        labels = {"nvidia.com/device-plugin.config": "slice-2"}
        await lab.client.merge_patch(NODES, "node-1", {"metadata": {"labels": labels}})
        await lab.until(lambda: lab.gpus("node-1").get("nvidia.com/gpu.shared"), "the card is shared", 60)
        playing = asyncio.create_task(Play(lab, builtin_scenario("memory-hog")).player.run())
        seen: set[float] = set()
        while not playing.done():
            await lab.clock.sleep(7)
            for lease in (lease for page in pages(lab) for lease in page.leases):
                for each in lease.findings:
                    if each.kind == MEMORY_OVER_LIMIT:
                        assert lease.memory is not None
                        held = round(lease.memory / 2**30, 1)
                        assert each.text.startswith(f"holds {held} GiB")
                        seen.add(held)
        await playing
        return seen

    assert len(in_lab(scenario, nodes="1xA30", mig_config="", pages=True)) > 5
