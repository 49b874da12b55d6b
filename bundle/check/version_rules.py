"""Rules about the ClusterServiceVersion: the default suite (operator-framework/api, ``csv.go`` and ``bundle.go``)."""

import json
import re
from collections.abc import Iterator

from bundle.check.package_rules import PACKAGE
from bundle.check.problems import Problem, Rule, error, warning
from bundle.check.reading import CRD_KIND, Bundle

SEMVER = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z.-]+)?"
)
_DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
#: An image's name as container registries read it: host and path, a tag, a digest.
_IMAGE = re.compile(
    r"([a-zA-Z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_CASED = ("olm.operatorGroup", "olm.operatorNamespace", "olm.targetNamespaces", "olm.providedAPIs", "olm.skipRange")
_MODES = frozenset({"OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces"})
_EXAMPLES = "alm-examples"

Api = tuple[str, str, str]


def identity(bundle: Bundle) -> Iterator[Problem]:
    """It has an API version, a kind, and a name that is a DNS name and a label's value."""
    csv = bundle.csv
    if csv and not csv.get("apiVersion"):
        yield error("apiVersion is missing")
    for field, name in (
        ("metadata.name", csv.get("metadata", {}).get("name", "")),
        ("spec.replaces", _replaces(bundle)),
    ):
        if name is not None and not (_DNS_NAME.fullmatch(name) and len(name) <= 63):
            yield error(f"{field} is {name!r}; it must be a DNS name of at most 63 characters")


def _replaces(bundle: Bundle) -> str | None:
    found: str | None = bundle.spec.get("replaces")
    return found


def required_fields(bundle: Bundle) -> Iterator[Problem]:
    """It has a name for people and an install strategy."""
    if not bundle.spec.get("displayName"):
        yield error("spec.displayName is missing")
    if (bundle.spec.get("install") or {}).get("strategy") != "deployment":
        yield error("spec.install.strategy must be deployment, the only one that OLM knows")


def install_modes(bundle: Bundle) -> Iterator[Problem]:
    """It names its install modes once each, and supports one."""
    modes = bundle.spec.get("installModes") or ()
    names = [each["type"] for each in modes]
    if not modes:
        yield error("spec.installModes is missing")
    elif not any(each["supported"] for each in modes):
        yield error("spec.installModes supports none")
    for each in sorted({name for name in names if names.count(name) > 1}):
        yield error(f"spec.installModes names {each} twice")
    for each in sorted(set(names) - _MODES):
        yield error(f"spec.installModes names {each}, which is no install mode")


def conversion_webhooks(bundle: Bundle) -> Iterator[Problem]:
    """With conversion webhooks it supports AllNamespaces only."""
    if any(each.get("conversionCRDs") for each in bundle.spec.get("webhookdefinitions") or ()):
        supported = {each["type"] for each in bundle.spec.get("installModes") or () if each["supported"]}
        if supported != {"AllNamespaces"}:
            yield error("spec.installModes must support AllNamespaces only, since there are conversion webhooks")


def webhook_conditions(bundle: Bundle) -> Iterator[Problem]:
    """It defines no webhooks. OLM knows no matchConditions, so Tessera's webhook would be asked about every pod."""
    if bundle.spec.get("webhookdefinitions"):
        yield error("spec.webhookdefinitions must be empty: OLM drops matchConditions; the operator makes the webhook")


def definitions(bundle: Bundle) -> Iterator[Problem]:
    """The definitions that it owns are those of the bundle."""
    found = [
        (each["spec"]["group"], version["name"], each["spec"]["names"]["kind"])
        for each in bundle.of_kind(CRD_KIND)
        for version in each["spec"]["versions"]
    ]
    owned = list(_provided(bundle))
    for each in sorted({api for api in found if found.count(api) > 1}):
        yield error(f"the definition of {_text(each)} is there twice")
    for each in sorted(set(owned) - set(found)):
        yield error(f"spec.customresourcedefinitions owns {_text(each)}, whose definition the bundle lacks")
    kinds = {(group, kind) for group, _, kind in owned}
    for each in sorted(set(found)):
        if (each[0], each[2]) not in kinds:
            yield error(
                f"the definition of {_text(each)} is in the bundle, but spec.customresourcedefinitions lacks it"
            )


def _provided(bundle: Bundle) -> Iterator[Api]:
    for each in bundle.owned:
        yield each["name"].partition(".")[2], each["version"], each["kind"]


def _text(api: Api) -> str:
    group, version, kind = api
    return f"{kind} of {group}/{version}"


def examples(bundle: Bundle) -> Iterator[Problem]:
    """It has an example of each kind that it owns, and of no other."""
    text = bundle.csv_annotations.get(_EXAMPLES)
    if text is None:
        yield warning(f"annotation {_EXAMPLES} is missing")
        return
    try:
        found = json.loads(text)
    except ValueError as wrong:
        yield error(f"annotation {_EXAMPLES} is no JSON: {wrong}")
        return
    shown = {(*each["apiVersion"].split("/"), each["kind"]) for each in found}
    provided = set(_provided(bundle))
    for each in sorted(shown - provided):
        yield error(f"annotation {_EXAMPLES} has an example of {'/'.join(each)}, which the bundle does not own")
    for each in sorted(provided - shown):
        yield warning(f"annotation {_EXAMPLES} has no example of {_text(each)}")


def kubernetes_version(bundle: Bundle) -> Iterator[Problem]:
    """It says the oldest Kubernetes that it runs with."""
    found = bundle.spec.get("minKubeVersion")
    if not found:
        yield warning("spec.minKubeVersion is missing; OLM would install it anywhere")
    elif not SEMVER.fullmatch(found):
        yield error(f"spec.minKubeVersion is {found!r}; it must be a semantic version, as 1.31.0")


def release(bundle: Bundle) -> Iterator[Problem]:
    """With a release of its packaging, its name has package, version and release."""
    found = bundle.spec.get("release")
    if found:
        package = (bundle.annotations or {}).get(PACKAGE, "")
        wanted = f"{package}-v{bundle.spec.get('version')}-{found}"
        if bundle.csv["metadata"]["name"] != wanted:
            yield error(f"metadata.name must be {wanted}, since spec.release is {found}")


def related_images(bundle: Bundle) -> Iterator[Problem]:
    """Each related image has a valid name, and every image of a container is among them."""
    related = [each.get("image", "") for each in bundle.spec.get("relatedImages") or ()]
    for number, image in enumerate(related):
        if not _IMAGE.fullmatch(image):
            yield error(f"spec.relatedImages[{number}].image is {image!r}, which is no name of an image")
    for deployment in bundle.strategy.get("deployments") or ():
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            if container["image"] not in related:
                yield warning(f"spec.relatedImages lacks {container['image']} of container {container['name']}")


def accounts(bundle: Bundle) -> Iterator[Problem]:
    """Accounts of its Deployments are not among the objects: OLM makes them."""
    used = {
        each["spec"]["template"]["spec"].get("serviceAccountName") for each in bundle.strategy.get("deployments") or ()
    }
    for each in bundle.of_kind("ServiceAccount"):
        if each["metadata"]["name"] in used:
            yield error(f"ServiceAccount {each['metadata']['name']} must not be in the bundle: OLM makes it")


def annotation_names(bundle: Bundle) -> Iterator[Problem]:
    """Names of OLM's annotations are in their own case; properties are in a file of their own."""
    right = {each.lower(): each for each in _CASED}
    for key in bundle.csv_annotations:
        wanted = right.get(key.lower(), key)
        if key != wanted:
            yield error(f"annotation {key} must be written {wanted}")
        if key == "olm.properties":
            yield warning("annotation olm.properties should be the file metadata/properties.yaml")


RULES: tuple[Rule, ...] = (
    identity,
    required_fields,
    install_modes,
    conversion_webhooks,
    webhook_conditions,
    definitions,
    examples,
    kubernetes_version,
    release,
    related_images,
    accounts,
    annotation_names,
)
