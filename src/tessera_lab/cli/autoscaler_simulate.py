"""``tessera autoscaler simulate``: simulates an autoscaler with given timers in the lab, and prints its steps."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import report_errors
from tessera.cli.base.durations import Duration
from tessera.cli.base.grammar import Output, output_option
from tessera.cli.base.inputs import Number
from tessera.text import count_noun

if TYPE_CHECKING:
    from tessera_lab.cloud.autoscaler.rules import AutoscalerTimers
    from tessera_lab.experiments.autoscaling import AutoscalingRun, AutoscalingSettings

_DURATION = Duration()
#: The lab's scenarios by the names of drivers on the command line.
_DRIVERS = {"built": "built", "precompiled": "precompiled-public"}
#: Orders of steps in words.
_ORDERS = {"reference": "reference operator", "tessera": "Tessera's order of steps"}


@click.command()
@click.option(
    "--timer",
    type=_DURATION,
    default="5m",
    show_default=True,
    help="Set maxNodeProvisionTime, unneededTime and delayAfterAdd to this, unless an option below sets one.",
)
@click.option("--max-node-provision-time", type=_DURATION, help="Set this timer alone.  [default: as --timer]")
@click.option("--unneeded-time", type=_DURATION, help="Set this timer alone.  [default: as --timer]")
@click.option("--delay-after-add", type=_DURATION, help="Set this timer alone.  [default: as --timer]")
@click.option(
    "--drivers",
    type=click.Choice(list(_DRIVERS)),
    default="built",
    show_default=True,
    help="Nodes compile the driver, or pull a precompiled one.",
)
@click.option(
    "--accelerator-label/--no-accelerator-label",
    "labelled",
    default=True,
    help="New nodes register with, or without, the accelerator label.  [default: with]",
)
@click.option(
    "--operator",
    type=click.Choice(["reference", "tessera"]),
    default="reference",
    show_default=True,
    help="Order of steps on a new node: the reference operator's or Tessera's. Tessera's nodes have its startup taint.",
)
@click.option("--hours", type=Number(0.1, 4), default=1.0, show_default=True, help="Simulated time, hours.")
@click.option(
    "--pods", type=click.IntRange(1, 10), default=1, show_default=True, help="Number of pods that need a card."
)
@click.option(
    "--max-nodes", type=click.IntRange(1, 20), default=1, show_default=True, help="Largest size of the node group."
)
@click.option(
    "--vm-time", type=_DURATION, help="Time of the cloud to start a virtual machine.  [default: the cost model's]"
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random numbers.")
@output_option("table")
@report_errors
def command(
    *,
    timer: float,
    max_node_provision_time: float | None,
    unneeded_time: float | None,
    delay_after_add: float | None,
    drivers: str,
    labelled: bool,
    operator: str,
    hours: float,
    pods: int,
    max_nodes: int,
    vm_time: float | None,
    seed: int,
    output: Output,
) -> None:
    """Simulate an autoscaler and nodes whose cards can be used only some time after they are Ready.

    Nothing is measured: the costs are those of tessera bench costs, and the autoscaler is a model of the real one.

    \b
    Examples:
      tessera autoscaler simulate --timer 5m --drivers built --no-accelerator-label
      tessera autoscaler simulate --timer 5m --drivers precompiled --no-accelerator-label
      tessera autoscaler simulate --timer 5m --drivers built --vm-time 4m --max-nodes 3
      tessera autoscaler simulate --timer 5m --drivers precompiled --operator tessera
    """
    from tessera_lab.cloud.autoscaler.rules import AutoscalerTimers
    from tessera_lab.experiments.autoscaling import AutoscalingSettings
    from tessera_lab.experiments.clusters import SCENARIOS
    from tessera_lab.simulation.cost_model import CostModel

    costs = CostModel() if vm_time is None else CostModel(vm_seconds=vm_time)
    setting = AutoscalingSettings(
        scenario=SCENARIOS[_DRIVERS[drivers]],
        timers=AutoscalerTimers(
            max_node_provision=timer if max_node_provision_time is None else max_node_provision_time,
            unneeded=timer if unneeded_time is None else unneeded_time,
            delay_after_add=timer if delay_after_add is None else delay_after_add,
        ),
        operator=operator,
        labelled=labelled,
        tainted=operator == "tessera",
        maximum=max_nodes,
        pods=pods,
        hours=hours,
        costs=costs,
        seed=seed,
    )
    played = _simulate(setting)
    output.show(played, _report_lines(setting, played))


def _simulate(setting: "AutoscalingSettings") -> "AutoscalingRun":
    from tessera_lab.cli.own_commands import own_commands
    from tessera_lab.experiments.autoscaling import simulate_autoscaling
    from tessera_lab.installation.install import build_entrypoint

    make = build_entrypoint(own_commands())
    return simulate_autoscaling(setting, make)


def _report_lines(setting: "AutoscalingSettings", played: "AutoscalingRun") -> Iterator[str]:
    from tessera.provisioning.timer_advice import span

    label = "with" if setting.labelled else "without"
    yield "simulated, nothing is measured"
    yield f"drivers {setting.scenario.title}, {_ORDERS[setting.operator]}, nodes {label} the accelerator label"
    yield _timers(setting.timers)
    yield f"{count_noun(setting.pods, 'pod')} for a card each, at most {count_noun(setting.maximum, 'node')}"
    yield ""
    for each in played.moments:
        yield f"{span(each.at):>8}  {each.kind:<9} {each.text}"
    yield ""
    hours = f"{setting.hours:g} h"
    waiting = setting.pods - len(played.ran)
    if played.ran:
        yield f"{count_noun(len(played.ran), 'pod')} ran, the last after {span(played.ran[-1])}"
    if waiting:
        yield f"{count_noun(waiting, 'pod')} did not run within {hours}"
    yield (
        f"{count_noun(played.made, 'node')} made, {played.lost} of them removed before the cards could be used; "
        f"{count_noun(played.timed_out, 'time-out')}; {played.node_hours:.2f} node hours paid within {hours}"
    )


def _timers(timers: "AutoscalerTimers") -> str:
    from tessera.provisioning.timer_advice import span

    return (
        f"maxNodeProvisionTime {span(timers.max_node_provision)}, unneededTime {span(timers.unneeded)}, "
        f"delayAfterAdd {span(timers.delay_after_add)}, maxNodeStartupTime {span(timers.max_node_startup)}"
    )
