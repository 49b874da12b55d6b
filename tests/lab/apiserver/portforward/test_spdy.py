"""The frames of SPDY/3.1: what a client sends, in any pieces, and what is refused before it is read."""

import struct
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera_lab.apiserver.portforward.spdy import (
    DICTIONARY,
    DataReceived,
    Event,
    PingReceived,
    SpdyConnection,
    SpdyError,
    StreamOpened,
    StreamReset,
)
from tessera_lab.limits import SPDY_FRAME, SPDY_HEADERS


class Client:
    """Writes a client's frames, and reads the server's."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def open(self, stream: int, headers: Mapping[str, str]) -> bytes:
        block = struct.pack(">I", len(headers))
        for text in (each for pair in headers.items() for each in pair):
            block += struct.pack(">I", len(text)) + text.encode("latin-1")
        packed = self._deflate.compress(block) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return control(1, struct.pack(">IIBB", stream, 0, 0, 0) + packed)


def control(kind: int, body: bytes, version: int = 3) -> bytes:
    return struct.pack(">HHI", version | 0x8000, kind, len(body)) + body


def events(*pieces: bytes) -> Sequence[Event]:
    connection = SpdyConnection()
    return [event for piece in pieces for event in connection.receive(piece)]


def test_the_dictionary_is_that_of_the_draft() -> None:
    """Its Adler-32, with which every compressed header block of SPDY/3 begins."""
    assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2


def test_a_connection() -> None:
    client, headers = Client(), {"streamtype": "data", "port": "8000", "requestid": "0"}
    sent = client.open(1, {**headers, "streamtype": "error"}) + client.open(3, headers)
    sent += SpdyConnection.data(3, b"GET /") + SpdyConnection.data(1, b"", last=True)
    sent += control(6, struct.pack(">I", 7)) + control(3, struct.pack(">II", 3, 5)) + control(9, b"\0" * 8)
    assert events(sent) == [
        StreamOpened(1, {**headers, "streamtype": "error"}),
        StreamOpened(3, headers),
        DataReceived(3, b"GET /", False),
        DataReceived(1, b"", True),
        PingReceived(7),
        StreamReset(3),
    ]


def test_what_the_server_sends() -> None:
    connection, inflate = SpdyConnection(), zlib.decompressobj(zdict=DICTIONARY)
    for stream in (1, 3):
        frame = connection.accept(stream)
        assert frame[:4] == b"\x80\x03\x00\x02"
        assert frame[8:12] == struct.pack(">I", stream)
        assert inflate.decompress(frame[12:]) == b"\0\0\0\0"
    assert connection.data(3, b"abc", last=True) == b"\0\0\0\x03\x01\0\0\x03abc"
    assert connection.ping(7) == b"\x80\x03\0\x06\0\0\0\x04\0\0\0\x07"


@pytest.mark.soak
@given(st.lists(st.binary(max_size=50), max_size=5), st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_frames_in_any_pieces(parts: list[bytes], sizes: list[int]) -> None:
    client, headers = Client(), {"port": "1"}
    whole = client.open(1, headers) + b"".join(SpdyConnection.data(1, part) for part in parts)
    pieces, at = list[bytes](), 0
    while at < len(whole):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(whole[at : at + size])
        at += size
    assert events(*pieces) == [StreamOpened(1, headers), *(DataReceived(1, part, False) for part in parts)]


@given(st.binary(max_size=300))
def test_any_bytes_are_events_or_an_error(data: bytes) -> None:
    with suppress(SpdyError):
        events(data)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"\0\0\0\x01\0\xff\xff\xff", f"a frame of 16777215 bytes; {SPDY_FRAME} are allowed"),
        (control(6, b"\0" * 4, version=2), "version 2 of SPDY; the server has 3"),
        (control(1, b"\0" * 10 + b"no zlib"), "headers: "),
        (control(6, b"\0"), "a frame is too short"),
        (Client().open(1, {"a": "b" * SPDY_HEADERS}), f"headers of more bytes than {SPDY_HEADERS} are allowed"),
    ],
)
def test_what_is_refused(sent: bytes, said: str) -> None:
    with pytest.raises(SpdyError, match=said):
        events(sent)
