"""The process of ``tessera operator``: applies Tessera's objects whenever its settings change, and from time to time.

Rules:

- The objects are those of ``tessera install`` with the same options, applied in the same way. So changes by others are
  undone at the next round, and objects that a setting no longer needs are deleted.
- The objects that the bundle has belong to the Operator Lifecycle Manager; the operator leaves them alone.
- Settings with a mistake change nothing: what was applied before stays.
- A failed round is repeated after a pause that grows. Each round begins anew, so the process may end at any moment.
- The process is ready while its last round succeeded; ``/readyz`` and an event of the settings say why it is not. The
  Operator Lifecycle Manager shows an operator that is not ready as failed.

Two operators would overwrite each other's objects for a moment, so the Deployment of the bundle ends the old pod before
it starts a new one.

The settings are a ConfigMap with options of ``tessera install``. Its keys, all optional:

- ``options``: options of ``tessera install``, one a line, as ``--device-access warn``; ``#`` begins a comment;
- ``values.yaml``: a values file or ClusterPolicy of NVIDIA's operator, as for ``--values``;
- ``ca.crt``: certificate authorities of registries, as for ``--registry-ca``;
- ``groups.yaml``: groups of new nodes that an autoscaler can make, as for ``--node-groups``;
- ``repairs.yaml``: what is done about cards with faults, as for ``--repairs``.

Options that name a file, a cluster or an output are refused, since the operator has none.
"""

import asyncio
import logging
import random
import shlex
from collections.abc import Mapping, Sequence

import click
import msgspec

from tessera.api.names import NODE_GROUPS_KEY, REPAIRS_KEY
from tessera.cli.base.connection import CommandError
from tessera.cli.install.apply import apply_all, render, result_line
from tessera.cli.install.choices import choices_from
from tessera.cli.install.command import command
from tessera.cli.install.manifests import InstallChoices, Manifest
from tessera.cli.install.preflight import (
    ask_cluster,
    immutable_config_map,
    missing_namespace,
    refuse_instaslice,
)
from tessera.clock import Clock, until_set
from tessera.driver.registry.credentials import parse_authorities
from tessera.kube.client import Client
from tessera.kube.errors import ApiError
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.informer import ObjectInformer
from tessera.kube.resources import CONFIGMAPS
from tessera.kube.retries import Backoff
from tessera.limits import INSTALL_OPTIONS
from tessera.serving.status_server import serve_status
from tessera.text import UserError, one_line

OPTIONS, VALUES, AUTHORITIES, GROUPS, REPAIRS = "options", "values.yaml", "ca.crt", NODE_GROUPS_KEY, REPAIRS_KEY
KEYS = (OPTIONS, VALUES, AUTHORITIES, GROUPS, REPAIRS)

#: Options that are refused, with what to do instead.
_REFUSED: Mapping[str, str] = {
    "--values": "write the file's content into the key values.yaml",
    "--registry-ca": "write the certificates into the key ca.crt",
    "--node-groups": "write the file's content into the key groups.yaml",
    "--repairs": "write the file's content into the key repairs.yaml",
    "--image": "the operator installs its own image",
    "--dry-run": "the operator always writes",
    "--reuse": "the operator takes the options of this ConfigMap alone",
    "--show": "the ConfigMap shows them",
    "--adopt": "run tessera install --adopt once, before the operator",
    "--output": "the operator prints no manifests",
    "-o": "the operator prints no manifests",
    "--kubeconfig": "the operator has its own cluster only",
    "--context": "the operator has its own cluster only",
    "--help": "tessera install --help lists the options",
}

#: Parameters that are no choice about the objects.
_NOT_CHOICES = frozenset(
    {"values", "node_groups", "repairs", "adopt", "reuse", "show", "dry_run", "output", "kubeconfig", "context"}
)


