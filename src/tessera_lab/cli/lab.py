"""``tessera lab``: a simulated cluster on this machine, in the background."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tessera.cli.base.connection import report_errors
from tessera.cli.base.console import say, say_document
from tessera.cli.base.grammar import Output, output_option
from tessera.cli.base.inputs import check_claim_options, claim_driver_option, claim_placement_option
from tessera_lab.apiserver.kinds.versions import CLUSTERS, DEFAULT
from tessera_lab.cli.lab_cards import (
    break_command,
    dir_option,
    mend_command,
    running_lab_folder,
    scenario_command,
    use_memory_command,
)

if TYPE_CHECKING:
    from tessera_lab.daemon.lab_folder import LabState


def _folder(value: Path | None) -> Path:
    from tessera_lab.daemon.lab_folder import default_folder

    return (value or default_folder()).absolute()


def lab_options(function: Any) -> Any:
    """Adds the options of the simulated cluster; ``up`` passes them on to ``serve``."""
    for option in reversed(
        (
            click.option(
                "--nodes",
                default="4xA100-40GB",
                show_default=True,
                metavar="CARDS[,CARDS]...",
                help="The nodes' cards: 4xA100-40GB for one node; 2xA30+1xH200 for a node with mixed cards;"
                " 10*8xH100-80GB for ten equal nodes; 0 for a node without cards; 4xA30@rhcos4.15 for another --os,"
                " 4xA30@fedora41/arm64 for another architecture too.",
            ),
            click.option(
                "--nodes-from",
                multiple=True,
                metavar="FILE",
                type=click.Path(path_type=Path, dir_okay=False, exists=True, resolve_path=True),
                help="Add a node with simulated cards as this document of `tessera accept -o json` describes;"
                " repeatable. Without --nodes, the lab has no other node.",
            ),
            click.option(
                "--os",
                "system",
                default="",
                metavar="NAME",
                help="Operating system of the nodes: ubuntu22.04, ubuntu24.04, rhcos4.15 and others.",
            ),
            click.option(
                "--kernel",
                default="",
                metavar="NAME",
                help="The nodes' kernel, `uname -r`.  [default: the kernel of --os]",
            ),
            click.option(
                "--kubernetes",
                type=click.Choice(CLUSTERS),
                default=DEFAULT,
                show_default=True,
                help="Version of the API server and the kubelets; resource.k8s.io has its fields and kinds.",
            ),
            click.option(
                "--group",
                "groups",
                multiple=True,
                metavar="NAME=CARDS[:MIN-MAX]",
                help="A node group with a simulated cluster autoscaler, for pods that request nvidia.com/gpu:"
                " gpu=4xA100-40GB:0-3; repeatable. A new node is ready after --boot-time.",
            ),
            click.option(
                "--idle-time",
                type=click.FloatRange(0),
                default=600.0,
                show_default=True,
                help="Seconds after which the autoscaler removes an idle node of a group.",
            ),
            click.option("--virtual-time", is_flag=True, help="Skip simulated waits: `sleep 3600` ends at once."),
            click.option(
                "--image-pull", type=click.FloatRange(0), default=0.0, help="Seconds that the pull of an image takes."
            ),
            click.option(
                "--slice-latency", type=click.FloatRange(0), default=0.0, help="Seconds that a card needs for a slice."
            ),
            click.option(
                "--publish-every",
                type=click.FloatRange(0, min_open=True),
                help="Period in seconds at which kubelets publish changed capacity; real ones have 10.  [default: at"
                " once; 10 with --drivers]",
            ),
            click.option(
                "--boot-time",
                type=click.FloatRange(0),
                default=30.0,
                show_default=True,
                help="Seconds that a reboot takes, and that a new node of a --group takes.",
            ),
            click.option(
                "--mig-config",
                default="dynamic",
                show_default=True,
                metavar="LAYOUT",
                help="Value of the label nvidia.com/mig.config of nodes with MIG cards; '' for no label, which offers"
                " whole cards.",
            ),
            claim_driver_option(
                "Install Tessera with this driver of ResourceClaims; nodes with MIG cards give their slices"
                " by claims.  [default: by limits]"
            ),
            claim_placement_option,
            click.option(
                "--drivers",
                is_flag=True,
                help="Start nodes without drivers; a ClusterPolicy installs them (examples/drivers), from simulated"
                " registries.",
            ),
            click.option(
                "--port", type=click.IntRange(0, 65535), default=0, help="Port of the API server; 0 for a free port."
            ),
            click.option("--dashboard", is_flag=True, help="Serve the live page too; `lab status` shows its address."),
            click.option(
                "--kueue",
                is_flag=True,
                help="Install a simulated Kueue too, which follows Kueue's documentation (docs/kueue.md).",
            ),
            click.option(
                "--image",
                "images",
                multiple=True,
                metavar="IMAGE=WHEEL",
                help="Run Tessera's containers of this image as processes of their own, with the code of a wheel: for"
                " trials of an upgrade; repeatable. Needs --no-tessera.",
            ),
            click.option(
                "--tessera/--no-tessera",
                "installed",
                default=True,
                help="Install Tessera from deploy/.  [default: install]",
            ),
        )
    ):
        function = option(function)
    return function


@click.group()
def command() -> None:
    """Start, inspect and stop a simulated cluster on this machine.

    The lab has an API server for kubectl, a scheduler, workload controllers and a simulated kubelet for each node,
    which uses the real device-plugin protocol. Tessera is installed in it from deploy/ and runs its production code;
    cards, images and all other containers are simulated.

    \b
    Examples:
      tessera lab up --nodes 4xA100-40GB
      tessera lab down
    """


@command.command()
@lab_options
@dir_option
@click.pass_context
@report_errors
def up(context: click.Context, /, folder: Path | None, **options: Any) -> None:
    """Start a lab in the background.

    \b
    Examples:
      tessera lab up
      tessera lab up --nodes 4xA100-40GB,8xH100-80GB
      tessera lab up --nodes-from accept.json
      tessera lab up --nodes 0 --group gpu=4xA100-40GB:0-3 --virtual-time
      tessera lab up --nodes 4xA30,4xA30@rhcos4.15 --os ubuntu22.04 --kernel 5.15.0-119-generic
      export KUBECONFIG="$(tessera lab status -o kubeconfig)"
    """
    from tessera_lab.cloud.autoscaler.process import parse_groups
    from tessera_lab.cluster.accepted_nodes import lab_nodes
    from tessera_lab.cluster.options import parse_system
    from tessera_lab.daemon import lab_folder
    from tessera_lab.installation.image_processes import parse_image

    for image in options["images"]:
        parse_image(image)
    if options["images"] and (options["installed"] or options["virtual_time"]):
        raise click.UsageError("--image needs --no-tessera, and real time: its processes share cards in files")
    if options["nodes_from"] and context.get_parameter_source("nodes") is ParameterSource.DEFAULT:
        options["nodes"] = ""
    lab_nodes(options["nodes"], options["nodes_from"])
    parse_system(options["system"], options["kernel"])
    parse_groups(options["groups"])
    check_claim_options(options["claim_driver"], options["claim_placement"])
    state = lab_folder.start(_folder(folder), _arguments(options))
    say(f"lab is up: {state.server}, {_simulation_speed(state)}", *_page(state), _export(state))


def _export(state: "LabState") -> str:
    return f"export KUBECONFIG={shlex.quote(str(state.kubeconfig))}"


def _page(state: "LabState") -> list[str]:
    return [f"live page: {state.page}"] if state.page else []


def _simulation_speed(state: "LabState") -> str:
    groups = f", simulated node groups {' '.join(state.groups)}" if state.groups else ""
    return f"simulated nodes {state.nodes}{groups}{', simulated Kueue' * state.kueue}"


def _arguments(options: dict[str, Any]) -> list[str]:
    flags = ["--virtual-time"] * options["virtual_time"] + ["--no-tessera"] * (not options["installed"])
    flags += ["--drivers"] * options["drivers"] + ["--dashboard"] * options["dashboard"]
    flags += ["--kueue"] * options["kueue"]
    pairs = [("--nodes", options["nodes"]), ("--port", options["port"]), ("--publish-every", options["publish_every"])]
    pairs += [("--image-pull", options["image_pull"]), ("--slice-latency", options["slice_latency"])]
    pairs += [("--nodes-from", each) for each in options["nodes_from"]]
    pairs += [("--group", each) for each in options["groups"]] + [("--idle-time", options["idle_time"])]
    pairs += [("--image", each) for each in options["images"]]
    pairs += [("--claim-driver", options["claim_driver"]), ("--claim-placement", options["claim_placement"])]
    pairs += [("--os", options["system"]), ("--kernel", options["kernel"]), ("--kubernetes", options["kubernetes"])]
    pairs += [("--mig-config", options["mig_config"]), ("--boot-time", options["boot_time"])]
    return flags + [str(part) for pair in pairs if pair[1] is not None for part in pair]


@command.command()
@dir_option
@report_errors
def down(folder: Path | None) -> None:
    """End the lab and remove its folder.

    \b
    Example:
      tessera lab down
    """
    from tessera_lab.daemon import lab_folder

    where = _folder(folder)
    say("lab is down" if lab_folder.stop(where) else f"no lab runs in {where}")


@command.command()
@output_option("text", "kubeconfig")
@dir_option
@report_errors
def status(folder: Path | None, output: Output) -> int:
    """Show the running lab and its kubeconfig. The exit code is 1 if no lab runs.

    \b
    Examples:
      tessera lab status
      tessera lab status -o kubeconfig
    """
    from tessera_lab.daemon import lab_folder

    where = _folder(folder)
    state = lab_folder.find_running_lab(where)
    if state is None:
        say(f"no lab runs in {where}; start one with: tessera lab up", err=True)
        return 1
    if output.form == "kubeconfig":
        say(state.kubeconfig)
        return 0
    time = "virtual" if state.virtual_time else "real"
    title = f"lab is up since {state.started}: {state.server}, process {state.pid}, {time} time"
    output.show(state, [title, _simulation_speed(state), *_page(state), _export(state)], [f"lab/{where}"])
    return 0


@command.command(short_help="List a node's simulated cards as `nvidia-smi -L` would.")
@click.argument("node")
@dir_option
@report_errors
def smi(folder: Path | None, node: str) -> None:
    """List a node's simulated cards and their MIG devices, as `nvidia-smi -L` would.

    \b
    Example:
      tessera lab smi node-1
    """
    from tessera_lab.daemon.lab_folder import send_request

    say_document(send_request(running_lab_folder(folder), "smi", node))


@command.command()
@click.argument("node")
@click.option("--kernel", metavar="NAME", default="", help="Boot into this kernel, `uname -r`.  [default: the same]")
@dir_option
@report_errors
def reboot(folder: Path | None, node: str, kernel: str) -> None:
    """Reboot a node, and do not wait for it.

    All containers of the node end, and the MIG instances of its cards are lost; A100 and A30 stay in MIG mode, newer
    cards leave it. After --boot-time (see `lab up`) the node has a new boot ID, its pods' containers start again, and
    the agent restores the layout of its cards. Pods with devices fail, as on real nodes: kubelet restarts them before
    their device plugin has registered. Their owner creates new pods.

    \b
    Watch it:
      tessera lab reboot node-1
      kubectl get events --field-selector reason=Rebooted
      kubectl get pods -A -o wide --watch

    \b
    Example:
      tessera lab reboot node-1
    """
    from tessera_lab.daemon.lab_folder import send_request

    say_document(send_request(running_lab_folder(folder), "reboot", f"{node} {kernel}".strip()))


@command.command(hidden=True)
@lab_options
@dir_option
@report_errors
def serve(folder: Path | None, **options: Any) -> None:
    """Run a lab in the foreground until it gets a signal; `up` does this in the background.

    \b
    Example:
      tessera lab serve --nodes 4xA100-40GB
    """
    from tessera.cli.base.process import reduce_garbage_collection, start_log
    from tessera_lab.cli.own_commands import own_commands
    from tessera_lab.daemon.lab_folder import files_of
    from tessera_lab.daemon.serve import LabOptions, serve_lab

    start_log("info")
    reduce_garbage_collection()
    commands = own_commands()
    serve_lab(files_of(_folder(folder)), LabOptions(**options), commands)


for _each in (break_command, mend_command, use_memory_command, scenario_command):
    command.add_command(_each)
