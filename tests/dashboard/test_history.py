"""The last hours: a value at each step, gaps where nothing was measured, and a bounded length."""

import msgspec
from tests.observe.conftest import card, lease

from tessera.access.agent_pages import FleetUsage
from tessera.api.nodes.health import CardHealth
from tessera.api.nodes.usage import CardUsage, NodeUsage
from tessera.dashboard.card_documents import make_documents
from tessera.dashboard.documents import CardHistoryDocument, Document, HistoryDocument
from tessera.dashboard.history import CARD_STEP, HISTORY_CARDS, SPAN, STEP, History


def documents(*cards: CardUsage) -> dict[str, Document]:
    usage = NodeUsage(node="n1", cards=cards, leases=(lease("a"),))
    return {**make_documents(FleetUsage(nodes=(usage,)), [], [])}


def fleet(history: History) -> HistoryDocument:
    found = history.documents["history"]
    assert isinstance(found, HistoryDocument)
    return found


def test_a_value_is_taken_once_a_step() -> None:
    history = History()
    for now in (1000.0, 1000.0 + STEP / 2, 1000.0 + STEP):
        history.record(now, documents(card(gpu_utilization=0.5, power=70.0)))
    assert (fleet(history).held, fleet(history).busy, fleet(history).power) == ((1.0, 1.0), (0.5, 0.5), (70.0, 70.0))
    assert fleet(history).until == 1000.0 + STEP


def test_what_was_not_measured_is_a_gap() -> None:
    history = History()
    history.record(1000.0, documents(card(gpu_utilization=0.5)))
    history.record(1000.0 + STEP, documents(card()))
    assert fleet(history).busy == (0.5, None)
    assert fleet(history).power == (None, None)


def test_the_oldest_values_go() -> None:
    history = History()
    steps = int(SPAN / STEP) + 5
    for number in range(steps):
        history.record(1000.0 + number * STEP, documents(card(power=float(number))))
    assert len(fleet(history).power) == int(SPAN / STEP)
    assert fleet(history).power[-1] == steps - 1


def test_a_card_has_curves_until_it_is_gone() -> None:
    history = History()
    history.record(1000.0, documents(card(memory_used=1.0, memory_total=4.0), card("GPU-2", 1)))
    first = history.documents["history/n1/GPU-1"]
    assert isinstance(first, CardHistoryDocument)
    assert (first.memory, first.busy) == ((0.25,), (None,))
    history.record(1000.0 + CARD_STEP, documents(card()))
    assert history.documents.keys() == {"history", "history/n1/GPU-1"}


def test_only_so_many_cards_are_kept() -> None:
    history = History()
    many = [card(f"GPU-{number}", number) for number in range(HISTORY_CARDS + 3)]
    history.record(1000.0, documents(*many))
    assert len(history.documents) == HISTORY_CARDS + 1


def test_a_lost_card_has_no_values() -> None:
    history, lost = History(), msgspec.structs.replace(card(), health=CardHealth(state="lost"), values={})
    history.record(1000.0, documents(card(memory_total=4.0, memory_used=1.0)))
    history.record(1000.0 + CARD_STEP, documents(lost))
    found = history.documents["history/n1/GPU-1"]
    assert isinstance(found, CardHistoryDocument)
    assert (found.held[1], found.busy[1], found.memory[1]) == (None, None, None)


def test_before_the_first_reading_there_is_nothing() -> None:
    history = History()
    history.record(1000.0, {**make_documents(FleetUsage(), [], [])})
    assert history.documents == {}
