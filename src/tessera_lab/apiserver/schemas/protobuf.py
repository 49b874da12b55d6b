r"""Bodies in ``application/vnd.kubernetes.protobuf``, which kubectl sends for ``create`` of typed kinds and ``auth``.

Form: ``k8s\0``, then a ``runtime.Unknown`` that names apiVersion and kind and holds the message. The table of field
numbers (``schemas/protobuf.json``, made by ``scripts/protobuf_fields.py``) has each field's JSON name and type.

Why no library: the ``protobuf`` package reads messages only with their descriptors, which no Python package of
Kubernetes ships; generated classes for over 200 messages would cost more to load than the few bodies that arrive here.
"""

import base64
import struct
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from tessera.clock import rfc3339, rfc3339_micro
from tessera_lab.apiserver import schemas
from tessera_lab.apiserver.interfaces import Obj

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"


class _Field(msgspec.Struct, frozen=True, array_like=True):
    name: str
    kind: str
    flags: str


class _Table(msgspec.Struct, frozen=True):
    kinds: Mapping[str, str]
    messages: Mapping[str, Mapping[int, _Field]]


@cache
def _table() -> _Table:
    data = files(schemas.__name__).joinpath("protobuf.json").read_bytes()
    return msgspec.json.decode(data, type=_Table)


def decode_body(body: bytes) -> Obj:
    """The object as JSON.

    Raises:
        ValueError: not this format, or a kind or field that is not in the table; the text names it.
    """
    if not body.startswith(MAGIC):
        raise ValueError(f"the body is not {MEDIA_TYPE}: it does not begin with {MAGIC!r}")
    unknown = _join_messages(body[len(MAGIC) :])
    meta = _join_messages(unknown.get(1, b""))
    api_version, kind = meta.get(1, b"").decode(), meta.get(2, b"").decode()
    table = _table()
    message = table.kinds.get(f"{api_version}/{kind}")
    if kind == "DeleteOptions":
        message = table.kinds["meta/v1/DeleteOptions"]
    if message is None:
        raise ValueError(
            f"{kind or 'a kind without name'} in {api_version!r} is not known in {MEDIA_TYPE} here; send it as"
            " application/json (kubectl create -f)"
        )
    if unknown.get(3):
        raise ValueError(f"content encoding {unknown[3].decode()!r} inside {MEDIA_TYPE} is not supported")
    return {"apiVersion": api_version, "kind": kind, **_message(unknown.get(2, b""), message)}


def _join_messages(message: bytes) -> dict[int, bytes]:
    """Returns length-delimited fields by number, for messages that have no other fields."""
    return {number: value for number, value in read_fields(message) if isinstance(value, bytes)}


def _message(data: bytes, name: str) -> Obj:
    known = _table().messages[name]
    created: Obj = {}
    for number, raw in read_fields(data):
        field = known.get(number)
        if field is None:
            raise ValueError(f"field {number} of {name} is not known in {MEDIA_TYPE} here; send it as application/json")
        _set(created, field, raw)
    return created


def _set(created: Obj, field: _Field, raw: int | bytes) -> None:
    if "m" in field.flags:
        key, value = _entry(raw, field)
        created.setdefault(field.name, {})[key] = value
        return
    value = _value(raw, field.kind)
    if "i" in field.flags:
        created.update(value)
    elif "l" in field.flags:
        created.setdefault(field.name, []).append(value)
    elif value is not None and not ("o" in field.flags and value in ("", 0, False)):
        created[field.name] = value


def _entry(raw: int | bytes, field: _Field) -> tuple[str, Any]:
    """Returns key and value of one entry of a map; a value that is a list is in a message of its own."""
    parts = dict(read_fields(_bytes(raw)))
    key, value = _bytes(parts.get(1, b"")).decode(), parts.get(2, b"")
    if "l" in field.flags:
        return key, [_value(each, field.kind) for _, each in read_fields(_bytes(value))]
    return key, _value(value, field.kind)


def _bytes(raw: int | bytes) -> bytes:
    if isinstance(raw, bytes):
        return raw
    raise ValueError("protobuf: a message or text is expected where a number stands")


def _number(raw: int | bytes) -> int:
    if isinstance(raw, int):
        return raw
    raise ValueError("protobuf: a number is expected where a message or text stands")


def _value(raw: int | bytes, kind: str) -> Any:
    """Converts a value to JSON; None for a zero time."""
    match kind:
        case "bool":
            return bool(raw)
        case "int32" | "int64" | "int":
            return to_signed(_number(raw))
        case "float64":
            return struct.unpack("<d", _bytes(raw))[0]
        case "string":
            return _bytes(raw).decode()
        case "bytes":
            return base64.b64encode(_bytes(raw)).decode()
        case "time" | "microtime" | "quantity" | "intorstring" | "raw" | "fields":
            return _special(dict(read_fields(_bytes(raw))), kind)
        case _:
            return _message(_bytes(raw), kind)


def _special(parts: Mapping[int, int | bytes], kind: str) -> Any:
    """Converts a type whose JSON form differs from its message."""
    match kind:
        case "time" | "microtime":
            if not parts:
                return None
            seconds, nanos = to_signed(_number(parts.get(1, 0))), _number(parts.get(2, 0))
            return rfc3339(seconds) if kind == "time" else rfc3339_micro(seconds + nanos / 1e9)
        case "quantity":
            return _bytes(parts.get(1, b"")).decode() or "0"
        case "intorstring":
            return _bytes(parts.get(3, b"")).decode() if parts.get(1) else to_signed(_number(parts.get(2, 0)))
        case _:
            return msgspec.json.decode(_bytes(parts.get(1, b"{}")) or b"{}")


VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields number and value of each field: an unsigned integer, or bytes (length-delimited and fixed fields).

    Raises:
        ValueError: the bytes are no message, or cut short.
    """
    at = 0
    while at < len(message):
        key, at = read_varint(message, at)
        kind, number = key & 7, key >> 3
        if number == 0:
            raise ValueError("protobuf field number 0 is not valid")
        if kind == VARINT:
            value, at = read_varint(message, at)
            yield number, value
            continue
        if kind == BYTES:
            length, at = read_varint(message, at)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"protobuf wire type {kind} of field {number} is not valid")
        if at + length > len(message):
            raise ValueError(f"protobuf field {number} is cut short: {length} bytes announced")
        yield number, message[at : at + length]
        at += length


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    """Returns the variable-length integer at a position, and the position after it.

    Raises:
        ValueError: the integer does not end, or is longer than 64 bits.
    """
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("protobuf integer is cut short or too long")


def to_signed(value: int) -> int:
    """The two's complement reading of a 64-bit integer: ``int32`` and ``int64`` fields."""
    return value - (1 << 64) if value >= 1 << 63 else value
