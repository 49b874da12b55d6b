"""What each process of a cluster that runs in this process holds: its objects and their bytes, by what holds them.

A walk begins at the tasks of a container, which the lab marks by a context variable, and follows references. It ends at
the lab's objects, and at what all processes share: classes, modules and the loop. So a look costs a second, and nothing
in between; ``tracemalloc`` makes everything eight times as slow, since the lab allocates most.
"""

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from tests.support.tasks import running_tasks

from tessera_lab.installation.process_logs import container_in

_SHARED = (type, ModuleType, CodeType, Context, asyncio.AbstractEventLoop)
#: Module-level state of the product, which all processes of the cluster share.
MODULES = "modules"


@dataclass
class Heap:
    """What one process holds.

    Attributes:
        size: bytes of all objects.
        places: the same by the closest object of the product that holds them, and by their type.
    """

    size: int = 0
    places: Counter[tuple[str, str]] = field(default_factory=Counter)

    def growth(self, before: "Heap") -> str:
        """What has grown most, for people."""
        grown = Counter(self.places)
        grown.subtract(before.places)
        return "\n".join(f"{size:>12,} bytes: {kind} in {holder}" for (holder, kind), size in grown.most_common(12))


def process_heaps(others: Mapping[str, object]) -> dict[str, Heap]:
    """The heap of each process, by the name of its pod.

    Args:
        others: further processes, which run in no container: an object of each.
    """
    gc.collect()
    roots: dict[str, list[object]] = {name: [root] for name, root in others.items()}
    for task in running_tasks():
        for context in (each for each in gc.get_referents(task) if isinstance(each, Context)):
            container = container_in(context)
            if container is not None:
                roots.setdefault(container.pod.name, []).append(task)
    return {name: walk(found) for name, found in {**roots, MODULES: list(_module_state())}.items()}


def walk(roots: Iterable[object]) -> Heap:
    """Everything that these objects hold, themselves included."""
    heap, seen = Heap(), set[int]()
    stack: list[tuple[Any, str]] = [(root, "") for root in roots]
    while stack:
        item, holder = stack.pop()
        if id(item) in seen or _is_foreign(item):
            continue
        seen.add(id(item))
        kind = type(item)
        if kind.__module__.startswith("tessera."):
            holder = f"{kind.__module__}.{kind.__qualname__}"
        size = sys.getsizeof(item)
        heap.size += size
        heap.places[holder, kind.__qualname__] += size
        stack.extend((each, holder) for each in _referents(item))
    return heap


def _referents(item: Any) -> Iterable[object]:
    """What an object holds; of a function not its module."""
    if isinstance(item, FunctionType):
        return (item.__closure__, item.__defaults__, item.__kwdefaults__)
    return gc.get_referents(item)


def _is_foreign(item: Any) -> bool:
    """True for objects of the lab and of tests, and for what all processes share."""
    if isinstance(item, _SHARED):
        return True
    names = (type(item).__module__, item.__module__ if isinstance(item, FunctionType) else "")
    if any(str(name).partition(".")[0] in {"tessera_lab", "tests"} for name in names):
        return True
    code = getattr(item, "cr_code", None) or getattr(item, "gi_code", None) or getattr(item, "ag_code", None)
    return isinstance(code, CodeType) and ("/tessera_lab/" in code.co_filename or "/tests/" in code.co_filename)


def _module_state() -> Iterator[object]:
    """Values in modules and classes of the product, such as caches."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "tessera":
            for value in vars(module).values():
                if isinstance(value, type) and value.__module__ == name:
                    yield from vars(value).values()
                elif not isinstance(value, ModuleType | BuiltinFunctionType):
                    yield value
