"""The options of the last ``tessera install``: written into a ConfigMap, printed by --show, taken again by --reuse.

The ConfigMap has the keys of the operator's (:mod:`tessera.cli.install.operator_settings`): one option a line, and the
text of each file under a key of its own. The installer does not follow it: it is a memory, and changes nothing.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
import msgspec

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.api.nodes.node_groups import NODE_GROUPS_KEY
from tessera.api.nodes.repairs import REPAIRS_KEY
from tessera.cli.base.connection import CommandError
from tessera.kube.client.client import Client
from tessera.kube.client.errors import NotFound
from tessera.kube.resources import CONFIGMAPS

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
