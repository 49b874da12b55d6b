"""``tessera agent``: the node process."""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tessera.cli.base.connection import cluster_options, connect, report_errors
from tessera.cli.base.inputs import check_cards
from tessera.cli.base.process import log_option, record_option, run_process, start_log

_FOLDER = click.Path(path_type=Path, file_okay=False)
#: Variables of NVIDIA's device plugin that set an option, as its users' manifests have them.
_VARIABLES = {
    "NODE_NAME": "--node-name",
    "MIG_STRATEGY": "--mig-strategy",
    "DEVICE_LIST_STRATEGY": "--device-list-strategy",
    "DEVICE_ID_STRATEGY": "--device-id-strategy",
    "MPS_ROOT": "--mps-root",
    "TESSERA_RECORD": "--record",
}
#: Variables that are handed on as they are.
_HANDED_ON = ("DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS")


@click.command()
@click.option("--node-name", envvar="NODE_NAME", required=True, help="Name of the node's object.  [env: NODE_NAME]")
@click.option(
    "--simulate",
    metavar="CARDS",
    callback=check_cards,
    help="Simulate cards instead of using the machine's own, e.g. 4xA100-40GB or 2xA30,1xH100-80GB. Containers then"
    " get the environment of their slices, no device nodes.",
)
@click.option(
    "--simulated-state",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File that keeps the simulated cards over restarts.  [default: in --state-dir]",
)
@click.option(
    "--kubelet-root",
    type=_FOLDER,
    default=Path("/var/lib/kubelet"),
    show_default=True,
    help="Kubelet's --root-dir.",
)
@click.option(
    "--plugin-dir",
    type=_FOLDER,
    help="Kubelet's device-plugin sockets.  [default: /var/lib/kubelet/device-plugins, whatever kubelet's --root-dir]",
)
@click.option("--pod-resources-dir", type=_FOLDER, help="Pod-resources socket.  [default: below --kubelet-root]")
@click.option("--cdi-dir", type=_FOLDER, default=Path("/var/run/cdi"), show_default=True, help="CDI files.")
@click.option("--state-dir", type=_FOLDER, default=Path("/var/lib/tessera"), show_default=True, help="The journal.")
@click.option("--sharing-config", metavar="NAMESPACE/NAME", help="ConfigMap of sharing profiles.")
@click.option("--sharing-default", metavar="PROFILE", help="Profile of nodes whose label names none.")
@click.option("--mig-config", metavar="NAMESPACE/NAME", help="ConfigMap of MIG layouts.")
@click.option("--mig-default", metavar="LAYOUT", help="Layout of nodes whose label names none.")
@click.option(
    "--mig-strategy",
    envvar="MIG_STRATEGY",
    type=click.Choice(["none", "single", "mixed"]),
    default="mixed",
    show_default=True,
    help="How MIG devices of a layout are advertised.",
)
@click.option("--mig-evict", is_flag=True, help="Evict pods that hold what a layout replaces, instead of waiting.")
@click.option(
    "--mig-reboot",
    is_flag=True,
    help="Reboot the node, once a layout, when MIG mode cannot be changed by a reset of the card.",
)
@click.option(
    "--memory-limits",
    type=click.Choice(["off", "observe", "warn", "evict", "kill"]),
    default="observe",
    show_default=True,
    help="What is done about pods that take more than their share of a card's memory.",
)
@click.option(
    "--device-list-strategy",
    envvar="DEVICE_LIST_STRATEGY",
    default="cdi-cri",
    show_default=True,
    metavar="LIST",
    help="How containers learn of their devices: envvar, volume-mounts, cdi-annotations, cdi-cri, with commas.",
)
@click.option(
    "--device-id-strategy",
    envvar="DEVICE_ID_STRATEGY",
    type=click.Choice(["uuid", "index"]),
    default="uuid",
    show_default=True,
    help="What devices are called in containers.",
)
@click.option(
    "--driver-root",
    type=_FOLDER,
    default=Path("/run/nvidia/driver"),
    show_default=True,
    help="Where a driver container shows its files.",
)
@click.option(
    "--markers-dir",
    type=_FOLDER,
    help="Where driver, toolkit and validation say that they are ready."
    "  [default: /run/nvidia/validations; nowhere with --simulate]",
)
@click.option(
    "--validation",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Advertise cards only after a program was run on them; auto: where the driver is a container's.",
)
@click.option("--pass-device-specs", is_flag=True, help="Name device nodes in the answers to kubelet too.")
@click.option(
    "--mps-root",
    envvar="MPS_ROOT",
    type=_FOLDER,
    default=Path("/run/nvidia/mps"),
    show_default=True,
    help="Pipes and logs of the MPS daemons.",
)
@click.option("--mps-mount", type=_FOLDER, help="Where this process sees --mps-root.  [default: the same]")
@click.option("--http-port", type=click.IntRange(0, 65535), help="Serve /metrics, /healthz and /readyz here.")
@record_option
@log_option
@cluster_options
@report_errors
def command(kubeconfig: Path | None, context: str | None, log_level: str, **options: Any) -> None:
    """Run the node process: cuts and shares the node's cards, and hands them to kubelet.

    Runs on every GPU node, as a DaemonSet (deploy/agent.yaml) or by hand. It needs kubelet's device-plugin and
    pod-resources sockets, the CDI folder, and a folder of its own. Two labels of the node choose what becomes of its
    cards: nvidia.com/mig.config names a MIG layout, or dynamic for slices on demand; nvidia.com/device-plugin.config
    names a sharing profile.

    \b
    Try it on a node without GPUs:
      tessera agent --node-name "$(hostname)" --simulate 4xA100-40GB
    """
    start_log(log_level)
    run_process(_run(options_from(options, os.environ), kubeconfig, context))