def read_choices(data: Mapping[str, str], image: str) -> InstallChoices:
    """Returns the choices that a ConfigMap makes.

    Args:
        data: the ConfigMap's data; empty for the defaults.
        image: the operator's own image.

    Raises:
        CommandError: a key, an option or a value is wrong.
        AuthoritiesError: the certificates cannot be read.
    """
    unknown = sorted(set(data) - set(KEYS))
    if unknown:
        raise CommandError(f'key "{unknown[0]}" is unknown; the keys are {", ".join(KEYS)}')
    options = _parse(data.get(OPTIONS, ""))
    values, groups, repairs = (
        (data[key], f'the key "{key}"') if key in data else None for key in (VALUES, GROUPS, REPAIRS)
    )
    authorities = _authorities(data.get(AUTHORITIES, ""))
    choices, _ = choices_from(
        {**options, "image": image},
        values,
        authorities,
        node_groups=groups,
        without_groups=f"remove the key {GROUPS}",
        repairs=repairs,
    )
    return choices


def _authorities(text: str) -> str:
    return parse_authorities(text.encode(), f'the key "{AUTHORITIES}"') if text else ""


def _parse(text: str) -> dict[str, object]:
    if len(text) > INSTALL_OPTIONS:
        raise CommandError(f"{OPTIONS}: has {len(text)} characters; at most {int(INSTALL_OPTIONS)} are read")
    words = _words(text)
    for flag, instead in _REFUSED.items():
        if any(each.partition("=")[0] == flag for each in words):
            raise CommandError(f"{OPTIONS}: {flag} has no effect here; {instead}")
    try:
        found = command.make_context("tessera install", words).params
    except click.ClickException as error:
        raise CommandError(f"{OPTIONS}: {error.format_message()}") from error
    return {name: value for name, value in found.items() if name not in _NOT_CHOICES}


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise CommandError(f"{OPTIONS}: {error}") from error


_log = logging.getLogger(__name__)

#: Definitions that the bundle has. Those of NVIDIA's kinds are not among them: where NVIDIA's operator is installed by
#: the Operator Lifecycle Manager too, two bundles would own them, which it refuses.
_DEFINITIONS = frozenset({"instaslices.inference.redhat.com"})

#: Reasons of the events about the settings.
FAILED, APPLIED = "InstallationFailed", "InstallationApplied"
#: Longest seconds between two rounds.
PERIOD = 60.0


class OperatorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``tessera operator``.

    Attributes:
        namespace: namespace of the settings.
        config_map: name of the ConfigMap with the settings.
        image: image of all pods; empty for the image of the manifests.
        http_port: port of the health pages; None for none.
        http_address: address of the health pages; None for all.
    """

    namespace: str
    config_map: str
    image: str = ""
    http_port: int | None = None
    http_address: str | None = None


def operated_objects(choices: InstallChoices) -> list[Manifest]:
    """The objects that the operator applies."""
    objects = render(choices)
    bundled = bundled_objects(objects)
    return [each for each in objects if each not in bundled]


def bundled_objects(objects: Sequence[Manifest]) -> list[Manifest]:
    """The objects that the bundle itself has, which the Operator Lifecycle Manager makes.

    These are the definition of Instaslice, and the ClusterRoles that no account of Tessera has, which are for people:
    to make them, the operator would need all their rights itself.
    """
    bindings = ("RoleBinding", "ClusterRoleBinding")
    bound = {each["roleRef"]["name"] for each in objects if each["kind"] in bindings}
    return [
        each
        for each in objects
        if each["metadata"]["name"] in _DEFINITIONS
        or (each["kind"] == "ClusterRole" and each["metadata"]["name"] not in bound)
    ]


class Operator:
    """One operator; a :class:`~tessera.status_pages.ProcessStatus`.

    Args:
        options: its options.
        client: the API server.
        clock: gives the time.
        rng: for jitter; seeded in tests.
    """

    def __init__(self, options: OperatorOptions, client: Client, clock: Clock, rng: random.Random) -> None:
        self._options = options
        self._client = client
        self._clock = clock
        self._backoff = Backoff(rng, shortest=1.0, longest=PERIOD)
        self._changed = asyncio.Event()
        self._events = EventRecorder(client, component="tessera-operator", clock=clock, rng=rng)
        self._about = make_reference(CONFIGMAPS, options.config_map, options.namespace)
        self._unready_reason = "the objects have not been applied yet"
        self._settings = ObjectInformer(
            client, CONFIGMAPS, options.config_map, namespace=options.namespace, clock=clock, rng=rng
        )
        self._settings.add_handler(lambda _event: self._changed.set())

    @property
    def _place(self) -> str:
        return f"ConfigMap {self._options.namespace}/{self._options.config_map}"

    def metrics_text(self) -> None:
        """See :meth:`~tessera.status_pages.ProcessStatus.metrics_text`; an operator has no metrics."""

    def unready_reason(self) -> str:
        """See :meth:`~tessera.status_pages.ProcessStatus.unready_reason`."""
        return self._unready_reason

    async def run(self) -> None:
        """Applies the objects until cancelled."""
        options = self._options
        async with asyncio.TaskGroup() as group:
            if options.http_port is not None:
                group.create_task(serve_status(self, options.http_port, address=options.http_address))
            group.create_task(self._events.run())
            group.create_task(self._settings.run())
            await self._wait_settings()
            while True:
                self._changed.clear()
                await until_set(self._changed, await self._round())

    async def _wait_settings(self) -> None:
        """Waits until the settings are read: with settings that it cannot read, the operator applies nothing."""
        await self._settings.reflector.attempted.wait()
        if not self._settings.synced:
            self._report(f"{self._place} cannot be read: {one_line(self._settings.reflector.error, 1_000)}")
            await self._settings.wait_synced()

    async def _round(self) -> float:
        """Applies the objects once; returns the seconds until the next round."""
        try:
            await self.apply(self._data())
        except (ApiError, CommandError, UserError, OSError, TimeoutError) as error:
            self._report(one_line(error, 1_000))
            return self._backoff.next()
        self._report("")
        self._backoff.reset()
        return PERIOD

    async def apply(self, data: Mapping[str, str]) -> None:
        """Applies the objects once.

        Args:
            data: the settings.

        Raises:
            CommandError: the settings have a mistake, name a namespace that is missing, or change an immutable
                ConfigMap.
            ApiError: the API server refused an object; the objects before it are applied.
        """
        if instaslice := await refuse_instaslice(self._client):
            raise CommandError(instaslice)
        choices = await ask_cluster(self._client, self._choices(data))
        missing = await missing_namespace(self._client, choices)
        if missing:
            raise CommandError(
                f'there is no namespace "{missing}" for the ConfigMaps that the settings name; create it'
            )
        objects = operated_objects(choices)
        if immutable := await immutable_config_map(self._client, objects):
            raise CommandError(immutable)
        async for done in apply_all(self._client, self._clock, objects, drivers=choices.ask_for_drivers):
            if line := result_line(done, dry=False):
                _log.info("%s", line)

    def _choices(self, data: Mapping[str, str]) -> InstallChoices:
        try:
            return read_choices(data, self._options.image)
        except (CommandError, UserError) as error:
            raise CommandError(f"{self._place}: {str(error).removeprefix('error: ')}") from error

    def _data(self) -> Mapping[str, str]:
        found = self._settings.object
        return found.data if found is not None else {}

    def _report(self, problem: str) -> None:
        if problem and problem != self._unready_reason:
            _log.error("not applied: %s", problem)
            self._events.record(self._about, FAILED, problem, type="Warning")
        elif not problem and self._unready_reason:
            _log.info("all objects are applied")
            self._events.record(self._about, APPLIED, "all objects of the installation are applied")
        self._unready_reason = problem
