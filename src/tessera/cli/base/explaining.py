"""Explains an object as far as its user may see it: for ``tessera why``, and for the screen of ``tessera top``."""

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from tessera.cli.base.connection import CommandError
from tessera.text import count_noun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tessera.dashboard.view.explanations import Explanation as Told
    from tessera.explain.explanation import Explanation, ExplanationReport, Query
    from tessera.forecast.queue_page import QueuePage
    from tessera.kube.client import Client


#: Seconds after which a command reads the cluster itself.
_ONE_REQUEST = 5.0
#: Most pods that one command explains by their labels; each may need a plan of the cluster.
_SELECTED = 20


class Explained(NamedTuple):
    """The report, and what to say of a right that is missing."""

    report: "ExplanationReport"
    notes: "Sequence[str]"


async def explain_as_user(client: "Client", wanted: "Query", namespace: str) -> Explained:
    """Explains an object as far as the user may see it.

    Args:
        client: the user's client.
        wanted: the object.
        namespace: its namespace.

    Raises:
        CommandError: there is no such object, or the user may not read it.
    """
    notes: list[str] = []
    return Explained(await _report(client, wanted, namespace, notes), notes)


async def explain_selected(client: "Client", selector: str, namespace: str) -> Explained:
    """Explains the first pods of a namespace with these labels, as those of a workload: equal answers are one.

    Raises:
        CommandError: there is none, or the user may not read them.
    """
    from tessera.explain.explanation import ExplanationReport, Query, merge_alike
    from tessera.kube.resources import PODS

    found = (await client.list(PODS, namespace, label_selector=selector)).items
    if not found:
        raise CommandError(f"error: no pod in namespace {namespace} has the labels {selector}; -n names another")
    names = sorted(each.metadata.name for each in found)[:_SELECTED]
    told = [await explain_as_user(client, Query("pod", name), namespace) for name in names]
    cut = f"; the first {len(names)} are explained" if len(names) < len(found) else ""
    report = ExplanationReport(
        kind="pods",
        namespace=namespace,
        name=selector,
        summary=f"{count_noun(len(found), 'pod')}{cut}",
        answers=tuple(merge_alike(answer for each in told for answer in each.report.answers)),
    )
    return Explained(report, list(dict.fromkeys(note for each in told for note in each.notes)))


async def _report(client: "Client", wanted: "Query", namespace: str, notes: list[str]) -> "ExplanationReport":
    told = await _ask(client, namespace, wanted.name) if wanted.kind == "pod" else None
    if told is not None and told.complete:
        return told.report

    from tessera.clock import SystemClock
    from tessera.explain.explanation import OWNED_BY
    from tessera.explain.query import explain
    from tessera.kube.errors import Forbidden, NotFound

    if wanted.kind == "pod":
        found = await _explain_as_tenant(client, namespace, wanted.name, notes)
        if found is not None:
            return await _with_queue(client, found)

    async def ask(owner: str) -> "Sequence[Explanation]":
        told = await _explain_as_tenant(client, namespace, OWNED_BY + owner, notes)
        return told.answers if told is not None else ()

    try:
        return await explain(client, SystemClock(), wanted, namespace, _read_queue, ask)
    except NotFound as error:
        raise CommandError(str(error), *getattr(error, "__notes__", ())) from error
    except Forbidden as error:
        if wanted.kind not in {"node", "claim"}:
            raise
        raise CommandError(await _rights(client, wanted.kind)) from error


async def _read_queue(client: "Client") -> "QueuePage | str":
    from tessera.observe.queue_reading import read_queue  # no node asks for it

    return await read_queue(client)


async def _ask(client: "Client", namespace: str, name: str) -> "Told | None":
    """What the API for tenants says of a pod, which is one request; None if it does not say."""
    from tessera.dashboard.view.explanations import EXPLANATIONS, read_view
    from tessera.kube.errors import ApiError

    try:
        async with asyncio.timeout(_ONE_REQUEST):
            return await read_view(client, EXPLANATIONS, namespace, name)
    except (ApiError, OSError):
        return None


async def _with_queue(client: "Client", found: "ExplanationReport") -> "ExplanationReport":
    """A tenant's report of a pod that Kueue holds, with what Kueue tells that tenant."""
    import msgspec

    from tessera.clock import SystemClock
    from tessera.explain.query import explain_queue
    from tessera.kube.errors import ApiError
    from tessera.kube.resources import PODS

    if [each.case for each in found.answers] != ["other-gate"]:
        return found
    try:
        pod = await client.get(PODS, found.name, found.namespace)
        answer = await explain_queue(client, SystemClock(), pod)
    except ApiError:
        return found
    return found if answer is None else msgspec.structs.replace(found, answers=(answer,))


async def _rights(client: "Client", kind: str) -> str:
    """The error: what the user may not read, what works without, and who gives the right by which command."""
    from tessera.cli.base.tenant_view import READ_CLUSTER, describe_role

    return (
        f"error: you may not read this {kind}; tessera why POD explains your own pods without that right, and an"
        f" administrator gives it by {await describe_role(client, READ_CLUSTER)}"
    )


async def _explain_as_tenant(
    client: "Client", namespace: str, name: str, notes: list[str]
) -> "ExplanationReport | None":
    """What the API for tenants says to a user who may not list nodes; None for others, and if it says nothing.

    A right that is missing is noted in one line: the answer is then made from what the pod was told.

    Args:
        client: the user's client.
        namespace: of the pod.
        name: of the pod, or of several, as :data:`~tessera.explain.explanation.OWNED_BY` says.
        notes: takes the note.
    """
    from tessera.kube.errors import ApiError, Forbidden, NotFound, is_unanswered
    from tessera.kube.resources import NODES

    try:
        await client.page(NODES, limit=1)
    except (ApiError, OSError) as refused:
        if not isinstance(refused, Forbidden):
            if not is_unanswered(refused):
                raise
            return None  # the direct way tells what it could not read
        from tessera.cli.base.tenant_view import missing_right
        from tessera.dashboard.view.explanations import EXPLANATIONS, read_view

        try:
            return (await read_view(client, EXPLANATIONS, namespace, name)).report
        except ApiError as error:
            if isinstance(error, NotFound) and f'"{name}"' in error.status.message:
                return None  # there is no such pod; the direct way suggests another name
            notes.append(f"note: this is what the pod was told: {await missing_right(client, namespace, error)}")
    return None
