"""Secrets of every form go; what an engineer needs stays."""

import json
from typing import Any

import pytest

from tessera.doctor.archive import ARCHIVE_VALUES, MARK, Redaction, environment_values

PLANTED = "Zx9-planted-Qw7"
TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {PLANTED}",
        f"using password={PLANTED} for the registry",
        f'{{"auth": "{PLANTED}", "email": "a@b"}}',
        f'"registry_password": "{PLANTED} with words"',
        f"db_passwd: '{PLANTED}'",
        f"GITHUB_TOKEN={PLANTED}",
        f"https://robot:{PLANTED}@registry.example/v2/",
        f"http://{PLANTED}@proxy:3128",
        f"--registry-token {PLANTED}",
        f"--registry-token={PLANTED}",
        f"nvapi-{PLANTED}",
        f"ghp_{PLANTED}",
        f"token {TOKEN}".replace(TOKEN, f"eyJhbGciOi.{PLANTED}.sig"),
        f"-----BEGIN RSA PRIVATE KEY-----\n{PLANTED}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{PLANTED}",
        f"apiKey = {PLANTED}",
        f"private-key: {PLANTED}",
    ],
)
def test_a_secret_in_a_text_is_replaced(text: str) -> None:
    clean = Redaction().text(f"before {text}\nafter")
    assert PLANTED not in clean
    assert MARK in clean
    assert clean.startswith("before ")


@pytest.mark.parametrize(
    "text",
    [
        "node node-1: is as configured: nvidia.com/gpu.shared 16",
        "GPU 0 (GPU-2d26165b-68a2-5cce-bff5-98a621bfe526): waiting for pod default/x to release its devices",
        "image registry.example/gpu/driver:535.183.06-5.15.0-118-generic-ubuntu22.04@sha256:" + "0" * 64,
        "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html",
        "XID 79 ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
        "secret tessera-webhook-cert was renewed",
    ],
)
def test_a_text_without_a_secret_stays(text: str) -> None:
    assert Redaction().text(text) == text


def test_an_object_keeps_what_kubernetes_and_nvidia_define() -> None:
    node = {
        "metadata": {
            "name": "n1",
            "managedFields": [{"manager": PLANTED}],
            "labels": {"nvidia.com/gpu.count": "4", "topology.kubernetes.io/zone": "a", "acme.example/key": PLANTED},
            "annotations": {
                "tessera.dev/offers": "{}",
                "note": PLANTED,
                "kubectl.kubernetes.io/last-applied-configuration": PLANTED,
            },
        },
        "status": {"conditions": [{"type": "Ready", "status": "True", "message": f"token={PLANTED}"}]},
    }
    assert Redaction().object(node) == {
        "metadata": {
            "name": "n1",
            "labels": {"nvidia.com/gpu.count": "4", "topology.kubernetes.io/zone": "a", "acme.example/key": MARK},
            "annotations": {"tessera.dev/offers": "{}", "note": MARK},
        },
        "status": {"conditions": [{"type": "Ready", "status": "True", "message": f"token={MARK}"}]},
    }


def test_variables_keep_their_names_and_where_a_value_comes_from() -> None:
    source = {"secretKeyRef": {"name": "ngc", "key": "password"}}
    env = [{"name": "PROXY", "value": PLANTED}, {"name": "KEY", "valueFrom": source}, {"name": "NONE"}, PLANTED]
    assert Redaction().object({"driver": {"env": env}}) == {
        "driver": {
            "env": [
                {"name": "PROXY", "value": MARK},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "ngc", "key": "password"}}},
                {"name": "NONE"},
                MARK,
            ]
        }
    }


def test_a_key_that_speaks_of_a_secret_loses_its_value_and_names_of_secrets_stay() -> None:
    value = {"registryPassword": PLANTED, "secretName": "ngc", "imagePullSecrets": ["ngc"], "auth": PLANTED}
    assert Redaction().object(value) == {
        "registryPassword": MARK,
        "secretName": "ngc",
        "imagePullSecrets": ["ngc"],
        "auth": MARK,
    }


def test_a_value_of_an_environment_goes_wherever_it_is_repeated() -> None:
    redaction = Redaction([PLANTED, "short", "tessera-system"], names=["tessera-system"])
    assert redaction.text(f"pod said {PLANTED}, short, tessera-system") == f"pod said {MARK}, short, tessera-system"
    assert redaction.object({"a": [{"b": f"x{PLANTED}"}]}) == {"a": [{"b": f"x{MARK}"}]}


def test_values_beyond_the_limit_are_counted_the_shortest_of_them() -> None:
    values = [f"value-{number:06}" for number in range(ARCHIVE_VALUES + 3)] + ["a longer value than the others"]
    redaction = Redaction(values)
    assert redaction.unsearched == 4
    assert redaction.text("a longer value than the others") == MARK


def test_the_values_of_all_containers_count() -> None:
    def container(value: str) -> dict[str, Any]:
        return {"env": [{"name": "A", "value": value}, {"name": "B"}]}

    spec = {"containers": [container("1")], "initContainers": [container("2")], "ephemeralContainers": [container("3")]}
    assert list(environment_values({"spec": spec})) == ["1", "2", "3"]


@pytest.mark.parametrize("text", ["a" * 60_000, "token" * 12_000, "://" * 20_000, "--" * 30_000, '"' * 60_000])
def test_a_hostile_text_costs_no_more_than_its_length(text: str) -> None:
    assert len(json.dumps(Redaction().text(text))) > 0
