"""The document has every value and names no machine; what it says can be read again."""

import re
from collections.abc import Callable

import msgspec
import pytest

from tessera.accept.checks import judge_all
from tessera.accept.document import (
    ACCEPT_DOCUMENT,
    FORMAT,
    IDENTIFIED,
    Document,
    DocumentError,
    hide_names,
    read_document,
)
from tessera.accept.facts import Facts, NodeFacts
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

Read = Callable[[], Facts]


def document(facts: Facts, *, anonymous: bool) -> Document:
    made = Document(facts=facts, checks=tuple(judge_all(facts)), anonymous=False, contains=IDENTIFIED)
    return hide_names(made) if anonymous else made


def encode(facts: Facts, *, anonymous: bool) -> str:
    return msgspec.json.encode(document(facts, anonymous=anonymous)).decode()


def named(facts: Facts) -> Facts:
    """The facts of a machine whose names stand in many places."""
    host = msgspec.structs.replace(facts.host, hostname="gpu-17.corp.example")
    calls = (msgspec.structs.replace(facts.calls[0], text=f"gpu-17.corp.example: {facts.cards[0].uuid}"), *facts.calls)
    node = NodeFacts(name="worker-9")
    return msgspec.structs.replace(facts, host=host, calls=calls, node=node)


def test_an_anonymous_document_names_no_machine(read: Read, machine: SimulatedMachine) -> None:
    text = encode(named(read()), anonymous=True)
    for uuid in machine.uuids():
        assert uuid.removeprefix("GPU-") not in text
    for word in ("gpu-17", "corp.example", "worker-9", "1320223000999"):
        assert word not in text
    for address in (card.pci_bus_id for card in machine.devices()):
        assert address.lower() not in text.lower()


def test_the_same_name_has_the_same_replacement(read: Read) -> None:
    made = document(named(read()), anonymous=True)
    first, second = made.facts.cards
    assert (first.uuid, second.uuid) == (
        "GPU-00000000-0000-0000-0000-000000000001",
        "GPU-00000000-0000-0000-0000-000000000002",
    )
    assert made.facts.calls[0].text == f"host-1: {first.uuid}"
    assert made.facts.smi is not None
    assert [each.values["uuid"] for each in made.facts.smi] == [first.uuid, second.uuid]
    assert made.facts.pci is not None
    assert [each.address for each in made.facts.pci] == [card.pci_bus_id[4:] for card in made.facts.cards]
    assert re.fullmatch(r"00000000:01:00\.0", first.pci_bus_id)


def test_an_anonymous_document_is_judged_as_the_machine_was(read: Read) -> None:
    facts = read()
    document = read_document(encode(facts, anonymous=True).encode(), "accept.json")
    assert [(each.name, each.status) for each in judge_all(document.facts)] == [
        (each.name, each.status) for each in judge_all(facts)
    ]


def test_an_identified_document_has_the_names_and_says_so(read: Read) -> None:
    text = encode(named(read()), anonymous=False)
    assert "gpu-17.corp.example" in text
    assert '"anonymous":false' in text
    assert "host name and node name themselves" in text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no document of tessera accept -o json"),
        (b"[" * 100_000, "no document"),
        (b'{"format": "x"}', "no document"),
        (b" " * (ACCEPT_DOCUMENT + 1), f"has {ACCEPT_DOCUMENT}"),
    ],
)
def test_other_files_are_refused_by_name(content: bytes, said: str) -> None:
    with pytest.raises(DocumentError, match=rf"^accept\.json: .*{re.escape(said)}"):
        read_document(content, "accept.json")


def test_a_later_form_is_refused(read: Read) -> None:
    text = encode(read(), anonymous=True).replace(FORMAT, "tessera.dev/accept/v9")
    with pytest.raises(DocumentError, match=rf"this version reads {re.escape(FORMAT)}"):
        read_document(text.encode(), "accept.json")
