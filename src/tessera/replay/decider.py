"""The one idiom of what decides: events in at one entry, instructions out, no I/O, no clock."""

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, ParamSpec, TypeVar

from tessera.replay.recorder import Recorder

P = ParamSpec("P")
Result = TypeVar("Result")


class Decider(ABC, Generic[P, Result]):
    """A state machine whose decisions can be recorded and replayed.

    Its state is plain data; what goes in (an event, and the time where it matters) and what comes out are values.
    Executors call :meth:`handle`; a decider implements :meth:`decide`.
    """

    #: Attributes that are no part of the state.
    TRANSIENT: ClassVar[tuple[str, ...]] = ("recorder",)
    #: Keeps what goes in and comes out; None while nothing is recorded.
    recorder: Recorder | None = None

    def handle(self, *args: P.args, **kwargs: P.kwargs) -> Result:
        """Takes in one event; arguments and result are those of :meth:`decide`."""
        if self.recorder is None:
            return self.react(*args, **kwargs)
        return self.recorder.call(self.react, *args, **kwargs)

    @abstractmethod
    def react(self, *args: P.args, **kwargs: P.kwargs) -> Result:
        """What to do now."""
