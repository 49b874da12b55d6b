"""The server's side of SPDY/3.1, as far as Kubernetes' streams use it: bytes in, events out, and the frames to send.

A client opens streams (SYN_STREAM with headers), each is accepted (SYN_REPLY), both sides send data and end their half
(FIN) or the whole stream (RST_STREAM). PING is answered; SETTINGS, WINDOW_UPDATE, HEADERS and GOAWAY mean nothing here,
as in Kubernetes' own implementation (github.com/moby/spdystream). No library served: Python has none that is kept.
Frames and header blocks are bounded before they are read. The format is that of the SPDY/3.1 draft, section 2.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping

import msgspec

from tessera_lab.limits import SPDY_FRAME, SPDY_HEADERS

_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING = 1, 2, 3, 6
_VERSION, _CONTROL, _FIN = 3, 0x80, 0x01
_HEAD = 8
#: Status of RST_STREAM: the sender wants no more of the stream.
_CANCEL = 5

_NAMES = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status"
)
_PAIRS = ("200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin")
_REST = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    "403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    "text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _dictionary() -> bytes:
    """The dictionary with which header blocks are compressed (SPDY/3.1 draft, section 2.6.10.1)."""
    words = [*_NAMES.split(), *_PAIRS]
    return b"".join(struct.pack(">I", len(word)) + word.encode() for word in words) + _REST.encode()


DICTIONARY = _dictionary()


class StreamOpened(msgspec.Struct, frozen=True):
    """The client opened a stream."""

    stream: int
    headers: Mapping[str, str]


class DataReceived(msgspec.Struct, frozen=True):
    """Data came in a stream; ``last``: the client sends no more in it."""

    stream: int
    data: bytes
    last: bool


class StreamReset(msgspec.Struct, frozen=True):
    """The client ended a stream."""

    stream: int


class PingReceived(msgspec.Struct, frozen=True):
    """The client asks for a sign of life; :meth:`SpdyConnection.ping` is the answer."""

    number: int


Event = StreamOpened | DataReceived | StreamReset | PingReceived


class SpdyError(Exception):
    """The client broke the protocol, or a limit; the connection cannot go on."""


class SpdyConnection:
    """One connection.

    Header blocks of each direction are compressed as one stream, so frames count in their order.
    """

    def __init__(self) -> None:
        self._received = bytearray()
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def receive(self, data: bytes) -> Iterator[Event]:
        """Yields what the client's bytes say; a frame in parts waits for the rest.

        Raises:
            SpdyError: the bytes are no SPDY, or exceed a limit.
        """
        self._received += data
        while len(self._received) >= _HEAD:
            length = int.from_bytes(self._received[5:8])
            if length > SPDY_FRAME:
                raise SpdyError(f"a frame of {length} bytes; {SPDY_FRAME} are allowed")
            if len(self._received) < _HEAD + length:
                return
            head, body = bytes(self._received[:_HEAD]), bytes(self._received[_HEAD : _HEAD + length])
            del self._received[: _HEAD + length]
            event = self._event(head, body)
            if event is not None:
                yield event

    def _event(self, head: bytes, body: bytes) -> Event | None:
        first, flags = struct.unpack(">I", head[:4])[0], head[4]
        if not head[0] & _CONTROL:
            return DataReceived(first, body, bool(flags & _FIN))
        if first >> 16 & 0x7FFF != _VERSION:
            raise SpdyError(f"version {first >> 16 & 0x7FFF} of SPDY; the server has {_VERSION}")
        match first & 0xFFFF:
            case 1:
                return StreamOpened(_number(body), self._headers(body[10:]))
            case 3:
                return StreamReset(_number(body))
            case 6:
                return PingReceived(_number(body))
            case _:
                return None

    def _headers(self, block: bytes) -> Mapping[str, str]:
        try:
            plain = self._inflate.decompress(block, SPDY_HEADERS + 1)
        except zlib.error as error:
            raise SpdyError(f"headers: {error}") from None
        if len(plain) > SPDY_HEADERS or self._inflate.unconsumed_tail:
            raise SpdyError(f"headers of more bytes than {SPDY_HEADERS} are allowed")
        texts, at = list[str](), 4
        while at + 4 <= len(plain):
            size = _number(plain[at:])
            texts.append(plain[at + 4 : at + 4 + size].decode("latin-1"))
            at += 4 + size
        return dict(zip(texts[::2], texts[1::2], strict=False))

    def accept(self, stream: int) -> bytes:
        """The frame that accepts a stream, without headers."""
        block = self._deflate.compress(struct.pack(">I", 0)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return _control(_SYN_REPLY, struct.pack(">I", stream) + block)

    @staticmethod
    def data(stream: int, data: bytes, *, last: bool = False) -> bytes:
        """The frame with data of a stream; ``last`` ends the server's half."""
        return struct.pack(">II", stream, (last << 24) | len(data)) + data

    @staticmethod
    def reset(stream: int) -> bytes:
        """The frame that ends a stream."""
        return _control(_RST_STREAM, struct.pack(">II", stream, _CANCEL))

    @staticmethod
    def ping(number: int) -> bytes:
        """The answer to a ping."""
        return _control(_PING, struct.pack(">I", number))


def _control(kind: int, body: bytes) -> bytes:
    return struct.pack(">HHI", _VERSION | 0x8000, kind, len(body)) + body


def _number(data: bytes) -> int:
    """The first 31 bits."""
    if len(data) < 4:
        raise SpdyError("a frame is too short")
    value: int = struct.unpack(">I", data[:4])[0]
    return value & 0x7FFFFFFF
