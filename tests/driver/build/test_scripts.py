"""The scripts, run by a real shell: programs are stand-ins that note how they were called, folders are made up."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tessera.driver.build.job import build_file

KERNEL = "5.15.0-69-generic"
VERSION = "525.125.06"


class Machine:
    """Folders of a machine and stand-ins for the programs that would change it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.programs = folder / "bin"
        self.log = folder / "log"
        self.programs.mkdir(parents=True)
        self.log.touch()
        for place in ("etc", "proc/self", "run", "sys/module/firmware_class/parameters", "drivers"):
            (self.root / place).mkdir(parents=True)
        (self.root / "etc/tessera-driver-release").write_text(f"KERNEL_VERSION={KERNEL}\nDRIVER_VERSION={VERSION}\n")
        (self.root / "proc/self/mountinfo").write_text("")
        self.firmware_path = self.root / "sys/module/firmware_class/parameters/path"
        self.firmware_path.write_text("\n")
        mountinfo, driver = self.root / "proc/self/mountinfo", self.root / "run/nvidia/driver"
        self.program("uname", f"echo {KERNEL}")
        self.program("mount", f'[ "$1" != --rbind ] || echo "9 1 0:1 / {driver} rw" >{mountinfo}')
        self.program("umount", f": >{mountinfo}")
        modules = self.root / "sys/module"
        self.program(
            "modprobe",
            f"""[ "$1" != -q ] || exit 0
            name=$(echo "$1" | tr - _); mkdir -p {modules}/$name
            [ "$name" != nvidia ] || echo {VERSION} >{modules}/nvidia/version""",
        )
        self.program("rmmod", f"rm -r {modules}/$1")
        for name in ("chcon", "nv-fabricmanager", "nvidia-fabricmanager-start.sh"):
            self.program(name, "true")
        self.program("nvidia-persistenced", "true")

    def program(self, name: str, body: str) -> None:
        """A stand-in that notes its name and arguments and then does ``body``."""
        path = self.programs / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.log}\n{body}\n')
        path.chmod(0o755)

    def module(self, name: str, version: str = "") -> None:
        """A module that is in the kernel already."""
        folder = self.root / "sys/module" / name
        folder.mkdir()
        if version:
            (folder / "version").write_text(version + "\n")

    def calls(self, *names: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.split()[0] in names]

    def environment(self, **more: str) -> dict[str, str]:
        return {"PATH": f"{self.programs}:{os.environ['PATH']}", "TRIAL_ROOT": str(self.root), **more}

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """The entry point to its end."""
        return subprocess.run(
            ["sh", "-s", *arguments],
            input=build_file("nvidia-driver.sh"),
            text=True,
            capture_output=True,
            env=self.environment(**more),
            timeout=60,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def serving(machine: Machine, tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts the entry point and returns once it says that it serves."""
    script = tmp_path / "nvidia-driver"
    script.write_text(build_file("nvidia-driver.sh"))
    started: list[subprocess.Popen[str]] = []

    def start(**more: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            ["sh", str(script), "init"],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=machine.environment(**more),
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "serves on" in line:
                return process
        raise AssertionError("".join(said))

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):  # whatever of it is left
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


Serving = Callable[..., "subprocess.Popen[str]"]


def test_it_mounts_first_loads_then_and_stays(machine: Machine, serving: Serving) -> None:
    process = serving()
    assert process.poll() is None
    order = [line.split()[0] for line in machine.calls("mount", "modprobe", "nvidia-persistenced")]
    assert order.index("mount") < order.index("modprobe") < order.index("nvidia-persistenced")
    loaded = [line for line in machine.calls("modprobe") if "-q" not in line]
    assert loaded == ["modprobe nvidia", "modprobe nvidia-uvm", "modprobe nvidia-modeset"]
    driver = machine.root / "run/nvidia/driver"
    assert f"mount --rbind {machine.root} {driver}" in machine.calls("mount")
    assert machine.firmware_path.read_text() == f"{driver}/lib/firmware"


def test_on_term_it_unloads_unmounts_and_ends_with_0(machine: Machine, serving: Serving) -> None:
    process = serving()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert machine.calls("rmmod") == ["rmmod nvidia_modeset", "rmmod nvidia_uvm", "rmmod nvidia"]
    assert len(machine.calls("umount")) == 1
    assert not (machine.root / "run/nvidia/nvidia-driver.pid").exists()


def test_a_driver_in_use_is_left_alone_on_term(machine: Machine, serving: Serving) -> None:
    machine.program("rmmod", "exit 1")
    process = serving()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 1
    assert machine.calls("umount") == []


def test_a_restarted_container_keeps_the_driver_of_its_version(machine: Machine, serving: Serving) -> None:
    machine.module("nvidia", VERSION)
    (machine.root / "proc/self/mountinfo").write_text(f"9 1 0:1 / {machine.root}/run/nvidia/driver rw\n")
    serving()
    assert machine.calls("modprobe", "rmmod") == []
    assert [line.split()[0] for line in machine.calls("umount", "mount")] == ["umount", "mount", "mount", "mount"]


def test_another_version_is_replaced(machine: Machine, serving: Serving) -> None:
    machine.module("nvidia", "470.1")
    machine.module("nvidia_uvm")
    serving()
    assert machine.calls("rmmod") == ["rmmod nvidia_uvm", "rmmod nvidia"]
    assert "modprobe nvidia" in machine.calls("modprobe")


def test_another_version_that_is_in_use_is_told(machine: Machine) -> None:
    machine.module("nvidia", "470.1")
    machine.program("rmmod", "exit 1")
    done = machine.run("init")
    assert done.returncode == 1
    assert "module nvidia is in use" in done.stdout
    for fact in ("driver 470.1 in the kernel is in use", "end what uses the cards"):
        assert fact in done.stderr
    assert machine.calls("modprobe") == []


def test_an_image_for_another_kernel_touches_nothing(machine: Machine) -> None:
    machine.program("uname", "echo 6.8.0-45-generic")
    done = machine.run("init")
    assert done.returncode == 1
    assert f"this image is for kernel {KERNEL}, the node runs 6.8.0-45-generic" in done.stderr
    assert machine.calls("mount", "modprobe") == []


def test_a_refused_module_is_told_and_what_was_done_is_undone(machine: Machine) -> None:
    machine.program("modprobe", '[ "$1" != nvidia ]')
    done = machine.run("init")
    assert done.returncode == 1
    assert f"module nvidia {VERSION} was refused (see dmesg)" in done.stderr
    assert len(machine.calls("umount")) == 1


def test_parameters_of_modules_become_options(machine: Machine, serving: Serving) -> None:
    (machine.root / "drivers/nvidia.conf").write_text("NVreg_EnableGpuFirmware=0\nNVreg_TCEBypassMode=1\n")
    serving()
    written = (machine.root / "etc/modprobe.d/nvidia.conf").read_text()
    assert written.split() == ["options", "nvidia", "NVreg_EnableGpuFirmware=0", "NVreg_TCEBypassMode=1"]
    assert not (machine.root / "etc/modprobe.d/nvidia-uvm.conf").exists()


def test_a_path_of_firmware_that_is_set_stays(machine: Machine, serving: Serving) -> None:
    machine.firmware_path.write_text("/elsewhere\n")
    serving()
    assert machine.firmware_path.read_text() == "/elsewhere\n"


def test_firmware_is_put_where_the_host_looks_for_it(machine: Machine, serving: Serving) -> None:
    kept = machine.root / "opt/lib/firmware/nvidia" / VERSION
    kept.mkdir(parents=True)
    (kept / "gsp_ga10x.bin").write_bytes(b"firmware")
    serving()
    there = machine.root / "run/nvidia/driver/lib/firmware/nvidia" / VERSION
    assert (there / "gsp_ga10x.bin").read_bytes() == b"firmware"


@pytest.mark.parametrize("place", ["sys/fs/selinux", "proc/1/root/sys/fs/selinux"])
def test_device_files_are_labelled_where_the_host_enforces_selinux(
    machine: Machine, serving: Serving, place: str
) -> None:
    (machine.root / place).mkdir(parents=True)
    (machine.root / place / "enforce").write_text("1")
    serving()
    (call,) = machine.calls("chcon")
    assert call.endswith(f"container_file_t {machine.root}/run/nvidia/driver/dev")


def test_switches_between_cards_start_the_fabric_manager(machine: Machine, serving: Serving) -> None:
    devices = machine.root / "proc/driver/nvidia-nvswitch/devices"
    devices.mkdir(parents=True)
    (devices / "0000:c3:00.0").touch()
    serving()
    (call,) = machine.calls("nv-fabricmanager")
    assert call.endswith("/usr/share/nvidia/nvswitch/fabricmanager.cfg")


def test_switches_without_a_fabric_manager_are_told(machine: Machine) -> None:
    devices = machine.root / "proc/driver/nvidia-nvswitch/devices"
    devices.mkdir(parents=True)
    (devices / "0000:c3:00.0").touch()
    (machine.programs / "nv-fabricmanager").unlink()
    done = machine.run("init")
    assert done.returncode == 1
    for fact in ("NVSwitches", "no fabric manager", "build it with NVSWITCH=yes"):
        assert fact in done.stderr


@pytest.mark.parametrize(("wanted", "loaded"), [("true", True), ("false", False)])
def test_rdma_is_loaded_where_it_is_wanted_and_there_is_a_card_for_it(
    machine: Machine, serving: Serving, wanted: str, loaded: bool
) -> None:
    device = machine.root / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x15b3\n")
    serving(GPU_DIRECT_RDMA_ENABLED=wanted)
    assert ("modprobe nvidia-peermem" in machine.calls("modprobe")) is loaded


def test_a_second_container_on_the_node_is_refused(machine: Machine, serving: Serving) -> None:
    serving()
    done = machine.run("init")
    assert done.returncode == 1
    assert "another container on this node is at work on the driver" in done.stderr


@pytest.mark.parametrize(("modules", "code"), [((), 0), (("mlx5_core",), 1), (("mlx5_core", "nvidia_peermem"), 0)])
def test_the_probe_of_rdma_fails_only_where_it_could_serve(
    machine: Machine, modules: tuple[str, ...], code: int
) -> None:
    for name in modules:
        machine.module(name)
    assert machine.run("probe_nvidia_peermem").returncode == code


def test_an_unknown_command_is_told(machine: Machine) -> None:
    done = machine.run("update")
    assert done.returncode == 1
    assert "unknown command 'update'" in done.stderr


class Builder:
    """The Job's script with a stand-in for buildah, in made-up folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.word = folder / "dev/termination-log"
        for place in ("bin", "dev", "context", "auth/push", "auth/pull", "certs", "secrets"):
            (folder / place).mkdir(parents=True)
        (folder / "context/data").write_text("FROM x\n")
        (folder / "context/Containerfile").symlink_to("data")
        self.buildah("true")

    def buildah(self, pull: str) -> None:
        body = f"""#!/bin/sh
        echo "$*" >>{self.log}
        case "$1" in
            pull) {pull} ;;
            inspect) echo arm64 ;;
            push | manifest)
                while [ $# -gt 0 ]; do
                    [ "$1" != --digestfile ] || printf 'sha256:%064d' 7 >"$2"
                    shift
                done ;;
            build) for last; do :; done; test -f "$last/Containerfile" && test ! -L "$last/Containerfile" ;;
        esac"""
        (self.folder / "bin/buildah").write_text(body)
        (self.folder / "bin/buildah").chmod(0o755)

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-s", "--", "--build-arg", "A=b"],
            input=build_file("build.sh"),
            text=True,
            capture_output=True,
            env={
                "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
                "TARGET": "registry.local/driver:525",
                "ARCHITECTURE": "amd64",
                "TLS_VERIFY": "true",
                "TRIAL_ROOT": str(self.folder),
                **environment,
            },
            timeout=60,
        )

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


def test_a_build_pushes_and_leaves_the_digest(builder: Builder) -> None:
    done = builder.run()
    assert done.returncode == 0, done.stderr
    build, push = builder.calls()
    assert build.startswith("build --isolation=chroot --format=oci --layers=false --tls-verify=true --build-arg A=b")
    assert push.endswith("made docker://registry.local/driver:525")
    assert builder.word.read_text() == f"sha256:{7:064d}"


def test_only_files_that_are_there_become_options(builder: Builder) -> None:
    (builder.folder / "auth/push/config.json").write_text("{}")
    (builder.folder / "certs/ca.crt").write_text("x")
    (builder.folder / "secrets/signing_key").write_text("x")
    builder.run(TLS_VERIFY="false")
    build, push = builder.calls()
    assert f"--authfile={builder.folder}/auth/push/config.json --cert-dir={builder.folder}/certs" in build
    assert "--tls-verify=false" in push
    assert f"--secret=id=signing_key,src={builder.folder}/secrets/signing_key" in build
    assert "rhsm" not in build
    assert "secret" not in push


def test_base_images_have_credentials_of_their_own(builder: Builder) -> None:
    for kind in ("push", "pull"):
        (builder.folder / f"auth/{kind}/config.json").write_text("{}")
    builder.run()
    build, push = builder.calls()
    assert "/auth/pull/config.json" in build
    assert "/auth/push/config.json" in push


def test_the_other_architecture_s_image_stays_under_the_tag(builder: Builder) -> None:
    builder.buildah("echo image-of-arm64")
    done = builder.run(OTHER="arm64")
    assert done.returncode == 0, done.stderr
    calls = builder.calls()
    assert "manifest add both made" in calls
    assert "manifest add both image-of-arm64" in calls
    assert calls[-1].startswith("manifest push --all")
    assert builder.word.exists()


def test_where_there_is_no_other_image_the_index_has_one(builder: Builder) -> None:
    builder.buildah("echo 'reading manifest: manifest unknown' >&2; exit 125")
    assert builder.run(OTHER="arm64").returncode == 0
    assert not any("image-of-arm64" in call for call in builder.calls())


def test_a_registry_that_does_not_answer_gets_nothing_pushed_over(builder: Builder) -> None:
    builder.buildah("echo 'dial tcp: i/o timeout' >&2; exit 125")
    done = builder.run(OTHER="arm64")
    assert done.returncode == 1
    for fact in ("registry.local/driver:525", "arm64", "not known", "nothing was pushed"):
        assert fact in done.stderr
    assert not any("push" in call for call in builder.calls())


def test_a_build_that_fails_pushes_nothing(builder: Builder) -> None:
    (builder.folder / "context/Containerfile").unlink()
    assert builder.run().returncode != 0
    assert not builder.word.exists()
