"""``tessera defrag``: the moves of running pods that would make room for pods that wait."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import cluster_options, report_errors
from tessera.cli.base.grammar import Output, output_option, watch_option
from tessera.cli.base.live_picture import read_or_watch
from tessera.text import age, count_noun, list_names

if TYPE_CHECKING:
    from tessera.explain.room_moves import MovesPlan, PlannedRoom, SlicePlace
    from tessera.kube.client import Client


@click.command()
@click.option("--plan", "shows_plan", is_flag=True, help="Show the plan. This is all that the command does.")
@watch_option
@output_option("text")
@cluster_options
@report_errors
def command(*, shows_plan: bool, watches: bool, output: Output, kubeconfig: Path | None, context: str | None) -> None:
    """Show the moves of running pods that would make room for pods that wait, and what each would free.

    A pod may move if it has the annotation tessera.dev/movable: "true", holds one slice, and has an owner that makes
    it anew, such as a Deployment or a Job. A slice cannot be moved while it is used: to move a pod is to end it, so it
    loses its work since its last checkpoint and starts anew. The plan moves as few pods as possible, and at most three
    for each waiting pod. Its gain is the time that the pod waits less, its price the work that is lost and the
    time until the moved pods work again, both times the memory slots.

    The command changes nothing. To carry out a move, delete the pod: kubectl delete pod POD. Its owner makes another
    one, which is placed like any other pod. With the option --moves=evict the controller makes the moves that are worth
    it. The plan needs the rights to list pods, nodes and Instaslice objects of the
    whole cluster.

    \b
    Examples:
      tessera defrag --plan
      tessera defrag --plan -o json | jq -r '.rooms[].moves[].pod'
    """
    if not shows_plan:
        raise click.UsageError("add --plan: the command shows which pods could move, and moves none")
    found = read_or_watch(
        "tessera-defrag",
        _read,
        lambda found, _: plan_lines(found),
        watches=watches,
        kubeconfig=kubeconfig,
        context=context,
    )
    output.show(found, plan_lines(found))


async def _read(client: "Client") -> "MovesPlan":
    from tessera.clock import SystemClock
    from tessera.explain.room_moves import read_moves

    return await read_moves(client, SystemClock())


def plan_lines(found: "MovesPlan") -> Iterator[str]:
    """The plan as text, or a sentence if nothing waits for room."""
    if found.simulated:
        yield "simulated cards"
    if not found.rooms and not found.stuck:
        yield "No pod waits for room on cards."
    for room in found.rooms:
        yield from _room_lines(room)
    for pod, why in found.stuck:
        yield f"{pod} stays without room: {why}"
    worth = [room for room in found.rooms if room.is_worth]
    moves = sum(len(room.moves) for room in worth)
    if moves:
        slots = count_noun(sum(room.slots for room in worth), "memory slot")
        getting = count_noun(len(worth), "waiting pod")
        yield f"{count_noun(moves, 'pod')} would end and start anew; {getting} would get {slots}."
        yield "Nothing was changed. To carry out a move: kubectl delete pod POD -n NAMESPACE"
    if found.omitted:
        yield f"{count_noun(found.omitted, 'further waiting pod')} not planned"
    yield from _movable_lines(found)


def _room_lines(room: "PlannedRoom") -> Iterator[str]:
    if not room.moves:
        yield f"{room.pod} gets {_where(room.place)}, in the room of the moves above"
        return
    verb = "moves" if len(room.moves) == 1 else "move"
    yield f"{room.pod} gets {_where(room.place)} if {count_noun(len(room.moves), 'pod')} {verb}:"
    for move in room.moves:
        yield f"  {move.pod} from {_where(move.from_)} to {_where(move.to)}"
    verdict = "worth it" if room.is_worth else "not worth it"
    yield f"  gain {age(room.gain)}, price {age(room.price)} (time of one memory slot): {verdict}"


def _where(place: "SlicePlace") -> str:
    return f"{place.where} of node {place.node}"


def _movable_lines(found: "MovesPlan") -> Iterator[str]:
    if found.stuck and not found.movable:
        yield 'Pods that may move have the annotation tessera.dev/movable: "true" and an owner that makes them anew.'
    if found.unowned:
        yield f"These pods have the annotation and no owner, so they stay: {list_names(found.unowned)}"
