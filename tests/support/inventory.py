"""What is in a running lab: objects, fields of Nodes, and files of the nodes' agents."""

from typing import Any

from tests.support.running_lab import RunningLab

#: Kinds in which Tessera could leave something, besides Nodes.
KINDS = (
    "namespaces,clusterroles,clusterrolebindings,roles,rolebindings,crds,mutatingwebhookconfigurations,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings,runtimeclasses,configmaps,secrets,resourcequotas,"
    "daemonsets,deployments,services,networkpolicies,serviceaccounts,poddisruptionbudgets"
)


def inventory(cluster: RunningLab) -> dict[str, Any]:
    """All objects by kind, namespace and name, Nodes with their fields, and the files of the nodes' agents."""
    found: dict[str, Any] = {
        f"{each['kind']} {each['metadata'].get('namespace', '')}/{each['metadata']['name']}": ""
        for each in cluster.get(KINDS, "-A")["items"]
    }
    for node in cluster.get("nodes")["items"]:
        metadata, name = node["metadata"], node["metadata"]["name"]
        found[f"labels {name}"] = metadata["labels"]
        found[f"annotations {name}"] = metadata.get("annotations", {})
        found[f"conditions {name}"] = sorted(each["type"] for each in node["status"]["conditions"])
        found[f"amounts {name}"] = {key: each for key, each in node["status"]["capacity"].items() if each != "0"}
    for folder in ("cdi", "state"):
        for path in sorted(cluster.folder.rglob(f"{folder}/*")):
            found[f"file {path}"] = ""
    return found
