"""Clusters of others to measure, and time that leaps once the command has printed what a test waits for."""

import asyncio
import io
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, redirect_stderr
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.support.listening_cluster import ListeningCluster, serve_in_thread

from tessera_lab.simulation.virtual_time import VirtualTimeLoop

T = TypeVar("T")

#: Starts a server with the options of :class:`ListeningCluster`; returns the path of its kubeconfig.
Serving = Callable[..., str]
#: Lets time leap from when standard error has a text so many ``times``; returns standard error.
Leaping = Callable[..., io.StringIO]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """Starts clusters that end with the test."""
    with ExitStack() as stack:

        def start(runtime: str = "containerd://1.7.1", **options: Any) -> str:
            file = tmp_path / "kubeconfig"
            cluster = ListeningCluster(runtime, **options)
            stack.enter_context(serve_in_thread(cluster))
            file.write_text(cluster.kubeconfig)
            return str(file)

        yield start


@pytest.fixture
def leaping(monkeypatch: pytest.MonkeyPatch) -> Iterator[Leaping]:
    """Time of a command that waits for what will not come: real until the text is printed, then a leap of a minute.

    A timeout of the command is so long that no slow answer ends it, and costs nothing.
    """
    with ExitStack() as stack:

        def start(text: str, times: int = 1) -> io.StringIO:
            printed, until = stack.enter_context(redirect_stderr(io.StringIO())), 0.0

            def may_leap() -> bool:
                nonlocal until
                now = asyncio.get_running_loop().time()
                if not until and printed.getvalue().count(text) == times:
                    until = now + 60
                return now < until

            def run(main: Coroutine[Any, Any, T]) -> T:
                with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(may_leap=may_leap)) as runner:
                    return runner.run(main)

            monkeypatch.setattr(asyncio, "run", run)
            return printed

        yield start