def options_from(values: Mapping[str, Any], environment: Mapping[str, str]) -> Any:
    """The agent's options from the command line's and the environment; what was not given keeps its default.

    Raises:
        click.BadParameter: a value is not of its form.
    """
    from tessera.agent.base.options import AgentOptions, EnforcementMode, ValidationMode
    from tessera.api.sharing.profile import MigStrategy

    given = {name: value for name, value in values.items() if value is not None}
    strategies, ids = given.pop("device_list_strategy"), given.pop("device_id_strategy")
    given |= {
        "mig_strategy": MigStrategy(given["mig_strategy"]),
        "memory_limits": EnforcementMode(given["memory_limits"]),
        "validation": ValidationMode(given["validation"]),
        "device_list_strategies": _list_strategies(strategies),
        "device_ids_are_uuids": ids == "uuid",
        "environment": {name: environment[name] for name in _HANDED_ON if name in environment},
    }
    if "simulate" in given:
        given.setdefault("markers_dir", None)
    for name in ("sharing_config", "mig_config"):
        if name in given:
            given[name] = _config_map(name, given[name])
    return AgentOptions(**given)


def _list_strategies(text: str) -> tuple[str, ...]:
    from tessera.api.sharing.profile import DEVICE_LIST_STRATEGIES

    found = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if wrong := [each for each in found if each not in DEVICE_LIST_STRATEGIES]:
        known = ", ".join(DEVICE_LIST_STRATEGIES)
        raise click.BadParameter(f'"{wrong[0]}" is none of {known}', param_hint="--device-list-strategy")
    return found


def _config_map(name: str, text: str) -> Any:
    from tessera.agent.base.options import ConfigMapName

    try:
        return ConfigMapName.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=f"--{name.replace('_', '-')}") from None


def parse_options(arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
    """The agent's options from a container's arguments and environment, as the command would read them."""
    values = dict(command.make_context("agent", _with_variables(arguments, environment)).params)
    for name in ("kubeconfig", "context", "log_level"):
        values.pop(name)
    return options_from(values, environment)


def _with_variables(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The arguments behind those that variables stand for, which they overrule."""
    before = [
        part for name, option in _VARIABLES.items() if name in environment for part in (option, environment[name])
    ]
    return [*before, *arguments]


async def _run(options: Any, kubeconfig: Path | None, context: str | None) -> None:
    from tessera.agent.main.lifecycle import run_lifecycle
    from tessera.clock import SystemClock
    from tessera.kubelet.grpc import GrpcKubelet

    clock = SystemClock()
    options.state_dir.mkdir(parents=True, exist_ok=True)
    kubelet = GrpcKubelet(options.plugin_dir, options.pod_resources / "kubelet.sock", clock=clock)
    async with connect("tessera-agent", kubeconfig, context) as client:
        await run_lifecycle(options, client, _driver(options, clock), kubelet, clock, reboot=_reboot(options))


def _reboot(options: Any) -> Callable[[], Awaitable[None]] | None:
    """Reboots the host; ``None`` for simulated cards, for which no machine is taken down."""
    from tessera.agent.mig_config.reboot import reboot_host

    return reboot_host if options.simulate is None else None


def _driver(options: Any, clock: Any) -> Any:
    from tessera.agent.driver.hardware import MachineDriver, SimulatedDriver

    if options.simulate is None:
        return MachineDriver(options.driver_root, clock)
    from tessera.nvml.simulated.simulated_machine import SimulatedMachine

    machine = SimulatedMachine(options.simulate, seed=options.node_name, state=options.simulated_file)
    return SimulatedDriver(machine, clock, markers=options.markers_dir)
