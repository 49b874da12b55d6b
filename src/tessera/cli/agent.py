"""``tessera agent``: the node's process."""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tessera.cli.base.connection import connect_transport, report_errors, server_options
from tessera.cli.base.inputs import check_cards, claim_driver_option, claim_placement_option
from tessera.cli.base.process import (
    address_option,
    log_option,
    metrics_access_option,
    record_option,
    run_process,
    start_log,
)

_FOLDER = click.Path(path_type=Path, file_okay=False)
#: Environment variables by the option that they set: those of NVIDIA's device plugin, which users' manifests have, and
#: ours.
_VARIABLES = {
    "NODE_NAME": "--node-name",
    "MIG_STRATEGY": "--mig-strategy",
    "DEVICE_LIST_STRATEGY": "--device-list-strategy",
    "DEVICE_ID_STRATEGY": "--device-id-strategy",
    "MPS_ROOT": "--mps-root",
    "TESSERA_RECORD": "--record",
    "TESSERA_REPAIRS": "--repairs",
}
#: Environment variables without an option, which the agent reads as NVIDIA's device plugin does.
_PASSED_ON = ("DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS")


@click.command()
@click.option("--node-name", envvar="NODE_NAME", required=True, help="Name of this node.  [env: NODE_NAME]")
@click.option(
    "--simulate",
    metavar="CARDS",
    callback=check_cards,
    help="Simulate these cards instead of using the machine's, e.g. 4xA100-40GB or 2xA30,1xH100-80GB. Containers then"
    " get the environment variables of their slices, but no device nodes.",
)
@click.option(
    "--simulated-state",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of the simulated cards' state, which survives restarts.  [default: in --state-dir]",
)
@click.option(
    "--kubelet-root",
    type=_FOLDER,
    default=Path("/var/lib/kubelet"),
    show_default=True,
    help="Kubelet's own folder, its --root-dir.",
)
@click.option(
    "--plugin-dir",
    type=_FOLDER,
    help="Folder of kubelet's device-plugin sockets.  [default: /var/lib/kubelet/device-plugins, for every"
    " --kubelet-root]",
)
@click.option(
    "--pod-resources-dir", type=_FOLDER, help="Folder of kubelet's pod-resources socket.  [default: in --kubelet-root]"
)
@click.option(
    "--cdi-dir", type=_FOLDER, default=Path("/var/run/cdi"), show_default=True, help="Folder for CDI specifications."
)
@click.option(
    "--state-dir",
    type=_FOLDER,
    default=Path("/var/lib/tessera"),
    show_default=True,
    help="Folder of the agent's own state, which survives restarts.",
)
@click.option("--sharing-config", metavar="NAMESPACE/NAME", help="ConfigMap of sharing profiles.")
@click.option(
    "--sharing-default",
    metavar="PROFILE",
    help="Sharing profile of a node without the label nvidia.com/device-plugin.config.",
)
@click.option(
    "--repairs",
    envvar="TESSERA_REPAIRS",
    metavar="NAMESPACE/NAME",
    help="ConfigMap of what is done about cards with faults: tessera-repairs.  [env: TESSERA_REPAIRS]",
)
@click.option("--mig-config", metavar="NAMESPACE/NAME", help="ConfigMap of MIG layouts.")
@click.option("--mig-default", metavar="LAYOUT", help="MIG layout of a node without the label nvidia.com/mig.config.")
@click.option(
    "--mig-strategy",
    envvar="MIG_STRATEGY",
    type=click.Choice(["none", "single", "mixed"]),
    default="mixed",
    show_default=True,
    help="Resource names of a layout's MIG devices, as in NVIDIA's device plugin: mixed has one name for each profile.",
)
@click.option(
    "--mig-evict", is_flag=True, help="Evict pods that use devices which a new layout removes, instead of waiting."
)
@click.option(
    "--mig-reboot",
    is_flag=True,
    help="Reboot the node if a reset of the card cannot change its MIG mode; at most once for each layout.",
)
@claim_driver_option(
    "Serve ResourceClaims as this driver if the node has the label tessera.dev/device-api=dra.  [default: none]"
)
@claim_placement_option
@click.option(
    "--memory-limits",
    type=click.Choice(["off", "observe", "warn", "evict", "kill"]),
    default="observe",
    show_default=True,
    help="Action on pods that use more than their share of a card's memory.",
)
@click.option(
    "--device-list-strategy",
    envvar="DEVICE_LIST_STRATEGY",
    default="cdi-cri",
    show_default=True,
    metavar="LIST",
    help="How kubelet passes devices to containers: envvar, volume-mounts, cdi-annotations or cdi-cri; several with"
    " commas.",
)
@click.option(
    "--device-id-strategy",
    envvar="DEVICE_ID_STRATEGY",
    type=click.Choice(["uuid", "index"]),
    default="uuid",
    show_default=True,
    help="How containers name their devices.",
)
@click.option(
    "--driver-root",
    type=_FOLDER,
    default=Path("/run/nvidia/driver"),
    show_default=True,
    help="Folder into which a driver container mounts its files.",
)
@click.option(
    "--markers-dir",
    type=_FOLDER,
    help="Folder of the marker files of driver, toolkit and validation."
    "  [default: /run/nvidia/validations; none with --simulate]",
)
@click.option(
    "--validation",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Offer cards only after a test program has run on them; auto: if a container installs the driver.",
)
@click.option(
    "--pass-device-specs", is_flag=True, help="Also list device nodes in the answers to kubelet (NVIDIA's option)."
)
@click.option(
    "--mps-root",
    envvar="MPS_ROOT",
    type=_FOLDER,
    default=Path("/run/nvidia/mps"),
    show_default=True,
    help="Folder on the host for pipes and logs of the MPS daemons.",
)
@click.option("--mps-mount", type=_FOLDER, help="Path of --mps-root in this container.  [default: the same path]")
@click.option(
    "--mps-host",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Socket of `tessera mps-host`, which starts the MPS daemons, so that they outlive this process's container."
    "  [default: this process starts them]",
)
@click.option("--http-port", type=click.IntRange(0, 65535), help="Serve /metrics, /usage, /healthz and /readyz here.")
@metrics_access_option
@click.option(
    "--metric-names",
    type=click.Choice(["dcgm-4.8", "dcgm-4.9", "both"]),
    default="both",
    show_default=True,
    help="Names and units of dcgm-exporter's series in /metrics.",
)
@click.option(
    "--max-series",
    type=click.IntRange(min=0),
    default=10_000,
    show_default=True,
    help="Most series in /metrics with labels of pods; the rest is counted in tessera_pod_series_cut.",
)
@record_option
@address_option
@log_option
@server_options
@report_errors
def command(kubeconfig: Path | None, context: str | None, log_level: str, **options: Any) -> None:
    """Run the node's process.

    The agent slices and shares the node's cards, and offers them to kubelet. It runs on every GPU node, as a DaemonSet
    (deploy/agent.yaml) or by hand. It needs kubelet's device-plugin and pod-resources sockets, the CDI folder, and a
    folder for its state. Two labels of the node configure its cards: nvidia.com/mig.config names a MIG layout, or has
    the value dynamic for slices on demand; nvidia.com/device-plugin.config names a sharing profile.

    \b
    Try it on a node without GPUs:
      tessera agent --node-name "$(hostname)" --simulate 4xA100-40GB

    \b
    Example:
      tessera agent --node-name node-1
    """
    start_log(log_level)
    run_process(_run(options_from(options, os.environ), kubeconfig, context))


