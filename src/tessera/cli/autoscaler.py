"""``tessera autoscaler``: what measured times to a GPU mean for the timers of an autoscaler, and for warm nodes."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tessera.cli.autoscaling.durations import Duration
from tessera.cli.connect import Failure, cluster_options, connected, reported

if TYPE_CHECKING:
    from tessera.cli.autoscaling.tables import GroupAdvice
    from tessera.provisioning.advise.samples import GroupTimes

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True)
_DURATION = Duration()


@click.group()
def command() -> None:
    """Set an autoscaler's timers by measured times to a GPU, and size a pool of warm nodes."""


@command.command()
@click.option(
    "--samples",
    type=_FILE,
    metavar="FILE",
    help="Times from a file instead of the cluster's records: CSV or JSON with group, and provision, startup or ready:"
    " seconds from request, registration or Ready until the cards are usable; - reads standard input.",
)
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Only this node group; repeatable.")
@click.option(
    "--labelled/--unlabelled",
    default=None,
    help="Whether nodes carry the provider's accelerator label from registration on.  [default: as the cluster says]",
)
@click.option("--karpenter", is_flag=True, help="Karpenter makes the nodes.")
@click.option("--max-node-provision-time", type=_DURATION, help="The timer in force.  [default: the cluster's, or 15m]")
@click.option("--max-node-startup-time", type=_DURATION, help="The timer in force.  [default: the cluster's, or 15m]")
@click.option("--unneeded-time", type=_DURATION, help="The timer in force.  [default: the cluster's, or 10m]")
@click.option("--delay-after-add", type=_DURATION, help="The timer in force.  [default: the cluster's, or 10m]")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "openshift", "capi", "flags", "karpenter"]),
    default="table",
    help="How to show it: for people, for programs, or in an autoscaler's own words.",
)
@cluster_options
@reported
def advise(
    *,
    samples: Path | None,
    groups: Sequence[str],
    labelled: bool | None,
    karpenter: bool,
    output: str,
    kubeconfig: Path | None,
    context: str | None,
    **timers: float | None,
) -> None:
    """Say which timers a node group needs, what the present ones do, and what else is wrong.

    Every bound is free of assumptions about the distribution, and says which quantile the sample supports: p99 needs
    299 nodes. The exit code is 0 whatever is found.

    \b
    Examples:
      tessera autoscaler advise
      tessera autoscaler advise --samples times.csv --max-node-provision-time 5m --unlabelled
      tessera autoscaler advise -o openshift | oc apply --server-side -f -
      tessera autoscaler advise -o capi
    """
    from tessera.cli.autoscaling.tables import lines

    times, facts = asyncio.run(_times(samples, kubeconfig, context))
    if groups:
        times = tuple(each for each in times if each.group in groups)
    if not times:
        raise Failure(
            "error: no times were measured"
            + (f" of node group {', '.join(groups)}" if groups else "")
            + "; records are made as nodes come (tessera provisioning report), or give a file with --samples"
        )
    told = [_told(each, facts, timers, labelled, karpenter or facts.karpenter) for each in times]
    if output == "table":
        print("\n".join(lines(told)))
    else:
        _emit(told, output)


def _told(
    times: "GroupTimes", facts: Any, given: dict[str, float | None], labelled: bool | None, karpenter: bool
) -> "GroupAdvice":
    from tessera.cli.autoscaling.tables import joined
    from tessera.provisioning.advise.findings import findings
    from tessera.provisioning.advise.timers import Timers
    from tessera.provisioning.advise.timers import advise as advised

    known = facts.labelled(times.group) if labelled is None else labelled
    there = facts.timers(times.group)
    current = Timers(
        max_node_provision=_first(given["max_node_provision_time"], there.max_node_provision),
        max_node_startup=_first(given["max_node_startup_time"], there.max_node_startup),
        unneeded=_first(given["unneeded_time"], there.unneeded),
        delay_after_add=_first(given["delay_after_add"], there.delay_after_add),
    )
    advice = advised(times, labelled=True if karpenter else known)
    found = findings(times, advice, current, labelled=known, karpenter=karpenter)
    return joined(times, advice, current, known, found)


def _first(*values: float | None) -> float | None:
    return next((each for each in values if each is not None), None)


async def _times(samples: Path | None, kubeconfig: Path | None, context: str | None) -> Any:
    from tessera.cli.autoscaling.facts import NOTHING, look

    if samples is not None:
        return _read(samples), NOTHING
    async with connected("tessera-autoscaler", kubeconfig, context) as client:
        return await look(client)


def _read(file: Path) -> "tuple[GroupTimes, ...]":
    from tessera.api.documents import FileRefused
    from tessera.cli.checks.source import named, text_of
    from tessera.provisioning.advise.samples import from_file, refused

    try:
        return from_file(text_of(file))
    except FileRefused as error:
        raise Failure(f"error: {refused(named(file), error)}") from error


