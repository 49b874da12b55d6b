"""A virtual cluster that boots once and from which many tests start.

A boot (the manifests of deploy/ are applied, agents, controller and webhooks start, nodes join) costs as much of a core
as what most tests do afterwards. So a :class:`BootedLab` boots once, and each scenario runs in a fork of the process,
which has the whole cluster as the boot left it: objects, watches, tasks, timers and simulated cards. A fork ends with
its scenario, so that nothing of it reaches the next one; only files outlive it, and they are put back.

What follows for a scenario: it can change nothing in the test's process. What it returns is pickled and returned there;
an exception fails the test with the fork's traceback.
"""

import asyncio
import contextlib
import fcntl
import gc
import os
import pickle
import selectors
import shutil
import socket
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.support.tasks import keep_tasks
from tests.support.virtual_lab import COMMANDS, VirtualLab

from tessera.api.names import is_on_demand
from tessera.clock import LoopClock
from tessera.kubelet.inotify import FolderWatch, open_watch
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.installation.install import build_entrypoint, install_tessera
from tessera_lab.simulation.virtual_time import VirtualTimeLoop, collect_garbage_seldom

#: When simulated time begins, seconds since 1970.
BEGAN = 1_800_000_000


async def play(
    scenario: Callable[[VirtualLab], Awaitable[Any]],
    nodes: str,
    folder: Path,
    cluster_type: Callable[..., SimulatedCluster] = SimulatedCluster,
    **options: Any,
) -> Any:
    """Boots a cluster, runs a scenario in it, and returns what the scenario does.

    Args:
        scenario: begins once all nodes have joined and the webhook is trusted.
        nodes: as for ``tessera lab up --nodes``.
        folder: for the nodes' files.
        cluster_type: makes the cluster.
        options: of the cluster.
    """
    cluster = cluster_type(
        parse_nodes(nodes),
        clock=LoopClock(BEGAN),
        options=ClusterOptions(cdi=folder, **options),
        entrypoint=build_entrypoint(COMMANDS),
    )
    async with cluster.running():
        await install_tessera(cluster.client("install"))
        lab = VirtualLab(cluster)
        async with lab.watched.running():
            with_cards = [name for name, node in cluster.nodes.items() if node.machine is not None]
            await lab.until(lambda: all(map(lab.tells, with_cards)), "every node has told what it has")
            if is_on_demand(cluster.options.mig_config):
                await lab.until(lambda: all(map(lab.offers, with_cards)), "every node has joined")
            await lab.until(lab.trusts_webhook, "the webhook is trusted")
            return await scenario(lab)


#: Boots a cluster whose nodes keep their files in the folder, plays a scenario in it, and returns what that does.
Boot = Callable[[Callable[[Any], Awaitable[Any]], Path], Coroutine[Any, Any, Any]]


