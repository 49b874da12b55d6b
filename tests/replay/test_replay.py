"""A record of calls, run again."""

import msgspec
import pytest

from tessera.replay.player import DeciderKind, replay
from tessera.replay.recorder import Record, Recorder
from tessera.replay.state_codec import NotPlainError


class Added(msgspec.Struct, frozen=True):
    """Something went in."""

    amount: int


class Adder:
    """A decider: sums up, and says whether the sum is even."""

    def __init__(self) -> None:
        self.total = 0

    def handle(self, event: Added, *, twice: bool = False) -> list[str]:
        if event.amount < 0:
            raise ValueError("less than nothing")
        self.total += event.amount * (2 if twice else 1)
        return ["even"] if self.total % 2 == 0 else []


class Halver(Adder):
    """The same decider in a later version, which decides otherwise from ten on."""

    def handle(self, event: Added, *, twice: bool = False) -> list[str]:
        found = super().handle(event, twice=twice)
        return found if self.total < 10 else ["much"]


KIND = DeciderKind(decider=f"{__name__}:Adder", methods=frozenset({"handle"}), modules=(__name__,))


def recorded(amounts: list[int], keep: int) -> Record:
    """A record of an adder, after it was a file."""
    adder = Adder()
    recorder = Recorder("adder", adder, keep=keep, name="one")
    for amount in amounts:
        if amount < 0:
            with pytest.raises(ValueError, match="less"):
                recorder.call(adder.handle, Added(amount))
        else:
            recorder.call(adder.handle, Added(amount), twice=amount == 3)
    record = recorder.record()
    assert record is not None
    return msgspec.json.decode(msgspec.json.encode(record), type=Record)


@pytest.mark.parametrize("keep", [1, 2, 3, 100])
def test_the_same_decider_decides_the_same(keep: int) -> None:
    record = recorded([1, 2, 3, -1, 5, 8], keep)
    assert not [*replay(record, KIND)]


def test_a_record_holds_between_n_and_2_n_calls_and_counts_the_others() -> None:
    for count in range(1, 20):
        record = recorded([1] * count, 4)
        assert min(count, 4) <= len(record.calls) <= 8
        assert record.skipped + len(record.calls) == count


def test_a_decider_that_decides_otherwise_is_shown_from_its_state_on() -> None:
    record = recorded([4, 4, 4, 4], 2)
    state = {**record.state, "c": f"{__name__}:Halver"}
    later = msgspec.structs.replace(record, state=state)
    kind = msgspec.structs.replace(KIND, decider=f"{__name__}:Halver")
    found = [*replay(later, kind)]
    assert [(each.index, each.call.result, each.result) for each in found] == [
        (2, ["even"], ["much"]),
        (3, ["even"], ["much"]),
    ]


def test_a_recorder_that_is_off_keeps_nothing() -> None:
    adder = Adder()
    recorder = Recorder("adder", adder)
    assert recorder.call(adder.handle, Added(2)) == ["even"]
    assert recorder.record() is None


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("state", {"$": "o", "c": f"{__name__}:Halver", "v": {}}, "not a"),
        ("state", {"$": "o", "c": "subprocess:Popen", "v": {}}, "no part of"),
        (
            "calls",
            [{"method": "__init__", "arguments": {"$": "t", "v": []}, "named": {"$": "d", "v": []}}],
            "no method",
        ),
    ],
)
def test_a_record_of_something_else_is_refused(field: str, value: object, said: str) -> None:
    data = msgspec.to_builtins(recorded([1], 1)) | {field: value}
    with pytest.raises(NotPlainError, match=said):
        [*replay(msgspec.convert(data, Record), KIND)]
