"""``deploy/policies/pods.yaml`` refuses pods that use GPUs without a request, and no other pods."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from tests.deploy.conftest import ROOT, rendered

from tessera.clock import SystemClock
from tessera.limits import POLICY_ENTRIES
from tessera_lab.apiserver.interfaces import AdmissionRequest, Attributes, GroupResource, UserInfo
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.apiserver.status import StatusError
from tessera_lab.apiserver.storage.store import Store

Obj = dict[str, Any]
GROUP = "admissionregistration.k8s.io"
KINDS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
NAME = "tessera-device-access"
UUID = "GPU-8f3c1b7e-0000-0000-0000-000000000001"


def stored(store: Store, resource: GroupResource, obj: Obj) -> None:
    store.put(resource, obj, None)


def policies() -> list[Obj]:
    return list(yaml.load_all((ROOT / "deploy" / "policies" / "pods.yaml").read_text(), yaml.CSafeLoader))


@pytest.fixture(scope="module")
def server() -> ApiServer:
    """A server with the policy of pods, and a namespace of each sort."""
    return serving(policies())


def serving(objects: list[Obj]) -> ApiServer:
    made = ApiServer(SystemClock())
    for each in objects:
        stored(made.core.store, GroupResource(GROUP, KINDS[each["kind"]]), each)
    for name, labels in (("team", {}), ("trusted", {"tessera.dev/device-access": "allowed"}), ("tessera-system", {})):
        meta = {"name": name, "labels": {"kubernetes.io/metadata.name": name, **labels}}
        stored(made.core.store, GroupResource("", "namespaces"), {"metadata": meta})
    return made


def judged(
    server: ApiServer,
    pod: Obj,
    *,
    old: Obj | None = None,
    subresource: str = "",
    namespace: str = "team",
) -> str:
    """The reason for which the policy refuses the pod; empty if it admits the pod."""
    asked = Attributes(
        user=UserInfo(name="tenant"),
        verb="update" if old else "create",
        version="v1",
        resource="pods",
        subresource=subresource,
        namespace=namespace,
        name=pod["metadata"]["name"],
    )
    request = AdmissionRequest(attributes=asked, operation="UPDATE" if old else "CREATE", kind="Pod", obj=pod, old=old)
    policies = server.parts.policies
    assert policies is not None
    try:
        policies.validate(request)
    except StatusError as error:
        return f"{error.code}: {error}"
    return ""


def container(name: str = "main", **fields: Any) -> Obj:
    return {"name": name, "image": "busybox", "resources": {}, **fields}


def env(name: str, value: str | None = None, more: Obj | None = None) -> Obj:
    return container(
        env=[{"name": "A", "value": "b"}, {"name": name, **({} if value is None else {"value": value}), **(more or {})}]
    )


def pod(*containers: Obj, annotations: Mapping[str, str] | None = None, **spec: Any) -> Obj:
    meta: Obj = {"name": "p", **({"annotations": dict(annotations)} if annotations else {})}
    whole = {"containers": list(containers) or [container()], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": whole}


def mounts(path: str, *, read_only: bool = False, at: str = "/host") -> Obj:
    mount = {"name": "v", "mountPath": at, **({"readOnly": True} if read_only else {})}
    return pod(container(volumeMounts=[mount]), volumes=[volume(path)])


NOBODY = {"runAsNonRoot": True, "runAsUser": 65534}
MOUNT = {"name": "v", "mountPath": "/host"}


def volume(path: str) -> Obj:
    return {"name": "v", "hostPath": {"path": path, "type": ""}}


def reader(path: str, **security: Any) -> Obj:
    """A pod that reads a folder of the node."""
    mount = {**MOUNT, "readOnly": True}
    return pod(container(volumeMounts=[mount]), volumes=[volume(path)], securityContext=security)


REFERENCE = {"valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}
GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}

REFUSED: dict[str, tuple[Obj, str]] = (
    {
        "all GPUs": (pod(env("NVIDIA_VISIBLE_DEVICES", "all")), "container main chooses its GPUs itself"),
        "a neighbour's": (pod(env("NVIDIA_VISIBLE_DEVICES", UUID)), "leave it out"),
        "an index": (pod(env("NVIDIA_VISIBLE_DEVICES", "0")), "chooses"),
        "a CDI name": (pod(env("NVIDIA_VISIBLE_DEVICES", "tessera.dev/mig=x")), "chooses"),
        "a reference to another variable": (pod(env("NVIDIA_VISIBLE_DEVICES", "$(A)")), "chooses"),
        "from a ConfigMap's key": (pod(env("NVIDIA_VISIBLE_DEVICES", more=REFERENCE)), "chooses"),
        "MIG configuration": (pod(env("NVIDIA_MIG_CONFIG_DEVICES", "all")), "chooses"),
        "MIG monitoring": (pod(env("NVIDIA_MIG_MONITOR_DEVICES", "all")), "chooses"),
        "with a GPU of its own": (pod(env("NVIDIA_VISIBLE_DEVICES", "all") | GPU), "chooses"),
        "the second container": (pod(container(), env("NVIDIA_VISIBLE_DEVICES", "all") | {"name": "b"}), "container b"),
        "an init container": (
            pod(initContainers=[env("NVIDIA_VISIBLE_DEVICES", "all") | {"name": "i"}]),
            "container i",
        ),
        "privileged": (pod(container(securityContext={"privileged": True})), "is privileged"),
        "a privileged init container": (
            pod(initContainers=[container("i", securityContext={"privileged": True})]),
            "container i is privileged",
        ),
        "what NVIDIA's runtime takes for privileged": (
            pod(container(securityContext={"capabilities": {"add": ["NET_ADMIN", "SYS_ADMIN"]}})),
            "adds a capability that leads to every GPU",
        ),
        "processes of the whole node": (
            pod(container(securityContext={"capabilities": {"add": ["SYS_PTRACE"]}}), hostPID=True),
            "adds a capability",
        ),
        "channels of other pods": (pod(env("NVIDIA_IMEX_CHANNELS", "0")), "NVIDIA_IMEX_CHANNELS"),
        "the switches": (pod(env("NVIDIA_NVSWITCH", "enabled")), "NVIDIA_NVSWITCH"),
        "a device injector": (pod(annotations={"devices.nri.io/container.main": "- path: /dev/nvidia0"}), "annotation"),
        "CDI by a device injector": (
            pod(annotations={"cdi-devices.noderesource.dev/pod": "- nvidia.com/gpu=all"}),
            "names devices of the node",
        ),
        "kubelet's sockets, reading as root": (
            mounts("/var/lib/kubelet", read_only=True),
            "could connect; set securityContext.runAsNonRoot",
        ),
        "the same, where the pod is another user": (
            pod(
                container(volumeMounts=[MOUNT | {"readOnly": True}], securityContext={"runAsNonRoot": False}),
                volumes=[volume("/")],
                securityContext={"runAsNonRoot": True},
            ),
            "may run as root",
        ),
        "a device below a folder that is read": (
            pod(
                container(volumeMounts=[MOUNT | {"readOnly": True, "subPath": "dev/nvidia0"}]),
                volumes=[volume("/")],
                securityContext=NOBODY,
            ),
            "without subPath",
        ),
        "CDI by annotation": (pod(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=all"}), "annotation cdi.k8s.io/x"),
        "NVIDIA's prefix": (
            pod(annotations={"nvidia.cdi.k8s.io/x": "nvidia.com/gpu=all"}),
            "names devices of the node",
        ),
        "devices as mounts": (
            pod(
                container(volumeMounts=[{"name": "v", "mountPath": f"/var/run/nvidia-container-devices/{UUID}"}]),
                volumes=[{"name": "v", "hostPath": {"path": "/dev/null"}}],
            ),
            "below nvidia-container-devices",
        ),
    }
    | {
        path: (mounts(path, read_only=True), f"mounts {path} of the node")
        for path in (
            "/dev",
            "/dev/",
            "//dev",
            "/./dev/.",
            "/dev/nvidia0",
            "/dev//nvidia0",
            "/dev/./nvidiactl",
            "/dev/nvidia-caps/nvidia-cap1",
            "/dev/dri",
            "/dev/dri/card0",
            "/dev/char/195:0",
            "/dev/fd/9",
            "/dev/gdrdrv",
            "/dev/mem",
            "/dev/kmem",
            "/dev/port",
            "/dev/vfio",
            "/dev/vfio/12",
            "/tmp/nvidia-mps",
            "/tmp/./nvidia-mps/control",
            "dev/nvidia0",
            "./dev",
            "/proc/1/root/dev/nvidia0",
            "//proc//self/./root",
            "/proc/1/task/1/cwd/etc/cdi",
            "/etc/cdi",
            "/var/run/cdi",
            "/var//run/./cdi/",
            "/run/cdi/tessera.yaml",
            "/run/nvidia",
            "/run/nvidia/mps",
            "/run/nvidia/driver/dev",
            "/var/run/nvidia-container-devices",
            "/var/lib/tessera",
            "/var/lib//./tessera/journal.json",
            "/var/lib/kubelet/device-plugins",
            "/var/lib/kubelet/device-plugins/kubelet.sock",
            "/var/lib/kubelet/pod-resources",
            "/var/snap/microk8s/common/var/lib/kubelet/device-plugins",
        )
    }
    | {
        f"capability {name!r}": (
            pod(container(securityContext={"capabilities": {"add": [name]}})),
            "add only capabilities that docs/device-policy.md lists",
        )
        for name in (
            "all",
            "ALL",
            "CAP_ALL",
            "cap_sys_admin",
            # Runtimes make CAP_SYS_ADMIN of these by Unicode's rules.
            "\u017fYS_ADMIN",
            "CAP_\u017fy\u017f_ADMIN",
            "SYS_ADM\u0131N",
            "SYS_ADMIN\n",
            "SYS_ADMIN ",
            "CAP_CAP_CHOWN",
            "SYS_MODULE",
            "SYS_RAWIO",
            "DAC_READ_SEARCH",
            "BPF",
            "PERFMON",
            "CHECKPOINT_RESTORE",
            "MAC_ADMIN",
            "SYS_BOOT",
            "A_CAPABILITY_OF_A_LATER_KERNEL",
            "",
        )
    }
    | {
        f"{path} to write": (mounts(path), "may write to a folder of the node")
        for path in (
            "/",
            "//",
            "/.",
            "/etc",
            "/run",
            "/var",
            "/var/run",
            "/var/lib",
            "/var/lib/kubelet",
            "/var/lib/kubelet/",
            "/sys",
            "/sys/bus/pci/devices",
            "/sys//fs/cgroup",
            "/proc",
            "/proc/sys",
            "/proc/sys/kernel",
            "/proc/sys/kernel/core_pattern",
            "/proc/1",
            "/proc/self/attr",
            "/proc/sysrq-trigger",
            "/usr",
            "/usr/local/nvidia",
            "/etc/nvidia-container-runtime",
            "/etc/nvidia-container-runtime/config.toml",
        )
    }
)

ADMITTED: dict[str, Obj] = {
    "a plain pod": pod(),
    "none": pod(env("NVIDIA_VISIBLE_DEVICES", "none")),
    "void": pod(env("NVIDIA_VISIBLE_DEVICES", "void")),
    "empty": pod(env("NVIDIA_VISIBLE_DEVICES", "")),
    "no value": pod(env("NVIDIA_VISIBLE_DEVICES")),
    "capabilities of the driver": pod(env("NVIDIA_DRIVER_CAPABILITIES", "all")),
    "what CUDA shows": pod(env("CUDA_VISIBLE_DEVICES", "0")),
    "lower case": pod(env("nvidia_visible_devices", "all")),
    "a GPU by its resource": pod(container() | GPU),
    "not privileged": pod(container(securityContext={"privileged": False, "runAsUser": 0})),
    "other annotations": pod(annotations={"example.com/cdi": "x", "tessera.dev/memory": "10Gi"}),
    "a node exporter": reader("/", **NOBODY),
    "another user": reader("/var/lib", runAsUser=1000),
    "processes of the node": mounts("/proc", read_only=True),
    "settings of the kernel": mounts("/proc/sys/net"),
    "sockets of the node": mounts("/var/run", read_only=True),
    "a capability": pod(container(securityContext={"capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}})),
    "a capability in small letters": pod(container(securityContext={"capabilities": {"add": ["cap_net_raw"]}})),
    "a debugger": pod(container(securityContext={"capabilities": {"add": ["SYS_PTRACE"]}})),
    "no channels": pod(env("NVIDIA_IMEX_CHANNELS", "none")),
    "direct storage": pod(env("NVIDIA_GDS", "enabled")),
    "files of cards, to read": mounts("/sys/bus/pci", read_only=True),
    "a file in /tmp": mounts("/tmp/nvidia-mps-notes"),
    "programs of the node": mounts("/usr/bin"),
    "memory of a container": mounts("/dev/memory"),
    "logs of the node": mounts("/var/log"),
    "the container runtime's socket": mounts("/run/containerd/containerd.sock", read_only=True),
    "CNI": mounts("/etc/cni/net.d"),
    "CNI's state": mounts("/var/run/calico"),
    "CSI": mounts("/var/lib/kubelet/plugins/csi.example.com"),
    "CSI's pods": mounts("/var/lib/kubelet/pods"),
    "CSI's registration": mounts("/var/lib/kubelet/plugins_registry"),
    "kernel modules": mounts("/lib/modules", read_only=True),
    "shared memory": mounts("/dev/shm"),
    "fuse": mounts("/dev/fuse"),
    "infiniband": mounts("/dev/infiniband"),
    "a drive": mounts("/dev/drive"),
    "an application called like it": mounts("/data/nvidia"),
    "an emptyDir": pod(
        container(volumeMounts=[{"name": "v", "mountPath": "/dev/shm"}]), volumes=[{"name": "v", "emptyDir": {}}]
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_takes_gpus_past_kubernetes_is_refused_with_the_way_out(server: ApiServer, name: str) -> None:
    sent, text = REFUSED[name]
    said = judged(server, sent)
    assert said.startswith("403: ")
    assert text in said
    assert "label the namespace tessera.dev/device-access=allowed" in said


def test_a_path_of_several_lines_hides_nothing(server: ApiServer) -> None:
    """With ``FileOrCreate`` it would be a CDI file; Kubernetes leaves a message of several lines out."""
    assert judged(server, mounts("/run/cdi/a\nb.json")).startswith("403: ")


@pytest.mark.parametrize("name", ADMITTED)
def test_everything_else_is_admitted(server: ApiServer, name: str) -> None:
    assert judged(server, ADMITTED[name]) == ""


@pytest.mark.parametrize("namespace", ["trusted", "tessera-system"])
def test_namespaces_are_left_out_by_name_and_by_label(server: ApiServer, namespace: str) -> None:
    for sent, _ in REFUSED.values():
        assert judged(server, sent, namespace=namespace) == ""


def test_debug_containers_are_judged_when_they_come(server: ApiServer) -> None:
    old = pod(container(securityContext={"privileged": True}))
    debug = [env("NVIDIA_VISIBLE_DEVICES", "all") | {"name": "debugger"}]
    new = pod(*old["spec"]["containers"], ephemeralContainers=debug)
    assert "container debugger" in judged(server, new, old=old, subresource="ephemeralcontainers")
    harmless = pod(*old["spec"]["containers"], ephemeralContainers=[container("debugger")])
    assert judged(server, harmless, old=old, subresource="ephemeralcontainers") == ""


def test_debug_containers_mount_no_volume_that_waited_for_them(server: ApiServer) -> None:
    old = pod(volumes=[volume("/")])
    assert judged(server, old) == ""
    new = pod(ephemeralContainers=[container("debugger", volumeMounts=[MOUNT])], volumes=[volume("/")])
    assert "container debugger may write" in judged(server, new, old=old, subresource="ephemeralcontainers")
    devices = [volume("/dev")]
    new = pod(ephemeralContainers=[container("debugger", volumeMounts=[MOUNT])], volumes=devices)
    assert "mounts /dev of the node" in judged(server, new, old=new, subresource="ephemeralcontainers")
    other = pod(ephemeralContainers=[container("debugger")], volumes=devices)
    assert judged(server, other, old=other, subresource="ephemeralcontainers") == ""


def test_a_pod_that_was_there_before_may_still_be_changed(server: ApiServer) -> None:
    for sent, _ in REFUSED.values():
        assert judged(server, {**sent, "metadata": {**sent["metadata"], "labels": {"a": "b"}}}, old=sent) == ""


def test_an_annotation_that_names_devices_does_not_come_later_either(server: ApiServer) -> None:
    old, new = pod(), pod(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=all"})
    assert "annotation cdi.k8s.io/x" in judged(server, new, old=old)
    assert judged(server, new, old=new) == ""
    assert "annotation" in judged(server, pod(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=1"}), old=new)


def test_what_has_more_than_is_judged_is_refused_without_a_look(server: ApiServer) -> None:
    """A real API server needs 20 s for the environment that fits into a request of 1 MiB."""
    most = int(POLICY_ENTRIES)
    facts = (
        f"has {most + 1} environment variables",
        "mounts",
        "volumes",
        "capabilities",
        f"at most {most:,}",
        "judged",
    )
    many: list[Obj] = [{"name": "A"}] * (most + 1)
    assert judged(server, pod(container(env=many[1:]))) == ""
    reasons = [
        judged(server, pod(container(env=many))),
        judged(server, pod(container(env=many[: most // 2]), initContainers=[container("i", env=many[most // 2 :])])),
        judged(server, pod(volumes=[{"name": f"v{n}", "hostPath": {"path": "/"}} for n in range(most + 1)])),
        judged(server, pod(ephemeralContainers=[container(env=many)]), old=pod(), subresource="ephemeralcontainers"),
    ]
    for reason in reasons:
        for fact in facts:
            assert fact in reason
    assert judged(server, pod(container(env=many), annotations={"a": "b"}), old=pod(container(env=many))) == ""
    assert f"up to {most:,} environment variables" in (ROOT / "docs" / "device-policy.md").read_text()


def test_the_rules_refuse_nothing_that_the_condition_spares_them(server: ApiServer) -> None:
    without = policies()
    assert without[0]["spec"].pop("matchConditions")
    unconditional = serving(without)
    for sent in (*ADMITTED.values(), *(refused for refused, _ in REFUSED.values())):
        for old, subresource in ((None, ""), (pod(), ""), (pod(), "ephemeralcontainers")):
            said = judged(server, sent, old=old, subresource=subresource)
            assert said == judged(unconditional, sent, old=old, subresource=subresource)


def test_who_cannot_be_judged_is_refused() -> None:
    """A real server stops counting at a budget; then the failure policy decides."""
    for file in (ROOT / "deploy" / "policies").iterdir():
        for each in yaml.load_all(file.read_text(), yaml.CSafeLoader):
            if each["kind"] == "ValidatingAdmissionPolicy":
                assert each["spec"]["failurePolicy"] == "Fail"


@pytest.mark.parametrize(
    ("folder", "actions"), [("deploy", [["Deny"]]), ("examples/device-access/warn", [["Warn", "Audit"]])]
)
def test_refusing_is_the_default_and_warning_an_overlay(folder: str, actions: list[list[str]]) -> None:
    found = rendered(folder).of_kind("ValidatingAdmissionPolicyBinding")
    assert [each["spec"]["validationActions"] for each in found if each["metadata"]["name"] == NAME] == actions


def test_without_the_policy_nothing_else_changes() -> None:
    plain, off = rendered("deploy").objects, rendered("examples/device-access/off").objects
    assert [each for each in plain if each["metadata"]["name"] != NAME] == list(off)
