"""The rules for values that the schema alone would refuse with nothing but a regular expression.

``templates/_checks.tpl`` refuses a value with its path, the rule, and what to write instead. The rules are those of the
programs that get the values, so that a mistake shows at ``helm upgrade`` and not in the log of a pod that ends.
"""

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click
import msgspec

from tessera.api.names import LAB_SUFFIX
from tessera.api.nodes import repairs
from tessera.api.sharing.profile import DEVICE_LIST_STRATEGIES
from tessera.cli.base import controller_options as options
from tessera.cli.base.durations import Duration
from tessera.cli.base.inputs import check_cards
from tessera.doctor.manifests import BUILD_IMAGE, UNPUBLISHED
from tessera.driver.build import orders as builds
from tessera.mig.models import MODELS, WHOLE_MODELS


class Rule(msgspec.Struct, frozen=True):
    """The form of a text.

    Attributes:
        pattern: a regular expression for the whole text, in what Python and Go have in common.
        needs: what is wrong with another text, and what to write; follows the text.
    """

    pattern: str
    needs: str


def alternatives(names: Sequence[str]) -> str:
    """A regular expression for one of the names."""
    return "|".join(re.escape(each) for each in sorted(names, key=len, reverse=True))


def _cards() -> Rule:
    models = [*MODELS, *WHOLE_MODELS]
    names = alternatives([name for each in models for name in (each.short_name, *each.other_short_names)])
    item = rf"\s*(?:0*[1-9][0-9]*\s*[x*]\s*)?(?i:(?:nvidia-)?(?:{names}))\s*"
    known = ", ".join(each.short_name for each in models)
    return Rule(rf"[\s,]*{item}(?:,[\s,]*{item})*[\s,]*", f"names no cards; write 4xA100-40GB; the models are {known}")


def _strategies() -> Rule:
    item = rf"\s*(?:{alternatives(DEVICE_LIST_STRATEGIES)})\s*"
    return Rule(f"{item}(?:,{item})*", f"has another word than {', '.join(DEVICE_LIST_STRATEGIES)}, between commas")


_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
CARDS = _cards()
NAME = Rule(
    "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", "is no name of an object; write small letters, digits, dots and dashes"
)
DIGEST = Rule(
    "sha256:[0-9a-f]{64}",
    "is no digest; write sha256: and 64 hexadecimal digits, or leave it empty and set tessera.image.tag",
)
NETWORK = Rule(
    rf"{_OCTET}(?:\.{_OCTET}){{3}}/(?:3[0-2]|[12]?[0-9])|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9])",
    "is no network; write a CIDR, as in 192.0.2.0/28, or 192.0.2.7/32 for one address",
)
ORIGIN = Rule("https?://[^/?#@]+/?", "is no origin of a page; write a scheme and a name, as in https://gpu.example.com")
ISSUER = Rule(
    r"(https://[^?#@]+|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?(/[^?#@]*)?)",
    "is no issuer; write an address by https and without a query, as in https://login.example.com",
)
PROMETHEUS = Rule(
    r"https?://[^/?#@\s]+(/[^?#@\s]*)?",
    "is no address of a Prometheus; write one without user and query, as in http://prometheus.example.com:9090",
)
LABEL_VALUE = Rule(
    r"[a-zA-Z_][a-zA-Z0-9_]*=[A-Za-z0-9 ._:/@+-]+", "is no label with its value; write NAME=VALUE, as in cluster=prod"
)
DURATION = Rule(
    r"[0-9]+|(?:(?:[0-9]{1,12}(?:\.[0-9]{0,12})?|\.[0-9]{1,12})(?:h|ms|m|s|us|µs|ns))+",
    "is no duration; write 5m, 1h30m or 45s",
)
RESERVATIONS = Rule(f"off|always|{DURATION.pattern}", "is neither off nor always nor a duration; write 60s")
_PORT = "(?::[0-9]{1,5})"
#: Image names have a registry only if it has a dot or a port, or is localhost.
REGISTRY = Rule(
    rf"\*|localhost|\[[0-9a-fA-F:]{{2,45}}\]{_PORT}?|(?:[A-Za-z0-9-]+\.)+[A-Za-z0-9-]+{_PORT}?|[A-Za-z0-9-]+{_PORT}",
    "is no registry as image names have it; write host:port, as registry.local:5000",
)
TAINT = Rule(options.KEY.pattern, "is no key of a taint or label; write example.com/name, without value and effect")
NAMED_IMAGE = Rule("[^=]+=.+", "does not have the form KEY=IMAGE")
CONFIG_MAP = Rule("[^/]+/[^/]+", "names no ConfigMap; write NAMESPACE/NAME")


def _of_builds(form: builds.Form, thing: str) -> Rule:
    return Rule(form.pattern.pattern, f"is no {thing}; {form.advice}")


