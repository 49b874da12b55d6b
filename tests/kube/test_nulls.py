"""Go writes a nil list or map without ``omitempty`` as null; for Kubernetes, and so for all readers, it is absent."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import msgspec
import pytest
from msgspec import inspect

import tessera
from tessera.kube.codec import Codec, Undecodable
from tessera.kube.resources.meta import Resource


def resources() -> Sequence[Resource[Any]]:
    """Every kind that the product reads, by its label."""
    found: dict[str, Resource[Any]] = {}
    for module in walk_packages(tessera.__path__, "tessera."):
        if not module.name.endswith("__main__"):
            for each in vars(import_module(module.name)).values():
                if isinstance(each, Resource) and isinstance(each.type, type) and issubclass(each.type, msgspec.Struct):
                    found[f"{each.label}/{each.version}"] = each
    return [found[label] for label in sorted(found)]


def paths(kind: inspect.Type, *, within: frozenset[type] = frozenset()) -> Iterator[tuple[str, ...]]:
    """The fields of a kind whose value may be a list, a map or an object, each by its path; ``*`` is any entry."""
    match kind:
        case inspect.StructType(cls=cls, fields=fields) if cls not in within:
            for field in fields:
                if is_compound(field.type):
                    yield (field.encode_name,)
                    yield from ((field.encode_name, *rest) for rest in paths(field.type, within=within | {cls}))
        case inspect.UnionType(types=types):
            for each in types:
                yield from paths(each, within=within)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            yield from (("*", *rest) for rest in paths(item, within=within))
        case inspect.DictType(value_type=value):
            yield from (("{}", *rest) for rest in paths(value, within=within))


def is_compound(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.UnionType):
        return any(is_compound(each) for each in kind.types)
    return isinstance(kind, inspect.StructType | inspect.ListType | inspect.VarTupleType | inspect.DictType)


def item_with(path: Sequence[str], *last: None) -> Any:
    """The smallest object that has a path but for its last step, which is null if ``last`` is given."""
    step, rest = path[0], path[1:]
    inner = [item_with(rest, *last)] if rest else list(last)
    return inner if step == "*" else {"entry" if step == "{}" else step: each for each in inner}


@pytest.mark.parametrize("resource", resources(), ids=lambda each: f"{each.label}/{each.version}")
def test_a_null_in_any_field_counts_as_absent(resource: Resource[Any]) -> None:
    codec = Codec(resource.type)
    for path in paths(inspect.type_info(resource.type)):
        null, absent = item_with(path, None), item_with(path)
        found = [codec.decode_line(msgspec.json.encode({"type": "ADDED", "object": each})) for each in (null, absent)]
        if isinstance(found[1], Undecodable):
            continue  # a field that the kind requires
        assert found[0] == found[1], path
        page = codec.decode_page(msgspec.json.encode({"items": [null, absent]}))
        assert (len(page.items), len(page.undecodable)) == (2, 0), path


def test_a_value_of_a_wrong_type_beside_a_null_is_still_named() -> None:
    pods = next(each for each in resources() if each.label == "pods")
    line = Codec(pods.type).decode_line(
        b'{"type":"ADDED","object":{"metadata":{"name":"a","labels":null},"spec":{"nodeName":5,"containers":null}}}'
    )
    assert isinstance(line, Undecodable)
    assert line.metadata is not None
    assert (line.metadata.name, line.error) == ("a", "spec.nodeName is 5: Expected `str`, got `int`")
