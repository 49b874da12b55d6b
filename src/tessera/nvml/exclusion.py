"""A lock that many threads share, or one thread holds alone."""

from collections.abc import Callable
from threading import Condition
from typing import TypeVar

T = TypeVar("T")


class SharedUse:
    """A library that threads share until one needs it for itself. Who waits to be alone goes before who comes later."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._sharing = 0
        self._alone = 0  # those that are alone, or wait to be

    def shared(self, act: Callable[[], T]) -> T:
        """Does something beside others."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._sharing += 1
        try:
            return act()
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    def alone(self, act: Callable[[], T]) -> T:
        """Does something while nobody else does anything."""
        with self._changed:
            self._alone += 1
            self._changed.wait_for(lambda: not self._sharing)
            try:
                return act()
            finally:
                self._alone -= 1
                self._changed.notify_all()
