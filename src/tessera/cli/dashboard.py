"""``tessera dashboard``: the live page, on this machine with the user's own rights, or as a process of the cluster."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tessera.cli.base.connection import CommandError, cluster_options, connect, connect_transport, report_errors
from tessera.cli.base.console import say
from tessera.cli.base.page_options import (
    origin_option,
    prometheus_options,
    provider_options,
    without_token_option,
)
from tessera.cli.base.process import address_option, log_option, run_process, start_log

if TYPE_CHECKING:
    from tessera.explain.explanation import ExplanationReport
    from tessera.visibility import Visibility

#: Options that need --in-cluster, with their defaults.
_IN_CLUSTER: Mapping[str, Any] = {
    "http_port": None,
    "api_port": None,
    "keda_port": None,
    "keda_tls_folder": None,
    "origins": (),
    "without_token": "refuse",
    "oidc_issuer": None,
    "oidc_client_id": None,
    "oidc_extra_scope": (),
    "tls_folder": None,
}


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8088,
    show_default=True,
    help="Port of the page; 0: any. On 127.0.0.1, with --in-cluster on all addresses.",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@click.option(
    "--in-cluster",
    is_flag=True,
    help="Run as a process of the cluster: show each visitor what the visitor's bearer token may see.",
)
@origin_option(
    "--origin",
    text="With --in-cluster: serve the page under this name too, e.g. https://gpu.example.com; repeatable."
    "  [default: localhost only, for kubectl port-forward]",
)
@without_token_option(
    "--without-token",
    text="With --in-cluster: ask visitors without a token to log in, or show them the page without names.",
)
@provider_options("--", text="With --in-cluster: ")
@prometheus_options("--", text="")
@click.option(
    "--prometheus-folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder with a bearer token for that Prometheus (file token), which is sent by HTTPS alone, and with the"
    " authority of its certificate (ca.crt), if they exist.",
)
@click.option(
    "--tls-folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --in-cluster: serve HTTPS with tls.crt and tls.key of this folder, if they exist.  [default: HTTP]",
)
@click.option("--http-port", type=click.IntRange(0, 65535), help="With --in-cluster: serve /healthz and /readyz here.")
@click.option(
    "--api-port",
    type=click.IntRange(1, 65535),
    help="With --in-cluster: serve the aggregated API view.tessera.dev here, for tenants who run tessera top and map.",
)
@click.option(
    "--keda-port",
    type=click.IntRange(1, 65535),
    help="With --in-cluster: serve KEDA's external scaler here, for KEDA alone (docs/services.md).",
)
@click.option(
    "--keda-tls-folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --in-cluster: serve that port by TLS with tls.crt and tls.key of this folder, if they exist; with ca.crt"
    " too, callers need a certificate of that authority.  [default: plain gRPC]",
)
@address_option
@log_option
@cluster_options
@report_errors
def command(
    *,
    port: int,
    opens: bool,
    in_cluster: bool,
    log_level: str,
    kubeconfig: Path | None,
    context: str | None,
    prometheus: str | None,
    prometheus_folder: Path | None,
    prometheus_labels: Sequence[str],
    **more: Any,
) -> None:
    """Serve a live page of the cluster's cards on this machine until Ctrl-C.

    The page shows every card with what is on it, the pods that hold and that wait for cards, and what they do. The
    command uses the rights of the kubeconfig and installs nothing. It listens on 127.0.0.1 only; as with kubectl
    proxy, other users of this machine can reach that address.

    With --in-cluster it is the process of the Deployment tessera-dashboard. It reads the cluster with its own account.
    Each visitor sends a bearer token, as for kubectl, and sees names of nodes and pods only as far as the token's owner
    may list them.

    \b
    Examples:
      tessera dashboard
      tessera dashboard --port 0 --open
      tessera dashboard --prometheus http://localhost:9090
      tessera dashboard --in-cluster --origin https://gpu.example.com
    """
    past = {"prometheus": prometheus, "prometheus_folder": prometheus_folder, "prometheus_labels": prometheus_labels}
    if in_cluster:
        if opens:
            raise CommandError("error: --open and --in-cluster exclude each other: nobody sits at a pod")
        start_log(log_level)
        run_process(_run_in_cluster(options_from({**more, **past, "port": port}), kubeconfig, context), on_uvloop=False)
        return
    foreign = [name for name, usual in _IN_CLUSTER.items() if more[name] != usual]
    if foreign:
        option = {"origins": "--origin"}.get(foreign[0], f"--{foreign[0].replace('_', '-')}")
        raise CommandError(f"error: {option} needs --in-cluster: the page on this machine has one user and one name")
    if prometheus_folder and not prometheus:  # in the cluster the folder is always named
        raise CommandError("error: --prometheus-folder needs --prometheus")
    run_process(_serve(port, opens, kubeconfig, context, _prometheus(past)), on_uvloop=False)


def options_from(values: Mapping[str, Any]) -> Any:
    """The options of the process in the cluster for values of the command line."""
    from tessera.dashboard.in_cluster import PageOptions
    from tessera.dashboard.origins import make_provider

    try:
        provider = make_provider(values["oidc_issuer"], values["oidc_client_id"], values["oidc_extra_scope"])
    except ValueError as error:
        raise CommandError(f"error: {error}") from None
    return PageOptions(
        address=values["http_address"],
        port=values["port"],
        http_port=values["http_port"],
        api_port=values["api_port"],
        keda_port=values["keda_port"],
        keda_tls_folder=values["keda_tls_folder"],
        origins=values["origins"],
        nameless=values["without_token"] == "hide-names",  # noqa: S105 - an option's value
        provider=provider,
        prometheus=_prometheus(values),
        tls_folder=values["tls_folder"],
    )


def _prometheus(values: Mapping[str, Any]) -> Any:
    from tessera.dashboard.past import make_prometheus

    names = ("prometheus", "prometheus_folder", "prometheus_labels")
    try:
        return make_prometheus(*(values[name] for name in names))
    except ValueError as error:
        raise CommandError(f"error: {error}") from None


def parse_options(arguments: Sequence[str], _environment: Mapping[str, str]) -> Any:
    """The options of the process in the cluster for a container's arguments and environment."""
    return options_from(command.make_context("dashboard", list(arguments)).params)


