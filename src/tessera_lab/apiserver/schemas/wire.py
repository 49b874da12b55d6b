"""Protobuf's wire format: a message as its fields in order.

Own code because the messages' descriptors are not at hand: the caller has a table of field numbers only, and generated
classes for over 200 messages would cost more to load than the few bodies that arrive in this form.
"""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: an unsigned integer, or bytes (length-delimited and fixed ones).

    Raises:
        ValueError: the bytes are no message, or cut short.
    """
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        kind, number = key & 7, key >> 3
        if number == 0:
            raise ValueError("protobuf field number 0 is not valid")
        if kind == VARINT:
            value, at = varint(message, at)
            yield number, value
            continue
        if kind == BYTES:
            length, at = varint(message, at)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"protobuf wire type {kind} of field {number} is not valid")
        if at + length > len(message):
            raise ValueError(f"protobuf field {number} is cut short: {length} bytes announced")
        yield number, message[at : at + length]
        at += length


def varint(message: bytes, at: int) -> tuple[int, int]:
    """The variable-length integer at a position, and the position behind it.

    Raises:
        ValueError: it does not end, or is longer than 64 bits.
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


def signed(value: int) -> int:
    """The two's complement reading of a 64-bit integer: ``int32`` and ``int64`` fields."""
    return value - (1 << 64) if value >= 1 << 63 else value
