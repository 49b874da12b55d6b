"""One run of an image's program, with the probes that watch it."""

import asyncio
from collections.abc import Awaitable, Callable

from tessera_lab.kubelet.containers.probes import Probing
from tessera_lab.kubelet.images.image_programs import ProgramContext, exit_code

#: Exit code of a container that was killed.
KILLED_EXIT = 137


class ProgramRun:
    """A container that does what its image's program does.

    Args:
        program: the image's.
        context: what it knows.
        probing: its probes.

    Attributes:
        killed_by_probe: its startup probe failed too often.
    """

    def __init__(
        self, program: Callable[[ProgramContext], Awaitable[int]], context: ProgramContext, probing: Probing
    ) -> None:
        self._program = program
        self._context = context
        self._probing = probing
        self._task: asyncio.Task[int] | None = None
        self.killed_by_probe = False

    async def run(self) -> int:
        """Runs the program to its end and returns its exit code; cancel it to stop the program.

        A program that is stopped may take its time; :meth:`kill` ends it at once.
        """
        task = self._task = asyncio.create_task(exit_code(self._program, self._context))
        probes = asyncio.create_task(self._probing.run())
        try:
            await asyncio.wait([task, probes], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            probes.result()
            self.killed_by_probe = True
            return KILLED_EXIT
        finally:
            probes.cancel()
            task.cancel()
            await asyncio.wait([task, probes])
            self._context.clock.stopped = True

    def kill(self) -> None:
        """What the program still does is over; waits of it do not end any more."""
        self._context.clock.stopped = True
        if self._task is not None:
            self._task.cancel()
