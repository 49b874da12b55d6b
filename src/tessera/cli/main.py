"""The ``tessera`` command, also reachable as ``kubectl tessera``.

A command's module is imported when it runs or when its own help is asked for, never before: starting the command line
costs Python, click and nothing else. Exit codes are kubectl's: 0, or 1 with one line on standard error.
"""

import os
import sys
from collections.abc import Sequence

import click

from tessera.cli.base.command_group import LazyCommands, Table
from tessera.cli.base.console import print_refusal, say, tolerate_any_encoding

#: The product's commands, in the order of the overview; the package tessera-lab adds its own.
COMMANDS: Table = {
    "map": ("tessera.cli.map", "Show the cards as tiles: which pod has which slice, and what is free."),
    "why": ("tessera.cli.why", "Say why a pod waits or how a node's cards stand, and what would help."),
    "plan": ("tessera.cli.plan", "Try a MIG layout on a model of card: its tiles, or what stands in the way."),
    "config": (
        "tessera.cli.config.command",
        "Check settings of sharing, MIG or NVIDIA's operator: what they mean, what is wrong.",
    ),
    "install": ("tessera.cli.install.command", "Install Tessera, or take over the settings of NVIDIA's gpu-operator."),
    "driver": ("tessera.cli.driver", "See how nodes get their drivers; find, build and mirror driver images."),
    "provisioning": ("tessera.cli.provisioning", "See how long nodes took until their cards could be used."),
    "bench": ("tessera.cli.bench", "Measure the time until cards can be used, here in the lab or on a cluster."),
    "autoscaler": (
        "tessera.cli.autoscaler",
        "Set an autoscaler's timers by measured times, and size a pool of warm nodes.",
    ),
    "controller": ("tessera.cli.controller", "Run the cluster process: places slices and ungates pods."),
    "webhook": (
        "tessera.cli.webhook",
        "Run admission: gates pods that ask for a slice, and turns requirements into resources.",
    ),
    "agent": ("tessera.cli.agent", "Run the node process: cuts and shares cards, and hands them to kubelet."),
    "wait-for": ("tessera.cli.wait_for", "Wait on a node until its driver, toolkit or cards are ready."),
    "debug": ("tessera.cli.debug", "Record what a process decides, and run its deciders over the record again."),
    "validate": ("tessera.cli.validate", "Run a small program on every card of this node, through the runtime."),
}

EPILOG = """\b
Try it without a GPU or a cluster:
  tessera demo
\b
On a cluster (kubeconfig as for kubectl):
  tessera map
  tessera why my-pod -n my-namespace
  tessera why node/my-node
"""


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        from tessera import __version__

        say(f"tessera {__version__}")
        ctx.exit()


@click.command(
    cls=LazyCommands,
    table=COMMANDS,
    group="",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show it.")
def tessera() -> None:
    """NVIDIA GPUs for the pods of a Kubernetes cluster: whole, shared, cut by a layout, or cut on demand."""


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        args: the command line without the program's name; the process's own if None.

    Returns:
        The exit code: 0, or 1 when anything went wrong (130 when interrupted).
    """
    tolerate_any_encoding()
    # Not pathlib, whose import is a part of what starting costs.
    name = "kubectl tessera" if os.path.basename(sys.argv[0]).startswith("kubectl-") else "tessera"  # noqa: PTH119
    try:
        result = tessera.main(args=None if args is None else list(args), prog_name=name, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 0
    except click.ClickException as error:
        print_refusal(error)
        return 1
    except click.Abort:
        return 130
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`tessera map | head`); nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
