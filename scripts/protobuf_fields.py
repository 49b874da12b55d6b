"""Packs the protobuf field numbers of the kinds whose bodies kubectl sends as protobuf.

    python scripts/protobuf_fields.py API_REPOSITORY APIMACHINERY_REPOSITORY > .../schemas/protobuf.json

Source: the struct tags in ``types.go`` of k8s.io/api and k8s.io/apimachinery (directories of the two Go modules), which
give for every field the JSON name, the field number, and by the Go type and ``omitempty`` what its zero value means.
Numbers never change between versions of an API.

Output: message -> field number -> [JSON name, type, flags]. Flags: ``l`` list, ``m`` map, ``o`` leave out when zero
(``omitempty`` of a value), ``i`` inline. A pointer has no ``o``: its zero is a value.
"""

import json
import re
import sys
from pathlib import Path

ROOTS = {
    "core/v1": "Namespace ConfigMap Secret ServiceAccount Service ResourceQuota Pod Binding Event",
    "apps/v1": "Deployment",
    "autoscaling/v1": "HorizontalPodAutoscaler",
    "autoscaling/v2": "HorizontalPodAutoscaler",
    "batch/v1": "Job CronJob",
    "policy/v1": "PodDisruptionBudget Eviction",
    "rbac/v1": "Role ClusterRole RoleBinding ClusterRoleBinding",
    "scheduling/v1": "PriorityClass",
    "coordination/v1": "Lease",
    "authentication/v1": "TokenRequest SelfSubjectReview TokenReview",
    "authorization/v1": "SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview LocalSubjectAccessReview",
    "meta/v1": "DeleteOptions",
}
GROUPS = {
    "rbac": "rbac.authorization.k8s.io",
    "scheduling": "scheduling.k8s.io",
    "coordination": "coordination.k8s.io",
    "authentication": "authentication.k8s.io",
    "authorization": "authorization.k8s.io",
    "core": "",
}
SCALARS = {"string", "bool", "int32", "int64", "int", "float64", "byte"}
#: Types whose JSON form is not their message's.
SPECIAL = {
    "metav1.Time": "time",
    "metav1.MicroTime": "microtime",
    "intstr.IntOrString": "intorstring",
    "resource.Quantity": "quantity",
    "metav1.FieldsV1": "fields",
    "runtime.RawExtension": "raw",
    "types.UID": "string",
    "uint64": "int64",
}
STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
ALIAS = re.compile(r"^type (\w+) (=? ?[\w.\[\]]+)$", re.MULTILINE)
FIELD = re.compile(r"^\t(?:(\w+) )?\s*([\w.*\[\]]+)\s+`json:\"([^\"]*)\"(?:[^`]*protobuf:\"([^\"]*)\")?[^`]*`")


def package(root: Path, folder: str) -> tuple[dict[str, str], dict[str, str]]:
    """Struct bodies and aliases of one Go package."""
    structs: dict[str, str] = {}
    aliases: dict[str, str] = {}
    for path in sorted((root / folder).glob("*types*.go")) + sorted((root / folder).glob("*resource*.go")):
        if path.name.endswith("_test.go"):
            continue
        text = path.read_text()
        structs |= dict(STRUCT.findall(text))
        aliases |= {name: target for name, target in ALIAS.findall(text) if target != "struct"}
    return structs, aliases


def main() -> None:
    """Writes the table to standard output."""
    api, machinery = Path(sys.argv[1]), Path(sys.argv[2])
    packages = {folder: package(api, folder) for folder in ROOTS if folder != "meta/v1"}
    packages["meta/v1"] = package(machinery, "pkg/apis/meta/v1")
    messages: dict[str, dict[str, list[str]]] = {}
    waiting = [(folder, name) for folder, names in ROOTS.items() for name in names.split()]
    while waiting:
        folder, name = waiting.pop()
        key = f"{folder}.{name}"
        if key in messages:
            continue
        messages[key] = {}
        for line in packages[folder][0][name].splitlines():
            found = FIELD.match(line)
            if found is None or not found[4]:
                continue
            try:
                kind, flags = go_type(found[2], folder, packages)
            except KeyError:  # a type of a package that is not read: a field younger than kubectl 1.32
                continue
            json_name, *options = found[3].split(",")
            if not json_name:
                flags += "i"
            if ("omitempty" in options) and "*" not in found[2]:
                flags += "o"
            messages[key][found[4].split(",")[1]] = [json_name, kind, flags]
            if "." in kind:
                waiting.append(tuple(kind.rsplit(".", 1)))
    kinds = {
        f"{GROUPS.get(group, group)}/{version}/{name}".removeprefix("/"): f"{group}/{version}.{name}"
        for group, version, names in ((*folder.split("/"), names) for folder, names in ROOTS.items())
        for name in names.split()
    }
    packed = {"kinds": dict(sorted(kinds.items())), "messages": dict(sorted(messages.items()))}
    sys.stdout.write(json.dumps(packed, separators=(",", ":")) + "\n")


def go_type(text: str, folder: str, packages: dict) -> tuple[str, str]:
    """A field's type in the table, and its flags."""
    text = text.lstrip("*")
    if text == "[]byte":
        return "bytes", ""
    if text.startswith("[]"):
        kind, _ = go_type(text[2:], folder, packages)
        return kind, "l"
    if text.startswith("map["):
        kind, flags = go_type(text.partition("]")[2], folder, packages)
        return kind, flags + "m"
    if text in SCALARS:
        return text, ""
    if text in SPECIAL:
        return SPECIAL[text], ""
    folder, name = place(text, folder)
    if f"metav1.{name}" in SPECIAL and folder == "meta/v1":
        return SPECIAL[f"metav1.{name}"], ""
    structs, aliases = packages[folder]
    if name in structs:
        return f"{folder}.{name}", ""
    return go_type(aliases[name], folder, packages)


def place(text: str, folder: str) -> tuple[str, str]:
    """Package folder and name of a Go type."""
    prefix, _, name = text.rpartition(".")
    core = prefix in ("v1", "corev1", "apiv1") and folder != "meta/v1"
    return {"": folder, "metav1": "meta/v1"}.get(prefix, "core/v1" if core else folder), name


if __name__ == "__main__":
    main()
