"""The HTTP server that a simulated container declares, by an annotation of its pod or by its image.

The annotation ``lab.tessera.dev/http`` is YAML, such as ``{port: 80, answer: "hello", latency: 0.2, concurrency: 4}``.
An image of vLLM serves its API of completions on the port of ``--port``, else 8000. All other containers serve nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import yaml

from tessera_lab.limits import LAB_SERVER_TEXT

#: The annotation.
HTTP = "lab.tessera.dev/http"
#: A part of the names of images that serve vLLM's API, and its default port (vllm serve --help).
_VLLM_IMAGE, _VLLM_PORT = "vllm-openai", 8000


class ServerError(Exception):
    """A declaration is not valid."""


class HttpBehaviour(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What a server does.

    Attributes:
        port: its port; 0 for the first one of its container, else 80.
        status: HTTP status of each answer.
        answer: text of each answer.
        content_type: of each answer.
        latency: seconds of work for a request.
        concurrency: requests that are worked on at a time; others wait.
        per_second: requests that are begun in a second; others wait. 0 for no bound.
        model: serves vLLM's API of completions for this model instead of ``answer``.
    """

    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    status: Annotated[int, msgspec.Meta(ge=200, le=599)] = 200
    answer: str = "simulated: a stand-in of the lab answers\n"
    content_type: Annotated[str, msgspec.Meta(pattern=r"^[\w.+/;= -]{1,100}$")] = "text/plain; charset=utf-8"
    latency: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 256
    per_second: Annotated[float, msgspec.Meta(ge=0, le=100_000)] = 0.0
    model: Annotated[str, msgspec.Meta(max_length=200)] = ""


def declared_server(
    annotations: Mapping[str, str], spec: Mapping[str, Any], argv: Sequence[str]
) -> HttpBehaviour | None:
    """Returns the server that a pod's first container has.

    Args:
        annotations: those of the pod.
        spec: the container in the pod's spec.
        argv: its command and arguments, expanded.

    Raises:
        ServerError: the annotation is not valid.
    """
    image = spec.get("image", "")
    text = annotations.get(HTTP)
    found = _vllm(image, argv) if text is None else _parse(text)
    if found is None:
        return None
    ports = [each["containerPort"] for each in spec.get("ports") or ()]
    return msgspec.structs.replace(found, port=found.port or (ports[0] if ports else 80))


def _parse(text: str) -> HttpBehaviour:
    if len(text) > LAB_SERVER_TEXT:
        raise ServerError(f"annotation {HTTP}: {len(text)} characters; {LAB_SERVER_TEXT} are allowed")
    try:
        return msgspec.convert(yaml.safe_load(text), HttpBehaviour)
    except (yaml.YAMLError, msgspec.ValidationError, RecursionError) as error:
        raise ServerError(f"annotation {HTTP}: {str(error).splitlines()[0]}") from None


def _vllm(image: str, argv: Sequence[str]) -> HttpBehaviour | None:
    if _VLLM_IMAGE not in image:
        return None
    port = _option(argv, "--port")
    number = int(port) if port.isascii() and port.isdecimal() and 0 < int(port[:6]) <= 65_535 else _VLLM_PORT
    return HttpBehaviour(port=number, model=_model(argv))


def _model(argv: Sequence[str]) -> str:
    """The served model's name; ``vllm serve`` takes the model as its first word too."""
    word = argv[2] if tuple(argv[:2]) == ("vllm", "serve") and len(argv) > 2 else ""
    return _option(argv, "--served-model-name") or _option(argv, "--model") or ("" if word.startswith("-") else word)


def _option(argv: Sequence[str], name: str) -> str:
    """The value of an option as ``--name=value`` or ``--name value``; empty if it is not given."""
    for index, each in enumerate(argv):
        if each.startswith(f"{name}="):
            return each.partition("=")[2]
        if each == name and index + 1 < len(argv):
            return argv[index + 1]
    return ""
