"""All files of the bundle by their path below ``bundle/tessera/``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bundle.publisher import Publisher
from bundle.service_version import PACKAGE, service_version
from tessera.cli.install.operator_process import bundled_objects
from tessera.doctor.manifests import install_manifests

#: Where the bundle lies in a checkout.
FOLDER = Path(__file__).parent / "tessera"
#: OpenShift 4.18 has Kubernetes 1.31.
OPENSHIFT = "v4.18"
_HEADER = '# Written by "python -m bundle" from deploy/.\n'
_LABEL = "operators.operatorframework.io"
_SCORECARD = "quay.io/operator-framework/scorecard-test:v1.42.3"
#: The tests of operator-sdk's scorecard, with the suite of each.
SCORECARD_TESTS = {
    "basic-check-spec": "basic",
    "olm-bundle-validation": "olm",
    "olm-crds-have-validation": "olm",
    "olm-crds-have-resources": "olm",
    "olm-spec-descriptors": "olm",
    "olm-status-descriptors": "olm",
}


def generate(publisher: Publisher | None = None) -> Mapping[str, str]:
    """Returns the text of each file."""
    publisher = publisher or Publisher()
    labels = annotations(publisher)
    return {
        f"manifests/{PACKAGE}.clusterserviceversion.yaml": _yaml(service_version(publisher)),
        **{f"manifests/{_file_name(each)}": _yaml(each) for each in bundled_objects(install_manifests())},
        "metadata/annotations.yaml": _yaml({"annotations": labels}),
        "tests/scorecard/config.yaml": _yaml(_scorecard()),
        "bundle.Dockerfile": _dockerfile(labels),
    }


def _file_name(manifest: Mapping[str, Any]) -> str:
    """The name that operator-sdk gives the file."""
    if manifest["kind"] == "CustomResourceDefinition":
        return f"{manifest['spec']['group']}_{manifest['spec']['names']['plural']}.yaml"
    version = manifest["apiVersion"].replace("/", "_")
    return f"{manifest['metadata']['name']}_{version}_{manifest['kind'].lower()}.yaml"


def annotations(publisher: Publisher) -> dict[str, str]:
    """The annotations of the bundle, which are the labels of its image."""
    return {
        f"{_LABEL}.bundle.mediatype.v1": "registry+v1",
        f"{_LABEL}.bundle.manifests.v1": "manifests/",
        f"{_LABEL}.bundle.metadata.v1": "metadata/",
        f"{_LABEL}.bundle.package.v1": PACKAGE,
        f"{_LABEL}.bundle.channels.v1": publisher.channel,
        f"{_LABEL}.bundle.channel.default.v1": publisher.channel,
        f"{_LABEL}.test.mediatype.v1": "scorecard+v1",
        f"{_LABEL}.test.config.v1": "tests/scorecard/",
        "com.redhat.openshift.versions": OPENSHIFT,
    }


def _scorecard() -> Any:
    tests = [
        {
            "entrypoint": ["scorecard-test", name],
            "image": _SCORECARD,
            "labels": {"suite": suite, "test": f"{name}-test"},
            "storage": {"spec": {"mountPath": {}}},
        }
        for name, suite in SCORECARD_TESTS.items()
    ]
    return {
        "apiVersion": "scorecard.operatorframework.io/v1alpha3",
        "kind": "Configuration",
        "metadata": {"name": "config"},
        "stages": [{"parallel": True, "tests": tests}],
        "storage": {"spec": {"mountPath": {}}},
    }


def _dockerfile(labels: Mapping[str, str]) -> str:
    lines = [
        _HEADER.rstrip(),
        "#",
        "#   podman build -f bundle/tessera/bundle.Dockerfile -t REGISTRY/tessera-bundle:v0.2.0 bundle/tessera",
        "FROM scratch",
        *(f"LABEL {key}={value}" for key, value in labels.items()),
        "COPY manifests /manifests/",
        "COPY metadata /metadata/",
        "COPY tests/scorecard /tests/scorecard/",
    ]
    return "\n".join(lines) + "\n"


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are, and no aliases."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Returns True: each value is written where it is used."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def _yaml(value: Any) -> str:
    return _HEADER + yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)
