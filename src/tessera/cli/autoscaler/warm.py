"""``tessera autoscaler warm``: computes how many nodes to keep warm, and prints the placeholder pods for them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tessera.cli.autoscaler.measured_times import FILE, times_and_facts
from tessera.cli.base.connection import CommandError, cluster_options, connect, report_errors
from tessera.cli.base.console import say, say_document
from tessera.cli.base.durations import Duration
from tessera.cli.base.grammar import Output, output_option
from tessera.cli.base.inputs import Number
from tessera.cli.base.process import run_command
from tessera.nesting import decode_json

if TYPE_CHECKING:
    from tessera.provisioning.start_times import GroupTimes
    from tessera.provisioning.warm_nodes import WarmPool

#: Priority of a pod without a PriorityClass, if no class is the global default.
_ORDINARY = 0


@click.command()
@click.option(
    "--pods-per-hour",
    "per_hour",
    type=Number(min=0, min_open=True),
    required=True,
    help="New pods in an hour, each of which needs a node.",
)
@click.option(
    "--time-to-gpu",
    type=Duration(),
    help="Time until a new node's cards can be used.  [default: the mean of the cluster's records]",
)
@click.option("--samples", type=FILE, metavar="FILE", help="Read times from this file, as tessera autoscaler advise.")
@click.option("--group", metavar="NAME", help="Use the times of this node group only.")
@click.option("--node-price", type=Number(min=0), default=1.0, show_default=True, help="Price of a node for an hour.")
@click.option(
    "--wait-price", type=Number(min=0), help="Price of an hour of a pod's waiting; then the cheapest pool is chosen."
)
@click.option(
    "--max-waiting-share",
    type=Number(0, 1, min_open=True),
    default=0.05,
    show_default=True,
    help="Largest share of pods that may wait for a node; without --wait-price the smallest such pool is chosen.",
)
@click.option(
    "--gpus-per-node", "gpus", type=click.IntRange(1), default=1, show_default=True, help="Cards of one node."
)
@click.option("--resource", default="nvidia.com/gpu", show_default=True, help="Resource that placeholders request.")
@click.option(
    "--selector", "selectors", multiple=True, metavar="LABEL=VALUE", help="Label of the pool's nodes; repeatable."
)
@click.option(
    "--priority",
    type=int,
    help="Priority of placeholders.  [default: -10, or the autoscaler's cutoff if that is higher]",
)
@output_option("table", "placeholders", "pool", text="Output format, or the manifests of the pool")
@cluster_options
@report_errors
def command(
    *,
    per_hour: float,
    time_to_gpu: float | None,
    samples: Path | None,
    group: str | None,
    node_price: float,
    wait_price: float | None,
    max_waiting_share: float,
    gpus: int,
    resource: str,
    selectors: Sequence[str],
    priority: int | None,
    output: Output,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Compute the size of a pool of warm nodes.

    Placeholder pods of low priority keep the nodes warm; a placeholder ends when a real pod needs its place. The size
    follows from the number of new pods in an hour, the start time of a node and the price of an idle node. -o
    placeholders prints them. Their priority is low, but high enough that the autoscaler makes nodes for them. -o pool
    prints a CapacityBuffer, which needs no pods, where the cluster serves that kind, else the same.

    \b
    Examples:
      tessera autoscaler warm --pods-per-hour 6 --time-to-gpu 9m --node-price 0.53
      tessera autoscaler warm --pods-per-hour 6 --time-to-gpu 9m --node-price 0.53 --wait-price 20
      tessera autoscaler warm --pods-per-hour 6 --gpus-per-node 4 -o pool | kubectl apply -f -
    """
    from tessera.cli.autoscaler.advice_text import SIMULATED
    from tessera.provisioning.timer_advice import span
    from tessera.provisioning.warm_nodes import (
        CUTOFF,
        Placeholder,
        capacity_buffer,
        cheapest,
        placeholders,
        pool,
        smallest,
    )

    selector, simulated = _selector(selectors), False
    seconds, cutoff = time_to_gpu, CUTOFF
    if seconds is None:
        times, facts = times_and_facts(samples, kubeconfig, context)
        times = tuple(each for each in times if group in (None, each.group))
        seconds, cutoff = _mean(times), facts.settings.cutoff
        simulated = any(each.simulated for each in times)
    rates: dict[str, float] = {"per_hour": per_hour, "seconds": seconds, "node_price": node_price}
    chosen = smallest(max_waiting_share, **rates) if wait_price is None else cheapest(**rates, wait_price=wait_price)
    if output.form in {"placeholders", "pool"}:
        if simulated:
            say(f"warning: {SIMULATED}; do not size a real pool by them", err=True)
            say(f"# {SIMULATED}")
        one = Placeholder(name="tessera-warm", resource=resource, count=gpus, selector=selector)
        if output.form == "pool" and run_command(_serves_buffers(kubeconfig, context)):
            _print(capacity_buffer(one, chosen.nodes))
            return
        chosen_priority = max(CUTOFF, cutoff) if priority is None else priority
        _warn(chosen_priority, cutoff)
        _print(placeholders(one, chosen.nodes, priority=chosen_priority))
        return
    sizes = range(max(0, chosen.nodes - 2), chosen.nodes + 3)
    shown = [pool(nodes, **rates, wait_price=wait_price or 0.0) for nodes in sizes]
    title = f"{per_hour:g} pods an hour, a node takes {span(seconds)}" + (f"   ({SIMULATED})" if simulated else "")
    output.show(
        {"time_to_gpu": seconds, "simulated": simulated, "chosen": chosen, "around": shown},
        [title, *_pools(shown, chosen, priced=wait_price is not None)],
        [f"pool/{chosen.nodes}"],
    )


