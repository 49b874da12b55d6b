"""Waits, driven by events, until the cluster reaches a state."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from tessera.kube.watch.informer import Informer

T = TypeVar("T")


class InformerGroup:
    """Several informers whose caches one condition can read together."""

    def __init__(self, *informers: Informer[Any]) -> None:
        self._informers = informers
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keeps the informers running inside the block, first waiting for their first lists.

        An exception of the block is raised unchanged, not inside an exception group.
        """
        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(informer.run()) for informer in self._informers]
            for informer in self._informers:
                informer.add_handler(lambda _event: self._changed.set())
                await informer.wait_synced()
            try:
                yield
            except Exception as error:  # noqa: BLE001 - any of them, raised again below
                failure = error
            for task in tasks:
                task.cancel()
        if failure is not None:
            raise failure

    async def wait_until(self, condition: Callable[[], T | None], seconds: float, what: str) -> T:
        """Returns the first result of ``found`` that is neither None nor False; calls it again after every change.

        Raises:
            TimeoutError: there was none within ``seconds``; the text has ``what`` as the awaited condition.
        """
        try:
            async with asyncio.timeout(seconds):
                while True:
                    self._changed.clear()
                    answer = condition()
                    if answer is not None and answer is not False:
                        return answer
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(f"{what}: not within {seconds:.0f} seconds") from None
