"""``tessera map``: every card of the cluster, with what is on it and what has room."""

import contextlib
import random
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from tessera.cli.base.connection import (
    CommandError,
    cluster_options,
    connect,
    describe_error,
    own_namespace,
    report_errors,
)
from tessera.cli.base.console import say, say_coloured, shows_colours
from tessera.cli.base.grammar import (
    Output,
    colour_option,
    namespace_options,
    node_names,
    output_option,
    selected_pods,
    selector_option,
    watch_option,
)
from tessera.cli.base.live_picture import Picture, fit_frame, outdated, read_again, show_pictures, with_notes
from tessera.cli.base.process import run_command
from tessera.cli.base.tenant_view import HIDDEN, HIDDEN_NAMES
from tessera.cli.base.tiles import WIDTH, draw, draw_summary
from tessera.explain.fleet_map import CardFilter, known_room, select, summarize
from tessera.mig.names import nvml_spelling
from tessera.text import list_alternatives, one_line

if TYPE_CHECKING:
    from tessera.dashboard.view.cluster_map import ClusterMap
    from tessera.kube.client import Client

#: Columns of the narrowest terminal that is filled; a narrower one wraps lines.
_LEAST_WIDTH = 60
#: Nodes from which on the picture begins with a summary.
_SUMMARY_FROM = 9


