"""Requests to the control socket about cards: ``break``, ``mend``, ``use-memory``. Arguments are JSON."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from tessera.kube.quantity import integer_value
from tessera.nvml.errors import UnknownNvmlError
from tessera_lab.activity.lab_cards import LabCards
from tessera_lab.daemon.control_socket import RequestHandler
from tessera_lab.limits import LAB_XID

T = TypeVar("T")


class _Break(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    card: str
    fault: str = ""
    xid: int | None = None
    code: int | None = None


class _Mend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    card: str


class _UseMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pod: str
    size: str
    namespace: str = "default"


def card_handlers(cards: LabCards) -> Mapping[str, RequestHandler]:
    """Returns the handlers by the request's first word."""
    return {
        "break": lambda text: _break(cards, read_arguments(text, _Break)),
        "mend": lambda text: cards.mend_card(read_arguments(text, _Mend).card),
        "use-memory": lambda text: _use_memory(cards, read_arguments(text, _UseMemory)),
    }


def read_arguments(text: str, kind: type[T]) -> T:
    """Decodes a request's arguments.

    Raises:
        ValueError: they are not of this kind.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"arguments of the request: {error}") from error


def _break(cards: LabCards, request: _Break) -> str:
    if (request.xid is None) == (not request.fault):
        raise ValueError("a card breaks by either an XID or a fault")
    if request.xid is not None and not 1 <= request.xid <= LAB_XID:
        raise ValueError(f"XID {request.xid}: an XID is 1 to {int(LAB_XID)}")
    if request.code is not None and request.fault != "unreadable":
        raise ValueError("a code is the error of the fault unreadable, and of no other")
    if request.code is not None and not 1 <= request.code <= UnknownNvmlError.code:
        raise ValueError(f"code {request.code}: an error of NVML is 1 to {UnknownNvmlError.code}")
    return cards.break_card(request.card, fault=request.fault, xid=request.xid, code=request.code)


def _use_memory(cards: LabCards, request: _UseMemory) -> str:
    return cards.use_memory(request.namespace, request.pod, read_size(request.size))


def read_size(text: str) -> int:
    """Returns bytes.

    Raises:
        ValueError: the text is no quantity of memory.
    """
    try:
        size = integer_value(text)
    except ValueError as error:
        raise ValueError(f"size: {error}; a size is e.g. 12Gi") from error
    if size < 0:
        raise ValueError(f"size {text!r}: it must not be negative")
    return size
