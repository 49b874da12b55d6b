"""The connection of the agent to a real kubelet, over kubelet's own sockets.

Each plugin has a gRPC server on a socket of its own in kubelet's plugin folder and registers it on ``kubelet.sock``. A
server is replaced, by one on a *new* socket that registers *before* the old one closes, whenever

* ``kubelet.sock`` was created again: kubelet restarted, and has deleted every socket in the folder;
* the plugin's own socket is gone;
* kubelet ended the plugin's last device stream.

Kubelet distinguishes plugins by resource name. When the stream of an older server of a resource ends, kubelet stops the
server that it knows for that resource, even a newer one: devices turn unhealthy and Allocate fails, or the newer
connection is closed. A server therefore registers again after an older one has gone: one that it replaced itself, or
one of another agent during an upgrade, whose socket vanished. Until then kubelet fails pods that it admits, so the
first time follows at once; the second finds a kubelet that was slow to notice the end. Kubelets since the repair of
kubernetes #121994 keep the newer server, and need none of this.

The kernel reports changes in the folder (:mod:`tessera.kubelet.inotify`), and a stream's end reports itself; nothing is
polled. Only a registration that failed while ``kubelet.sock`` exists is tried again after a pause, since nothing will
report that kubelet has begun to listen.

Kubelet limits pod-resources to 100 calls a second and 10 at once, then answers ResourceExhausted. Sharing keeps within
the limits: callers that come during a call share the next one (:class:`Coalesced`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

import grpc
import grpc.aio

from tessera.clock import Clock
from tessera.kubelet.inotify import FolderWatch
from tessera.kubelet.interfaces import PRE_START_TIMEOUT, ClaimPlugin, DevicePlugin, PodResources
from tessera.kubelet.plugin_server import PluginServer
from tessera.kubelet.proto import deviceplugin_pb2 as dp
from tessera.kubelet.proto import podresources_pb2 as pr
from tessera.kubelet.sockets import (
    CLAIM_PLUGIN_DIR,
    KUBELET_SOCKET,
    PLUGIN_DIR,
    POD_RESOURCES_SOCKET,
    REGISTRY_DIR,
    FileId,
    file_identity,
    list_plugin_sockets,
    plugin_socket,
    remove_leftovers,
)
from tessera.kubelet.wire import LIST, OPTIONS, REGISTER, VERSION, options_to_wire, pod_from_wire

#: Kubelet dials the plugin back before it answers Register and gives that 10 s; a little more for the rest.
REGISTER_TIMEOUT = 15.0
POD_RESOURCES_TIMEOUT = 10.0
#: Pauses before a failed registration is tried again, seconds: the first, and the longest after doubling.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
#: Pause, seconds, before a plugin is registered again that kubelet has dropped within seconds more than once: a plugin
#: whose streams fail at once must not keep both busy. Also the pause before a registration is renewed for the second
#: time after the end of an older server, when kubelet has surely noticed that end.
RENEWAL_PAUSE = 1.0
#: Pause before pod-resources is called again after ResourceExhausted, seconds; kubelet refills a token every 10 ms.
RATE_LIMIT_PAUSE = 0.05

REGISTERED = "registered"

#: Serves a driver of claims until cancelled: the driver, kubelet's folders of registrations and of plugins, and who is
#: told what kubelet said about the registration: the error; empty for none.
ServeClaims = Callable[[ClaimPlugin, Path, Path, Callable[[str], None]], Awaitable[None]]

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Coalesced(Generic[T]):
    """Makes ``call`` at most once at a time; concurrent callers share one answer that began after they called.

    An answer that was gathered before a caller asked might lack that caller's pod. So a caller never joins a running
    call; waiting callers share the next one.
    """

    def __init__(self, call: Callable[[], Awaitable[T]]) -> None:
        self._call = call
        self._running = asyncio.Lock()
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """The answer, or the error, of the next call."""
        if self._next is None:
            self._next = asyncio.create_task(self._run())
            self._next.add_done_callback(_consume_error)
        return await asyncio.shield(self._next)

    async def _run(self) -> T:
        async with self._running:
            self._next = None
            return await self._call()


def _consume_error(task: "asyncio.Task[T]") -> None:
    """Consumes an error for which no caller waits, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


class _Registration(NamedTuple):
    """A server that kubelet has accepted.

    Attributes:
        server: the plugin's server.
        kubelet: identity of the kubelet that accepted it.
        others: sockets of the same resource that existed before.
    """

    server: PluginServer
    kubelet: FileId
    others: frozenset[str]


