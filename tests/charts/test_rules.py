"""The chart refuses what Tessera's programs refuse, and says what to write instead."""

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import click
import pytest
from charts.files import FOLDER
from tests.charts.conftest import Helm

from charts import rules
from tessera import __version__
from tessera.cli.base.controller_options import check_hosts, check_keys
from tessera.cli.base.durations import parse_duration
from tessera.cli.install.choices import PAGE_PORTS
from tessera.cli.install.command import command as install_command
from tessera.cli.webhook import parse_options
from tessera.dashboard.origins import PageNames
from tessera.driver.build.orders import BuildSettings, check_settings
from tessera.mig.models import MODELS, WHOLE_MODELS
from tessera.nvml.simulated.machine_state import parse_spec

CONTEXT, PARAMETER = click.Context(install_command), install_command.params[0]


def networks(text: str) -> None:
    install_command.make_context("install", ["--api-server", text])


#: Each rule with the parser of the program that gets the value, and texts of both kinds.
PARSERS: Mapping[str, tuple[rules.Rule, Callable[[str], Any], list[str]]] = {
    "cards": (
        rules.CARDS,
        parse_spec,
        [
            *(f"2x{each.short_name}" for each in (*MODELS, *WHOLE_MODELS)),
            *("4xA100-40GB", "4xA1000", "a30", "2xA30, 1xH100-80GB", "2*T4", "0xT4", "x", "4x", "T4,,T4", "nvidia-t4"),
            *("A100-40GB 2", "-1xT4", "07xT4", ","),
        ],
    ),
    "duration": (rules.DURATION, parse_duration, ["10m", "1h30m", "45", "1.5h", "10", "10x", "m", "5 m", "-5m", ".5s"]),
    "registry": (
        rules.REGISTRY,
        lambda text: check_hosts(CONTEXT, PARAMETER, (text,)),
        ["registry.local:5000", "*", "registry", "localhost", "reg:1", "http://reg.local", "a.b/c", "[::1]:5", "-"],
    ),
    "taint": (
        rules.TAINT,
        lambda text: check_keys(CONTEXT, PARAMETER, (text,)),
        ["example.com/gpu", "gpu", "gpu=true", "example.com/gpu:NoSchedule", "a/b/c", "Ä", "a" * 63, "a" * 64],
    ),
    "network": (
        rules.NETWORK,
        networks,
        ["192.0.2.0/28", "192.0.2.1", "2001:db8::/64", "192.0.2.0/33", "300.0.0.0/8", "::/129", "x/8", "0.0.0.0/0"],
    ),
    "origin": (
        rules.ORIGIN,
        lambda text: PageNames([text]),
        ["https://gpu.example.com", "gpu.example.com", "https://a/b", "http://a:80", "https://a/", "ftp://a", "https://"],
    ),
    "image": (
        rules.VALUES["tessera.builds.buildahImage"],
        lambda text: check_settings(BuildSettings(buildah_image=text)),
        ["registry.local/a:1", "a b", "UPPER/a", f"a@sha256:{'0' * 64}", "a@sha256:0"],
    ),
    "kernel": (
        rules.KEYS["tessera.builds.dtkImages"],
        lambda text: check_settings(BuildSettings(builder_images={text: "a/b:1"})),
        ["5.14.0-284.el9.x86_64", "linux", "5 14"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PARSERS)
def test_a_rule_refuses_what_the_program_refuses(name: str) -> None:
    rule, parse, texts = PARSERS[name]
    refused = []
    for text in texts:
        try:
            parse(text)
        except (ValueError, click.ClickException):
            refused.append(text)
    assert refused
    assert refused != texts
    assert [each for each in texts if not re.fullmatch(rule.pattern, each)] == refused


@pytest.mark.parametrize("module", rules.PROGRAMS.values())
def test_every_option_of_a_program_may_be_in_its_list(module: str) -> None:
    command: click.Command = import_module(f"tessera.cli.{module}").command
    known = rules.tables()["programs"][next(key for key, each in rules.PROGRAMS.items() if each == module)]
    assert known["name"] == f"tessera {module.replace('_', '-')}"
    declared = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    assert set(known["options"]) == declared


#: A mistake at every place, and the words in which Helm tells it.
WRONG: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "cards": ({"agent": {"simulate": "4xA1000"}}, 'tessera.agent.simulate: "4xA1000" names no cards; write 4x'),
    "digest": ({"image": {"digest": "sha256:1"}}, 'tessera.image.digest: "sha256:1" is no digest; write sha256:'),
    "network": (
        {"networkPolicy": {"apiServers": ["192.0.2.0/28", "192.0.2.1"]}},
        'tessera.networkPolicy.apiServers.1: "192.0.2.1" is no network; write a CIDR, as in 192.0.2.0/28',
    ),
    "key of a mapping": (
        {"builds": {"baseImages": {"windows": "a"}}},
        'tessera.builds.baseImages.windows: "windows" is no system of a base image; write ubuntu22.04 or rhel9',
    ),
    "unknown option": (
        {"agent": {"extraArgs": ["--mig-evict", "--mig-evcit"]}},
        'tessera.agent.extraArgs.1: "--mig-evcit" is no option of tessera agent; "tessera agent --help" lists them',
    ),
    "no option": (
        {"mps": {"extraArgs": ["verbose"]}},
        'tessera.mps.extraArgs.0: "verbose" is no option of tessera mps-host',
    ),
    "value of a flag": (
        {"agent": {"extraArgs": ["--mig-evict=true"]}},
        "tessera.agent.extraArgs.0: --mig-evict has no value; write --mig-evict",
    ),
    "missing value": (
        {"webhook": {"extraArgs": ["--port"]}},
        "tessera.webhook.extraArgs: --port has no value; write --port=VALUE",
    ),
    "choice": (
        {"agent": {"extraArgs": ["--memory-limits", "shoot"]}},
        'tessera.agent.extraArgs.1: --memory-limits: "shoot" is none of off, observe, warn, evict, kill',
    ),
    "number": (
        {"webhook": {"extraArgs": ["--port=a"]}},
        'tessera.webhook.extraArgs.0: --port: "a" is no number; write 0 to 65535',
    ),
    "too large": (
        {"controller": {"extraArgs": ["--health-breaker-share=1.5"]}},
        'tessera.controller.extraArgs.0: --health-breaker-share: "1.5" is more than 1',
    ),
    "port of the system": ({"dashboard": {"kedaPort": 80}}, "tessera.dashboard.kedaPort: 80 is no port from 1024"),
    **{
        f"port {each} of the page": (
            {"dashboard": {"kedaPort": each}},
            f"tessera.dashboard.kedaPort: the page's process has {each} already; write another, such as 9443",
        )
        for each in sorted(PAGE_PORTS)
    },
    "Prometheus of the page": (
        {"dashboard": {"prometheus": {"url": "prometheus:9090"}}},
        'tessera.dashboard.prometheus.url: "prometheus:9090" is no address of a Prometheus',
    ),
    "label without a Prometheus": (
        {"dashboard": {"prometheus": {"labels": ["cluster=prod"]}}},
        "tessera.dashboard.prometheus.url: missing; labels choose series of a Prometheus",
    ),
    "rule of an option": (
        {"dashboard": {"extraArgs": ["--origin=gpu"]}},
        'tessera.dashboard.extraArgs.0: --origin: "gpu" is no origin of a page',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_helm_tells_place_value_and_rule(name: str, helm: Helm) -> None:
    values, text = WRONG[name]
    done = helm.run("template", "tessera", str(FOLDER), values={"tessera": values})
    assert done.returncode != 0
    assert text in done.stderr


def test_helm_tells_all_mistakes_at_once(helm: Helm) -> None:
    values = {"agent": {"simulate": "x", "extraArgs": ["--y"]}, "startup": {"deadline": "soon"}}
    done = helm.run("template", "tessera", str(FOLDER), values={"tessera": values})
    assert all(each in done.stderr for each in ('simulate: "x"', 'extraArgs.0: "--y"', 'deadline: "soon"'))


def test_right_values_pass(helm: Helm) -> None:
    own = {
        "agent": {"simulate": "2xa30, T4", "extraArgs": ["--log-level", "debug", "--max-series=100", "--mig-evict"]},
        "controller": {"extraArgs": ["--no-leader-election", "--health-breaker-share=.5", "--usage-user=a/u"]},
        "networkPolicy": {"apiServers": ["192.0.2.0/28", "2001:db8::/64"]},
        "startup": {"deadline": "1h30m", "taints": ["example.com/gpu"]},
        "registries": {"plainHttp": ["*", "registry.local:5000"]},
        "builds": {"dtkImages": {"5.14.0-284.el9.x86_64": f"registry.local/dtk@sha256:{'0' * 64}"}},
        "image": {"digest": ""},
    }  # fmt: skip
    assert helm.template({"tessera": own}, "kube-system")


def test_an_image_that_nobody_can_pull_is_refused_with_the_commands_that_make_one(helm: Helm) -> None:
    real = ("--kube-version", "1.33.1")
    done = helm.run("template", "tessera", str(FOLDER), *real)
    assert done.returncode == 1
    for fact in (
        "tessera.image.repository: nobody has published the image tessera",
        f"podman build -t REGISTRY/tessera:{__version__} . && podman push REGISTRY/tessera:{__version__}",
        "write docker.io/library/tessera",
    ):
        assert fact in done.stderr
    for name in ("registry.example/tessera", "docker.io/library/tessera"):
        values = {"tessera": {"image": {"repository": name}}}
        assert f"{name}:{__version__}" in helm.run("template", "tessera", str(FOLDER), *real, values=values).stdout


def test_the_webhook_knows_the_keys_of_pods_that_options_of_the_controller_name(helm: Helm) -> None:
    options = ["--usage-user", "tessera.dev/customer", "--team-label=tessera.dev/team", "--usage-label=app"]
    objects = helm.template({"tessera": {"controller": {"extraArgs": options}}}, "tessera-system")
    (webhook,) = (
        each for each in objects if (each["kind"], each["metadata"]["name"]) == ("Deployment", "tessera-webhook")
    )
    (container,) = webhook["spec"]["template"]["spec"]["containers"]
    found = [each for each in container["args"] if each.startswith("--pod-key")]
    assert found == ["--pod-key=tessera.dev/customer", "--pod-key=app"]
    assert parse_options(container["args"], {}).pod_keys == ("tessera.dev/customer", "app")
