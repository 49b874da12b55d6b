"""``tessera config``: judges files of settings before a cluster has to."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import report_errors
from tessera.cli.base.console import say, say_json

if TYPE_CHECKING:
    from tessera.cli.config.judgement import Judgement


@click.group()
def command() -> None:
    """Check files of settings before they reach a cluster."""


@command.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True))
@click.option(
    "--model", "models", multiple=True, metavar="[Nx]MODEL", help="Node to try it on, such as 4xA100-40GB; repeatable."
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How to answer.")
@report_errors
def check(file: Path, models: Sequence[str], output: str) -> int:
    """Say what a file means, what has no effect, and what is wrong.

    FILE is a sharing profile, a file of MIG layouts, manifests of ConfigMaps that hold these, or an installation of
    NVIDIA's gpu-operator: the values file of its Helm chart, its ClusterPolicy, or an NVIDIADriver; - reads standard
    input. The exit code is 1 if something is wrong: a mistake in the file, MIG devices to be shared by MPS, a layout
    that no model can take, a profile that a node given with --model cannot follow. A layout that is only for other
    models than those given is right, and so are settings of the operator that have no effect; these are noted with the
    reason. Hooks of mig-parted and clients of the MIG manager are not used. An empty text and a message of kubectl are
    wrong, so that a pipe whose first command failed does not look green.

    \b
    Examples:
      tessera config check nvidia-time-slicing-config.yaml --model 4xA100-40GB
      tessera config check nvidia-mig-config.yaml --model A100-40GB --model H100-80GB
      tessera config check values.yaml
      kubectl get clusterpolicy -o yaml | tessera config check -
      kubectl get configmap -n gpu my-profiles -o yaml | tessera config check -
    """
    from tessera.cli.base.inputs import read_text
    from tessera.cli.config.files import judge_file as judge
    from tessera.cli.config.judgement import parse_node

    nodes = [parse_node(each) for each in models]
    parts = judge(read_text(file), nodes)
    if output == "json":
        say_json({"parts": parts})
    else:
        say(*_lines(parts))
    return 1 if any(part.problems for part in parts) else 0


def _lines(parts: "Sequence[Judgement]") -> Iterator[str]:
    for part in parts:
        yield f"{part.name}: {part.kind}, {part.verdict}"
        yield from (f"  {line}" for line in part.means)
        yield from (f"  note: {line}" for line in part.notices)
        yield from (f"  wrong: {line}" for line in part.problems)