def _emit(told: "Sequence[GroupAdvice]", output: str) -> None:
    import msgspec
    import yaml

    from tessera.provisioning.advise import emit

    advices = [each.advice for each in told]
    simulated = any(each.simulated for each in told)
    if output == "json":
        print(msgspec.json.format(msgspec.json.encode({"groups": told}), indent=2).decode())
        return
    if simulated:
        click.echo("warning: these times come from the lab; set no real timer by them", err=True)
    match output:
        case "openshift":
            print(yaml.safe_dump(emit.openshift(emit.longest(advices)), sort_keys=False), end="")
        case "flags":
            print("\n".join(emit.flags(emit.longest(advices))))
        case "capi":
            for each in advices:
                print(f"# node group {each.group or '(no name)'}: annotations of its MachineSet or MachineDeployment")
                print(yaml.safe_dump(emit.capi(each), sort_keys=False), end="")
        case _:
            from tessera.provisioning.startup import STARTUP_TAINT

            print(
                yaml.safe_dump_all([emit.karpenter(each, STARTUP_TAINT) for each in advices], sort_keys=False), end=""
            )


@command.command()
@click.option("--per-hour", type=click.FloatRange(min=0, min_open=True), required=True, help="Pods that need a node.")
@click.option("--time-to-gpu", type=_DURATION, help="Of a new node.  [default: the mean of the cluster's records]")
@click.option("--samples", type=_FILE, metavar="FILE", help="Times from a file, as for advise.")
@click.option("--group", metavar="NAME", help="Only this node group's times.")
@click.option("--node-price", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Of a node, an hour.")
@click.option("--wait-price", type=click.FloatRange(min=0), help="Of a pod's waiting, an hour: find the cheapest pool.")
@click.option(
    "--waits",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.05,
    show_default=True,
    help="Share of pods that may wait: find the smallest pool.",
)
@click.option("--gpus", type=click.IntRange(1), default=1, show_default=True, help="Cards of a node.")
@click.option("--resource", default="nvidia.com/gpu", show_default=True, help="What a placeholder asks for.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", help="How to show it.")
@cluster_options
@reported
def warm(
    *,
    per_hour: float,
    time_to_gpu: float | None,
    samples: Path | None,
    group: str | None,
    node_price: float,
    wait_price: float | None,
    waits: float,
    gpus: int,
    resource: str,
    output: str,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Size a pool of warm nodes: placeholder pods that any real pod pushes aside.

    From how often pods come, how long a node takes and what an idle node costs. -o yaml prints the placeholders, with a
    priority that the autoscaler still makes nodes for.

    \b
    Examples:
      tessera autoscaler warm --per-hour 6 --time-to-gpu 9m --node-price 0.53
      tessera autoscaler warm --per-hour 6 --time-to-gpu 9m --node-price 0.53 --wait-price 20
      tessera autoscaler warm --per-hour 6 --gpus 4 -o yaml | kubectl apply -f -
    """
    import msgspec

    from tessera.provisioning.advise.warm import cheapest, placeholders, pool, smallest

    seconds = time_to_gpu
    if seconds is None:
        times, _ = asyncio.run(_times(samples, kubeconfig, context))
        seconds = _mean(times, group)
    rates: dict[str, float] = {"per_hour": per_hour, "seconds": seconds, "node_price": node_price}
    chosen = smallest(waits, **rates) if wait_price is None else cheapest(**rates, wait_price=wait_price)
    if output == "yaml":
        import yaml

        print(yaml.safe_dump_all(placeholders("tessera-warm", chosen.nodes, resource=resource, count=gpus)), end="")
        return
    sizes = range(max(0, chosen.nodes - 2), chosen.nodes + 3)
    shown = [pool(nodes, **rates, wait_price=wait_price or 0.0) for nodes in sizes]
    if output == "json":
        print(msgspec.json.format(msgspec.json.encode({"chosen": chosen, "around": shown}), indent=2).decode())
        return
    print("\n".join(_pools(shown, chosen, per_hour, seconds, priced=wait_price is not None)))


def _mean(times: "Sequence[GroupTimes]", group: str | None) -> float:
    values = [value for each in times if group in (None, each.group) for value in each.provision or each.ready]
    if not values:
        raise Failure("error: no times were measured; give --time-to-gpu, or a file with --samples")
    return sum(values) / len(values)


def _pools(shown: Sequence[Any], chosen: Any, per_hour: float, seconds: float, *, priced: bool) -> list[str]:
    from tessera.provisioning.advise.findings import span

    head = f"  {'warm nodes':>10}{'pods that wait':>16}{'idle nodes':>12}{'idle cost/h':>13}{'wait saved':>12}"
    rows = [f"{per_hour:g} pods an hour, a node takes {span(seconds)}", head + (f"{'cost/h':>10}" if priced else "")]
    for each in shown:
        row = (
            f"{'>' if each.nodes == chosen.nodes else ' '} {each.nodes:>10}{each.waits:>16.1%}{each.idle_nodes:>12.2f}"
            f"{each.idle_cost:>13.2f}{span(each.saved_seconds):>12}"
        )
        rows.append(row + (f"{each.cost:>10.2f}" if priced else ""))
    return rows
