"""A state that is written and read again is the same state."""

import json
import random
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.replay import state_codec
from tessera.replay.recorder import Decision
from tessera.replay.state_codec import NotPlainError, decode, encode

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.sets(st.text() | st.integers())
        | st.frozensets(st.tuples(st.text(), st.integers()))
        | st.lists(inner).map(deque)
    ),
)


class Colour(Enum):
    RED = "r"


class Level(IntEnum):
    LOW = 1


class Pair(NamedTuple):
    left: int
    right: str


class Fact(msgspec.Struct, frozen=True):
    name: str
    parts: tuple[int, ...] = ()


class Machine:
    __slots__ = ("__dict__", "_slot")

    def __init__(self) -> None:
        self._slot = {Fact("a"): {1, 2}}
        self.colours = {Colour.RED: Level.LOW}
        self.pairs = [Pair(1, "x")]
        self.itself = self


HERE = [__name__]


def through(value: Any, *, shared: bool = True) -> Any:
    """The value after it was a file."""
    return decode(json.loads(json.dumps(encode(value, shared=shared))), HERE)


@given(PLAIN)
def test_plain_values_come_back(value: object) -> None:
    assert through(value) == value
    assert through(value, shared=False) == value


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED,
        Level.LOW,
        Pair(1, "x"),
        Fact("a", (1, 2)),
        {Fact("a"): [Fact("b")]},
        deque([1, 2], maxlen=2),
        Counter({"a": 2}),
        OrderedDict(a=1),
        float("inf"),
        {(): ()},
    ],
    ids=repr,
)
def test_values_of_the_program_come_back_with_their_classes(value: object) -> None:
    again = through(value)
    assert again == value
    assert type(again) is type(value)


def test_a_default_keeps_its_factory() -> None:
    again = through(defaultdict(list, a=[1]))
    again["b"].append(2)
    assert again == {"a": [1], "b": [2]}


def test_chance_goes_on_where_it_was() -> None:
    rng = random.Random(7)
    rng.random()
    assert through(rng).random() == rng.random()


def test_objects_keep_their_attributes_and_those_they_share() -> None:
    machine = Machine()
    first, second = through([machine, machine])
    assert first is second
    assert first.itself is first
    assert first._slot == {Fact("a"): {1, 2}}
    assert first.colours == machine.colours


def test_equal_sets_have_equal_forms() -> None:
    assert encode({"b", "a", "c"}) == encode({"c", "b", "a"})


class Computed(dict[str, int]):
    def __missing__(self, key: str) -> int:
        return len(key)


def test_a_mapping_that_would_come_back_as_another_is_refused() -> None:
    with pytest.raises(NotPlainError, match=r"value\['a'\]: a Computed would be read back as a plain dict"):
        encode({"a": Computed()})


@pytest.mark.parametrize(
    "value", [len, threading.Lock(), Machine, lambda: None], ids=["function", "lock", "class", "lambda"]
)
def test_what_is_no_data_is_refused_by_its_path(value: object) -> None:
    with pytest.raises(NotPlainError, match=r"value\['a'\]\[0\]"):
        encode({"a": [value]})


@pytest.mark.parametrize(
    "data",
    [
        {"$": "o", "c": "os:system", "v": {}},
        {"$": "o", "c": "tessera.kube:Client", "v": {}},
        {"$": "st", "c": f"{Decision.__module__}:Decision", "v": {}},
        {"$": "o", "c": f"{__name__}:json.JSONDecoder", "v": {}},
        {"$": "o", "c": f"{__name__}:through", "v": {}},
        {"$": "st", "c": f"{__name__}:Colour", "v": {}},
        {"$": "st", "c": f"{__name__}:Fact", "v": {"nom": "x"}},
        {"$": "zz", "v": {}},
        {"$": "r", "v": 7},
        {"v": 1},
    ],
    ids=str,
)
def test_a_file_can_name_nothing_but_classes_of_the_state(data: object) -> None:
    with pytest.raises(NotPlainError):
        decode(data, HERE)


def test_a_deep_file_is_refused() -> None:
    data: Any = []
    for _ in range(100_000):
        data = [data]
    with pytest.raises(NotPlainError, match="RecursionError"):
        decode(data, [state_codec.__name__])
