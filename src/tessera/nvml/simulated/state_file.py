"""Simulated hardware that survives the processes that use it.

Real cards keep their instances when the agent is killed; so must simulated ones, and several processes must see the
same cards. The machine is one JSON file. Rules:

* a change holds an exclusive ``flock`` on ``<file>.lock`` from reading to writing, so changes never cross;
* the file is replaced by rename, so a reader never sees half of it, and a process killed at any instruction leaves the
  old or the new state;
* nothing is synced to disk: the page cache outlives processes, and simulated cards need not outlive the host;
* a file that cannot be read is an error that says so. It is never replaced by fresh cards, which would hide the loss.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from tessera.errors import UserError
from tessera.nvml.simulated.machine_state import MachineState, parse_spec


class StateFileError(UserError):
    """The file holds no simulated machine, or another one than requested."""


class MachineStore(Protocol):
    """Storage of a simulated machine."""

    @property
    def is_shared(self) -> bool:
        """True if other processes may change the machine."""
        ...

    @contextmanager
    def machine(self) -> Iterator[MachineState]:
        """Yields the machine for one reading or change; saves changes, also when an error leaves the block."""
        ...


class MemoryStore:
    """A machine of this process."""

    is_shared = False

    def __init__(self, machine: MachineState) -> None:
        self._machine = machine

    @contextmanager
    def machine(self) -> Iterator[MachineState]:
        """The machine itself."""
        yield self._machine


class FileStore:
    """A machine in a file.

    Args:
        path: the file; its folder exists.
        fresh: the machine to start with if there is no file.

    Raises:
        StateFileError: the file is damaged, or holds a machine of other cards or another seed than ``fresh``.
    """

    is_shared = True

    def __init__(self, path: Path, fresh: MachineState) -> None:
        self._path = path
        self._lock = path.with_name(path.name + ".lock")
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(MachineState).decode
        with self._hold_lock():
            if not path.exists():
                self._write(self._encode(fresh))
            stored = self._parse(path.read_bytes())
        if (parse_spec(stored.spec), stored.seed) != (parse_spec(fresh.spec), fresh.seed):
            raise StateFileError(
                f'simulated cards {path}: the file holds "{stored.spec}" of {stored.seed}, not "{fresh.spec}" of'
                f" {fresh.seed}; delete the file to start with other cards"
            )

    @contextmanager
    def machine(self) -> Iterator[MachineState]:
        """The machine as the file has it; written back if it was changed."""
        with self._hold_lock():
            try:
                before = self._path.read_bytes()
            except FileNotFoundError as error:
                raise StateFileError(
                    f"simulated cards {self._path}: the file was deleted; restart to make it"
                ) from error
            machine = self._parse(before)
            try:
                yield machine
            finally:
                after = self._encode(machine)
                if after != before:
                    self._write(after)

    def _parse(self, content: bytes) -> MachineState:
        try:
            return self._decode(content)
        except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, another type; nested
            raise StateFileError(
                f"simulated cards {self._path}: not a machine's state ({error}); delete the file for new cards"
            ) from error

    def _write(self, content: bytes) -> None:
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        new.write_bytes(content)
        new.replace(self._path)

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        with self._lock.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
