"""The records of a process, over its socket."""

import asyncio
import os

import pytest

from tessera.replay.recorder import Decider, Recorders, fetch_records, read_records, serve_records

NAME = f"tessera-test-{os.getpid()}"


class Counter(Decider[[int], int]):
    """A decider."""

    def __init__(self) -> None:
        self.count = 0

    def handle(self, event: int) -> int:
        self.count += event
        return self.count


async def fetch(recorders: Recorders) -> bytes:
    """Returns the answer of a process with these recorders."""
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(serve_records(recorders, NAME))
        while True:
            await asyncio.sleep(0)
            try:
                return await fetch_records(NAME)
            except ConnectionRefusedError:
                continue
            finally:
                serving.cancel()
    raise AssertionError


async def test_the_records_of_all_deciders_come() -> None:
    recorders = Recorders(keep=10)
    for name in ("a", "b"):
        counter = Counter()
        recorders.attach("counter", counter, name)
        counter.handle(2)
    recorders.forget("counter", "a")
    (record,) = read_records(await fetch(recorders))
    assert (record.decider, record.name) == ("counter", "b")
    assert [each.result for each in record.decisions] == [2]


async def test_another_user_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    recorders = Recorders(keep=10)
    recorders.attach("counter", Counter())
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    assert await fetch(recorders) == b""


async def test_a_process_that_does_not_record_listens_nowhere() -> None:
    await serve_records(Recorders(), NAME)
    with pytest.raises(ConnectionRefusedError):
        await fetch_records(NAME)


@pytest.mark.parametrize("data", [b"{", b"[]\n", b'{"decider": 1}'])
def test_a_file_of_something_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="line 1 is no record of a decider"):
        read_records(data)
