"""The history of leases and starts as text, for the ConfigMap ``lease-history``.

Others can write a ConfigMap: counts, times and names are checked before use. A text that breaks a rule is refused as a
whole; the history then begins anew. An impossible duration is left out alone.

What would be longer than the limit is written without its oldest parts: waits first, then images, then kinds.
"""

from collections import deque
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Annotated

import msgspec

from tessera.forecast.calibration import CALIBRATED_SIZES, Blend, Calibration, Factors
from tessera.forecast.lives import LIFE_CLASSES, LIFE_NAME, LIFE_SAMPLES, EndedLife, LifeClass, LifeHistory, LifeKind
from tessera.forecast.past_times import (
    HUNDRED_YEARS,
    START_IMAGES,
    START_SAMPLES,
    WAIT_SAMPLES,
    WAIT_SIZES,
    StartTimes,
    WaitHistory,
)
from tessera.limits import Limit

LIFE_RECORD = Limit(
    700 * 1024,
    "bytes",
    "the history of leases in its ConfigMap; its oldest parts are not written beyond that; a larger one is not read",
    "a ConfigMap has at most 1 MiB",
)

#: The ConfigMap, and its key.
HISTORY_NAME = "lease-history"
HISTORY_KEY = "leases.json"
_VERSION = 1
#: Later times are errors, in seconds since 1970: the year 2300.
_LATEST = 10_413_792_000
#: Begins the keys of waits, which earlier versions kept beside the corrections.
_WAITS = "~"
#: Longest name of an image that is kept; Kubernetes has no bound.
_IMAGE = 512


_Time = Annotated[float, msgspec.Meta(ge=0, le=_LATEST)]
_Size = Annotated[str, msgspec.Meta(max_length=LIFE_NAME)]
#: Earlier versions kept waits beside the corrections, under keys with a mark.
_MarkedSize = Annotated[str, msgspec.Meta(max_length=LIFE_NAME + len(_WAITS))]
_Lives = Annotated[tuple[int, ...], msgspec.Meta(max_length=LIFE_SAMPLES)]
_Starts = Annotated[tuple[int, ...], msgspec.Meta(max_length=START_SAMPLES)]
_Waits = Annotated[tuple[int, ...], msgspec.Meta(max_length=WAIT_SAMPLES)]
#: The namespace that brought an entry; Kubernetes has no longer names.
_Namespace = Annotated[str, msgspec.Meta(max_length=63)]


class _EncodedClass(msgspec.Struct, frozen=True, array_like=True):
    namespace: str
    owner_kind: str
    profiles: _Size
    since: Annotated[int, msgspec.Meta(ge=0, le=_LATEST)]
    seconds: _Lives
    ended: _Lives