class GrpcKubelet:
    """A kubelet behind its sockets; see :class:`~tessera.kubelet.interfaces.Kubelet`.

    Args:
        plugin_dir: kubelet's plugin folder.
        pod_resources_socket: the socket of its pod-resources API.
        registry: the folder in which it looks for drivers of claims.
        claim_plugins: the folder in which these have their folders.
        serve_claims: serves a driver of claims; None if none will be served.
        clock: for pauses between attempts.
    """

    def __init__(
        self,
        plugin_dir: Path = PLUGIN_DIR,
        pod_resources_socket: Path = POD_RESOURCES_SOCKET,
        *,
        registry: Path = REGISTRY_DIR,
        claim_plugins: Path = CLAIM_PLUGIN_DIR,
        serve_claims: ServeClaims | None = None,
        clock: Clock,
    ) -> None:
        self._folder = plugin_dir.absolute()
        self._kubelet = self._folder / KUBELET_SOCKET
        self._pod_resources = pod_resources_socket.absolute()
        self._registry, self._claim_plugins = registry.absolute(), claim_plugins.absolute()
        self._serve_claims = serve_claims
        self._clock = clock
        self._watch = FolderWatch(self._folder)
        self._list = Coalesced(self._list_within_limits)
        #: By resource or driver that is served now, ``registered`` or the reason that it is not.
        self._states: dict[str, str] = {}
        #: By resource, the lock of the plugin that is served; the next plugin of the resource waits for it.
        self._locks: dict[str, asyncio.Lock] = {}
        #: True once leftover sockets of earlier processes were removed.
        self._cleaned = False

    @property
    def registrations(self) -> Mapping[str, str]:
        """Returns every resource and driver that is served now: ``registered``, or the reason that it is not."""
        return MappingProxyType(self._states)

    async def serve(self, plugin: DevicePlugin) -> None:
        """Serves and registers the plugin until cancelled; its sockets are removed then.

        Plugins of one resource take turns: the next registers when the one before has ended. If both were registered,
        some kubelets would close the connection to the newer one as the older one ends, and with it a running Allocate;
        the pod of that call would fail.

        Raises:
            OSError: the plugin folder does not exist.
            ValueError: the folder's path is too long for a socket.
        """
        self._remove_leftovers_once()
        async with self._locks.setdefault(plugin.resource_name, asyncio.Lock()):
            await self._serve_alone(plugin)

    async def _serve_alone(self, plugin: DevicePlugin) -> None:
        current: PluginServer | None = None
        dropped = False
        try:
            with self._watch.changes() as woken:
                async with asyncio.TaskGroup() as retiring:
                    while True:
                        successor = await self._serve_until_lost(plugin, woken)
                        older_ends = current is not None and current.is_streaming
                        if current is not None:
                            retiring.create_task(current.stop(PRE_START_TIMEOUT))
                        current = successor.server
                        dropped = await self._wait_until_lost(
                            plugin, successor, woken, renew=older_ends, dropped=dropped
                        )
        finally:
            self._states.pop(plugin.resource_name, None)
            if current is not None:
                await current.stop()

    async def serve_claims(self, plugin: ClaimPlugin, on_registered: Callable[[], None] = lambda: None) -> None:
        """Serves and registers the plugin until cancelled; its sockets are removed then.

        Args:
            plugin: the plugin.
            on_registered: called whenever kubelet has registered it.

        Raises:
            OSError: a folder does not exist or cannot be written.
            ValueError: a folder's path is too long for a socket.
        """

        def note(error: str) -> None:
            if error:
                self._log_failure(plugin.driver_name, f"kubelet did not register the driver: {error}")
            else:
                self._states[plugin.driver_name] = REGISTERED
                on_registered()

        self._states[plugin.driver_name] = "kubelet has not asked for it yet"
        assert self._serve_claims is not None
        try:
            await self._serve_claims(plugin, self._registry, self._claim_plugins, note)
        finally:
            self._states.pop(plugin.driver_name, None)

    async def pod_resources(self) -> Sequence[PodResources]:
        """Returns the containers with their devices, from a listing that began after this call.

        Raises:
            ConnectionError: kubelet did not answer.
        """
        return await self._list()

    async def _serve_until_lost(self, plugin: DevicePlugin, woken: asyncio.Event) -> _Registration:
        """A new server of the plugin that kubelet has accepted."""
        pause = FIRST_PAUSE
        while True:
            kubelet = file_identity(self._kubelet)
            if kubelet is None:
                self._log_failure(plugin.resource_name, f"{self._kubelet} does not exist: kubelet is not running")
                await self._wait_for_kubelet_change(kubelet, woken, at_most=None)
                pause = FIRST_PAUSE
                continue
            try:
                registration = await self._start_server(plugin, kubelet, woken)
            except ConnectionError as error:
                self._log_failure(plugin.resource_name, str(error))
                await self._wait_for_kubelet_change(kubelet, woken, at_most=pause)
                # A kubelet that has just come refuses for the moment between its socket's name and its listening.
                same = file_identity(self._kubelet) == kubelet
                pause = min(2 * pause, LONGEST_PAUSE) if same else FIRST_PAUSE
            else:
                self._states[plugin.resource_name] = REGISTERED
                return registration

    async def _start_server(self, plugin: DevicePlugin, kubelet: FileId, woken: asyncio.Event) -> _Registration:
        """Serves the plugin on a new socket and registers the socket."""
        server = PluginServer(plugin, plugin_socket(self._folder, plugin.resource_name), woken.set)
        others = list_plugin_sockets(server.socket)
        try:
            await server.start()
            await self._register(plugin, server.socket.name)
        except BaseException:
            await server.stop()
            raise
        return _Registration(server, kubelet, others)

    async def _register(self, plugin: DevicePlugin, endpoint: str) -> None:
        request = dp.RegisterRequest(
            version=VERSION,
            endpoint=endpoint,
            resource_name=plugin.resource_name,
            options=options_to_wire(plugin.options),
        )
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet}", options=OPTIONS) as channel:
            try:
                await REGISTER.unary(channel)(request, timeout=REGISTER_TIMEOUT)
            except grpc.aio.AioRpcError as error:
                raise ConnectionRefusedError(
                    f"kubelet did not register {plugin.resource_name}: {error.code().name}: {error.details()}"
                ) from error

    async def _wait_until_lost(
        self, plugin: DevicePlugin, registration: _Registration, woken: asyncio.Event, *, renew: bool, dropped: bool
    ) -> bool:
        """Returns when kubelet needs a new server of the plugin; registers this one again whenever an older has gone.

        Args:
            plugin: the served plugin.
            registration: its server and where that is registered.
            woken: set by every change.
            renew: set when an older server is about to go.
            dropped: set if kubelet dropped the server before this one within seconds.

        Returns:
            True if kubelet dropped this server within seconds.
        """
        began = self._clock.monotonic()
        server, kubelet, others = registration.server, registration.kubelet, registration.others
        while True:
            woken.clear()
            if file_identity(self._kubelet) != kubelet or not server.socket.exists():
                return False
            if server.abandoned:
                short_lived = self._clock.monotonic() - began < LONGEST_PAUSE
                again = short_lived and dropped
                await self._wait_for_kubelet_change(kubelet, woken, at_most=RENEWAL_PAUSE if again else FIRST_PAUSE)
                return short_lived
            before, others = others, list_plugin_sockets(server.socket)
            if not renew and before <= others:
                await woken.wait()
                continue
            renew = False
            for pause in (FIRST_PAUSE, RENEWAL_PAUSE):
                await self._wait_for_kubelet_change(kubelet, woken, at_most=pause, unless=lambda: server.abandoned)
                if server.abandoned:
                    break
                try:
                    await self._register(plugin, server.socket.name)
                except ConnectionError as error:
                    self._log_failure(plugin.resource_name, str(error))
                    return False

    async def _list_within_limits(self) -> Sequence[PodResources]:
        async with grpc.aio.insecure_channel(f"unix:{self._pod_resources}", options=OPTIONS) as channel:
            while True:
                try:
                    answer = await LIST.unary(channel)(pr.ListPodResourcesRequest(), timeout=POD_RESOURCES_TIMEOUT)
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        raise ConnectionRefusedError(
                            f"pod-resources at {self._pod_resources}: {error.code().name}: {error.details()}"
                        ) from error
                    await self._clock.sleep(RATE_LIMIT_PAUSE)
                else:
                    return [pod_from_wire(pod) for pod in answer.pod_resources]

    async def _wait_for_kubelet_change(
        self,
        kubelet: FileId | None,
        woken: asyncio.Event,
        at_most: float | None,
        unless: Callable[[], bool] = lambda: False,
    ) -> None:
        """Returns once ``kubelet.sock`` is not ``kubelet``, after ``at_most`` seconds, or if ``unless`` holds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most):
                while file_identity(self._kubelet) == kubelet and not unless():
                    woken.clear()
                    await woken.wait()

    def _log_failure(self, served: str, reason: str) -> None:
        if self._states.get(served) != reason:
            _log.warning("%s: %s", served, reason)
        self._states[served] = reason

    def _remove_leftovers_once(self) -> None:
        if not self._cleaned:
            self._cleaned = True
            for socket in remove_leftovers(self._folder):
                _log.info("removed %s: nothing listens on it", socket)
