"""``tessera agent``: the node process."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import click

from tessera.cli.connect import cluster_options, connected, reported
from tessera.cli.process import log_option, run_process, start_log

_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.option("--node-name", envvar="NODE_NAME", required=True, help="Name of the node's object.  [env: NODE_NAME]")
@click.option(
    "--simulate",
    metavar="CARDS",
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
@click.option("--http-port", type=click.IntRange(0, 65535), help="Serve /metrics, /healthz and /readyz here.")
@log_option
@cluster_options
@reported
def command(kubeconfig: Path | None, context: str | None, log_level: str, **options: Any) -> None:
    """Run the node process: makes slices and hands them to kubelet.

    Runs on every GPU node, as a DaemonSet (deploy/agent.yaml) or by hand. It needs kubelet's device-plugin and
    pod-resources sockets, the CDI folder, and a folder of its own. The node joins when it is labelled
    nvidia.com/mig.config=dynamic.

    \b
    Try it on a node without GPUs:
      tessera agent --node-name "$(hostname)" --simulate 4xA100-40GB
    """
    start_log(log_level)
    run_process(_run(options_from(options), kubeconfig, context))


def options_from(values: Mapping[str, Any]) -> Any:
    """The agent's options from the command line's; what was not given keeps its default."""
    from tessera.agent.options import AgentOptions

    return AgentOptions(**{name: value for name, value in values.items() if value is not None})


def parsed(arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
    """The agent's options from a container's arguments and environment, as the command would read them."""
    values = dict(command.make_context("agent", _with_node(arguments, environment)).params)
    for name in ("kubeconfig", "context", "log_level"):
        values.pop(name)
    return options_from(values)


def _with_node(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    given = environment.get("NODE_NAME")
    return [*arguments, *(["--node-name", given] if given else [])]


async def _run(options: Any, kubeconfig: Path | None, context: str | None) -> None:
    from tessera.agent.run import run
    from tessera.clock import SystemClock
    from tessera.kubelet.grpc import GrpcKubelet

    clock = SystemClock()
    options.state_dir.mkdir(parents=True, exist_ok=True)
    kubelet = GrpcKubelet(options.plugin_dir, options.pod_resources / "kubelet.sock", clock=clock)
    async with connected("tessera-agent", kubeconfig, context) as client, _hardware(options, clock) as hardware:
        await run(options, client, hardware, kubelet, clock)


def _hardware(options: Any, clock: Any) -> AbstractAsyncContextManager[Any]:
    from tessera.nvml.worker import InlineNvml, ThreadedNvml

    if options.simulate is None:
        from tessera.nvml.real import RealNvml

        return ThreadedNvml(RealNvml, clock)
    from tessera.nvml.simulated import SimulatedMachine

    machine = SimulatedMachine(options.simulate, seed=options.node_name, state=options.simulated_file)
    return InlineNvml(machine, clock)
