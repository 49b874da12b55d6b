"""Asks the agents to leave their nodes, waits for their answers, and removes Tessera's fields from the Nodes.

The results are those of every step of a removal: what was done, what is left, and what is in the way.

Patches remove the fields of a Node that Tessera's processes have set. The API server records the owner of each field
(``metadata.managedFields``), and each of Tessera's processes writes under names of its own. So there is no list of
labels to keep up to date, and a label that somebody else set under the same name stays. Fields that another owner holds
as well stay too.

The memory quota is an amount that the agent patched. The amounts of devices are kubelet's: it shows 0 of a resource
whose plugin has ended, and would write that 0 again (docs/decisions/node-status.md), so they stay.
"""

import random
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import msgspec

from tessera.api.names import QUOTA_RESOURCE, SYSTEM_NAMESPACE
from tessera.api.nodes.node_marks import (
    AGENT_APP,
    DRIVER_SET_LABEL,
    REMOVAL_ANNOTATION,
    RemovalAnswer,
    RemovalRequest,
    RemovalState,
    read_answer,
)
from tessera.cli.install.adoption import DEPLOY_PREFIX
from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.kube.errors import Conflict, NotFound
from tessera.kube.informer import Informer, InformerGroup
from tessera.kube.resources import NODES, PODS, Node


class Done(msgspec.Struct, frozen=True):
    """One thing that was done, or that a dry run would do.

    Attributes:
        name: the object as kubectl prints it, with its namespace: ``daemonset.apps/tessera-agent in tessera-system``.
        result: what happened to it.
        notes: for people: what stays by design, with the command that removes it.
    """

    name: str
    result: Literal[
        "deleted",
        "asked",
        "left by its agent",
        "waits",
        "cleaned",
        "ungated",
        "told",
        "driver removed",
        "given back",
        "kept",
    ]
    notes: tuple[str, ...] = ()


class Left(msgspec.Struct, frozen=True):
    """Something that stays though it should go.

    Attributes:
        name: the object, as in :class:`Done`.
        reason: why it stays, and what to do.
    """

    name: str
    reason: str


#: One result of a step.
Result = Done | Left


class Unfinished(Exception):  # noqa: N818 - no error of the program
    """The removal cannot go on now; the same command goes on later.

    Attributes:
        left: what is in the way.
    """

    def __init__(self, *left: Left) -> None:
        super().__init__("; ".join(f"{each.name}: {each.reason}" for each in left))
        self.left = left


Json = Mapping[str, Any]

#: Beginning of the names of Tessera's field managers (:class:`tessera.kube.client.Client`).
OURS = "tessera-"
#: Beginning of the keys of taints that only Tessera removes.
_TAINT = "tessera.dev/"


class NodeFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of one Node.

    Attributes:
        labels: keys of labels.
        annotations: keys of annotations.
        conditions: types of conditions.
        taints: keys of taints.
        quota: true if the memory quota is in capacity or allocatable.
        cordoned: true if Tessera cordoned the node.
    """

    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    quota: bool = False
    cordoned: bool = False


def our_fields(node: Json) -> NodeFields:
    """The fields of a Node that Tessera set and that are still there."""
    ours, others = _Owned(), _Owned()
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    for entry in metadata.get("managedFields") or ():
        (ours if str(entry.get("manager", "")).startswith(OURS) else others).add(entry.get("fieldsV1") or {})
    return NodeFields(
        labels=_present(ours.labels - others.labels, metadata.get("labels") or {}),
        annotations=_present(ours.annotations - others.annotations, metadata.get("annotations") or {}),
        conditions=_present(
            ours.conditions - others.conditions, {each["type"]: each for each in status.get("conditions") or ()}
        ),
        taints=tuple(sorted({each["key"] for each in spec.get("taints") or () if each["key"].startswith(_TAINT)})),
        quota=any(QUOTA_RESOURCE in (status.get(each) or {}) for each in ("capacity", "allocatable")),
        cordoned=ours.cordon and not others.cordon and bool(spec.get("unschedulable")),
    )


def metadata_patch(node: Json, fields: NodeFields, keep: Collection[str] = ()) -> dict[str, Any]:
    """The merge patch of the Node itself; empty if there is nothing to remove there.

    Args:
        node: the Node.
        fields: our fields of it.
        keep: keys of labels that stay.
    """
    patch: dict[str, Any] = {}
    gone = {"labels": [each for each in fields.labels if each not in keep], "annotations": fields.annotations}
    if metadata := {field: _without(node["metadata"][field], keys) for field, keys in gone.items() if keys}:
        patch["metadata"] = metadata
    spec: dict[str, Any] = {}
    if fields.taints:
        kept = [each for each in node["spec"].get("taints") or () if each["key"] not in fields.taints]
        spec["taints"] = kept or None
    if fields.cordoned:
        spec["unschedulable"] = None
    if spec:
        patch["spec"] = spec
    return patch


def _without(shown: Mapping[str, str], keys: Collection[str]) -> dict[str, None] | None:
    """The patch of a map; ``None`` if all of it goes, so that nobody owns an empty map."""
    return dict.fromkeys(keys) if shown.keys() - set(keys) else None


def status_patch(node: Json, fields: NodeFields) -> dict[str, Any]:
    """The merge patch of the Node's status; empty if there is nothing to remove there."""
    status: dict[str, Any] = {}
    if fields.conditions:
        status["conditions"] = [
            each for each in node["status"].get("conditions") or () if each["type"] not in fields.conditions
        ]
    if fields.quota:
        status |= {"capacity": {QUOTA_RESOURCE: None}, "allocatable": {QUOTA_RESOURCE: None}}
    return {"status": status} if status else {}