@click.command()
@click.argument("nodes", nargs=-1, metavar="[NODE]...", callback=node_names)
@namespace_options()
@click.option("--model", default="", metavar="TEXT", help="Show cards whose model contains this text, e.g. A100.")
@click.option(
    "--free",
    default="",
    metavar="PROFILE",
    help="Show cards with room for this profile, e.g. 3g.20gb; gpu for a whole card, share for a share of a card,"
    " 3g.20gb.shared for a share of a MIG device.",
)
@click.option(
    "--held-by", default="", metavar="TEXT", help="Show cards of pods whose NAMESPACE/NAME contains this text."
)
@selector_option
@watch_option
@click.option("--summary", is_flag=True, help="Show only the sums by model.")
@output_option("tiles")
@colour_option
@cluster_options
@report_errors
def command(
    *,
    nodes: tuple[str, ...],
    namespace: str | None,
    model: str,
    free: str,
    held_by: str,
    selector: str | None,
    watches: bool,
    summary: bool,
    output: Output,
    colour: bool | None,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Show every card: its slices or shares, the pods that have them, and what has room.

    Each row is a card. A card with MIG is as wide as its memory slots, and each tile is a slice; a shared card has a
    tile for each share; a whole card is one tile. The list below the cards names the pods. From nine nodes on, a
    summary by model comes first.

    \b
    Examples:
      tessera map
      tessera map gpu-node-1
      tessera map --free 3g.20gb
      tessera map -n team-a --watch
      tessera map -o json | jq '.nodes[].cards[].possible'
    """
    chosen = CardFilter(namespace=namespace or "", model=model, free=nvml_spelling(free), held_by=held_by)
    paints = shows_colours(colour)
    home = own_namespace(namespace, kubeconfig, context)

    async def choose_pods(client: "Client") -> CardFilter:
        pods = await selected_pods(client, selector, namespace, home)
        return chosen if pods is None else msgspec.structs.replace(chosen, pods=frozenset(map("/".join, pods)))

    if watches:
        run_command(_watch(nodes, home, choose_pods, kubeconfig, context, colour=paints, summary=summary))
        return
    found, chosen = run_command(_read(nodes, home, choose_pods, kubeconfig, context))
    shown = choose(found, nodes, chosen)
    if output.for_programs:
        sums = {"models": summarize(shown.nodes), "waiting": shown.waiting}
        document = {
            "simulated": shown.simulated,
            "nodes": shown.nodes,
            "pending": shown.pending,
            "spare": shown.spare,
            **sums,
        }
        output.show(document, (), (f"node/{each.node}" for each in shown.nodes))
    else:
        say_coloured(*picture(shown, chosen, colour=paints, summary=summary, width=_width()))
    if any(each.node.startswith(HIDDEN) for each in shown.nodes):
        say(f"note: {HIDDEN_NAMES}", err=True)
    if found.note:
        say(f"note: {found.note}", err=True)


def _width() -> int:
    """The terminal's columns; the usual ones for a file."""
    return max(_LEAST_WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns) if sys.stdout.isatty() else WIDTH


def picture(found: "ClusterMap", chosen: CardFilter, *, colour: bool, summary: bool, width: int) -> Sequence[str]:
    """The lines of the picture, or a sentence if there is nothing to show."""
    if not found.nodes and not found.pending:
        if chosen != CardFilter():
            return [f"No card is shown: {_nothing(chosen)}. tessera map shows all cards."]
        return [
            "No node has cards that Tessera manages.",
            "Add a node: kubectl label node NODE nvidia.com/mig.config=dynamic",
            "Look what is missing: tessera doctor",
        ]
    lines: list[str] = []
    if summary or len(found.nodes) >= _SUMMARY_FROM:
        lines += draw_summary(summarize(found.nodes), nodes=len(found.nodes), waiting=found.waiting, width=width)
    if not summary:
        lines += [*([""] if lines else []), *draw(found.nodes, found.pending, colour=colour, width=width)]
    return [*lines, *found.spare, *(["", "simulated cards"] if found.simulated else [])]


def _nothing(chosen: CardFilter) -> str:
    """Why no card is shown, as the part of a sentence."""
    parts = [
        f"has room for {chosen.free}" if chosen.free else "",
        f"is of a model with {chosen.model!r} in its name" if chosen.model else "",
        f"is held by a pod of namespace {chosen.namespace}" if chosen.namespace else "",
        f"is held by a pod with {chosen.held_by!r} in its NAMESPACE/NAME" if chosen.held_by else "",
        "is held by a pod with these labels" if chosen.pods is not None else "",
    ]
    return f"none {' and '.join(filter(None, parts))}"


def choose(found: "ClusterMap", nodes: Sequence[str], chosen: CardFilter) -> "ClusterMap":
    """The part to show.

    Raises:
        ClickException: a named node has no cards, or no card of the cluster can have the profile.
    """
    missing = set(nodes) - {each.node for each in found.nodes} - {each.node for each in found.pending}
    if missing:
        names = ", ".join(each.node for each in found.nodes) or "none"
        raise click.ClickException(f"node {min(missing)!r} has no cards for pods; nodes with such cards: {names}")
    known = known_room(found.nodes)
    if chosen.free and chosen.free not in known and any(each.cards for each in found.nodes):
        raise click.BadParameter(
            f"no card of this cluster can have {one_line(chosen.free)!r}; known are {list_alternatives(known)}",
            param_hint="--free",
        )
    named = [each for each in found.nodes if not nodes or each.node in nodes]
    pending = [each for each in found.pending if not nodes or each.node in nodes]
    return msgspec.structs.replace(
        found, nodes=select(named, chosen), pending=pending if chosen == CardFilter() else []
    )


async def _read(
    nodes: Sequence[str],
    home: str,
    choose_pods: Callable[["Client"], Awaitable[CardFilter]],
    kubeconfig: Path | None,
    context: str | None,
) -> "tuple[ClusterMap, CardFilter]":
    async with connect("tessera-map", kubeconfig, context) as client:
        return await _read_once(client, nodes, home), await choose_pods(client)


async def _read_once(client: "Client", nodes: Sequence[str], home: str) -> "ClusterMap":
    """The map of all that the user may read, or what the API for tenants tells a user with the rights of ``home``."""
    from tessera.cli.base.tenant_view import read_as_tenant
    from tessera.dashboard.view.cluster_map import MAPS, make_map
    from tessera.dashboard.view.explanations import read_view
    from tessera.kube.errors import ApiError, Forbidden, NotFound
    from tessera.observe.cluster_reading import read_cluster

    try:
        reading = await read_cluster(client, nodes, partly=True)
    except NotFound as error:
        raise _not_installed() from error
    except Forbidden:
        return (await read_as_tenant(client, MAPS, home)).map
    if reading.fleet is None:
        with contextlib.suppress(ApiError, OSError):
            return (await read_view(client, MAPS, home)).map
    return make_map(reading)


def _not_installed() -> CommandError:
    return CommandError(
        "error: Tessera is not installed in this cluster: the kind Instaslice is missing; run tessera install"
    )


async def _watch(
    nodes: Sequence[str],
    home: str,
    choose_pods: Callable[["Client"], Awaitable[CardFilter]],
    kubeconfig: Path | None,
    context: str | None,
    *,
    colour: bool,
    summary: bool,
) -> None:
    async with connect("tessera-map", kubeconfig, context) as client:

        async def frame(whole: "ClusterMap") -> Picture:
            chosen = await choose_pods(client)

            def draw_frame(width: int, height: int) -> Sequence[str]:
                found = choose(whole, nodes, chosen)
                lines = picture(found, chosen, colour=colour, summary=summary, width=max(_LEAST_WIDTH, width))
                return fit_frame(lines, width, height)

            notes = [f"note: {whole.note}"] if whole.note else []
            return lambda width, height: with_notes(draw_frame, notes, width, height)

        await show_pictures(_frames(client, nodes, home, frame), colours=True)


async def _frames(
    client: "Client", nodes: Sequence[str], home: str, frame: Callable[["ClusterMap"], Awaitable[Picture]]
) -> AsyncIterator[Picture]:
    """A picture whenever something changes, with a note while the cluster does not answer.

    A tenant gets one every few seconds, and so does everybody while the kind Instaslice is missing.
    """
    from tessera.clock import SystemClock
    from tessera.dashboard.view.cluster_map import make_map
    from tessera.kube.errors import ApiError, Forbidden, NotFound
    from tessera.observe.cluster_reading import PERIOD, watch_cluster

    clock = SystemClock()

    async def read_anew() -> Picture:
        return await frame(await _read_once(client, nodes, home))

    drawn: Picture | None = None
    answered = clock.monotonic()
    try:
        async for reading in watch_cluster(client, clock, random.Random(), nodes):
            failure = reading.failure
            if failure is None:
                try:
                    drawn, answered = await frame(make_map(reading)), clock.monotonic()
                except (ApiError, OSError) as error:
                    failure = error
            if drawn is None:
                raise failure or AssertionError("a first reading has a picture")
            reason = "" if failure is None else describe_error(failure) or str(failure)
            yield outdated(drawn, clock.monotonic() - answered, reason) if reason else drawn
    except (Forbidden, NotFound):
        async for drawn in read_again(read_anew, clock, PERIOD):
            yield drawn
