"""The document of a machine with a real card: it is judged well, and tables and simulated cards agree with it."""

from pathlib import Path

import msgspec
import pytest

from tessera.accept.checks import Status, judge_all
from tessera.accept.document import Document, read_document
from tessera.accept.facts import Outcome
from tessera.agent.inventory.gpu_inventory import geometry_of
from tessera.mig.geometry import Engines
from tessera.mig.models import model_by_product
from tessera.nvml.interface import GiProfileInfo
from tessera.nvml.simulated.simulated_machine import SimulatedMachine


@pytest.fixture(scope="module")
def document() -> Document:
    """One H200 of a virtual machine, driver 580.159.04, by ``tessera accept --compute -o json``."""
    path = Path(__file__).parent / "machines/h200.json"
    return read_document(path.read_bytes(), path.name)


@pytest.fixture(scope="module")
def profiles(document: Document) -> list[GiProfileInfo]:
    (call,) = document.facts.of_card("gi_profiles", 0)
    return msgspec.convert(call.value, list[GiProfileInfo])


def test_a_well_card_has_no_failed_check_and_the_same_ones_today(document: Document) -> None:
    assert not document.facts.simulated
    assert Status.FAILED not in {each.status for each in document.checks}
    judged = {each.name: each.status for each in judge_all(document.facts)}
    assert judged.pop("runtime") is Status.ABSENT  # a later version's check
    assert judged == {each.name: each.status for each in document.checks if each.name != "compute"}


def test_every_call_of_the_card_gave_a_value(document: Document) -> None:
    on_the_card = [each for each in document.facts.calls if each.outcome is not Outcome.VALUE]
    assert {each.text for each in on_the_card} == {"not for this card: it has no MIG device, no peer"}


def test_the_table_of_the_model_is_the_cards(document: Document, profiles: list[GiProfileInfo]) -> None:
    (card,) = document.facts.cards
    model = model_by_product(card.name)
    assert model is not None
    read = {row.name: msgspec.structs.replace(row, engines=Engines()) for row in geometry_of(card, profiles).profiles}
    assert read == {row.name: row for row in model.geometry.profiles}


def test_a_simulated_card_cuts_as_the_real_one(profiles: list[GiProfileInfo]) -> None:
    machine = SimulatedMachine("H200", seed="n")
    (gpu,) = machine.uuids()
    machine.set_mig_mode(gpu, True)
    engines = dict.fromkeys(("copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines"), 0)
    made = [msgspec.structs.replace(row, **engines) for row in machine.gi_profiles(gpu)]  # the document has none
    assert sorted(made, key=lambda row: row.index) == profiles


def test_a_simulated_card_measures_what_the_real_one_does(document: Document) -> None:
    machine = SimulatedMachine("H200", seed="n")
    last = document.facts.of_card("measure", 0)[-1].value
    assert isinstance(last, dict)
    machine.measure(machine.uuids()[0])
    simulated = {quantity.name for quantity in machine.measure(machine.uuids()[0]).values}
    assert {name.upper() for name in last["values"]} <= simulated
