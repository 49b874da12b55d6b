"""Decodes objects, list pages and watch lines to typed objects, and sets aside objects that do not decode.

Pure. One :class:`Codec` per type. Most watch lines decode in one pass. A line that this pass refuses (another field
order, a bookmark, an error, an object that breaks its type) decodes in two steps. An object that breaks its type
becomes an :class:`Undecodable`, never an exception: one bad object must not hide the good ones. Bytes that are no UTF-8
become replacement characters; levels of an untyped object that nest too deep become a text that says so.
A member that is null counts as absent, as for Kubernetes.

The decoder names a field below a map as ``$.spec.podAllocationRequests[...].slices[0].start`` and leaves its value out;
a person who repairs the object needs both. :func:`locate_error` finds them with a few decodings of an object that is
refused anyway.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar, get_origin

import msgspec

from tessera.kube.errors import Status
from tessera.kube.resources.meta import ObjectMeta, PartialObject, Wire
from tessera.nesting import cut_nesting
from tessera.text import one_line

#: The words between the decoder's text and the path.
_PATH = " - at `"
#: A field, or the text in brackets: ``...`` for an entry of a map, or an index.
_STEP = re.compile(r"\.([^.\[]+)|\[([^\]]+)\]")


def locate_error(raw: bytes | msgspec.Raw, decode: Callable[[bytes], object], error: str) -> str:
    """Returns the decoder's error with the field's whole name and its value.

    Args:
        raw: the object's JSON.
        decode: the function that refuses it.
        error: the text of the refusal.
    """
    rule, _, path = error.rpartition(_PATH)
    try:
        document = msgspec.json.decode(cut_nesting(bytes(raw)))
        steps = _parse_path(path.rpartition("$")[2].rstrip("`"))
        name, value = _follow_path(document, steps, lambda: _decode_error(decode, document) == error)
    except (ValueError, LookupError, TypeError, RecursionError):
        return one_line(error)  # not JSON as a whole, or a path of another form
    shown = value if isinstance(value, str | int | float | bool | None) else f"of {len(value)} entries"
    text = f'"{one_line(shown, 60)}"' if isinstance(shown, str) and shown is value else one_line(shown, 60)
    return f"{one_line(name) or 'the object'} is {text}: {rule}"


def _parse_path(path: str) -> list[str]:
    """``.a[...].b[0]`` as ``["a", "...", "b", "0"]``."""
    return [first or second for first, second in _STEP.findall(path)]


def _follow_path(value: Any, steps: list[str], same_error: Callable[[], bool]) -> tuple[str, Any]:
    name = ""
    for step in steps:
        if isinstance(value, list):
            value, name = value[int(step)], f"{name}[{step}]"
        else:
            key = _find_bad_entry(value, same_error) if step == "..." else step
            value, name = value[key], f"{name}.{key}" if name else key
    return name, value


def _find_bad_entry(entries: dict[str, Any], same_error: Callable[[], bool]) -> str:
    """The entry of a map without which the refusal is another one; leaves the map with that entry alone."""
    everything, keys = dict(entries), list(entries)
    while len(keys) > 1:
        half = keys[: len(keys) // 2]
        _keep_only(entries, everything, half)
        keys = half if same_error() else keys[len(half) :]
    _keep_only(entries, everything, keys)
    return keys[0]


def _keep_only(entries: dict[str, Any], everything: dict[str, Any], keys: list[str]) -> None:
    entries.clear()
    entries.update((key, everything[key]) for key in keys)


def _decode_error(decode: Callable[[bytes], object], document: object) -> str:
    try:
        decode(msgspec.json.encode(document))
    except ValueError as error:
        return str(error)
    return ""


T = TypeVar("T")

ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]

_NULL = b"null"
#: Bytes of a watch line, and of a page of 500 objects, above which objects are cut. Nearly all pods have less.
_LARGE, _LARGE_PAGE = 32_768, 4 * 2**20
_BOOKMARK = b'{"type":"BOOKMARK"'
_ERROR = b'{"type":"ERROR"'


class ChangeLine(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A watch line that carries an object."""

    type: ChangeType
    object: T


class BookmarkLine(msgspec.Struct, frozen=True):
    """A watch line without an object: the version that the stream has reached."""

    version: str


class ErrorLine(msgspec.Struct, frozen=True):
    """A watch line that ends the stream with a Status."""

    status: Status