_IMAGE = _of_builds(builds.IMAGE, "image")
#: The rules by the path of a value. Each entry of a list or mapping has to follow it; an empty text always may stand.
VALUES: Mapping[str, Rule] = {
    "devicePlugin.config.name": NAME,
    "migManager.config.name": NAME,
    "tessera.image.digest": DIGEST,
    "tessera.driverPullSecrets": NAME,
    "tessera.deviceAccess.namespaces": NAME,
    "tessera.networkPolicy.apiServers": NETWORK,
    "tessera.registries.plainHttp": REGISTRY,
    "tessera.startup.taints": TAINT,
    "tessera.startup.deadline": DURATION,
    "tessera.controller.reservations": RESERVATIONS,
    "tessera.repairs.rebootAnnotation": Rule(repairs.ANNOTATION, repairs.ANNOTATION_RULE),
    "tessera.builds.buildahImage": _IMAGE,
    "tessera.builds.baseImages": _IMAGE,
    "tessera.builds.dtkImages": _IMAGE,
    "tessera.builds.downloads": _of_builds(builds.URL, "address"),
    "tessera.builds.caConfigMap": NAME,
    "tessera.dashboard.origins": ORIGIN,
    "tessera.dashboard.prometheus.url": PROMETHEUS,
    "tessera.dashboard.prometheus.labels": LABEL_VALUE,
    "tessera.webhook.certManager.issuer.name": NAME,
    "tessera.agent.simulate": CARDS,
}
#: The same for the keys of mappings.
KEYS: Mapping[str, Rule] = {
    "tessera.builds.baseImages": _of_builds(builds.SYSTEM, "system of a base image"),
    "tessera.builds.dtkImages": _of_builds(builds.KERNEL, "kernel"),
}
#: The programs whose options ``extraArgs`` may have, by the key of their values.
PROGRAMS: Mapping[str, str] = {
    "controller": "controller",
    "webhook": "webhook",
    "dashboard": "dashboard",
    "agent": "agent",
    "mps": "mps_host",
}
#: Rules of options that their own program checks, later than click.
_LATER: Mapping[str, Rule] = {
    "--device-list-strategy": _strategies(),
    "--sharing-config": CONFIG_MAP,
    "--mig-config": CONFIG_MAP,
    "--repairs": CONFIG_MAP,
    "--origin": ORIGIN,
    "--oidc-issuer": ISSUER,
    "--prometheus": PROMETHEUS,
    "--prometheus-label": LABEL_VALUE,
}


def tables() -> Mapping[str, Any]:
    """The rules as the templates read them."""
    return {
        "image": {
            "name": UNPUBLISHED,
            "lab": LAB_SUFFIX,
            "problem": f"tessera.image.repository: {BUILD_IMAGE}; then set it to REGISTRY/{UNPUBLISHED}. If the image"
            f" was loaded into every node, write docker.io/library/{UNPUBLISHED}",
        },
        "values": [_entry(path, rule, keys=False) for path, rule in VALUES.items()]
        + [_entry(path, rule, keys=True) for path, rule in KEYS.items()],
        "programs": {key: _program(module) for key, module in PROGRAMS.items()},
    }


def _entry(path: str, rule: Rule, *, keys: bool) -> Mapping[str, Any]:
    return {"path": path, "keys": keys, **_written(rule)}


def _written(rule: Rule) -> Mapping[str, str]:
    return {"pattern": f"^(?:{rule.pattern})$", "needs": rule.needs}


def _program(module: str) -> Mapping[str, Any]:
    command: click.Command = import_module(f"tessera.cli.{module}").command
    found = {
        name: _option(name, each)
        for each in command.params
        if isinstance(each, click.Option)
        for name in (*each.opts, *each.secondary_opts)
    }
    return {"name": f"tessera {module.replace('_', '-')}", "options": found}


def _option(name: str, option: click.Option) -> Mapping[str, Any]:
    if option.is_flag:
        return {"flag": True}
    if isinstance(option.type, click.Choice):
        return {"choices": list(option.type.choices)}
    if isinstance(option.type, click.IntRange | click.FloatRange):
        whole = isinstance(option.type, click.IntRange)
        pattern = "^[0-9]+$" if whole else r"^(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)$"
        bounds = {
            key: value for key, value in (("min", option.type.min), ("max", option.type.max)) if value is not None
        }
        upper = "or more" if option.type.max is None else f"to {option.type.max}"
        return {"pattern": pattern, "needs": f"is no number; write {option.type.min} {upper}", **bounds}
    rule = _rule(name, option)
    return _written(rule) if rule else {}


def _rule(name: str, option: click.Option) -> Rule | None:
    if isinstance(option.type, Duration):
        return DURATION
    if isinstance(option.type, options.NamedImage):
        return NAMED_IMAGE
    by_callback = {
        check_cards: CARDS,
        options.check_hosts: REGISTRY,
        options.check_keys: TAINT,
        options.check_key: TAINT,
    }
    return by_callback.get(option.callback) if option.callback else _LATER.get(name)