def options_from(values: Mapping[str, Any], environment: Mapping[str, str]) -> Any:
    """The agent's options for values of the command line and the environment; missing ones have their defaults.

    Raises:
        click.BadParameter: a value has a wrong form.
    """
    from tessera.agent.base.settings import AgentOptions, EnforcementMode, MetricNames, ValidationMode
    from tessera.api.sharing.profile import MigStrategy

    given = {name: value for name, value in values.items() if value is not None}
    strategies, ids = given.pop("device_list_strategy"), given.pop("device_id_strategy")
    given |= {
        "mig_strategy": MigStrategy(given["mig_strategy"]),
        "memory_limits": EnforcementMode(given["memory_limits"]),
        "validation": ValidationMode(given["validation"]),
        "metric_names": MetricNames(given["metric_names"]),
        "device_list_strategies": _list_strategies(strategies),
        "device_ids_are_uuids": ids == "uuid",
        "environment": {name: environment[name] for name in _PASSED_ON if name in environment},
    }
    if "simulate" in given:
        given.setdefault("markers_dir", None)
    for name in ("sharing_config", "repairs", "mig_config"):
        if name in given:
            given[name] = _config_map(name, given[name])
    return AgentOptions(**given)


def _list_strategies(text: str) -> tuple[str, ...]:
    from tessera.api.sharing.profile import DEVICE_LIST_STRATEGIES

    found = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if wrong := [each for each in found if each not in DEVICE_LIST_STRATEGIES]:
        known = ", ".join(DEVICE_LIST_STRATEGIES)
        raise click.BadParameter(f'"{wrong[0]}" is not one of {known}', param_hint="--device-list-strategy")
    return found