class Undecodable(msgspec.Struct, frozen=True):
    """An object that does not decode to its type.

    Attributes:
        type: the watch event's type; ``""`` in a list.
        metadata: its metadata if at least that could be read.
        error: the mistake, with the field's path and value.
    """

    type: str
    metadata: ObjectMeta | None
    error: str


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list.

    Attributes:
        items: objects that decoded.
        undecodable: objects that did not decode.
        version: the resourceVersion of the list.
        token: the continue token, ``""`` on the last page.
    """

    items: Sequence[T]
    undecodable: Sequence[Undecodable]
    version: str
    token: str


class ListResult(msgspec.Struct, Generic[T], frozen=True):
    """All objects that a list found.

    Attributes:
        items: objects of the resource's type.
        undecodable: objects that break the type.
        resource_version: version from which a watch can go on.
    """

    items: Sequence[T]
    undecodable: Sequence[Undecodable]
    resource_version: str


WatchLine = ChangeLine[T] | BookmarkLine | ErrorLine | Undecodable


class _ListMeta(msgspec.Struct, frozen=True, rename={"resource_version": "resourceVersion", "token": "continue"}):
    resource_version: str = ""
    token: str = ""


class _List(msgspec.Struct, Generic[T]):
    metadata: _ListMeta = _ListMeta()
    items: list[T] | None = None


class _AnyEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct):
    object: PartialObject


class Codec(Generic[T]):
    """Decodes objects, list pages and watch lines of one type.

    Args:
        type_: a msgspec struct, or ``dict``.
    """

    def __init__(self, type_: type[T]) -> None:
        self._bound: Callable[[bytes], bytes] = cut_nesting if (get_origin(type_) or type_) is dict else bytes
        self._object: msgspec.json.Decoder[T] = msgspec.json.Decoder(type_)
        # A type checker cannot follow types that are made at run time.
        self._change: msgspec.json.Decoder[ChangeLine[T]] = msgspec.json.Decoder(ChangeLine[type_])  # type: ignore[valid-type]
        self._list: msgspec.json.Decoder[_List[T]] = msgspec.json.Decoder(_List[type_])  # type: ignore[valid-type]
        self._raw_list = msgspec.json.Decoder(_List[msgspec.Raw])
        self._event = msgspec.json.Decoder(_AnyEvent)
        self._bookmark = msgspec.json.Decoder(_Bookmark)
        self._partial = msgspec.json.Decoder(PartialObject)
        self._status = msgspec.json.Decoder(Status)

    def decode_object(self, body: bytes) -> T:
        """One object.

        Raises:
            msgspec.DecodeError: the bytes are no JSON, or break the type (``ValidationError``, with the path).
        """
        return _decode(self._object, self._bound(body))

    def decode_page(self, body: bytes) -> ListPage[T]:
        """One page of a list, its bad objects set apart.

        Raises:
            msgspec.DecodeError: the whole answer is no list.
        """
        body = self._bound(body)
        if len(body) > _LARGE_PAGE:  # each object is cut before the next one is decoded
            return self._decode_page_piecewise(body)
        try:
            whole = _decode(self._list, body)
        except msgspec.ValidationError:
            return self._decode_page_piecewise(body)
        return ListPage(whole.items or [], (), whole.metadata.resource_version, whole.metadata.token)

    def decode_line(self, line: bytes) -> WatchLine[T]:
        """One line of a watch.

        Raises:
            msgspec.DecodeError: the line is not a watch event at all.
        """
        line = self._bound(line)
        try:
            if line.startswith(_BOOKMARK):
                return BookmarkLine(self._bookmark.decode(line).object.metadata.resource_version)
            if not line.startswith(_ERROR):
                change = self._change.decode(line)
                if len(line) > _LARGE:
                    _cut(change.object)
                return change
        except (msgspec.ValidationError, UnicodeDecodeError, RecursionError):
            pass
        return self._decode_line_in_two_steps(line)

    def _decode_line_in_two_steps(self, line: bytes) -> WatchLine[T]:
        event = _decode(self._event, line)
        match event.type:
            case "BOOKMARK":
                return BookmarkLine(self._partial.decode(event.object).metadata.resource_version)
            case "ERROR":
                return ErrorLine(self._status.decode(event.object))
            case "ADDED" | "MODIFIED" | "DELETED":
                found = self._decode_or_explain(event.object, event.type)
                return found if isinstance(found, Undecodable) else ChangeLine(event.type, found)
            case _:
                return Undecodable(event.type, self._metadata(event.object), f"unknown watch event type {event.type!r}")

    def _decode_page_piecewise(self, body: bytes) -> ListPage[T]:
        raw = _decode(self._raw_list, body)
        found = [self._decode_or_explain(item, "") for item in raw.items or ()]
        good = [item for item in found if not isinstance(item, Undecodable)]
        bad = [item for item in found if isinstance(item, Undecodable)]
        return ListPage(good, bad, raw.metadata.resource_version, raw.metadata.token)

    def _decode_or_explain(self, raw: msgspec.Raw, type_: str) -> T | Undecodable:
        try:
            item = _decode(self._object, raw)
        except msgspec.ValidationError as error:
            text = locate_error(raw, self._object.decode, str(error))
            return Undecodable(type_, self._metadata(raw), text)
        try:
            return _cut(item)
        except msgspec.ValidationError as error:
            return Undecodable(type_, self._metadata(raw), str(error))

    def _metadata(self, raw: msgspec.Raw) -> ObjectMeta | None:
        try:
            return _decode(self._partial, raw).metadata
        except msgspec.ValidationError:
            return None


def _cut(item: T) -> T:
    if isinstance(item, Wire):
        item.cut()
    return item


def _decode(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    """Decodes; first replaces bytes that are no UTF-8 and levels too deep for the decoder, and leaves nulls out.

    Raises:
        msgspec.DecodeError: the bytes are no JSON, or break the type.
    """
    try:
        return decoder.decode(body)
    except (UnicodeDecodeError, RecursionError):
        body = cut_nesting(bytes(body).decode(errors="replace").encode())
    except msgspec.ValidationError:
        if _NULL not in bytes(body):
            raise
    return decoder.decode(_leave_nulls_out(body))


def _leave_nulls_out(body: bytes | msgspec.Raw) -> bytes:
    """Returns the same JSON without members that are null: Go writes so an absent list or map without ``omitempty``."""
    if _NULL not in bytes(body):
        return bytes(body)

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(each) for key, each in value.items() if each is not None}
        return [clean(each) for each in value] if isinstance(value, list) else value

    return msgspec.json.encode(clean(msgspec.json.decode(cut_nesting(bytes(body)))))


class LineSplitter:
    """Cuts a stream of chunks into lines without copying a long line again for every chunk of it."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes, empty ones left out."""
        pieces = chunk.split(b"\n")
        last = pieces.pop()
        if pieces and self._rest:
            self._rest.append(pieces[0])
            pieces[0] = b"".join(self._rest)
            self._rest.clear()
        if last:
            self._rest.append(last)
        return [piece for piece in pieces if piece]
