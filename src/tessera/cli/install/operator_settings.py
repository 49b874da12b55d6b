"""The settings of ``tessera operator``: a ConfigMap with options of ``tessera install``.

The keys, all optional:

- ``options``: options of ``tessera install``, one a line, as ``--device-access warn``; ``#`` begins a comment;
- ``values.yaml``: a values file or ClusterPolicy of NVIDIA's operator, as for ``--values``;
- ``ca.crt``: certificate authorities of registries, as for ``--registry-ca``;
- ``groups.yaml``: groups of new nodes that an autoscaler can make, as for ``--node-groups``;
- ``repairs.yaml``: what is done about cards with faults, as for ``--repairs``.

Options that name a file, a cluster or an output are refused, since the operator has none.
"""

import shlex
from collections.abc import Mapping

import click

from tessera.api.nodes.node_groups import NODE_GROUPS_KEY
from tessera.api.nodes.repairs import REPAIRS_KEY
from tessera.cli.base.connection import CommandError
from tessera.cli.install.choices import choices_from
from tessera.cli.install.command import command
from tessera.cli.install.manifests import InstallChoices
from tessera.driver.registry.credentials import parse_authorities
from tessera.limits.settings import INSTALL_OPTIONS

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
