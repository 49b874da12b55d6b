"""Log entries of Tessera's processes, which all run in the lab's own process, go to the log of their container.

An entry belongs to the container in whose task, or a task that it started, it was made: tasks inherit context
variables. Entries of the lab itself go to no container. An entry has the time of the container's clock.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar

from tessera.cli.base.process import ENTRY, EscapingFormatter
from tessera.clock import rfc3339_micro
from tessera_lab.kubelet.context import ContainerContext

_CONTAINER: ContextVar[ContainerContext] = ContextVar("container")


class _OfContainer(EscapingFormatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 - the base class's
        return rfc3339_micro(_CONTAINER.get().clock.now())


class _ContainerHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(_OfContainer(ENTRY))
        self.addFilter(lambda record: not record.name.startswith("tessera_lab"))

    def emit(self, record: logging.LogRecord) -> None:
        container = _CONTAINER.get(None)
        if container is not None:
            container.log(self.format(record))


@contextmanager
def container_logs() -> Iterator[None]:
    """Inside the block each entry of a process that :func:`enter_container` names goes to its container's log."""
    handler = _ContainerHandler()
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def enter_container(context: ContainerContext) -> None:
    """This task, and what it starts, is a process of the container."""
    _CONTAINER.set(context)


def container_in(context: Context) -> ContainerContext | None:
    """The container whose process a task with this context belongs to; None for tasks of the lab."""
    return context.get(_CONTAINER)
