"""A document of ``tessera accept`` becomes a simulated node with the cards of the machine."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tessera.accept.acceptance import read_facts
from tessera.accept.checks import judge_all
from tessera.accept.document import Document, DocumentError, hide_names
from tessera.accept.facts import Facts
from tessera.clock import SystemClock
from tessera.nvml.interface import NvLink
from tessera.nvml.measurements import Quantity
from tessera.nvml.simulated.boards import DEFAULT_ATTRIBUTES
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.cluster.accepted_nodes import apply_cards, lab_nodes


@pytest.fixture
def machine() -> SimulatedMachine:
    """A machine that differs from its models: a MIG device, a card with an error and less memory, few links."""
    machine = SimulatedMachine("2xA100-40GB,V100", seed="real", driver="570.133.20")
    first, second, _ = machine.uuids()
    machine.set_mig_mode(first, True)
    machine.create_compute_instance(first, machine.create_gpu_instance(first, "3g.20gb", 4), 2)
    machine.set_nvlinks(second, [NvLink("00000000:12:00.0")])
    machine.set_measured(second, Quantity.ROW_REMAP_PENDING, 1.0)
    machine.set_measured(second, Quantity.TEMPERATURE, 61.0)
    machine.set_attributes(second, msgspec.structs.replace(DEFAULT_ATTRIBUTES, ecc=False, recovery_action=1))
    with machine.change() as state:
        state.cards[1].memory = 40_000
    return machine


def document(machine: SimulatedMachine, path: Path, change: Callable[[Facts], Facts] = lambda facts: facts) -> Path:
    facts = change(read_facts(machine, SystemClock(), files=None))
    path.write_bytes(msgspec.json.encode(hide_names(Document(facts=facts, checks=tuple(judge_all(facts))))))
    return path


def test_the_node_has_the_cards_of_the_document(machine: SimulatedMachine, tmp_path: Path) -> None:
    (spec,) = lab_nodes("", [document(machine, tmp_path / "accept.json")])
    assert spec.cards == ("A100-40GB", "A100-40GB", "V100-SXM2-16GB")
    assert spec.driver == "570.133.20"
    made = SimulatedMachine(spec.spec, seed=spec.name, driver=spec.driver)
    apply_cards(made, spec.accepted)
    for own, real in zip(made.devices(), machine.devices(), strict=True):
        for field in ("name", "memory_mib", "mig_enabled", "compute_capability"):
            assert getattr(own, field) == getattr(real, field)
        assert own.uuid != real.uuid
    first, second, _ = made.uuids()
    assert [(each.profile, each.start) for each in made.instances(first)] == [("3g.20gb", 4)]
    assert len(made.instances(first)[0].compute_instances) == 1
    assert made.nvlinks(second) == [NvLink(made.devices()[2].pci_bus_id)]
    assert made.measure(second).values[Quantity.TEMPERATURE] == 61.0
    assert made.measure(second).values[Quantity.ROW_REMAP_PENDING] == 1.0
    assert (made.attributes(second).ecc, made.attributes(second).recovery_action) == (False, 1)


def test_the_simulated_node_is_judged_as_the_machine_was(machine: SimulatedMachine, tmp_path: Path) -> None:
    (spec,) = lab_nodes("", [document(machine, tmp_path / "accept.json")])
    made = SimulatedMachine(spec.spec, seed=spec.name, driver=spec.driver)
    apply_cards(made, spec.accepted)
    verdicts = [
        [(each.name, each.status) for each in judge_all(read_facts(cards, SystemClock(), files=None))]
        for cards in (machine, made)
    ]
    assert verdicts[0] == verdicts[1]


def test_nodes_of_documents_come_after_the_others(machine: SimulatedMachine, tmp_path: Path) -> None:
    path = document(machine, tmp_path / "accept.json")
    assert [(node.name, len(node.cards)) for node in lab_nodes("A30,0", [path, path])] == [
        ("node-1", 1),
        ("node-2", 0),
        ("node-3", 3),
        ("node-4", 3),
    ]


def test_applying_again_keeps_what_happened_since(machine: SimulatedMachine, tmp_path: Path) -> None:
    (spec,) = lab_nodes("", [document(machine, tmp_path / "accept.json")])
    made = SimulatedMachine(spec.spec, seed=spec.name)
    apply_cards(made, spec.accepted)
    first = made.uuids()[0]
    instance = made.instances(first)[0]
    made.destroy_compute_instance(first, instance.gi_id, instance.compute_instances[0].ci_id)
    made.destroy_gpu_instance(first, instance.gi_id)
    apply_cards(made, spec.accepted)
    assert made.instances(first) == []


def other_product(facts: Facts) -> Facts:
    card = msgspec.structs.replace(facts.cards[0], name="NVIDIA GeForce RTX 4090")
    return msgspec.structs.replace(facts, cards=(card, *facts.cards[1:]))


def no_cards(facts: Facts) -> Facts:
    return msgspec.structs.replace(facts, cards=())


def forged(call: str, value: object) -> Callable[[Facts], Facts]:
    def change(facts: Facts) -> Facts:
        calls = tuple(
            msgspec.structs.replace(each, value=value) if each.call == call and each.card == 0 else each
            for each in facts.calls
        )
        return msgspec.structs.replace(facts, calls=calls)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_product, "card 0 is 'NVIDIA GeForce RTX 4090', which the lab cannot simulate"),
        (no_cards, "0 cards; a node of the lab has 1 to 64"),
        (forged("attributes", {"ecc": "perhaps"}), "Expected `bool`"),
        (forged("nvlinks", {"a": 1}), "Expected `array`"),
        (forged("instances", [{"gi_id": 1, "profile": "9g.99gb", "start": 0, "size": 1}]), "9g.99gb"),
        (forged("instances", [{"gi_id": 1, "profile": "3g.20gb", "start": 1, "size": 4}]), "no start of it"),
    ],
)
def test_a_document_that_cannot_be_simulated_is_refused_by_name(
    machine: SimulatedMachine, tmp_path: Path, change: Callable[[Facts], Facts], said: str
) -> None:
    path = document(machine, tmp_path / "accept.json", change)
    with pytest.raises(DocumentError) as refused:
        lab_nodes("", [path])
    assert str(refused.value).startswith(f"{path}: ")
    assert said in str(refused.value)


def test_a_file_that_is_no_document_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    path.write_text(json.dumps({"kind": "PodList"}))
    with pytest.raises(DocumentError, match="no document of tessera accept -o json"):
        lab_nodes("", [path])
