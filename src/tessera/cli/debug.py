"""``tessera debug``: records of what a process decided, and the same decisions made again."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tessera.cli.base.connection import CommandError, cluster_options, report_errors
from tessera.cli.base.console import say, say_json

if TYPE_CHECKING:
    from tessera.kube.client.client import Client
    from tessera.kube.resources import Pod
    from tessera.kube.transport.http import HttpTransport
    from tessera.replay.player import Difference
    from tessera.replay.recorder import Record

#: Differences of one record that are shown; the first says most.
SHOWN = 3
#: Characters of a result that are shown.
_RESULT = 400


@click.group()
def command() -> None:
    """Record what a process decides, and replay it: a report from a cluster becomes a test.

    A process records once it is told how many decisions to keep; records hold names of pods and nodes, and
    no Secret, no environment and no command line of a pod.

    \b
    Examples:
      kubectl -n tessera-system set env deployment/tessera-controller TESSERA_RECORD=2000
      tessera debug record controller.jsonl
      tessera debug record --node gpu-1 agent.jsonl
      tessera debug replay controller.jsonl
    """


@command.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--node", metavar="NODE", help="The agent of this node, instead of the controller.")
@click.option("--namespace", "-n", default="tessera-system", show_default=True, help="Where Tessera runs.")
@click.option("--here", is_flag=True, help="Print the records of the process in this container.")
@cluster_options
@report_errors
def record(
    *, file: Path | None, node: str | None, namespace: str, here: bool, kubeconfig: Path | None, context: str | None
) -> None:
    """Fetch the records of the running controller, or of a node's agent, into FILE."""
    if here:
        sys.stdout.buffer.write(asyncio.run(_fetch_here()))
        return
    if file is None:
        raise click.UsageError("name the FILE that the records go to")
    found = asyncio.run(_fetch(namespace, node, kubeconfig, context))
    file.write_bytes(found)
    from tessera.phrasing import count_noun

    say(f"{count_noun(len(found.splitlines()), 'record')} in {file}; replay them with: tessera debug replay {file}")


@command.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How to show it.")
@report_errors
def replay(file: Path, output: str) -> None:
    """Run this version's deciders over the records in FILE, and say where they decide otherwise.

    Ends with exit code 1 if one of them does.
    """
    from tessera.limits.processes import RECORD_SIZE
    from tessera.replay.service import read_records

    if file.stat().st_size > RECORD_SIZE:
        raise CommandError(f"error: {file}: the file of records is too large ({RECORD_SIZE})")
    results = [(each, _differences(each, file)) for each in read_records(file.read_bytes())]
    if output == "json":
        say_json([_as_json(each, found) for each, found in results])
    else:
        say(*(line for each, found in results for line in _lines(each, found)))
    if any(found for _, found in results):
        sys.exit(1)


async def _fetch_here() -> bytes:
    from tessera.replay.service import NO_RECORDS, fetch_records

    try:
        return await fetch_records()
    except ConnectionRefusedError:
        raise CommandError(f"error: {NO_RECORDS}") from None


@asynccontextmanager
async def _clients(kubeconfig: Path | None, context: str | None) -> "AsyncIterator[tuple[Client, HttpTransport]]":
    from tessera.clock import SystemClock
    from tessera.kube.client.client import Client
    from tessera.kube.transport.http import HttpTransport
    from tessera.kube.transport.kubeconfig import load_config

    clock = SystemClock()
    config = load_config(clock=clock, kubeconfig=None if kubeconfig is None else str(kubeconfig), context=context)
    transport = HttpTransport(config)
    client = Client(transport, field_manager="tessera-debug", clock=clock)
    try:
        yield client, transport
    finally:
        await client.close()


async def _fetch(namespace: str, node: str | None, kubeconfig: Path | None, context: str | None) -> bytes:
    from tessera.kube.client.exec import run_in_container

    found, failures = b"", []
    async with _clients(kubeconfig, context) as (client, transport):
        for pod in await _pods(client, namespace, node):
            container = pod.spec.containers[0].name
            this = ["tessera", "debug", "record", "--here"]
            done = await run_in_container(transport, namespace, pod.metadata.name, container, this)
            found += done.stdout
            if done.failure:
                said = done.stderr.decode(errors="replace").strip() or done.failure
                failures.append(f"{pod.metadata.name}: {said.removeprefix('error: ')}")
    if not found:
        raise CommandError(*(f"error: {each}" for each in failures or ["the process has decided nothing yet"]))
    return found


async def _pods(client: "Client", namespace: str, node: str | None) -> "Sequence[Pod]":
    """The running pods of the controller, or the one of a node's agent."""
    from tessera.kube.resources import PODS

    app = "tessera-controller" if node is None else "tessera-agent"
    listed = await client.list(PODS, namespace, label_selector=f"app.kubernetes.io/name={app}")
    running = [each for each in listed.items if each.status.phase == "Running" and node in {None, each.spec.node_name}]
    if not running:
        where = "" if node is None else f" on node {node}"
        raise CommandError(
            f"error: no pod of {app} runs in namespace {namespace}{where}; name another with --namespace"
        )
    return running


def _differences(record: "Record", file: Path) -> "list[Difference]":
    from tessera.replay.deciders import DECIDERS
    from tessera.replay.player import replay as play
    from tessera.replay.state_codec import NotPlainError

    kind = DECIDERS.get(record.decider)
    if kind is None:
        raise CommandError(
            f"error: {file}: this version has no decider {record.decider!r}; it has {', '.join(DECIDERS)}"
        )
    try:
        return list(play(record, kind))
    except NotPlainError as error:
        raise CommandError(f"error: {file}: decider {record.decider}: {error}") from error


def _title(record: "Record") -> str:
    return f"{record.decider} {record.name}".rstrip()


def _lines(record: "Record", found: "Sequence[Difference]") -> Iterator[str]:
    from tessera.phrasing import count_noun

    decisions = count_noun(len(record.decisions), "decision")
    before = f", {record.skipped} before them not recorded" if record.skipped else ""
    if not found:
        yield f"{_title(record)}: {decisions}{before}: all the same now"
        return
    yield f"{_title(record)}: {decisions}{before}: {len(found)} differ now"
    for each in found[:SHOWN]:
        yield f"  decision {each.index} on {_short(each.recorded.arguments)}"
        yield f"    recorded: {each.recorded.error or _short(each.recorded.result)}"
        yield f"    now:      {each.now.error or _short(each.now.result)}"


def _short(value: Any) -> str:
    import msgspec

    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _RESULT else f"{text[:_RESULT]}…"


def _as_json(record: "Record", found: "Sequence[Difference]") -> Any:
    return {
        "decider": record.decider,
        "name": record.name,
        "decisions": len(record.decisions),
        "skipped": record.skipped,
        "differences": found,
    }
