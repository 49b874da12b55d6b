"""``tessera doctor``: examines a cluster before and after an installation."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import (
    CommandError,
    cluster_options,
    connect,
    connect_transport,
    own_namespace,
    report_errors,
)
from tessera.cli.base.console import say
from tessera.cli.base.grammar import Output, output_option
from tessera.cli.base.inputs import check_image
from tessera.cli.base.process import run_command
from tessera.text import count_noun, list_names, one_line

if TYPE_CHECKING:
    from tessera.doctor.archive import Archive
    from tessera.doctor.bundle import FetchRecords
    from tessera.doctor.facts import Finding, Verdict
    from tessera.kube.http import HttpTransport


@click.command()
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Namespace of the trial pod, which the API server reviews and does not store, and of the one of --image."
    "  [default: the context's, or default]",
)
@click.option(
    "--image",
    metavar="IMAGE",
    callback=check_image,
    help="Let a node pull this image of Tessera: by a pod in that namespace, which is deleted again.",
)
@click.option("--all", "shows_all", is_flag=True, help="Show also the checks that pass.")
@output_option("text")
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a support archive (tar.gz) without secrets instead.",
)
@click.option("--records", is_flag=True, help="Put the decision records of the processes into the archive.")
@cluster_options
@report_errors
def command(
    *,
    namespace: str | None,
    image: str | None,
    shows_all: bool,
    output: Output,
    bundle: Path | None,
    records: bool,
    kubeconfig: Path | None,
    context: str | None,
) -> int:
    """Check a cluster before and after the installation, and say what to do.

    The command looks at versions, feature gates, container runtimes, clocks, other software that manages cards,
    Tessera's processes, certificates, your rights, and whether the API server reaches the webhook. It changes nothing,
    except that --image makes a pod and deletes it. The exit code is 1 if something does not work.

    With --bundle it writes an archive for a support case: the findings, Tessera's objects, nodes, events, logs and
    metrics. Secrets, tokens and values of environment variables are left out; its manifest.json lists what is in it and
    what is not.

    \b
    Examples:
      tessera doctor
      tessera doctor --all
      tessera doctor --image REGISTRY/tessera:0.2.0
      tessera doctor -o json > doctor.json
      tessera doctor --bundle case.tar.gz
    """
    namespace = own_namespace(namespace, kubeconfig, context)
    if bundle is not None:
        _write_bundle(bundle, namespace, records=records, kubeconfig=kubeconfig, context=context)
        return 0
    if records:
        raise click.UsageError("--records is for an archive: name its file with --bundle FILE")
    from tessera.doctor.facts import Verdict, worst

    findings = run_command(_examine(namespace, image, kubeconfig, context))
    verdict = worst(findings)
    output.show(
        {"verdict": verdict, "findings": findings},
        _lines(findings, shows_all=shows_all),
        (f"check/{each.check}" for each in findings),
    )
    return int(verdict is Verdict.ERROR)


async def _examine(
    namespace: str, image: str | None, kubeconfig: Path | None, context: str | None
) -> "Sequence[Finding]":
    from tessera.clock import SystemClock
    from tessera.doctor.examination import examine

    async with connect("tessera-doctor", kubeconfig, context) as client:
        tried = []
        if image is not None:
            from tessera.doctor.examination import try_image

            tried = [await try_image(client, SystemClock(), image, namespace)]
        return [*tried, *await examine(client, SystemClock(), namespace)]


def _write_bundle(file: Path, namespace: str, *, records: bool, kubeconfig: Path | None, context: str | None) -> None:
    from tessera import __version__

    if not file.parent.is_dir():
        raise CommandError(f"error: the folder {file.parent} does not exist; create it, or name another FILE")
    archive = run_command(_collect(namespace, kubeconfig, context, records=records))
    size = archive.write(file, tessera=__version__)
    say(f"{file}: {count_noun(len(archive.files), 'file')}, {size:,} bytes; readable for you only")
    for each in archive.left_out:
        say(f"  not in it: {each.what}: {each.why}")
    say("Names of nodes, namespaces, pods and images are in it. Look through it before you send it.")


async def _collect(namespace: str, kubeconfig: Path | None, context: str | None, *, records: bool) -> "Archive":
    from tessera.clock import SystemClock
    from tessera.doctor.bundle import collect

    async with connect_transport("tessera-doctor", kubeconfig, context) as (client, transport):
        fetch = _record_fetcher(transport) if records else None
        return await collect(client, SystemClock(), trial_namespace=namespace, fetch_records=fetch)


def _record_fetcher(transport: "HttpTransport") -> "FetchRecords":
    from tessera.api.names import SYSTEM_NAMESPACE
    from tessera.cli.base.pod_exec import run_in_container

    async def fetch(pod: str, container: str) -> bytes:
        this = ["tessera", "debug", "record", "--here"]
        done = await run_in_container(transport, SYSTEM_NAMESPACE, pod, container, this)
        if done.failure:
            text = done.stderr.decode(errors="replace").strip() or done.failure
            raise ConnectionError(text.removeprefix("error: "))
        return done.stdout

    return fetch


def _lines(findings: "Sequence[Finding]", *, shows_all: bool) -> Iterator[str]:
    from tessera.doctor.facts import Verdict

    refused = [each for each in findings if each.lacks_right]
    shown = [each for each in findings if shows_all or not (each.verdict is Verdict.OK or each in refused)]
    for (verdict, text, advice), alike in _alike(shown).items():
        yield f"{verdict.value:<8} {', '.join(alike)}: {one_line(text, 1000)}"
        if advice:
            yield f"         -> {one_line(advice, 1000)}"
    if refused and not shows_all:
        names = list_names(list(dict.fromkeys(each.check for each in refused)), len(findings))
        yield f"unknown  not examined, for lack of rights: {names}"
        yield "         -> an administrator runs tessera doctor; tessera doctor --all names each right"
    numbers = {verdict: sum(each.verdict is verdict for each in findings) for verdict in Verdict}
    counted = ", ".join(f"{number} {verdict.value}" for verdict, number in numbers.items() if number)
    yield f"{len(findings)} checks: {counted}"


def _alike(findings: "Sequence[Finding]") -> "dict[tuple[Verdict, str, str], list[str]]":
    """The checks of which the same is said, as of all that rest on one kind that the API server does not answer."""
    found: dict[tuple[Verdict, str, str], list[str]] = {}
    for each in findings:
        found.setdefault((each.verdict, each.text, each.advice), []).append(each.check)
    return found
