"""The ``tessera`` command, also reachable as ``kubectl tessera``.

A command's module is imported when it runs or when its own help is shown, never before: the start of the command line
loads Python and click, nothing else. Exit codes are kubectl's: 0, or 1 with one line on standard error.
"""

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from tessera.cli.base.command_group import LazyCommands, Table, default_file, read_defaults
from tessera.cli.base.console import print_error, say, tolerate_any_encoding

#: The product's commands, in the order of the overview; the package tessera-gpu-lab adds its own.
USE: Table = {
    "map": ("tessera.cli.map", "Show each card's slices, the pods that have them, and the free slots."),
    "why": ("tessera.cli.why", "Explain why a pod waits or why a node's cards are not as configured."),
    "queue": ("tessera.cli.queue", "Show the pods that wait for slices: position, reason and expected start."),
    "defrag": ("tessera.cli.defrag", "Show which pods could move so that waiting pods get room."),
    "top": ("tessera.cli.top.command", "Show live what cards and pods do: load, memory, power."),
    "dashboard": ("tessera.cli.dashboard", "Serve a live page of the cluster's cards on this machine."),
    "topo": ("tessera.cli.topo", "Show how the cards of a node or pod are joined, as nvidia-smi topo -m does."),
    "usage": ("tessera.cli.usage", "Show GPU-hours by namespace, user, label or model, and their cost."),
    "resize": ("tessera.cli.resize", "Give a running pod a bigger slice from its container's next start on."),
    "idle": ("tessera.cli.idle", "List cards and slices that pods hold and do not use."),
    "health": ("tessera.cli.health", "Show which cards are not well, why, and what happens next."),
}
OPERATE: Table = {
    "accept": ("tessera.cli.accept", "Check everything that Tessera uses of a machine's cards, before they get work."),
    "cordon": ("tessera.cli.cordon", "Take one card out of service: no new pod gets it, running pods stay."),
    "uncordon": ("tessera.cli.cordon:uncordon", "Give a cordoned card back to pods."),
    "install": ("tessera.cli.install.command", "Install Tessera, or take over the settings of NVIDIA's gpu-operator."),
    "uninstall": ("tessera.cli.uninstall.command", "Remove Tessera from a cluster, without a trace."),
    "doctor": ("tessera.cli.doctor", "Check a cluster before and after the installation, and say what to do."),
    "version": ("tessera.cli.version", "Show the versions of this program, the cluster, and Tessera in it."),
    "driver": ("tessera.cli.driver", "Show the nodes' drivers; find, build and mirror driver images."),
    "debug": ("tessera.cli.debug", "Fetch the decisions of a process, and replay them."),
    "completion": ("tessera.cli.completion", "Print the script that completes commands in a shell or in kubectl."),
}
PLAN: Table = {
    "plan": ("tessera.cli.plan", "Compute a MIG layout for a card model, without a cluster."),
    "config": (
        "tessera.cli.config.command",
        "Check and explain files of sharing, MIG or gpu-operator settings.",
    ),
    "kueue": ("tessera.cli.kueue", "Write Kueue's configuration and queues, with GPU memory as quota."),
    "provisioning": ("tessera.cli.provisioning", "Show how long new nodes took until their cards could be used."),
    "autoscaler": (
        "tessera.cli.autoscaler",
        "Compute an autoscaler's timers from measured times, and the size of a warm pool.",
    ),
}
#: What runs in the cluster's containers; the overview does not show it.
PROCESSES: Table = {
    "controller": ("tessera.cli.controller", "Run the cluster's process: places slices and installs drivers."),
    "webhook": (
        "tessera.cli.webhook",
        "Run the admission webhook: holds pods that request slices until they have a node.",
    ),
    "agent": ("tessera.cli.agent", "Run the node's process: slices and shares cards, and offers them to kubelet."),
    "operator": (
        "tessera.cli.install.operator",
        "Run the operator of the OLM bundle: keeps an installation as it was set.",
    ),
    "mps-host": ("tessera.cli.mps_host", "Start the MPS daemons of a node for its agent."),
    "wait-for": ("tessera.cli.wait_for", "Wait on a node until its driver, toolkit or cards are ready."),
    "validate": ("tessera.cli.validate", "Run a small CUDA program on every card of this node."),
}
COMMANDS: Table = {**USE, **OPERATE, **PLAN, **PROCESSES}

#: The variable by which a shell's script asks for words (tessera.cli.completion).
_COMPLETE = "_TESSERA_COMPLETE"

EPILOG = """\b
Try it without a GPU or a cluster:
  tessera demo
\b
On a cluster (kubeconfig as for kubectl):
  tessera map
  tessera why my-pod -n my-namespace
  tessera why node/my-node
\b
Exit codes: 0; 1 after an error, if the named object does not exist, or if a check
failed; 2 if health finds a card that is not allocated or unknown; 130 after Ctrl-C.
"""


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        from tessera import __version__

        say(f"tessera {__version__}")
        ctx.exit()


@click.command(
    cls=LazyCommands,
    table=COMMANDS,
    sections={"Use": USE, "Operate": OPERATE, "Plan": PLAN},
    group="",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
def tessera() -> None:
    """Give pods of a Kubernetes cluster NVIDIA GPUs: whole, shared, or as MIG slices, fixed or made on demand."""


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        args: the command line without the program's name; the process's own if None.

    Returns:
        The exit code: 0, or 1 when anything went wrong (130 when interrupted).
    """
    tolerate_any_encoding()
    # A command that reads and ends makes next to no garbage: a search for it costs a tenth of its CPU.
    gc.set_threshold(1_000_000, 20, 100)
    try:
        return _run(args)
    finally:
        if args is None:  # The process ends: the interpreter's last searches for garbage cost a quarter of its CPU.
            gc.freeze()


def _run(args: Sequence[str] | None) -> int:
    # Not pathlib, whose import is a part of what starting costs.
    name = "kubectl tessera" if os.path.basename(sys.argv[0]).startswith("kubectl-") else "tessera"  # noqa: PTH119
    if _COMPLETE in os.environ:
        importlib.import_module("tessera.cli.completion")  # kubectl's form of answers
    try:
        result = tessera.main(
            args=None if args is None else list(args),
            prog_name=name,
            standalone_mode=False,
            complete_var=_COMPLETE,
            default_map=_defaults(),
        )
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 0
    except click.ClickException as error:
        print_error(error)
        return 1
    except click.Abort:
        return 130
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library in ("", "tessera"):
            raise
        return _report_missing_library(library)
    except BrokenPipeError:
        # The reader of our output has ended (`tessera map | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return result if isinstance(result, int) else 0


def _defaults() -> dict[str, Any]:
    """The user's defaults; an error for a command that does not exist."""
    found = read_defaults() or {}
    wrong = next((each for each in found if each not in tessera.list_commands(click.Context(tessera))), None)
    if wrong is not None:
        raise click.ClickException(f"defaults in {default_file()}: there is no command {str(wrong)[:60]!r}")
    return dict(found)


def _report_missing_library(library: str) -> int:
    """A command of a process in the cluster, run by the kubectl plugin, which carries no gRPC."""
    print_error(
        click.ClickException(
            f"this command needs the library {library}, which this installation does not have (the kubectl plugin "
            "carries no library of the cluster's processes); run it from Tessera's image, or in a checkout of Tessera "
            "after: pip install ./"
        )
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
