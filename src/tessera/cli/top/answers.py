"""What ``tessera top`` asks the cluster about the row under the cursor."""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.cli.base.connection import describe_error
from tessera.observe.top_view import Ask, Failed, Question, Told
from tessera.text import age, one_line

if TYPE_CHECKING:
    from tessera.kube.client import Client
    from tessera.kube.resources import Pod

#: Lines of a log that are shown before what comes, and the most bytes of a line that is kept.
_TAIL, _LINE = 200, 1 << 14
#: Events that a description lists, the newest ones.
_EVENTS = 20


async def answer(client: "Client", ask: Ask, now: float) -> AsyncIterator[Told | Failed]:
    """Yields the answer in parts; an error becomes a sentence with the next step.

    Args:
        client: the user's client.
        ask: the request.
        now: the time.
    """
    from tessera.kube.errors import ApiError
    from tessera.text import UserError

    makers = {Question.WHY: _why, Question.LOG: _log, Question.DESCRIBE: _describe, Question.PAGE: _page}
    try:
        async for lines in makers[ask.question](client, ask, now):
            yield Told(ask, lines)
    except (click.ClickException, ApiError, UserError, OSError, ValueError) as error:
        yield Failed(ask, _sentence(ask, error))


def _sentence(ask: Ask, error: Exception) -> str:
    """The failure in one line, with what to do next."""
    from tessera.kube.errors import Forbidden, NotFound

    text = error.format_message() if isinstance(error, click.ClickException) else describe_error(error)
    reason = (text or str(error)).removeprefix("error: ")
    if isinstance(error, NotFound):
        reason = f"pod {ask.namespace}/{ask.pod} is gone; press Escape, and choose another one"
    elif isinstance(error, Forbidden) and ask.question is Question.LOG:
        reason = f"you may not read logs in namespace {ask.namespace}: ask an administrator for get on pods/log"
    elif isinstance(error, OSError):
        reason = f"{reason}; press the key again once the server answers"
    return f"{ask.title}: {one_line(reason, 1_000)}"


async def _why(client: "Client", ask: Ask, now: float) -> AsyncIterator[Sequence[str]]:
    from tessera.cli.base.explaining import explain_as_user
    from tessera.explain.explanation import Query, report_lines

    del now
    wanted = Query(kind="pod", name=ask.pod) if ask.pod else Query(kind="node", name=ask.node)
    found, notes = await explain_as_user(client, wanted, ask.namespace or "default")
    yield [*report_lines(found), *(["", *notes] if notes else [])]


async def _log(client: "Client", ask: Ask, now: float) -> AsyncIterator[Sequence[str]]:
    """The last lines of the container's log, and those that come, until its end."""
    from tessera.kube.resources import PODS

    del now
    query = [("follow", "true"), ("tailLines", str(_TAIL)), *([("container", ask.container)] if ask.container else [])]
    async with client.stream(f"{PODS.path(ask.namespace, ask.pod)}/log", query) as chunks:
        yield []
        rest = b""
        async for chunk in chunks:
            *whole, rest = (rest + chunk).split(b"\n")
            yield [each[:_LINE].decode(errors="replace") for each in whole]
            rest = rest[:_LINE]
    yield [*([rest.decode(errors="replace")] if rest else []), "(the log has ended)"]


async def _describe(client: "Client", ask: Ask, now: float) -> AsyncIterator[Sequence[str]]:
    from tessera.kube.errors import ApiError
    from tessera.kube.resources import EVENTS, PODS

    pod = await client.get(PODS, ask.pod, ask.namespace)
    yield list(describe(pod, now))
    try:
        about = f"involvedObject.uid={pod.metadata.uid}"
        events = (await client.list(EVENTS.as_dicts(), ask.namespace, field_selector=about)).items
    except ApiError as error:
        yield ["", f"events: {describe_error(error)}"]
        return
    yield ["", *_event_lines(events, now)]


def describe(pod: "Pod", now: float) -> Iterator[str]:
    """What a person looks for first in a pod."""
    from tessera.clock import parse_rfc3339

    status = pod.status
    started = f", for {age(max(0.0, now - parse_rfc3339(status.start_time)))}" if status.start_time else ""
    yield f"{status.phase or 'phase not known'} on {pod.spec.node_name or 'no node yet'}{started}"
    if pod.workload:
        yield f"made by {pod.workload}"
    if status.reason or status.message:
        yield f"{status.reason}: {status.message}"
    yield ""
    yield "Conditions:"
    for each in status.conditions:
        why = f"  {each.reason}: {each.message}" if each.reason or each.message else ""
        yield f"  {each.type}={each.status}{why}"
    yield ""
    yield "Containers:"
    for container in pod.spec.containers:
        limits = ", ".join(f"{name} {amount}" for name, amount in container.resources.limits.items())
        yield f"  {container.name}: {container.image}"
        yield f"    limits: {limits or 'none'}"
    ours = {key: value for key, value in pod.metadata.annotations.items() if "tessera.dev/" in key}
    if ours:
        yield ""
        yield "Annotations:"
        yield from (f"  {key}: {value}" for key, value in sorted(ours.items()))


def _event_lines(events: Iterable[dict[str, Any]], now: float) -> Iterator[str]:
    from tessera.clock import parse_rfc3339

    def last(event: dict[str, Any]) -> float:
        text = event.get("lastTimestamp") or event.get("eventTime") or ""
        try:
            return parse_rfc3339(text)
        except ValueError:
            return 0.0

    found = sorted(events, key=last)[-_EVENTS:]
    yield "Events:" if found else "No events."
    for each in found:
        when = age(max(0.0, now - last(each))) if last(each) else "?"
        yield f"  {when:>5} ago  {each.get('type', '')} {each.get('reason', '')}: {each.get('message', '')}"


async def _page(client: "Client", ask: Ask, now: float) -> AsyncIterator[Sequence[str]]:
    """The address of the live page, filtered to the row; how to get it where the installation names none."""
    from urllib.parse import urlencode

    from tessera.kube.errors import ApiError
    from tessera.kube.resources import DEPLOYMENTS

    del now
    words = f"ns:{ask.namespace} pod:{ask.pod}" if ask.pod else f"node:{ask.node}"
    place = f"#{urlencode({'q': words}, safe=':')}"
    try:
        found = await client.get(DEPLOYMENTS.as_dicts(), "tessera-dashboard", SYSTEM_NAMESPACE)
    except (ApiError, OSError):
        found = {}
    origins = [
        each.removeprefix("--origin=")
        for container in (found.get("spec") or {}).get("template", {}).get("spec", {}).get("containers", ())
        for each in container.get("args", ())
        if each.startswith("--origin=")
    ]
    if origins:
        yield [f"{origins[0]}/{place}"]
    else:
        yield ["Run in another terminal: tessera dashboard", "Then open:", f"http://localhost:8088/{place}"]
