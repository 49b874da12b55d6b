"""Runs a decider over a record and reports each decision that differs; lists the deciders."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from tessera.replay.recorder import Decider, Decision, Record
from tessera.replay.state_codec import NotPlainError, decode, encode

#: Errors of code that gets values of another version: other arguments, or attributes that it does not have.
_OF_ANOTHER_FORM = ("TypeError", "AttributeError")


class DeciderKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of decider that can be replayed.

    Attributes:
        decider: ``module:Class``, or ``module:function`` for a decider without state.
        modules: modules and packages with the classes of its state, its events and its results.
    """

    decider: str
    modules: tuple[str, ...]

    def load(self) -> Any:
        """The class or the function."""
        module, _, name = self.decider.partition(":")
        return getattr(importlib.import_module(module), name)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that is not the recorded one.

    Attributes:
        index: number of the decision in the record, from 0.
        recorded: the recorded decision.
        now: the decision of this code, with the same arguments.
    """

    index: int
    recorded: Decision
    now: Decision


def replay(record: Record, kind: DeciderKind) -> Iterator[Difference]:
    """Yields the decisions of a record that differ from the recorded ones.

    Args:
        record: the record of a recorder.
        kind: the kind of its decider.

    Raises:
        NotPlainError: the record is damaged, or is of another decider.
    """
    decide = _load_decider(record, kind)
    broken = 0
    for index, recorded in enumerate(record.decisions):
        now = _decide_again(decide, recorded.arguments, kind)
        if now != recorded:
            broken += now.error in _OF_ANOTHER_FORM
            yield Difference(index=index, recorded=recorded, now=now)
    if broken and broken == len(record.decisions):
        errors = f"every decision ends in {' or '.join(_OF_ANOTHER_FORM)}"
        raise NotPlainError(f"the record is not readable by this version: {errors}")


def _load_decider(record: Record, kind: DeciderKind) -> Callable[..., Any]:
    """Returns the decider's function, with the state in which the record begins."""
    found = kind.load()
    if not isinstance(found, type):
        function: Callable[..., Any] = found
        return function
    decider = decode(record.state, kind.modules)
    if type(decider) is not found or not isinstance(decider, Decider):
        raise NotPlainError(f"the record's state is a {type(decider).__qualname__}, not a {kind.decider}")
    return decider.handle


def _decide_again(decide: Callable[..., Any], arguments: Any, kind: DeciderKind) -> Decision:
    pair = decode(arguments, kind.modules)
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise NotPlainError("the record is damaged: a decision's arguments are not a pair, by position and by name")
    positional, named = pair
    if not isinstance(positional, list | tuple) or not isinstance(named, dict) or not all(map(_is_text, named)):
        raise NotPlainError("the record is damaged: a decision's arguments have another form")
    try:
        return Decision(arguments, encode(decide(*positional, **named)))
    except Exception as error:  # noqa: BLE001 - the recorded decision may have failed the same way
        return Decision(arguments, error=type(error).__name__)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_NVML = "tessera.nvml.interface"

#: The deciders by the kind that a record names.
DECIDERS: Mapping[str, DeciderKind] = {
    "slicer": DeciderKind(
        decider="tessera.controller.slicing.slicer:Slicer",
        modules=(
            "tessera.controller",
            "tessera.claims.controller",
            "tessera.handover",
            "tessera.dra",
            "tessera.api",
            "tessera.kube",
            "tessera.placement",
            "tessera.reasons",
            "tessera.mig",
        ),
    ),
    "slices": DeciderKind(
        decider="tessera.agent.slices.state_machine:SliceStateMachine",
        modules=("tessera.agent.slices", "tessera.agent.inventory", "tessera.agent.base"),
    ),
    "mig-config": DeciderKind(
        decider="tessera.agent.mig_config.state_machine:CardStateMachine",
        modules=("tessera.agent.mig_config", "tessera.agent.inventory", "tessera.agent.base", "tessera.mig", _NVML),
    ),
    "health": DeciderKind(
        decider="tessera.agent.health.faults:HealthStateMachine",
        modules=("tessera.agent.health", "tessera.agent.inventory", "tessera.api.nodes", _NVML),
    ),
    "breaker": DeciderKind(
        decider="tessera.controller.fault_breaker:plan_breaker",
        modules=("tessera.controller", "tessera.api.nodes.card_faults"),
    ),
    "memory": DeciderKind(
        decider="tessera.memory_limits.policy:MemoryPolicy",
        modules=("tessera.memory_limits.policy", "tessera.agent.base"),
    ),
    "driver-plan": DeciderKind(
        decider="tessera.driver.planning.cluster_plan:plan_cluster",
        modules=("tessera.driver", "tessera.gpu_operator", "tessera.api", "tessera.kube.resources"),
    ),
    "driver-rollout": DeciderKind(
        decider="tessera.driver.rollout.fleet:decide_rollout",
        modules=("tessera.driver.rollout", "tessera.driver.node_facts", "tessera.gpu_operator"),
    ),
}
