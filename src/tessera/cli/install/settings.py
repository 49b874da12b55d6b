"""Reads the settings of NVIDIA's operator that an installation takes over from a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tessera.api.documents import load_documents
from tessera.api.problems import FileRefused, Notice, Problem
from tessera.cli.base.connection import CommandError
from tessera.cli.base.inputs import display_name, read_text
from tessera.cli.install.manifests import Manifest
from tessera.gpu_operator.driver_objects import drivers_of_values
from tessera.gpu_operator.embedded_values import (
    PLUGIN_ADVICE,
    find_plugin_values,
    find_values,
    is_plugin_chart,
)
from tessera.gpu_operator.policy_objects import POLICY_KIND
from tessera.gpu_operator.settings_reader import OperatorSettings, read_settings


def read_file(file: Path, drivers: bool | None) -> OperatorSettings:
    """Reads a values file, a ClusterPolicy, a List with one ClusterPolicy, or an object with values in it.

    Args:
        file: the file; ``-`` for standard input.
        drivers: True if Tessera must install drivers; None leaves it to the file.

    Raises:
        CommandError: the file has mistakes; all of them are listed.
    """
    return read_text_settings(read_text(file), display_name(file), drivers)


def read_text_settings(text: str, name: str, drivers: bool | None) -> OperatorSettings:
    """As :func:`read_file`, of a text; ``name`` stands for the file in errors."""
    try:
        notices: list[Notice] = []
        document = _choose(load_documents(text, repeated=notices), notices)
        settings = read_settings(_values_of(_single(document)), drivers)
        return msgspec.structs.replace(settings, notices=(*notices, *settings.notices))
    except FileRefused as refused:
        wrong = [f"  {problem}" for problem in refused.problems]
        raise CommandError(f"error: {name} has mistakes; nothing was changed:", *wrong) from refused


def driver_objects(
    settings: OperatorSettings | None, drivers: bool | None
) -> tuple[Sequence[Manifest], Sequence[Notice]]:
    """Returns the driver objects, and the notices on the settings.

    Args:
        settings: the settings of a file; None without a file.
        drivers: as for :func:`read_file`.
    """
    if settings is not None:
        return settings.driver_objects, settings.notices
    part = drivers_of_values({}, drivers)
    return part.objects, part.notices


def read_driver_objects(
    file: Path | None, drivers: bool | None, *, text: str | None = None
) -> tuple[Sequence[Manifest], Sequence[Notice]]:
    """As :func:`driver_objects`, of a file or a text; its notices are those about drivers and the container toolkit.

    Raises:
        CommandError: the settings have mistakes.
    """
    settings = None if file is None else read_file(file, drivers)
    if text is not None:
        settings = read_text_settings(text, "the ConfigMap", drivers)
    objects, notices = driver_objects(settings, drivers)
    about = ("driver", "toolkit", "daemonsets", "spec.driver", "spec.toolkit", "spec.daemonsets", "metadata")
    return objects, [each for each in notices if each.path.startswith(about)]


def _choose(documents: Sequence[Any], notices: list[Notice]) -> Any:
    """The document with the settings: the only one that has any, or of plain values the first, as in Helm.

    Raises:
        FileRefused: several have some.
    """
    if len(documents) < 2:
        return documents[0] if documents else None
    manifests = [each for each in documents if isinstance(each, dict) and "kind" in each]
    found = [each for each in manifests if each["kind"] == POLICY_KIND or find_values(each)]
    if len(found) == 1:
        return found[0]
    if manifests:
        text = f"holds {len(documents)} documents, {len(found)} of them with settings of NVIDIA's operator; give one"
        raise FileRefused([Problem("", text)])
    notices.append(Notice("file", f"holds {len(documents)} documents; only the first one counts, as in Helm"))
    return documents[0]


def _values_of(document: Any) -> Any:
    """The values inside an object of another tool, or of a chart that has NVIDIA's; other documents unchanged.

    Raises:
        FileRefused: there are several, some of the values are no part of the document, or they are of another chart.
    """
    if isinstance(document, dict) and (is_plugin_chart(document) or find_plugin_values(document)):
        raise FileRefused([Problem("", PLUGIN_ADVICE)])
    found = find_values(document)
    if len(found) > 1:
        places = ", ".join(each.path for each in found)
        raise FileRefused([Problem("", f"has values of NVIDIA's chart in {len(found)} places; give one: {places}")])
    for each in found:
        if each.unread:
            raise FileRefused([Problem(notice.path, notice.text) for notice in each.unread])
        return each.values
    return document


def _single(document: Any) -> Any:
    """The only item of a List, which ``kubectl get clusterpolicy -o yaml`` prints; other documents unchanged."""
    items = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else None
    return items[0] if isinstance(items, list) and len(items) == 1 else document