def _mean(times: "Sequence[GroupTimes]") -> float:
    values = [value for each in times for value in each.provision or each.ready]
    if not values:
        raise CommandError("error: no times were measured; give --time-to-gpu, or a file with --samples")
    return sum(values) / len(values)


def _selector(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise CommandError(f'error: --selector "{text[:80]}" does not have the form LABEL=VALUE')
        found[name] = value
    return found


def _warn(priority: int, cutoff: int) -> None:
    """Prints a warning if the autoscaler makes no nodes for this priority, or if pods cannot evict placeholders."""
    if priority < cutoff:
        text = f"the autoscaler makes no node for a pod of priority {priority}: its cutoff is {cutoff}"
        say(f"warning: {text}; give --priority {cutoff} or lower the cutoff", err=True)
    if priority >= _ORDINARY:
        text = f"a pod with priority {_ORDINARY} or none cannot replace a placeholder of priority {priority}"
        say(
            f"warning: {text}; lower the autoscaler's cutoff (podPriorityThreshold) below {_ORDINARY}, or give real "
            f"pods a PriorityClass above {priority}",
            err=True,
        )


async def _serves_buffers(kubeconfig: Path | None, context: str | None) -> bool:
    """True if the cluster serves CapacityBuffers; whoever may not list them may ask that."""
    from tessera.kube.errors import NotFound
    from tessera.provisioning.warm_nodes import CAPACITY_BUFFERS

    async with connect("tessera-autoscaler", kubeconfig, context) as client:
        try:
            answer = await client.request("GET", f"/apis/{CAPACITY_BUFFERS.api_version}")
        except NotFound:
            return False
    kinds = decode_json(answer.body, dict[str, Any]).get("resources") or ()
    return any(each.get("name") == CAPACITY_BUFFERS.plural for each in kinds)


def _print(made: Sequence[dict[str, Any]]) -> None:
    import yaml

    say_document(yaml.safe_dump_all(made, sort_keys=False))


def _pools(shown: "Sequence[WarmPool]", chosen: "WarmPool", *, priced: bool) -> list[str]:
    from tessera.provisioning.timer_advice import span

    head = f"  {'warm nodes':>10}{'pods that wait':>16}{'idle nodes':>12}{'idle cost/h':>13}{'wait saved':>12}"
    rows = [head + (f"{'cost/h':>10}" if priced else "")]
    for each in shown:
        row = (
            f"{'>' if each.nodes == chosen.nodes else ' '} {each.nodes:>10}{each.waits:>16.1%}{each.idle_nodes:>12.2f}"
            f"{each.idle_cost:>13.2f}{span(each.saved_seconds):>12}"
        )
        rows.append(row + (f"{each.cost:>10.2f}" if priced else ""))
    return rows
