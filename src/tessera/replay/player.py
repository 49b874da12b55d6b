"""Runs a decider over a record and says where it decides otherwise."""

from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from tessera.replay.recorder import Call, Record
from tessera.replay.state_codec import NotPlainError, decode, encode


class DeciderKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of decider that can be replayed.

    Attributes:
        decider: ``module:Class``.
        methods: the methods through which it is used.
        modules: modules and packages of all that its state, its input and its output are made of.
    """

    decider: str
    methods: frozenset[str]
    modules: tuple[str, ...]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A call whose result is not the recorded one.

    Attributes:
        index: of the call in the record, from 0.
        call: as recorded.
        result: what came now, see :func:`.encode`.
        error: the class of the exception that came now.
    """

    index: int
    call: Call
    result: Any
    error: str


def replay(record: Record, kind: DeciderKind) -> Iterator[Difference]:
    """The calls of a record that have another result now.

    Args:
        record: as a recorder gave it.
        kind: of its decider.

    Raises:
        NotPlainError: the record is damaged, or is of another decider.
    """
    decider = decode(record.state, kind.modules)
    name = f"{type(decider).__module__}:{type(decider).__qualname__}"
    if name != kind.decider:
        raise NotPlainError(f"the record's state is a {name}, not a {kind.decider}")
    for index, call in enumerate(record.calls):
        if call.method not in kind.methods:
            raise NotPlainError(f"call {index} is of {call.method}, which is no method of {kind.decider} to replay")
        result, error = _run(decider, call, kind.modules)
        if (result, error) != (call.result, call.error):
            yield Difference(index=index, call=call, result=result, error=error)


def _run(decider: Any, call: Call, modules: Collection[str]) -> tuple[Any, str]:
    arguments, named = decode(call.arguments, modules), decode(call.named, modules)
    try:
        return encode(getattr(decider, call.method)(*arguments, **named)), ""
    except Exception as error:  # noqa: BLE001 - the recorded call may have raised the same
        return None, type(error).__name__
