"""The choices of an installation, from the options of ``tessera install``.

The command has them as words, ``tessera operator`` has the same words in a ConfigMap.

The options of the last run are written into a ConfigMap, printed by --show, and taken again by --reuse. It has the
keys of the operator's (:mod:`tessera.cli.install.operator_process`): one option a line, and the text of each file
under a key of its own. The installer does not follow it: it is a memory, and changes nothing.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
import msgspec

from tessera.api.names import NODE_GROUPS_KEY, REPAIRS_KEY, SYSTEM_NAMESPACE
from tessera.api.nodes.node_groups import parse_node_groups
from tessera.api.nodes.repairs import parse_repairs
from tessera.api.problems import Notice
from tessera.cli.base.connection import CommandError
from tessera.cli.base.controller_options import build_arguments, pop_build_settings, pop_site, site_arguments
from tessera.cli.base.inputs import check_claim_options
from tessera.cli.install.manifests import CONFIG_MAP, InstallChoices
from tessera.cli.install.settings import driver_objects, read_text_settings
from tessera.cli.install.variants import CERT_MANAGER
from tessera.dashboard.origins import PageNames, make_provider
from tessera.driver.registry.credentials import read_authorities
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.resources import CONFIGMAPS

#: Ports that the page's process has anyway (``deploy/options/dashboard``).
PAGE_PORTS = frozenset({8081, 8088, 8443})

NAME, OPTIONS = "tessera-install-options", "options"
#: Parameters with a file -> the key of its text.
FILES: Mapping[str, str] = {
    "values": "values.yaml",
    "registry_ca": "ca.crt",
    "node_groups": NODE_GROUPS_KEY,
    "repairs": REPAIRS_KEY,
}
#: Parameters that are of one run, and no choice about the installation.
_OF_A_RUN = frozenset({*FILES, "adopt", "dry_run", "output", "kubeconfig", "context", "reuse", "show"})


class SavedOptions(msgspec.Struct, frozen=True):
    """The options of a run.

    Attributes:
        words: without those that name files.
        files: texts of the files by the parameter that named them.
    """

    words: Sequence[str] = ()
    files: Mapping[str, str] = {}

    def with_more(self, words: Sequence[str]) -> "SavedOptions":
        """These options with those of another run behind them: of two values click takes the last."""
        before = (each for each in self.words if each not in words)
        return SavedOptions(tuple(dict.fromkeys([*before, *words])), self.files)

    def command_line(self) -> str:
        """The command that makes the same installation, once the files are there."""
        named = [f"--{name.replace('_', '-')}={FILES[name]}" for name in self.files]
        return shlex.join(["tessera", "install", *self.words, *named])


def words_of(command: click.Command, arguments: Sequence[str]) -> tuple[str, ...]:
    """The choices of a command line, one word for each, in one spelling."""
    given, _, _ = command.make_parser(click.Context(command)).parse_args(list(arguments))
    return tuple(word for each in command.params if each.name in given for word in _words(each, given[str(each.name)]))


def _words(parameter: click.Parameter, value: Any) -> Iterator[str]:
    if parameter.name in _OF_A_RUN:
        return
    name = max(parameter.opts, key=len)
    if isinstance(parameter, click.Option) and parameter.is_flag:
        yield name if value else parameter.secondary_opts[0]
        return
    yield from (f"{name}={each}" for each in (value if isinstance(value, list) else [value]))


async def save(client: Client, saved: SavedOptions) -> None:
    """Writes the options."""
    data = {OPTIONS: "".join(f"{shlex.quote(word)}\n" for word in saved.words)}
    data |= {FILES[name]: text for name, text in saved.files.items()}
    metadata = {"name": NAME, "namespace": SYSTEM_NAMESPACE, "labels": {"app.kubernetes.io/part-of": "tessera"}}
    await client.apply(CONFIGMAPS.as_dicts(), NAME, {"metadata": metadata, "data": data}, SYSTEM_NAMESPACE)


async def load(client: Client) -> SavedOptions:
    """The options of the last run.

    Raises:
        CommandError: none are recorded.
    """
    try:
        data = (await client.get(CONFIGMAPS.as_dicts(), NAME, SYSTEM_NAMESPACE)).get("data") or {}
    except NotFound:
        raise CommandError(
            f"error: there is no ConfigMap {NAME} in {SYSTEM_NAMESPACE}: no tessera install has recorded its options;"
            " run it once with all of them"
        ) from None
    words = shlex.split(data.get(OPTIONS, ""), comments=True)
    return SavedOptions(tuple(words), {name: data[key] for name, key in FILES.items() if key in data})


#: A file of settings: its text, and its name in messages.
SettingsFile = tuple[str, str]


def choices_from(
    options: Mapping[str, Any],
    file: SettingsFile | None,
    authorities: str = "",
    *,
    node_groups: SettingsFile | None = None,
    without_groups: str = "leave --node-groups out",
    repairs: SettingsFile | None = None,
) -> tuple[InstallChoices, Sequence[Notice]]:
    """Returns the choices, and notices on settings of the file that have no effect.

    Args:
        options: values of the options by their names, without those that name a file or a cluster.
        file: settings of NVIDIA's operator; None for none.
        authorities: certificate authorities of registries, PEM, in place of those of ``--registry-ca``.
        node_groups: groups of new nodes that an autoscaler can make; None for none.
        without_groups: what the user does to have no groups, for the message about a file that names none.
        repairs: what is done about cards with faults; None for the default.

    Raises:
        CommandError: two options contradict each other, or the file has mistakes; all of these are listed.
        AuthoritiesError: the file of ``--registry-ca`` cannot be used.
    """
    given = dict(options)
    if given["issuer"] and given["certificate"] != CERT_MANAGER:
        raise CommandError("error: --issuer needs --certificate cert-manager; the webhook's own certificate has none")
    check_claim_options(given["claim_driver"], given["claim_placement"])
    drivers, namespace = given.pop("drivers"), given.pop("namespace")
    settings = None if file is None else read_text_settings(*file, drivers)
    objects, notices = driver_objects(settings, drivers)
    controller = _controller_choices(given, authorities)
    page = _page_arguments(given)
    others = {**given, **{name: given[name] or "" for name in ("image", "memory_limits", "simulate", "claim_driver")}}
    choices = InstallChoices(
        settings=settings,
        namespace=namespace or (settings.namespace if settings else "") or SYSTEM_NAMESPACE,
        drivers=objects,
        ask_for_drivers=drivers,
        page=page,
        node_groups="" if node_groups is None else _checked_groups(*node_groups, without_groups),
        repairs="" if repairs is None else _checked_repairs(*repairs),
        **controller,
        **others,
    )
    return choices, notices


def _checked_groups(text: str, name: str, without: str) -> str:
    """Returns the text of a file of node groups unchanged.

    Raises:
        CommandError: it has a mistake, or names no group.
    """
    try:
        groups = parse_node_groups(text, name)
    except ValueError as error:
        raise CommandError(f"error: {error}; nothing was changed") from None
    if not groups:
        raise CommandError(f'error: {name}: names no group; write "groups:" and a list, or {without}')
    return text


def _checked_repairs(text: str, name: str) -> str:
    """Returns the text of a file of repairs unchanged.

    Raises:
        CommandError: it has a mistake.
    """
    try:
        parse_repairs(text, name)
    except ValueError as error:
        raise CommandError(f"error: {error}; nothing was changed") from None
    return text


def _controller_choices(values: dict[str, Any], authorities: str) -> dict[str, Any]:
    """The choices about the controller. Builds trust the same authorities, unless they have their own ConfigMap."""
    site, builds = pop_site(values), pop_build_settings(values)
    trusted = authorities or (read_authorities(site.registry_ca) if site.registry_ca else "")
    if trusted and not builds.ca_config_map:
        builds = msgspec.structs.replace(builds, ca_config_map=CONFIG_MAP)
    return {"site": (*site_arguments(site), *build_arguments(builds)), "authorities": trusted}


def _page_arguments(values: dict[str, Any]) -> Sequence[str]:
    """The arguments of the page's process; takes its options out of all.

    Raises:
        CommandError: the page is not installed.
        ValueError: an option is wrong.
    """
    origins, without_token = values.pop("origins"), values.pop("without_token")
    keda_port = values.pop("keda_port")
    issuer, client, scopes = (values.pop(f"oidc_{name}") for name in ("issuer", "client_id", "extra_scope"))
    prometheus, labels = values.pop("prometheus"), values.pop("prometheus_labels")
    if keda_port in PAGE_PORTS:
        ports = ", ".join(map(str, sorted(PAGE_PORTS)))
        raise CommandError(
            f"error: --dashboard-keda-port {keda_port}: the page's process has {ports} already; take another,"
            " such as 9443"
        )
    given = {
        "origin": origins,
        "without-token": [] if without_token == "refuse" else [without_token],  # noqa: S105 - an option's value
        "oidc-issuer": [issuer] if issuer else [],
        "oidc-client-id": [client] if client else [],
        "oidc-extra-scope": scopes,
        "prometheus": [prometheus] if prometheus else [],
        "prometheus-label": labels,
        "keda-port": [keda_port] if keda_port else [],
    }
    first = next((name for name, found in given.items() if found), None)
    if first is not None and not values["dashboard"]:
        raise CommandError(f"error: --dashboard-{first} needs the page, which --no-dashboard leaves out")
    from tessera.dashboard.past import make_prometheus  # with the page's server

    PageNames(origins)
    make_provider(issuer, client, scopes)
    make_prometheus(prometheus, None, labels)
    return [f"--{name}={each}" for name, found in given.items() for each in found]
