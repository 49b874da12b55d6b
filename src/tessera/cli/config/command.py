"""``tessera config``: checks files of settings before they are used in a cluster, and prints those of runtimes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import report_errors
from tessera.cli.base.grammar import Output, output_option

if TYPE_CHECKING:
    from tessera.cli.config.parts import PartReport
    from tessera.cli.config.runtimes import RuntimeSettings


@click.group()
def command() -> None:
    """Check files of settings before you use them in a cluster, and print those of container runtimes.

    \b
    Examples:
      tessera config check values.yaml
      tessera config runtime crio
    """


@command.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True))
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="[Nx]MODEL",
    help="Show the effect on a node with these cards, such as 4xA100-40GB; repeatable.",
)
@output_option("text")
@report_errors
def check(file: Path, models: Sequence[str], output: Output) -> int:
    """Explain a file of settings: its effect, the settings without effect, and the mistakes.

    FILE is a sharing profile, a file of MIG layouts, manifests of ConfigMaps that hold these, or settings of NVIDIA's
    gpu-operator: the values file of its Helm chart, its ClusterPolicy, or an NVIDIADriver; - reads standard input.
    Values are found inside objects of Flux, Argo CD and other tools too, and below the key of a subchart.

    The exit code is 1 if something is wrong: a mistake in the file, MIG devices that MPS should share, a layout that
    fits no model, or a profile that a node given with --model cannot follow. It is also 1 for an empty file and for a
    message of kubectl, so that a failed command before a pipe is noticed.

    Notes are no mistakes: a layout for other models than those given, and settings of the operator that have no effect
    with Tessera. Tessera does not use hooks of mig-parted and clients of the MIG manager.

    \b
    Examples:
      tessera config check nvidia-time-slicing-config.yaml --model 4xA100-40GB
      tessera config check nvidia-mig-config.yaml --model A100-40GB --model H100-80GB
      tessera config check values.yaml
      kubectl get clusterpolicy -o yaml | tessera config check -
      kubectl get configmap -n gpu my-profiles -o yaml | tessera config check -
    """
    from tessera.cli.base.inputs import read_text
    from tessera.cli.config.files import check_file
    from tessera.cli.config.parts import parse_node

    nodes = [parse_node(each) for each in models]
    parts = check_file(read_text(file), nodes)
    output.show({"parts": parts}, _lines(parts))
    return 1 if any(part.problems for part in parts) else 0


def _lines(parts: "Sequence[PartReport]") -> Iterator[str]:
    for part in parts:
        yield f"{part.name}: {part.kind}, {part.verdict}"
        yield from (f"  {line}" for line in part.means)
        yield from (f"  note: {line}" for line in part.notices)
        yield from (f"  wrong: {line}" for line in part.problems)


#: Container runtimes whose settings are printed (:mod:`tessera.cli.config.runtimes`).
_RUNTIMES = ("containerd", "containerd-1.7", "crio", "docker", "k3s", "rke2", "microk8s")


@command.command()
@click.argument("name", type=click.Choice(_RUNTIMES), metavar="RUNTIME")
@output_option("text")
@report_errors
def runtime(name: str, output: Output) -> None:
    """Print the settings of a container runtime.

    RUNTIME is containerd (version 2), containerd-1.7, crio, docker, k3s, rke2 or microk8s. For nodes on which NVIDIA's
    container toolkit is installed by hand; where Tessera installs it, set nothing. With these settings containers get
    the devices that their pods request, and an image that names cards by NVIDIA_VISIBLE_DEVICES gets none. A file to
    "merge into" keeps its other settings. The last part is a RuntimeClass, for pods on nodes where you leave another
    runtime the default.

    \b
    Examples:
      tessera config runtime containerd
      tessera config runtime k3s -o jsonpath='{.files[0].text}'
    """
    from tessera.cli.config.runtimes import RUNTIMES, class_manifest

    found = RUNTIMES[name]
    document = {"files": found.files, "restart": found.restart, "runtimeClass": class_manifest()}
    output.show(document, _settings_lines(found), (each.path for each in found.files))


def _settings_lines(found: "RuntimeSettings") -> Iterator[str]:
    import yaml

    from tessera.cli.config.runtimes import class_manifest

    for each in found.files:
        yield f"# {'Merge into' if each.merge else 'Write'} {each.path}"
        yield from each.text.splitlines()
        yield ""
    yield f"# Then: {found.restart}"
    yield ""
    yield "# RuntimeClass for pods on nodes where NVIDIA's runtime is not the default"
    yield from yaml.safe_dump(class_manifest(), sort_keys=False).splitlines()
