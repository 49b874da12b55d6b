"""State of a decider as JSON, and back.

Rules:

- Plain data only: numbers, text, containers, enums, msgspec structs and objects with attributes. Anything else (a
  function, a lock, a socket) is refused with its path: a decider that has it is not pure.
- Reading runs no code of the file: a class is built without its constructor, and only if its module is one of those
  that the caller names.
- Objects that a state shares stay shared.
- Sets are written in order, so that equal values have equal texts.
- A struct whose values may hold secrets has a method ``for_record``: its result, a struct of the same class without
  them, is written in its place.

No library served: pickle runs code that a file names, jsonpickle imports modules that a file names, and msgspec writes
neither shared objects, nor sets in order, nor plain classes.
"""

import base64
import importlib
import json
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

import msgspec

#: Factories that a ``defaultdict`` may have.
_FACTORIES: Mapping[str, Callable[[], Any]] = {"list": list, "set": set, "dict": dict, "int": int, "tuple": tuple}
#: Numbers that JSON does not have.
_FLOATS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
_MAPPINGS: Mapping[str, Callable[[], Any]] = {"d": dict, "od": OrderedDict, "cn": Counter}
_KINDS_OF_MAPPINGS: Mapping[type, str] = {dict: "d", MappingProxyType: "d", OrderedDict: "od", Counter: "cn"}


class NotPlainError(TypeError):
    """A state has a value that is not plain data, or a record names a class that is not allowed."""


def encode(value: Any, *, shared: bool = False) -> Any:
    """The value as JSON-compatible data.

    Args:
        value: the value to write.
        shared: True to write a repeated object once and refer to it; else equal values have equal forms.

    Raises:
        NotPlainError: a part of it is not plain data.
    """
    return _Encoder(shared=shared).encode(value, "value")


def decode(data: Any, modules: Collection[str]) -> Any:
    """The value that :func:`encode` wrote.

    Args:
        data: the data that it wrote.
        modules: modules and packages whose classes are allowed.

    Raises:
        NotPlainError: the data names another class, or is damaged.
    """
    try:
        return _Decoder(modules).decode(data)
    except NotPlainError:
        raise
    except Exception as error:  # a damaged file may cause any error
        raise NotPlainError(f"the record is damaged: {type(error).__name__}: {error}") from error


def attributes(value: object) -> Iterator[tuple[str, Any]]:
    """The attributes of a plain object in the order of their names, without those that its ``TRANSIENT`` names."""
    names = {name for cls in type(value).__mro__ for name in _slots(cls)} | set(getattr(value, "__dict__", ()))
    for name in sorted(names.difference(getattr(value, "TRANSIENT", ()))):
        if hasattr(value, name):
            yield name, getattr(value, name)


def _slots(cls: type) -> Iterable[str]:
    slots = cls.__dict__.get("__slots__", ())
    for name in (slots,) if isinstance(slots, str) else slots:
        if name in {"__weakref__", "__dict__"}:
            continue
        yield f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name


def _class_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


class _Encoder:
    """Writes one value.

    Args:
        shared: see :func:`encode`.
    """

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        #: Number of each object written so far, by identity; holds the object, so that no other gets its identity.
        self._seen: dict[int, tuple[int, Any]] = {}

    def encode(self, value: Any, path: str) -> Any:
        """Writes a value; ``path`` is its place, for errors."""
        if isinstance(value, Enum):
            return {"$": "e", "c": _class_name(type(value)), "v": value.name}
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return {"$": "f", "v": str(value)} if str(value) in _FLOATS else value
        if isinstance(value, bytes):
            return {"$": "b", "v": base64.b64encode(value).decode()}
        if self._shared:
            known = self._seen.get(id(value))
            if known is not None:
                return {"$": "r", "v": known[0]}
            self._seen[id(value)] = (len(self._seen), value)
        return self._container(value, path)

    def _container(self, value: Any, path: str) -> Any:
        match value:
            case list():
                return self._items(value, path)
            case tuple() if hasattr(value, "_fields"):
                return {"$": "nt", "c": _class_name(type(value)), "v": self._items(value, path)}
            case tuple():
                return {"$": "t", "v": self._items(value, path)}
            case deque():
                return {"$": "q", "m": value.maxlen, "v": self._items(value, path)}
            case set() | frozenset():
                kind = "s" if isinstance(value, set) else "fs"
                return {"$": kind, "v": self._items(sorted(value, key=_order), path)}
            case defaultdict():
                factory = getattr(value.default_factory, "__name__", "")
                if _FACTORIES.get(factory) is not value.default_factory:
                    raise NotPlainError(f"{path}: a defaultdict with the factory {value.default_factory!r}")
                return {"$": "dd", "m": factory, "v": self._pairs(value, path)}
            case dict() | MappingProxyType() if type(value) in _KINDS_OF_MAPPINGS:
                return {"$": _KINDS_OF_MAPPINGS[type(value)], "v": self._pairs(value, path)}
            case dict():
                raise NotPlainError(f"{path}: a {type(value).__qualname__} would be read back as a plain dict")
            case random.Random():
                return {"$": "rng", "v": self._items(value.getstate(), path)}
            case msgspec.Struct():
                value = value.for_record() if hasattr(value, "for_record") else value
                fields = {name: self.encode(getattr(value, name), f"{path}.{name}") for name in value.__struct_fields__}
                return {"$": "st", "c": _class_name(type(value)), "v": fields}
        if type(value).__module__.partition(".")[0] in sys.stdlib_module_names:
            raise NotPlainError(f"{path}: a {type(value).__module__}.{type(value).__qualname__} is not plain data")
        held = {name: self.encode(each, f"{path}.{name}") for name, each in attributes(value)}
        return {"$": "o", "c": _class_name(type(value)), "v": held}

    def _items(self, values: Iterable[Any], path: str) -> list[Any]:
        return [self.encode(each, f"{path}[{index}]") for index, each in enumerate(values)]

    def _pairs(self, value: Mapping[Any, Any], path: str) -> list[Any]:
        return [[self.encode(key, path), self.encode(each, f"{path}[{key!r}]")] for key, each in value.items()]


