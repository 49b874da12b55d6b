"""Every option that a page names in its text is an option of ``tessera``, or of a program that is named here."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tessera.cli.main import tessera

ROOT = Path(__file__).parents[2]
#: Pages of this project.
PAGES = sorted({*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"})
#: Options of other programs, with the program.
FOREIGN = {
    "--prefix": "kubectl logs",
    "--enable-provisioning-requests": "cluster-autoscaler",
    "--duration": "kubectl create token",
    "--ignore-not-found": "kubectl delete",
    "--grace-period": "kubectl delete",
    "--no-hooks": "helm uninstall",
    "--take-ownership": "helm upgrade",
    "--all-namespaces": "helm list",
    "--reset-then-reuse-values": "helm upgrade",
    "--reuse-values": "helm upgrade",
    "--clusterrole": "kubectl create rolebinding",
    "--role": "kubectl create rolebinding",
    "--group": "kubectl create rolebinding",
    "--make-rshared": "mount",
    "--default-runtime": "k3s",
    "--overwrite": "kubectl label",
    "--register-with-taints": "kubelet",
    "--oidc-issuer-url": "kube-apiserver",
    "--pass-authorization-header": "oauth2-proxy",
    "--dist": "pytest",
    "--shuffle": "pytest, an option of this project's tests",
}


def commands(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None:
            yield command
        if isinstance(command, click.Group):
            yield from commands(command)


OPTIONS = {"--help"} | {
    option
    for command in (tessera, *commands(tessera))
    for parameter in command.params
    for option in (*parameter.opts, *parameter.secondary_opts)
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_in_the_text_of_a_page_exists(page: Path) -> None:
    spans = re.findall(r"`[^`\n]*`", page.read_text(encoding="utf-8"))
    named = {option for span in spans for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", span)}
    assert named - OPTIONS - FOREIGN.keys() == set()


def test_every_option_in_the_text_of_a_limit_exists() -> None:
    limits = (ROOT / "src" / "tessera" / "limits.py").read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", limits))
    assert named - OPTIONS - FOREIGN.keys() == set()


def test_each_foreign_option_is_named_somewhere() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert {option for option in FOREIGN if option not in text} == set()