class BootedLab:
    """A cluster that has booted and waits for scenarios.

    Args:
        folder: for the nodes' files; it must be empty, and nobody else may use it.
        boot: boots it.
    """

    def __init__(self, folder: Path, boot: Boot) -> None:
        self._files, self._saved = folder / "files", folder / "saved"
        self._files.mkdir()
        self._loop = VirtualTimeLoop()
        self._scenario = self._loop.create_future()
        booted = self._loop.create_future()

        async def wait(lab: Any) -> Any:
            booted.set_result(None)
            scenario = await self._scenario
            return await scenario(lab)

        with collect_garbage_seldom():
            self._main = self._loop.create_task(boot(wait, self._files))
            self._loop.run_until_complete(asyncio.wait({self._main, booted}, return_when=asyncio.FIRST_COMPLETED))
        if self._main.done():
            self.close()
            self._main.result()  # raises why it has not booted
        self._watches = self._find_watches()
        self._files.rename(self._saved)
        self._locks, self._listeners = self._find_locks(), self._find_listeners()
        self._copy_files()
        keep_tasks(self._loop)  # once, as the loop runs in forks only

    def run(self, scenario: Callable[[Any], Awaitable[Any]]) -> Any:
        """Runs a scenario in a fork, and returns what it returns."""
        sys.stdout.flush()
        sys.stderr.flush()
        reader, writer = os.pipe()
        fork = os.fork()
        if fork == 0:
            self._become(scenario, writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as answer:
            data = answer.read()
        _, status = os.waitpid(fork, 0)
        shutil.rmtree(self._files)
        self._copy_files()
        if not data:
            pytest.fail(f"the fork ended with status {os.waitstatus_to_exitcode(status)} and without an answer")
        is_done, found = pickle.loads(data)
        if not is_done:
            pytest.fail(found, pytrace=False)
        return found

    def _become(self, scenario: Callable[[Any], Awaitable[Any]], writer: int) -> NoReturn:
        """Runs the scenario in this process, a fork, and ends it."""
        try:
            answer = True, self._play_on(scenario)
        except BaseException:  # noqa: BLE001 - the test tells it
            answer = False, traceback.format_exc()
        with os.fdopen(writer, "wb") as file:
            pickle.dump(answer, file)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _play_on(self, scenario: Callable[[Any], Awaitable[Any]]) -> Any:
        gc.freeze()  # a collection would copy each object that it looks at from the process that booted
        self._take_files()
        _renew_selector(self._loop)
        ended = self._loop.create_future()

        async def until_its_end(lab: Any) -> None:
            try:
                ended.set_result(await scenario(lab))
            except Exception as error:  # noqa: BLE001 - raised below
                ended.set_exception(error)
            await asyncio.Event().wait()  # the process ends, so nothing has to be taken down

        self._scenario.set_result(until_its_end)
        with collect_garbage_seldom():
            self._loop.run_until_complete(asyncio.wait({self._main, ended}, return_when=asyncio.FIRST_COMPLETED))
        return ended.result() if ended.done() else self._main.result()

    def _find_watches(self) -> Mapping[int, Path]:
        """The folders that processes of the cluster watch, by the descriptors of their watches."""
        keys = self._loop._selector.get_map().values()  # type: ignore[attr-defined]
        readers = {key.fd: key.data[0]._callback for key in keys if key.data is not None and key.data[0] is not None}
        owners = {descriptor: getattr(call, "__self__", None) for descriptor, call in readers.items()}
        return {
            descriptor: owner._folder.relative_to(self._files)
            for descriptor, owner in owners.items()
            if isinstance(owner, FolderWatch)
        }

    def _find_locks(self) -> Mapping[int, Path]:
        """The locked files that processes of the cluster have open, by their descriptors."""
        files = {file.stat().st_ino: file for file in self._saved.rglob("*.lock")}
        found = {}
        for descriptor in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
            with contextlib.suppress(OSError):  # the one by which the folder was listed is closed
                found[descriptor] = files.get(os.fstat(descriptor).st_ino)
        return {key: file.relative_to(self._saved) for key, file in found.items() if file is not None}

    def _find_listeners(self) -> Mapping[int, Path]:
        """The sockets at which processes of the cluster listen, by their descriptors."""
        found: dict[int, Path] = {}
        descriptors = self._loop._selector.get_map().keys() - self._watches.keys()  # type: ignore[attr-defined]
        for file in self._saved.rglob("*"):
            if file.is_socket():
                with socket.socket(socket.AF_UNIX) as caller:
                    caller.connect(str(file))
                    found[next(each for each in descriptors if _has_caller(each))] = file
        return {key: file.relative_to(self._saved) for key, file in found.items()}

    def _copy_files(self) -> None:
        shutil.copytree(self._saved, self._files, symlinks=True, ignore=_sockets)

    def _take_files(self) -> None:
        """Makes the copies the files that this process, a fork, has locked, at which it listens, and that it watches.

        A process of the cluster that ends in a fork frees none that it inherited: the process that booted has them too.
        """
        for descriptor, file in self._locks.items():
            opened = os.open(self._files / file, os.O_RDWR)
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.dup2(opened, descriptor, inheritable=False)
            os.close(opened)
        for descriptor, file in self._listeners.items():
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(self._files / file))
                listener.listen()
                listener.setblocking(False)
                os.dup2(listener.fileno(), descriptor, inheritable=False)
        for descriptor, folder in self._watches.items():
            opened = open_watch(self._files / folder)
            os.dup2(opened, descriptor, inheritable=False)
            os.close(opened)

    def close(self) -> None:
        """Ends the cluster."""
        self._main.cancel()
        self._loop.run_until_complete(asyncio.wait({self._main}))
        rest = asyncio.all_tasks(self._loop)  # of machines, which nobody awaits
        for task in rest:
            task.cancel()
        if rest:
            self._loop.run_until_complete(asyncio.wait(rest))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


class BootedLabs:
    """The booted clusters of a run of tests, each booted by the first test that has one of its kind.

    Args:
        folder: for the nodes' files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._labs: dict[Hashable, BootedLab] = {}

    def run(self, kind: Hashable, boot: Boot, scenario: Callable[[Any], Awaitable[Any]]) -> Any:
        """Runs a scenario in a fork of the cluster of this kind, and returns what it returns."""
        if kind not in self._labs:
            self._labs[kind] = BootedLab(Path(tempfile.mkdtemp(dir=self._folder)), boot)
        return self._labs[kind].run(scenario)

    def close(self) -> None:
        """Ends the clusters."""
        for lab in self._labs.values():
            lab.close()


def _renew_selector(loop: VirtualTimeLoop) -> None:
    """Gives a fork's loop a selector of its own: a change of the inherited one would change that of its parent."""
    selector = loop._selector  # type: ignore[attr-defined]
    inherited, selector._inner = selector._inner, selectors.DefaultSelector()
    for key in inherited.get_map().values():
        selector._inner.register(key.fileobj, key.events, key.data)


def _sockets(folder: str, names: Sequence[str]) -> Sequence[str]:
    """Those of the files in a folder that are sockets, which cannot be copied."""
    return [name for name in names if Path(folder, name).is_socket()]


def _has_caller(descriptor: int) -> bool:
    """True for a socket that somebody calls; the call is ended."""
    with socket.socket(fileno=os.dup(descriptor)) as listener, contextlib.suppress(OSError):
        listener.accept()[0].close()
        return True
    return False
