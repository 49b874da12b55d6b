"""``tessera dashboard``: the live page, on this machine and with the user's own rights."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import cluster_options, connect, report_errors
from tessera.cli.base.console import say
from tessera.cli.base.process import run_process

if TYPE_CHECKING:
    from tessera.explain.explanation import ExplanationReport


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8088,
    show_default=True,
    help="Port on 127.0.0.1; 0: any.",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@cluster_options
@report_errors
def command(*, port: int, opens: bool, kubeconfig: Path | None, context: str | None) -> None:
    """Serve a live page of the cluster's cards on this machine until Ctrl-C.

    The page shows every card with what is on it, the pods that hold and that wait for cards, and what they do. The
    command uses the rights of the kubeconfig and installs nothing. It listens on 127.0.0.1 only; as with kubectl
    proxy, other users of this machine can reach that address.

    \b
    Examples:
      tessera dashboard
      tessera dashboard --port 0 --open
    """
    run_process(_serve(port, opens, kubeconfig, context))


async def _serve(port: int, opens: bool, kubeconfig: Path | None, context: str | None) -> None:
    import asyncio
    import random
    import webbrowser

    from tessera.clock import SystemClock
    from tessera.dashboard.feed import FeedGroup
    from tessera.dashboard.server import PageAddress, PageServer
    from tessera.dashboard.source import ClusterSource
    from tessera.explain.query import explain, parse_query

    clock, feeds = SystemClock(), FeedGroup()
    async with connect("tessera-dashboard", kubeconfig, context) as client:

        async def explain_pod(namespace: str, pod: str) -> "ExplanationReport":
            return await explain(client, clock, parse_query(f"pod/{pod}"), namespace)

        def announce(_host: str, actual: int) -> None:
            url = f"http://localhost:{actual}/"
            say(f"The page is at {url} until Ctrl-C.")
            if opens:
                webbrowser.open(url)

        server = PageServer(feeds, explain_pod, PageAddress("127.0.0.1", port))
        source = ClusterSource(client, feeds, watched=lambda: server.readers > 0, clock=clock, rng=random.Random())
        async with asyncio.TaskGroup() as group:
            group.create_task(server.run(announce))
            group.create_task(source.run())
