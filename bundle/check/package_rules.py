"""Rules about the form of a bundle: folders, annotations, kinds, size (operator-registry, ``validate.go``)."""

from collections.abc import Iterator

from bundle.check.problems import Problem, Rule, error, warning
from bundle.check.reading import CRD_KIND, CSV_KIND, Bundle

_BUNDLE = "operators.operatorframework.io.bundle"
_TEST = "operators.operatorframework.io.test"
PACKAGE, CHANNELS, DEFAULT_CHANNEL = (f"{_BUNDLE}.{each}.v1" for each in ("package", "channels", "channel.default"))
#: Annotations with a fixed value.
_FIXED = {
    f"{_BUNDLE}.mediatype.v1": "registry+v1",
    f"{_BUNDLE}.manifests.v1": "manifests/",
    f"{_BUNDLE}.metadata.v1": "metadata/",
}
_TESTS = {f"{_TEST}.mediatype.v1": "scorecard+v1", f"{_TEST}.config.v1": "tests/scorecard/"}
#: operator-registry, ``supported_resources.go``. NetworkPolicy and PodMonitor are left out: OLM takes them only since
#: 2025, and OpenShift 4.18 does not.
SUPPORTED = frozenset(
    {
        *(CSV_KIND, CRD_KIND, "Secret", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "ServiceAccount", "Service"),
        *("Role", "RoleBinding", "PrometheusRule", "ServiceMonitor", "PodDisruptionBudget", "PriorityClass"),
        *("VerticalPodAutoscaler", "ConsoleYAMLSample", "ConsoleQuickStart", "ConsoleCLIDownload", "ConsoleLink"),
        "ConsolePlugin",
    }
)
#: Bytes; a warning comes at 85 % of it.
_LARGEST = 1 << 20
#: API versions that Kubernetes no longer serves (api, ``removed_apis.go``): all kinds, or one.
_REMOVED = frozenset(
    {
        *(f"{group}/v1beta1" for group in ("apiextensions.k8s.io", "rbac.authorization.k8s.io", "scheduling.k8s.io")),
        *(f"{group}/v1beta1" for group in ("extensions", "admissionregistration.k8s.io", "networking.k8s.io")),
        *(f"{group}/v1beta1" for group in ("coordination.k8s.io", "certificates.k8s.io", "storage.k8s.io")),
        *(f"{group}/v1beta1" for group in ("batch", "policy", "events.k8s.io", "discovery.k8s.io", "node.k8s.io")),
        *("autoscaling/v2beta1", "autoscaling/v2beta2"),
    }
)


def annotations(bundle: Bundle) -> Iterator[Problem]:
    """The metadata has the annotations that name the parts of the bundle."""
    found = bundle.annotations
    if found is None:
        yield error("metadata/annotations.yaml is missing")
        return
    for key, value in _FIXED.items():
        if found.get(key) != value:
            yield error(f"annotation {key} is {found.get(key)!r}; it must be {value!r}")
    for key in (PACKAGE, CHANNELS):
        if not found.get(key):
            yield error(f"annotation {key} is missing or empty")
    channels = [each.strip() for each in found.get(CHANNELS, "").split(",")]
    default = found.get(DEFAULT_CHANNEL)
    if default is not None and default not in channels:
        yield error(f"annotation {DEFAULT_CHANNEL} is {default!r}, which is none of the channels {channels}")


def labels(bundle: Bundle) -> Iterator[Problem]:
    """The image's labels are the annotations."""
    if bundle.annotations is not None and dict(bundle.labels) != dict(bundle.annotations):
        different = sorted(
            key
            for key in {*bundle.labels, *bundle.annotations}
            if bundle.labels.get(key) != bundle.annotations.get(key)
        )
        yield error(f"bundle.Dockerfile and metadata/annotations.yaml differ in {', '.join(different)}")


def files(bundle: Bundle) -> Iterator[Problem]:
    """Each file of the manifests has one object, of a kind that OLM makes."""
    if not bundle.manifests:
        yield error("manifests/ is missing or empty")
    for name, objects in bundle.manifests.items():
        if len(objects) != 1:
            yield error(f"manifests/{name} has {len(objects)} objects; it must have one")
        for each in objects:
            if each.get("kind") not in SUPPORTED:
                yield error(f"manifests/{name}: OLM does not make objects of kind {each.get('kind')}")


def one_version(bundle: Bundle) -> Iterator[Problem]:
    """There is one ClusterServiceVersion."""
    if len(bundle.of_kind(CSV_KIND)) != 1:
        yield error(f"there are {len(bundle.of_kind(CSV_KIND))} ClusterServiceVersions; there must be one")


def definitions(bundle: Bundle) -> Iterator[Problem]:
    """Definitions are of apiextensions.k8s.io/v1 and have a structural schema for each version."""
    for each in bundle.of_kind(CRD_KIND):
        name = each["metadata"]["name"]
        if each.get("apiVersion") != "apiextensions.k8s.io/v1":
            yield error(f"{name}: apiVersion is {each.get('apiVersion')}; it must be apiextensions.k8s.io/v1")
            continue
        for version in each["spec"].get("versions") or ():
            schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
            if schema.get("type") != "object":
                yield error(f"{name}: version {version['name']} has no structural schema of type object")


def removed_versions(bundle: Bundle) -> Iterator[Problem]:
    """No object is of a version that Kubernetes has removed."""
    for each in bundle.objects:
        if each.get("apiVersion") in _REMOVED:
            yield error(f"{each['kind']} {each['metadata']['name']}: Kubernetes has removed {each['apiVersion']}")


def size(bundle: Bundle) -> Iterator[Problem]:
    """The compressed bundle fits into a ConfigMap."""
    if bundle.compressed > _LARGEST:
        yield error(f"the bundle has {bundle.compressed} bytes compressed; at most {_LARGEST} are allowed")
    elif bundle.compressed > 0.85 * _LARGEST:
        yield warning(f"the bundle has {bundle.compressed} bytes compressed, near the limit of {_LARGEST}")


def scorecard_annotations(bundle: Bundle) -> Iterator[Problem]:
    """A bundle with a scorecard says where it is."""
    for key, value in _TESTS.items() if bundle.scorecard is not None else ():
        if (bundle.annotations or {}).get(key) != value:
            yield error(f"annotation {key} must be {value!r}, since there is a configuration of the scorecard")


RULES: tuple[Rule, ...] = (
    annotations,
    labels,
    files,
    one_version,
    definitions,
    removed_versions,
    size,
    scorecard_annotations,
)
