"""NVML's library below the root of a driver container, and another one in its place later."""

import shutil
from ctypes import CDLL
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from tests.support.nvml_library import NvmlLibrary

import tessera.nvml.real.library as library_module
from tessera.nvml.errors import DriverNotLoaded, NvmlError
from tessera.nvml.real.library import NAME, find_library, load, program_environment, unload
from tessera.nvml.real.real_nvml import RealNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

#: Two shared libraries that this process has anyway, each with a function of its own.
ONE, OTHER = (Path(str(getattr(find_spec(name), "origin", ""))) for name in ("_ctypes", "msgspec._core"))


def put(root: Path, library: Path = ONE, folder: str = "usr/lib64") -> Path:
    path = root / folder / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(library, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)
    return path


def binding() -> Any:
    return SimpleNamespace(nvmlLib=None, _nvmlGetFunctionPointer_cache={"nvmlInit": object()})


@pytest.mark.parametrize(
    "folder", ["usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib", "lib64"]
)
def test_the_library_is_found_where_distributions_put_it(tmp_path: Path, folder: str) -> None:
    assert find_library(tmp_path) is None
    assert find_library(tmp_path / "none") is None
    path = put(tmp_path, folder=folder)
    assert find_library(tmp_path) == path


def test_a_later_library_under_the_same_path_is_the_one_that_is_used(tmp_path: Path) -> None:
    used = binding()
    load(used, put(tmp_path, ONE))
    assert isinstance(used.nvmlLib, CDLL)
    assert used._nvmlGetFunctionPointer_cache == {}
    assert used.nvmlLib.PyInit__ctypes
    unload(used)
    assert used.nvmlLib is None
    load(used, put(tmp_path, OTHER))
    assert used.nvmlLib.PyInit__core
    unload(used)
    unload(used)


def test_a_file_that_is_no_library_is_told(tmp_path: Path) -> None:
    path = put(tmp_path)
    path.write_text("not an ELF file")
    with pytest.raises(DriverNotLoaded, match=r"libnvidia-ml\.so\.1 cannot be loaded"):
        load(binding(), path)


def test_nvml_that_cannot_be_opened_lets_go_of_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    with pytest.raises(NvmlError, match="nvmlInit"):
        RealNvml(library=put(tmp_path))
    assert pynvml.nvmlLib is None


def test_programs_of_the_driver_get_its_libraries_and_no_other_system_s(tmp_path: Path) -> None:
    root, links = tmp_path / "driver", tmp_path / "state" / "links"
    folder = put(root).parent
    for name in ("libcuda.so.1", "libcuda.so.550.1", "libc.so.6"):
        (folder / name).touch()
    environment = program_environment(root, links)
    assert environment["LD_LIBRARY_PATH"] == str(links)
    assert environment["PATH"].endswith(f":{root}/usr/bin:{root}/usr/sbin")
    assert {path.name: path.readlink() for path in links.iterdir()} == {
        name: folder / name for name in ("libcuda.so.1", "libcuda.so.550.1", NAME)
    }
    (folder / "libcuda.so.550.1").unlink()
    program_environment(root, links)
    assert sorted(path.name for path in links.iterdir()) == ["libcuda.so.1", NAME]


def test_one_driver_after_another_answers_in_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: NvmlLibrary
) -> None:
    drivers = {"535.1": library, "550.2": type(library)(SimulatedMachine("A30", seed="n", driver="550.2"))}
    paths = {version: put(tmp_path / version) for version in drivers}
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(library_module, "CDLL", lambda path: drivers[next(v for v in drivers if v in path)])
    library.machine.unload_driver()
    library.machine.load_driver("535.1")
    for version, path in paths.items():
        nvml = RealNvml(library=path)
        assert nvml.driver_version() == version
        nvml.devices()
        nvml.close()
        assert drivers[version].opened == 0
        assert pynvml.nvmlLib is None
