"""The object Queue: shares of the cards for the pods of some namespaces.

``queues.tessera.dev`` is cluster-scoped. The schema in ``deploy/crds/queues.yaml`` has the same rules; they are checked
here again, since an object may be older than the schema. A wrong field makes only its queue wrong: the queue counts
with the default of that field, and its status says why.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.kube.resources.meta import Resource, version_number
from tessera.limits import QUEUE_NAMESPACES, QUEUE_WEIGHT, SPARE_SLICES
from tessera.mig.names import parse_profile_name, resource_spelling
from tessera.text import one_line

#: Most models of cards in the usage of a Queue's status, those with the most. A cluster has a few; a node that lies
#: cannot add thousands.
QUEUE_MODELS = 64

#: The resource; objects are read by :func:`read_queue`.
QUEUES = Resource("tessera.dev", "v1alpha1", "queues", "Queue", False, dict[str, Any])
#: Seconds of the half-life without ``spec.halfLife``: a week.
HALF_LIFE = 168 * 3600.0
#: Without ``spec.waitingPrice``, and the most of it.
WAITING_PRICE, _MOST_PRICE = 10, 1_000
#: Number of a profile in ``spec.spare`` that the controller reckons.
AUTO = "auto"
#: Entry of ``spec.namespaces`` for all namespaces.
ANY_NAMESPACE = "*"

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_DURATION = re.compile(r"(?:[0-9]{1,6}[hms]){1,3}")
_MEMORY = re.compile(r"([0-9]{1,9})(Gi|Ti)")
_SLOTS = 10**9


class Share(msgspec.Struct, frozen=True):
    """An amount of GPU memory: in memory slots, or in GiB.

    Attributes:
        amount: the number.
        gib: True if it counts GiB.
    """

    amount: int
    gib: bool = False

    @property
    def text(self) -> str:
        """As people write it."""
        return f"{self.amount}Gi" if self.gib else f"{self.amount} memory slots"


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as it counts.

    Attributes:
        name: its name.
        weight: its part of the cards, in relation to other queues.
        guaranteed: what it may hold before other queues get more; None for nothing.
        maximum: what it may hold at most; None without a limit.
        half_life: seconds after which past usage counts half; 0 forgets the past.
        namespaces: namespaces whose pods may name the queue by their label; ``*`` for all. A namespace of the queue's
            name counts for it if it is among them.
        spare: by profile in the resource's spelling, the slices that are kept free for its services; without those of
            ``auto``.
        auto: profiles of which the controller reckons the number (:mod:`tessera.handover.spare_sizes`).
        waiting_price: seconds of an idle slice that cost as much as a second that a pod waits for one.
        faults: what is wrong, with field, value and rule.
        usage: recorded usage by model, in memory slots.
        usage_time: when it was recorded, seconds since 1970; 0 if never.
        recorded: the status as it is stored, without its times.
        version: orders observations.
    """

    name: str
    weight: int = 1
    guaranteed: Share | None = None
    maximum: Share | None = None
    half_life: float = HALF_LIFE
    namespaces: frozenset[str] = frozenset()
    spare: dict[str, int] = {}
    auto: frozenset[str] = frozenset()
    waiting_price: int = WAITING_PRICE
    faults: tuple[str, ...] = ()
    usage: dict[str, float] = {}
    usage_time: float = 0.0
    recorded: dict[str, Any] = {}
    version: int = 0


class _WrongError(ValueError):
    """A value breaks a rule."""


def read_queue(item: Mapping[str, Any]) -> Queue:
    """Returns a queue for a stored object; fields that break a rule have their default, and are in ``faults``."""
    meta, spec, status = (_object(item.get(each)) for each in ("metadata", "spec", "status"))
    faults: list[str] = []

    def field(name: str, read: Any, default: Any) -> Any:
        value = spec.get(name)
        if value is None:
            return default
        try:
            return read(value)
        except _WrongError as error:
            faults.append(f"spec.{name} is {one_line(str(value), 60)}: {error}")
            return default

    guaranteed, maximum = field("guaranteed", _share, None), field("maximum", _share, None)
    if guaranteed and maximum and guaranteed.gib == maximum.gib and guaranteed.amount > maximum.amount:
        faults.append(f"spec.guaranteed is {guaranteed.text}: at most spec.maximum, which is {maximum.text}")
        guaranteed = None
    spare = field("spare", _spare, {})
    return Queue(
        name=str(meta.get("name", "")),
        weight=field("weight", _weight, 1),
        guaranteed=guaranteed,
        maximum=maximum,
        half_life=field("halfLife", _duration, HALF_LIFE),
        namespaces=field("namespaces", _namespaces, frozenset()),
        spare={profile: number for profile, number in spare.items() if number != AUTO},
        auto=frozenset(profile for profile, number in spare.items() if number == AUTO),
        waiting_price=field("waitingPrice", _price, WAITING_PRICE),
        faults=tuple(faults),
        usage=_usage(status.get("usage")),
        usage_time=_number(status.get("usageTime")),
        recorded={name: value for name, value in status.items() if name != "usageTime"},
        version=version_number(str(meta.get("resourceVersion", ""))),
    )


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _weight(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= QUEUE_WEIGHT:
        raise _WrongError(f"write a whole number from 1 to {int(QUEUE_WEIGHT)}")
    return value


def _share(value: Any) -> Share:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _SLOTS:
        return Share(value)
    found = _MEMORY.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise _WrongError("write memory slots as a number (8 for a whole A100), or GPU memory as 80Gi")
    return Share(int(found[1]) * (1024 if found[2] == "Ti" else 1), gib=True)


def _duration(value: Any) -> float:
    if not isinstance(value, str) or not (value == "0" or _DURATION.fullmatch(value)):
        raise _WrongError("write a duration: 168h, 30m, or 0 to forget the past")
    return sum(float(part[:-1]) * _UNITS[part[-1]] for part in re.findall(r"[0-9]+[hms]", value))


def _namespaces(value: Any) -> frozenset[str]:
    if not isinstance(value, list) or len(value) > QUEUE_NAMESPACES or not all(isinstance(each, str) for each in value):
        raise _WrongError(f"write a list of namespaces, {QUEUE_NAMESPACES}, or *")
    return frozenset(value)


def _price(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_PRICE:
        raise _WrongError(f"write a whole number from 1 to {_MOST_PRICE:,}")
    return value


def _spare(value: Any) -> dict[str, Any]:
    rows = list(value.items()) if isinstance(value, dict) else []
    numbers = [each for _, each in rows if isinstance(each, int) and not isinstance(each, bool) and each >= 0]
    if not isinstance(value, dict) or len(numbers) + sum(each == AUTO for _, each in rows) < len(rows):
        raise _WrongError("write a number of slices by profile, or auto: {3g.20gb: 1}")
    if sum(numbers) > SPARE_SLICES or len(rows) > SPARE_SLICES:
        raise _WrongError(f"write {SPARE_SLICES} in all")
    try:
        names = [(resource_spelling(str(parse_profile_name(str(profile)[:64]))), number) for profile, number in rows]
    except ValueError as error:
        raise _WrongError(str(error)) from error
    return {name: number for name, number in names if number}


def _usage(value: Any) -> dict[str, float]:
    rows = _object(value)
    return {str(model)[:253]: _number(slots) for model, slots in list(rows.items())[:QUEUE_MODELS]}


def _number(value: Any) -> float:
    """A number, or the text of one, 0 or more and finite; 0 for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return number if 0 <= number < 1e12 else 0.0
