"""``tessera version``: this program, the cluster's API server, and the Tessera that runs there."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from tessera import __version__
from tessera.cli.base.connection import cluster_options, connect, report_errors
from tessera.cli.base.grammar import Output, output_option
from tessera.cli.base.process import run_command
from tessera.text import count_noun, one_line

#: The commit of an image and of the kubectl plugin; their builds set it.
COMMIT = "TESSERA_COMMIT"
_APP = "app.kubernetes.io/name"


class Running(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Pods of one of Tessera's processes that run one image."""

    process: str
    image: str
    pods: int
    ready: int


@click.command()
@click.option("--client", "alone", is_flag=True, help="Show this program only; contact no cluster.")
@output_option("text")
@cluster_options
@report_errors
def command(*, alone: bool, output: Output, kubeconfig: Path | None, context: str | None) -> None:
    """Show the version and commit of this program, the cluster's version, and the images of Tessera's processes.

    \b
    Examples:
      tessera version
      tessera version --client
      tessera version -o json
    """
    document: dict[str, Any] = {"client": {"version": __version__, "commit": commit()}}
    lines = [f"tessera      {__version__}, commit {commit() or 'not known'}"]
    if not alone:
        server, running, refused = run_command(_read(kubeconfig, context))
        document |= {"server": server, "installed": running, "notRead": refused}
        lines += [f"Kubernetes   {server or 'not known'}", *_lines(running, refused)]
    output.show(document, lines)


def commit() -> str:
    """The commit from which this program was built, or that its checkout has; empty if neither is known."""
    return os.environ.get(COMMIT) or _commit_of(Path(__file__).parents[3])


def _commit_of(checkout: Path) -> str:
    """The commit of a checkout's HEAD (gitrepository-layout); empty if it is none. Runs no program."""
    try:
        git = checkout / ".git"
        if git.is_file():  # of a worktree, beside the others of its repository
            git = checkout / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head
        common = git / "commondir"
        shared = git / common.read_text(encoding="utf-8").strip() if common.is_file() else git
        name = head.removeprefix("ref: ")
        if (shared / name).is_file():
            return (shared / name).read_text(encoding="utf-8").strip()
        packed = (line.split() for line in (shared / "packed-refs").read_text(encoding="utf-8").splitlines())
        return next((words[0] for words in packed if words[1:] == [name]), "")
    except OSError:
        return ""


async def _read(kubeconfig: Path | None, context: str | None) -> tuple[str, list[Running], str]:
    """The server's version, what runs, and why that could not be read."""
    from tessera.api.names import SYSTEM_NAMESPACE
    from tessera.cli.base.simulated_cluster import server_version
    from tessera.kube.errors import ApiError, Forbidden
    from tessera.kube.resources import PODS

    async with connect("tessera-version", kubeconfig, context) as client:
        server = await server_version(client)
        try:
            pods = (await client.list(PODS.as_dicts(), namespace=SYSTEM_NAMESPACE)).items
        except Forbidden:
            return server, [], f"you may not list the pods of {SYSTEM_NAMESPACE}"
        except ApiError as error:
            return server, [], one_line(error, 300)
        return server, running_images(pods), ""


def running_images(pods: Sequence[Mapping[str, Any]]) -> list[Running]:
    """What runs, by process and image."""
    every, ready = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for pod in pods:
        app = (pod["metadata"].get("labels") or {}).get(_APP, "")
        if app.startswith("tessera-"):
            key = (app.removeprefix("tessera-"), pod["spec"]["containers"][0]["image"])
            every[key] += 1
            conditions = (pod.get("status") or {}).get("conditions") or ()
            ready[key] += any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return [
        Running(process=process, image=image, pods=number, ready=ready[process, image])
        for (process, image), number in sorted(every.items())
    ]


def _lines(running: list[Running], refused: str) -> Iterator[str]:
    if refused:
        yield f"Tessera's processes could not be read: {refused}"
    elif not running:
        yield "Tessera is not installed in the cluster"
    for each in running:
        yield f"{each.process:<12} {one_line(each.image, 200)}   {each.ready} of {count_noun(each.pods, 'pod')} ready"