def _config_map(name: str, text: str) -> Any:
    from tessera.agent.base.settings import ConfigMapName

    try:
        return ConfigMapName.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=f"--{name.replace('_', '-')}") from None


def parse_options(arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
    """The agent's options for a container's arguments and environment."""
    values = dict(command.make_context("agent", _with_variables(arguments, environment)).params)
    for name in ("kubeconfig", "context", "log_level"):
        values.pop(name)
    return options_from(values, environment)


def _with_variables(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The arguments after those that the environment stands for; click takes the last value of an option."""
    before = [
        part for name, option in _VARIABLES.items() if name in environment for part in (option, environment[name])
    ]
    return [*before, *arguments]


async def _run(options: Any, kubeconfig: Path | None, context: str | None) -> None:
    from tessera.agent.lifecycle import run_lifecycle
    from tessera.api.nodes.node_marks import CARDS_MANAGER
    from tessera.clock import SystemClock
    from tessera.kubelet.grpc import GrpcKubelet
    from tessera.kubelet.sockets import CLAIM_PLUGIN_DIR, REGISTRY_DIR

    clock = SystemClock()
    options.state_dir.mkdir(parents=True, exist_ok=True)
    kubelet = GrpcKubelet(
        options.plugin_dir,
        options.pod_resources / "kubelet.sock",
        clock=clock,
        registry=options.kubelet_root / REGISTRY_DIR.name,
        claim_plugins=options.kubelet_root / CLAIM_PLUGIN_DIR.name,
        serve_claims=_claim_server(options),
    )
    async with connect_transport(CARDS_MANAGER, kubeconfig, context) as (client, _):
        driver, programs = _driver(options, clock)
        host = _host(options)
        satellites = node_satellites(options)
        await run_lifecycle(
            options, client, driver, kubelet, clock, host=host, programs=programs, satellites=satellites
        )


def _claim_server(options: Any) -> Any:
    """What serves the driver of claims to kubelet; None without one."""
    if not options.claim_driver:
        return None
    from tessera.claims.agent.claim_server import serve_claims

    return serve_claims


def node_satellites(options: Any) -> Any:
    """The satellites of an agent with these options. Their modules are imported only here."""
    from tessera.agent.satellites import NodeSatellites
    from tessera.memory_limits.monitor import watch_memory
    from tessera.signals.service_pages import read_loads

    giver = None
    if options.claim_driver:
        from tessera.claims.agent.claim_service import ClaimService

        giver = ClaimService
    return NodeSatellites(giver=giver, memory=watch_memory, loads=read_loads)


def _host(options: Any) -> Callable[[Sequence[str]], Awaitable[None]] | None:
    """The function that runs commands on the host; None with simulated cards, for which no machine is rebooted."""
    from tessera.agent.base.host import run_on_host

    return None if options.simulate is not None else run_on_host


def _driver(options: Any, clock: Any) -> tuple[Any, Any]:
    """The node's driver and programs; None for the machine's own programs."""
    from tessera.agent.driver.hardware import MachineDriver

    if options.simulate is None:
        return MachineDriver(options.driver_root, clock), None
    from tessera.agent.simulated import SimulatedDriver, SimulatedPrograms
    from tessera.nvml.simulated.simulated_machine import SimulatedMachine

    machine = SimulatedMachine(options.simulate, seed=options.node_name, state=options.simulated_file)
    return SimulatedDriver(machine, clock, markers=options.markers_dir), SimulatedPrograms(machine, clock)