class _Encoded(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    began: _Time
    complete_since: _Time
    classes: Annotated[tuple[_EncodedClass, ...], msgspec.Meta(max_length=LIFE_CLASSES)]
    starts: Annotated[
        tuple[tuple[Annotated[str, msgspec.Meta(max_length=_IMAGE)], _Starts], ...],
        msgspec.Meta(max_length=START_IMAGES),
    ] = ()
    calibration: Annotated[dict[_MarkedSize, Factors], msgspec.Meta(max_length=CALIBRATED_SIZES)] = {}
    waits: Annotated[tuple[tuple[_Size, _Waits], ...], msgspec.Meta(max_length=WAIT_SIZES)] = ()
    blend: Blend = msgspec.field(default_factory=Blend)
    size_namespaces: Annotated[dict[str, _Namespace], msgspec.Meta(max_length=WAIT_SIZES + CALIBRATED_SIZES)] = {}
    image_namespaces: Annotated[dict[str, _Namespace], msgspec.Meta(max_length=START_IMAGES)] = {}


class History(msgspec.Struct, frozen=True):
    """What outlives a restart of the controller."""

    lives: LifeHistory
    starts: StartTimes
    calibration: Calibration
    waits: WaitHistory = msgspec.field(default_factory=WaitHistory)
    blend: Blend = msgspec.field(default_factory=Blend)


def encode_history(history: History) -> str:
    """The history as JSON, of at most ``LIFE_RECORD`` bytes."""
    lives = history.lives
    classes = (
        _EncodedClass(
            kind.namespace,
            kind.owner_kind,
            kind.profiles,
            each.since,
            tuple(life.seconds for life in each.lives),
            _steps(each.since, [life.ended for life in each.lives]),
        )
        for kind, each in lives.classes.items()
    )
    found = _Encoded(
        version=_VERSION,
        began=lives.began,
        complete_since=lives.complete_since,
        classes=tuple(classes),
        starts=tuple((image[:_IMAGE], tuple(each)) for image, each in history.starts.times.items()),
        calibration=dict(history.calibration.by_size),
        waits=tuple((size, tuple(each)) for size, each in history.waits.times.items()),
        blend=history.blend,
        size_namespaces={**history.waits.brought_by, **history.calibration.brought_by},
        image_namespaces={image[:_IMAGE]: by for image, by in history.starts.brought_by.items()},
    )
    text = msgspec.json.encode(found)
    for part in ("waits", "starts", "classes"):
        if len(text) > LIFE_RECORD:
            found = _without_oldest(found, part, len(text) - LIFE_RECORD)
            text = msgspec.json.encode(found)
    return text.decode()


def _without_oldest(found: _Encoded, part: str, excess: int) -> _Encoded:
    """Leaves out the first entries of a part, which have this many bytes together, or all."""
    entries = getattr(found, part)
    kept = list(entries)
    while excess > 0 and kept:
        excess -= len(msgspec.json.encode(kept.pop(0))) + 1
    changed: dict[str, object] = {part: tuple(kept)}
    if part == "classes":
        # A kind that is made anew has not been observed before those that were left out ended.
        ends = (each.since + sum(each.ended) for each in entries[: len(entries) - len(kept)])
        changed["complete_since"] = max(found.complete_since, *ends)
    return msgspec.structs.replace(found, **changed)


def decode_history(text: str) -> History:
    """The history of a text.

    Raises:
        ValueError: the text is none; the message says why.
    """
    if len(text.encode()) > LIFE_RECORD:
        raise ValueError(f"it has {len(text.encode()):,} bytes; the rule is {LIFE_RECORD}")
    try:
        found = msgspec.json.decode(text, type=_Encoded)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if found.version != _VERSION:
        raise ValueError(f"its version is {found.version}; this version of Tessera reads {_VERSION}")
    for each in found.classes:
        _check(each)
    lives = LifeHistory(found.began)
    lives.restore(((_kind(each), _class(each)) for each in found.classes), found.complete_since)
    sizes = {size: each for size, each in found.calibration.items() if not size.startswith(_WAITS)}
    starts = StartTimes(((image, _possible(seconds)) for image, seconds in found.starts), found.image_namespaces)
    waits = WaitHistory(((size, _possible(seconds)) for size, seconds in found.waits), found.size_namespaces)
    return History(lives, starts, Calibration(sizes, found.size_namespaces), waits, found.blend)


def _possible(seconds: Iterable[int]) -> Iterable[int]:
    return (each for each in seconds if 0 <= each <= HUNDRED_YEARS)


def _check(each: _EncodedClass) -> None:
    if len(each.seconds) != len(each.ended):
        raise ValueError(f"a kind has {len(each.seconds)} durations and {len(each.ended)} ends")
    if not all(0 <= time <= _LATEST for time in accumulate(each.ended, initial=each.since)):
        raise ValueError("a time is out of bounds")


def _steps(since: int, times: list[int]) -> tuple[int, ...]:
    """Each time as the seconds since the one before, which are short to write."""
    return tuple(time - before for before, time in pairwise((since, *times)))


def _kind(each: _EncodedClass) -> LifeKind:
    return LifeKind(each.namespace, each.owner_kind, each.profiles)


def _class(each: _EncodedClass) -> LifeClass:
    times = list(accumulate(each.ended, initial=each.since))[1:]
    pairs = zip(each.seconds, times, strict=True)
    lives = (EndedLife(seconds, ended) for seconds, ended in pairs if 0 <= seconds <= HUNDRED_YEARS)
    return LifeClass(each.since, deque(lives, maxlen=LIFE_SAMPLES))