def _order(value: Any) -> str:
    return json.dumps(encode(value), sort_keys=True)


class _Decoder:
    """Reads one value.

    Args:
        modules: see :func:`decode`.
    """

    def __init__(self, modules: Collection[str]) -> None:
        self._modules = tuple(modules)
        #: Objects by the number that the encoder gave them, in the order of writing.
        self._seen: list[Any] = []

    def decode(self, data: Any) -> Any:
        """Reads a value."""
        if isinstance(data, list):
            return self._fill([], data)
        if not isinstance(data, dict):
            return data
        kind, value = data["$"], data["v"]
        match kind:
            case "r":
                return self._seen[value]
            case "f":
                return _FLOATS[value]
            case "b":
                return base64.b64decode(value)
            case "e":
                return self._class(data["c"], Enum)[value]
            case "q":
                return self._fill(deque(maxlen=data["m"]), value)
            case "s":
                return self._set(value)
            case "dd":
                return self._mapping(defaultdict(_FACTORIES[data["m"]]), value)
            case "d" | "od" | "cn":
                return self._mapping(_MAPPINGS[kind](), value)
            case "o":
                return self._object(self._class(data["c"], object), value)
        return self._build_frozen(kind, data.get("c", ""), value)

    def _fill(self, into: Any, values: list[Any]) -> Any:
        self._seen.append(into)
        for each in values:
            into.append(self.decode(each))
        return into

    def _set(self, values: list[Any]) -> set[Any]:
        found: set[Any] = set()
        self._seen.append(found)
        for each in values:
            found.add(self.decode(each))
        return found

    def _mapping(self, into: Any, pairs: list[Any]) -> Any:
        self._seen.append(into)
        for key, value in pairs:
            known = self.decode(key)
            into[known] = self.decode(value)
        return into

    def _object(self, cls: Any, held: dict[str, Any]) -> Any:
        made = object.__new__(cls)
        self._seen.append(made)
        for name, value in held.items():
            object.__setattr__(made, name, self.decode(value))
        return made

    def _build_frozen(self, kind: str, name: str, value: Any) -> Any:
        """Reads a value that is built after its parts; no part can refer back to it."""
        number = len(self._seen)
        self._seen.append(None)
        made: Any
        match kind:
            case "t":
                made = tuple(self.decode(each) for each in value)
            case "fs":
                made = frozenset(self.decode(each) for each in value)
            case "nt":
                made = self._class(name, tuple)(*(self.decode(each) for each in value))
            case "rng":
                made = random.Random()
                made.setstate(tuple(self.decode(each) for each in value))
            case "st":
                made = self._class(name, msgspec.Struct)(**{key: self.decode(each) for key, each in value.items()})
            case _:
                raise NotPlainError(f"the record is damaged: there is no kind {kind!r}")
        self._seen[number] = made
        return made

    def _class(self, name: str, base: type) -> Any:
        module, _, qualified = name.partition(":")
        if not any(module == each or module.startswith(f"{each}.") for each in self._modules):
            raise NotPlainError(f"the record names {name}, which is no part of this decider's state")
        try:
            found: Any = importlib.import_module(module)
            for part in qualified.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError):
            missing = f"the record names {name}, which this version of Tessera does not have"
            raise NotPlainError(f"{missing}; replay it with the version that recorded it") from None
        if not isinstance(found, type) or not issubclass(found, base) or found.__module__ != module:
            raise NotPlainError(f"the record names {name}, which is no class of state")
        return found
