"""The controller goes on, in bounded time, with any content of Instaslices, nodes and pods."""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings
from tests.controller.informers.forging import NODES as NODE_NAMES
from tests.controller.informers.forging import PODS as POD_NAMES
from tests.controller.informers.forging import Forger
from tests.support.cost import run_within
from tests.support.searching import examples

from tessera.api.instaslice import Instaslice
from tessera.controller.informers import SliceInformers
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.events import (
    DenialExpired,
    InstasliceVersionsReset,
    PodVersionsReset,
    RetryDue,
    UngateDenied,
    WriteDone,
    WriteOutcomeUnknown,
    WriteRefused,
)
from tessera.controller.slicing.state.instructions import RecordEvent, Ungate, Write
from tessera.kube.cache import Cache, WatchEvent
from tessera.kube.codec import ChangeLine, Codec, Undecodable
from tessera.kube.resources import Node, Pod

#: CPU seconds of one history; an honest one takes some hundredths.
MOST_SECONDS = 5.0


class Feed:
    """Watch lines of one kind, as a reflector takes them, to handlers."""

    def __init__(
        self, kind: Any, handler: Callable[[WatchEvent[Any]], None], unreadable: Callable[[str, str | None], None]
    ) -> None:
        self._codec: Codec[Any] = Codec(kind)
        self._cache: Cache[Any] = Cache()
        self._handler = handler
        self._unreadable = unreadable

    def send(self, type_: str, item: dict[str, Any]) -> None:
        line = self._codec.decode_line(msgspec.json.encode({"type": type_, "object": item}))
        if isinstance(line, Undecodable):
            if line.metadata is not None:
                self._unreadable(f"{line.metadata.namespace}/{line.metadata.name}", line.error)
            return
        assert isinstance(line, ChangeLine)
        meta = line.object.metadata
        self._unreadable(f"{meta.namespace}/{meta.name}", None)
        key = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
        changes = self._cache.remove(key, line.object) if type_ == "DELETED" else self._cache.upsert(line.object)
        for event in changes:
            self._handler(event)


class History:
    """A cluster whose objects are forged, and the machine that looks at it."""

    def __init__(self, seed: int) -> None:
        self.forger = Forger(seed)
        self.flying: list[Write] = []
        self.begin()

    def begin(self) -> None:
        """A fresh process."""
        self.slicer = Slicer()
        watching = SliceInformers(self.slicer, lambda: None)
        self.nodes = Feed(Node, watching.node_changed, lambda _key, _error: None)
        self.pods = Feed(Pod, watching.pod_changed, lambda _key, _error: None)
        self.objects = Feed(Instaslice, watching.object_changed, watching.object_unreadable)
        self.flying.clear()

    def play(self) -> None:
        chance = self.forger.chance
        for name in NODE_NAMES:
            self.nodes.send("ADDED", self.forger.node(name))
            self.objects.send("ADDED", self.forger.instaslice(name))
        for name in POD_NAMES:
            self.pods.send("ADDED", self.forger.pod(name))
        for _ in range(chance.randint(1, 12)):
            chance.choice((self.observe, self.observe, self.decide, self.answer))()
        self.decide()

    def observe(self) -> None:
        forger, chance = self.forger, self.forger.chance
        kind = chance.choice(("MODIFIED", "MODIFIED", "MODIFIED", "DELETED"))
        match chance.randrange(20):
            case 0:
                self.begin()
            case 1:
                self.slicer.handle(PodVersionsReset())
                self.slicer.handle(InstasliceVersionsReset())
            case n if n < 6:
                self.nodes.send(kind, forger.node(chance.choice(NODE_NAMES)))
            case n if n < 12:
                self.pods.send(kind, forger.pod(chance.choice(POD_NAMES)))
            case _:
                self.objects.send(kind, forger.instaslice(chance.choice(NODE_NAMES)))

    def decide(self) -> None:
        for _ in range(50):
            self.slicer.decide()
            found = self.slicer.pop_writes()
            for one in found:
                if not isinstance(one, RecordEvent):
                    msgspec.json.encode(one.body() if hasattr(one, "body") else None)
                    self.flying.append(one)
            if not found and not self.slicer.has_work:
                return
        raise AssertionError("the machine never comes to rest")

    def answer(self) -> None:
        chance, slicer = self.forger.chance, self.slicer
        if not self.flying:
            return
        write = self.flying.pop(chance.randrange(len(self.flying)))
        match chance.randrange(4):
            case 0:
                slicer.handle(WriteDone(write))
            case 1:
                slicer.handle(WriteOutcomeUnknown(write))
                slicer.handle(RetryDue(write))
            case 2 if isinstance(write, Ungate):
                slicer.handle(UngateDenied(write, "no"))
                slicer.handle(DenialExpired(write.uid))
            case _:
                slicer.handle(WriteRefused(write))
                slicer.handle(RetryDue(write))


def play(seed: int) -> None:
    run_within(MOST_SECONDS, History(seed).play)


@settings(max_examples=examples(400))
@given(st.integers(0, 2**64 - 1))
def test_forged_histories_end_no_process(seed: int) -> None:
    play(seed)


@pytest.mark.soak
@settings(max_examples=20_000)
@given(st.integers(0, 2**64 - 1))
def test_twenty_thousand_forged_histories_end_no_process(seed: int) -> None:
    play(seed)
