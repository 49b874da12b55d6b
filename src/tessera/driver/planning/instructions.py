"""Instructions of the planner to the executor, as values. Each can be lost, or carried out twice, without harm."""

from typing import Any

import msgspec

from tessera.api.driver.driver_policy import DriverPolicy
from tessera.api.driver.node_status import DriverStatus
from tessera.driver.driver_sets import DriverSet
from tessera.driver.manifests.runtimes import Runtime


class CreateSet(msgspec.Struct, frozen=True, kw_only=True):
    """Makes a driver set's DaemonSet."""

    set: DriverSet
    policy: DriverPolicy


class DeleteSet(msgspec.Struct, frozen=True, kw_only=True):
    """Deletes the DaemonSet of a set that no node refers to."""

    name: str
    uid: str


class LabelNode(msgspec.Struct, frozen=True, kw_only=True):
    """Names a node's driver set; an empty one removes the label. Holds only for the node as the planner saw it.

    ``owner`` is the node's NVIDIADriver, under upstream's label; an empty one removes that label, None keeps it.
    """

    node: str
    uid: str
    version: str
    set: str
    owner: str | None = None


class WriteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Writes a node's annotation; None removes it."""

    node: str
    uid: str
    status: DriverStatus | None


class WriteCondition(msgspec.Struct, frozen=True, kw_only=True):
    """Writes the condition of a node's driver, as JSON; None removes it."""

    node: str
    uid: str
    condition: dict[str, Any] | None


class CreateValidationPod(msgspec.Struct, frozen=True, kw_only=True):
    """Creates the pod that validates a node's driver; ``nri_plugin`` as in the policy's toolkit settings."""

    node: str
    uid: str
    set: str
    nri_plugin: bool = False


class DeletePod(msgspec.Struct, frozen=True, kw_only=True):
    """Deletes a validation or toolkit pod that belongs to another driver or cannot continue."""

    name: str
    uid: str


class ApplyToolkit(msgspec.Struct, frozen=True, kw_only=True):
    """Applies the container toolkit's DaemonSet for managed nodes."""

    policy: DriverPolicy
    runtime: Runtime


class DeleteToolkit(msgspec.Struct, frozen=True):
    """Deletes the container toolkit's DaemonSet."""


class WritePolicyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Writes the status of an administrator's object: a merge patch."""

    kind: str
    name: str
    uid: str
    patch: dict[str, Any]


Instruction = (
    CreateSet
    | DeleteSet
    | LabelNode
    | WriteStatus
    | WriteCondition
    | CreateValidationPod
    | DeletePod
    | ApplyToolkit
    | DeleteToolkit
    | WritePolicyStatus
)


def written_node(instruction: Instruction) -> str:
    """The node that an instruction writes; empty if it writes none."""
    return instruction.node if isinstance(instruction, LabelNode | WriteStatus | WriteCondition) else ""


def instruction_key(instruction: Instruction) -> str:
    """The object that has at most one write in flight."""
    match instruction:
        case CreateSet(set=made):
            return f"set/{made.name}"
        case DeleteSet(name=name):
            return f"set/{name}"
        case LabelNode(node=node):
            return f"label/{node}"
        case WriteStatus(node=node):
            return f"told/{node}"
        case WriteCondition(node=node):
            return f"condition/{node}"
        case CreateValidationPod(node=node):
            return f"validation/{node}"
        case DeletePod(uid=uid):
            return f"pod/{uid}"
        case ApplyToolkit() | DeleteToolkit():
            return "toolkit"
        case WritePolicyStatus(kind=kind, name=name):
            return f"policy/{kind}/{name}"