def _present(keys: set[str], shown: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(sorted(keys & shown.keys()))


class _Owned:
    """The fields of some owners."""

    def __init__(self) -> None:
        self.labels: set[str] = set()
        self.annotations: set[str] = set()
        self.conditions: set[str] = set()
        self.cordon = False

    def add(self, fields: Json) -> None:
        metadata, spec, status = (_part(fields, f"f:{name}") for name in ("metadata", "spec", "status"))
        self.labels |= _names(_part(metadata, "f:labels"))
        self.annotations |= _names(_part(metadata, "f:annotations"))
        self.conditions |= set(_condition_types(_part(status, "f:conditions")))
        self.cordon |= "f:unschedulable" in spec


def _part(fields: Json, name: str) -> Json:
    found = fields.get(name)
    return found if isinstance(found, Mapping) else {}


def _names(fields: Json) -> set[str]:
    return {name.removeprefix("f:") for name in fields if name.startswith("f:")}


def _condition_types(fields: Json) -> Sequence[str]:
    found: list[str] = []
    for name in fields:
        if name.startswith("k:"):
            try:
                key = msgspec.json.decode(name.removeprefix("k:"), type=dict[str, str])
            except msgspec.DecodeError:
                continue
            found.append(key.get("type", ""))
    return found


#: Files that an agent that could not be asked may have left on its node.
FILES = "/var/lib/tessera, /var/run/cdi/tessera.dev-*, /run/nvidia/mps"
#: Tries of a patch while others write the same Node.
_TRIES = 20


async def agent_nodes(client: Client) -> dict[str, bool]:
    """The nodes that have an agent, by name, and whether it runs."""
    pods = await client.list(PODS, SYSTEM_NAMESPACE, label_selector=f"app.kubernetes.io/name={AGENT_APP}")
    found: dict[str, bool] = {}
    for pod in pods.items:
        if pod.spec.node_name:
            runs = pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
            found[pod.spec.node_name] = found.get(pod.spec.node_name, False) or runs
    return found


async def ask_agents(client: Client, request: RemovalRequest, *, dry: bool) -> AsyncIterator[Result]:
    """Writes the request on each node that has an agent, or fields of one.

    Labels of a driver that stayed, or of an adoption, are none of these.
    """
    agents = await agent_nodes(client)
    for node in (await client.list(NODES.as_dicts())).items:
        metadata = node["metadata"]
        shown = (metadata.get("annotations") or {}).get(REMOVAL_ANNOTATION)
        fields = our_fields(node)
        labels = tuple(
            each for each in fields.labels if each != DRIVER_SET_LABEL and not each.startswith(DEPLOY_PREFIX)
        )
        had_agent = msgspec.structs.replace(fields, labels=labels) != NodeFields()
        if shown is not None or not (had_agent or metadata["name"] in agents):
            continue
        if not dry:
            patch = {"metadata": {"annotations": {REMOVAL_ANNOTATION: request.value}}}
            try:
                await client.merge_patch(NODES, metadata["name"], patch, uid=metadata["uid"])
            except (NotFound, Conflict):  # the node has gone
                continue
        yield Done(f"node/{metadata['name']}", "asked")


async def wait_for_agents(client: Client, clock: Clock, *, seconds: float, force: bool) -> AsyncIterator[Result]:
    """Waits until every agent that was asked and can answer has left its node.

    Raises:
        Unfinished: an agent has not left in time, and ``force`` is false.
    """
    runs = await agent_nodes(client)
    asked = [
        each.metadata for each in (await client.list(NODES)).items if REMOVAL_ANNOTATION in each.metadata.annotations
    ]
    agents = {each.name: runs.get(each.name, False) for each in asked}
    informer = Informer(client, NODES, clock=clock, rng=random.Random())
    group = InformerGroup(informer)
    shown: dict[str, RemovalAnswer | None] = {}
    async with group.running():
        deadline = clock.monotonic() + seconds
        while True:
            answers = {name: _answer(informer.cache.get(name)) for name in sorted(agents)}
            for name, answer in answers.items():
                if answer is not None and answer != shown.get(name):
                    yield Done(f"node/{name}", _RESULTS[answer.state], answer.notes)
            shown = answers
            expected = _expected(informer, agents)
            left = max(0.0, deadline - clock.monotonic())
            if not expected or not left:
                break
            with suppress(TimeoutError):
                await group.wait_until(partial(_differs, informer, agents, (answers, expected)), left, "an answer")
        late = [Left(f"node/{name}", _why_late(answers[name])) for name in expected]
        if late and not force:
            raise Unfinished(*late)
        for each in late:
            yield each
        for name, answer in answers.items():
            if name not in expected and (node := informer.cache.get(name)) is not None and not _has_left(answer):
                yield Left(f"node/{name}", _why_unreachable(node, runs=agents[name]))


_RESULTS: Mapping[RemovalState, Literal["left by its agent", "waits"]] = {
    RemovalState.DONE: "left by its agent",
    RemovalState.WAITING: "waits",
}


def _expected(informer: Informer[Node], agents: Mapping[str, bool]) -> list[str]:
    """The nodes whose agent will still answer."""
    nodes = ((name, informer.cache.get(name)) for name, runs in sorted(agents.items()) if runs)
    return [name for name, node in nodes if node is not None and node.status.is_ready and not _has_left(_answer(node))]


def _differs(informer: Informer[Node], agents: Mapping[str, bool], before: tuple[object, object]) -> bool:
    answers = {name: _answer(informer.cache.get(name)) for name in sorted(agents)}
    return (answers, _expected(informer, agents)) != before


def _answer(node: Node | None) -> RemovalAnswer | None:
    return None if node is None else read_answer(node.metadata.annotations)


def _has_left(answer: RemovalAnswer | None) -> bool:
    return answer is not None and answer.state is RemovalState.DONE


def _why_late(answer: RemovalAnswer | None) -> str:
    if answer is None:
        return (
            "its agent does not answer; look at its log (kubectl logs -n tessera-system), then run the command again;"
            f" --force goes on without it, which leaves {FILES} there"
        )
    notes = "; ".join(answer.notes) or "its agent has not finished"
    return f"{notes}; run the command again later, or go on by --force, which ends these clients' computations"


def _why_unreachable(node: Node, *, runs: bool) -> str:
    reason = "its agent does not run" if node.status.is_ready or not runs else "it is not ready"
    return (
        f"{reason}, so nobody cleaned it; on the node, remove {FILES}, and slices by nvidia-smi mig -dci and"
        " nvidia-smi mig -dgi; a reboot removes the slices as well"
    )


async def clean_nodes(client: Client, *, keep: Sequence[str] = (), dry: bool) -> AsyncIterator[Result]:
    """Removes Tessera's fields from every Node.

    Args:
        client: the API server.
        keep: keys of labels that stay.
        dry: change nothing.
    """
    for node in (await client.list(NODES.as_dicts())).items:
        if await _clean_node(client, node, keep, dry=dry):
            yield Done(f"node/{node['metadata']['name']}", "cleaned")


async def _clean_node(client: Client, node: dict[str, Any], keep: Sequence[str], *, dry: bool) -> bool:
    """Returns true if there was something to remove."""
    cleaned = False
    name, uid = node["metadata"]["name"], node["metadata"]["uid"]
    for _ in range(_TRIES):
        fields = our_fields(node)
        # The request goes last: a node without it, and with other fields of ours, would be asked again.
        patches = {"status": status_patch(node, fields), None: metadata_patch(node, fields, keep)}
        if not any(patches.values()) or dry:
            return cleaned or any(map(bool, patches.values()))
        try:
            for subresource, patch in patches.items():
                if patch:
                    version = node["metadata"]["resourceVersion"]
                    node = await client.merge_patch(
                        NODES.as_dicts(), name, patch, uid=uid, resource_version=version, subresource=subresource
                    )
            cleaned = True
        except NotFound:
            return cleaned
        except Conflict:
            try:
                node = await client.get(NODES.as_dicts(), name)
            except NotFound:
                return cleaned
            if node["metadata"]["uid"] != uid:
                return cleaned
    raise Unfinished(Left(f"node/{name}", "others write it all the time; run the command again"))
