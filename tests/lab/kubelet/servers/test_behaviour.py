"""Servers that containers declare, by annotation or by image."""

from typing import Any

import pytest

from tessera_lab.kubelet.servers.behaviour import HTTP, HttpBehaviour, ServerError, declared_server
from tessera_lab.limits import LAB_SERVER_TEXT


def declared(annotation: str | None, *argv: str, image: str = "app", ports: tuple[int, ...] = ()) -> Any:
    spec = {"image": image, "ports": [{"containerPort": each} for each in ports]}
    return declared_server({} if annotation is None else {HTTP: annotation}, spec, argv)


@pytest.mark.parametrize(
    ("annotation", "ports", "server"),
    [
        ("{}", (), HttpBehaviour(port=80)),
        ("{}", (8080, 9090), HttpBehaviour(port=8080)),
        ("port: 9090\nanswer: hello\nlatency: 0.2", (8080,), HttpBehaviour(port=9090, answer="hello", latency=0.2)),
        ('{"perSecond": 5, "concurrency": 2}', (), HttpBehaviour(port=80, per_second=5.0, concurrency=2)),
        (
            "{model: m, contentType: a/b, status: 503}",
            (),
            HttpBehaviour(port=80, model="m", content_type="a/b", status=503),
        ),
    ],
)
def test_an_annotation(annotation: str, ports: tuple[int, ...], server: HttpBehaviour) -> None:
    assert declared(annotation, ports=ports) == server


@pytest.mark.parametrize(
    ("argv", "server"),
    [
        (("--model=facebook/opt-125m",), HttpBehaviour(port=8000, model="facebook/opt-125m")),
        (("--model", "a", "--port", "9000"), HttpBehaviour(port=9000, model="a")),
        (("vllm", "serve", "a", "--port=9000"), HttpBehaviour(port=9000, model="a")),
        (("vllm", "serve", "--model=a"), HttpBehaviour(port=8000, model="a")),
        (("--model=a", "--served-model-name=b", "--port=x"), HttpBehaviour(port=8000, model="b")),
    ],
)
def test_an_image_of_vllm(argv: tuple[str, ...], server: HttpBehaviour) -> None:
    assert declared(None, *argv, image="vllm/vllm-openai:latest") == server


def test_other_containers_serve_nothing() -> None:
    assert declared(None, image="nginx", ports=(80,)) is None


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        ("{port: 70000}", "Expected `int` <= 65535"),
        ("{prot: 1}", "unknown field `prot`"),
        ("hello", "Expected `object`, got `str`"),
        ("{latency: -1}", "Expected `float` >= 0.0"),
        ('{contentType: "a\\nb: c"}', "matching regex"),
        ("{", "while parsing"),
        ("[" * 5000, ""),
        ("x" * (LAB_SERVER_TEXT + 1), "16385 characters; at most 16,384 characters are allowed"),
    ],
)
def test_what_is_refused(annotation: str, said: str) -> None:
    with pytest.raises(ServerError, match=f"annotation {HTTP}: .*{said}"):
        declared(annotation)
