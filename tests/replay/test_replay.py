"""A record of decisions, run again."""

from contextlib import nullcontext

import msgspec
import pytest

from tessera.observe.record_player import DeciderKind, replay
from tessera.replay.recorder import Decider, Decision, FunctionRecorder, Record, Recorders
from tessera.replay.state_codec import NotPlainError


class Added(msgspec.Struct, frozen=True):
    """Something went in."""

    amount: int


class Adder(Decider[[Added], list[str]]):
    """A decider: sums up, and says whether the sum is even."""

    def __init__(self) -> None:
        self.total = 0

    def handle(self, event: Added) -> list[str]:
        if event.amount < 0:
            raise ValueError("less than nothing")
        self.total += event.amount
        return ["even"] if self.total % 2 == 0 else []


class Halver(Adder):
    """The same decider in a later version, which decides otherwise from ten on."""

    def handle(self, event: Added) -> list[str]:
        found = super().handle(event)
        return found if self.total < 10 else ["much"]


def double(event: Added) -> Added:
    """A decider without state."""
    return Added(event.amount * 2)


KIND = DeciderKind(decider=f"{__name__}:Adder", modules=(__name__,))


def recorded(amounts: list[int], keep: int) -> Record:
    """A record of an adder, after it was a file."""
    adder, recorders = Adder(), Recorders(keep)
    recorders.attach("adder", adder, "one")
    for amount in amounts:
        with pytest.raises(ValueError, match="less") if amount < 0 else nullcontext():
            adder.handle(Added(amount))
    (record,) = recorders.records()
    return msgspec.json.decode(msgspec.json.encode(record), type=Record)


@pytest.mark.parametrize("keep", [1, 2, 3, 100])
def test_the_same_decider_decides_the_same(keep: int) -> None:
    record = recorded([1, 2, 3, -1, 5, 8], keep)
    assert not [*replay(record, KIND)]


def test_a_record_holds_between_n_and_2_n_decisions_and_counts_the_others() -> None:
    for count in range(1, 20):
        record = recorded([1] * count, 4)
        assert min(count, 4) <= len(record.decisions) <= 8
        assert record.skipped + len(record.decisions) == count


def test_a_decider_that_decides_otherwise_is_shown_from_its_state_on() -> None:
    record = recorded([4, 4, 4, 4], 2)
    state = {**record.state, "c": f"{__name__}:Halver"}
    later = msgspec.structs.replace(record, state=state)
    kind = msgspec.structs.replace(KIND, decider=f"{__name__}:Halver")
    found = [*replay(later, kind)]
    assert [(each.index, each.recorded.result, each.now.result) for each in found] == [
        (2, ["even"], ["much"]),
        (3, ["even"], ["much"]),
    ]


def test_a_decider_without_state_is_replayed_too() -> None:
    recorders = Recorders(2)
    assert recorders.call("double", double, Added(2)) == Added(4)
    (record,) = recorders.records()
    kind = msgspec.structs.replace(KIND, decider=f"{__name__}:double")
    assert not [*replay(record, kind)]
    wrong = msgspec.structs.replace(record, decisions=[Decision(record.decisions[0].arguments, 5)])
    assert [each.now for each in replay(wrong, kind)] == [record.decisions[0]]


def test_a_decider_without_state_keeps_its_last_decisions() -> None:
    recorders = Recorders(3)
    for amount in range(7):
        recorders.call("double", double, Added(amount))
    (record,) = recorders.records()
    kind = msgspec.structs.replace(KIND, decider=f"{__name__}:double")
    assert (len(record.decisions), record.skipped) == (3, 4)
    assert not [*replay(record, kind)]


def test_large_decisions_of_a_function_leave_room_for_fewer_of_them() -> None:
    recorder = FunctionRecorder("double", keep=100, size=500)
    for amount in range(20):
        recorder.call(double, Added(amount))
    record = recorder.record()
    assert 1 < len(record.decisions) < 10
    assert record.skipped == 20 - len(record.decisions)
    assert len(msgspec.json.encode(record.decisions)) < 600


def test_the_last_decision_of_a_function_is_kept_whatever_its_size() -> None:
    recorder = FunctionRecorder("double", keep=100, size=1)
    for amount in range(3):
        recorder.call(double, Added(amount))
    assert len(recorder.record().decisions) == 1


def test_without_recording_nothing_is_kept() -> None:
    adder, recorders = Adder(), Recorders()
    recorders.attach("adder", adder)
    assert adder.handle(Added(2)) == ["even"]
    assert recorders.call("double", double, Added(2)) == Added(4)
    assert not [*recorders.records()]


def test_a_decider_that_is_gone_is_forgotten() -> None:
    recorders = Recorders(2)
    for name in ("one", "other"):
        recorders.attach("adder", Adder(), name)
    recorders.forget("adder", "one")
    assert [each.name for each in recorders.records()] == ["other"]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"$": "o", "c": f"{__name__}:Halver", "v": {}}, "not a"),
        ({"$": "o", "c": "subprocess:Popen", "v": {}}, "no part of"),
        ([], "not a"),
    ],
)
def test_a_record_of_something_else_is_refused(state: object, said: str) -> None:
    record = msgspec.structs.replace(recorded([1], 1), state=state)
    with pytest.raises(NotPlainError, match=said):
        [*replay(record, KIND)]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"$": "o", "c": f"{__name__}:FormerAdder", "v": {"total": 0}}, "FormerAdder, which this version"),
        ({"$": "o", "c": f"{__name__}.former:Adder", "v": {"total": 0}}, "former:Adder, which this version"),
        ({"$": "o", "c": f"{__name__}:Adder", "v": {"sum": 0}}, "not readable by this version"),
    ],
    ids=["class", "module", "attribute"],
)
def test_a_record_of_another_version_is_not_called_damaged(state: object, said: str) -> None:
    record = msgspec.structs.replace(recorded([1, 2], 2), state=state)
    with pytest.raises(NotPlainError, match=said):
        [*replay(record, KIND)]