async def _run_in_cluster(options: Any, kubeconfig: Path | None, context: str | None) -> None:
    import random

    from tessera.clock import SystemClock
    from tessera.dashboard.in_cluster import PageReplica

    async with connect_transport("tessera-dashboard", kubeconfig, context) as (client, _):
        await PageReplica(options, client, SystemClock(), random.Random()).run()


async def _serve(port: int, opens: bool, kubeconfig: Path | None, context: str | None, prometheus: Any) -> None:
    import asyncio
    import random
    import webbrowser

    from tessera.clock import SystemClock
    from tessera.dashboard.explainer import OF_NODES, PodEvents
    from tessera.dashboard.feed import FeedGroup
    from tessera.dashboard.past import PastReader
    from tessera.dashboard.server import PageAddress, PageServer
    from tessera.dashboard.source import ClusterSource
    from tessera.explain.explanation import parse_query
    from tessera.explain.query import explain

    clock, feeds = SystemClock(), FeedGroup()
    async with connect("tessera-dashboard", kubeconfig, context) as client:

        async def explain_pod(namespace: str, pod: str, _visible: "Visibility", _key: str) -> "ExplanationReport":
            query = parse_query(f"node/{pod}" if namespace == OF_NODES else f"pod/{pod}")
            return await explain(client, clock, query, namespace, joined=False)

        def announce(_host: str, actual: int) -> None:
            url = f"http://localhost:{actual}/"
            say(f"The page is at {url} until Ctrl-C.")
            if opens:
                webbrowser.open(url)

        events = PodEvents(client, own_account=True)
        past = PastReader(prometheus, clock) if prometheus is not None else None
        server = PageServer(feeds, explain_pod, PageAddress("127.0.0.1", port), events=events.read, past=past)
        source = ClusterSource(client, feeds, watched=lambda: server.readers > 0, clock=clock, rng=random.Random())
        async with asyncio.TaskGroup() as group:
            group.create_task(server.run(announce))
            group.create_task(source.run())
