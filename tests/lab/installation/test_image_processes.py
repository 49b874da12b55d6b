"""Images of other versions: what an image is, and the process of its container."""

from pathlib import Path

import pytest

from tessera_lab.installation.image_processes import parse_image


def test_an_image_is_a_wheel_or_a_folder_with_the_package(tmp_path: Path) -> None:
    wheel = tmp_path / "tessera-0.1.0-py3-none-any.whl"
    wheel.touch()
    (tmp_path / "src" / "tessera").mkdir(parents=True)
    assert parse_image(f"tessera:0.1.0={wheel}") == ("tessera:0.1.0", wheel)
    assert parse_image(f"reg/tessera:x={tmp_path / 'src'}") == ("reg/tessera:x", tmp_path / "src")


@pytest.mark.parametrize("text", ["tessera:0.1.0", "=x", "tessera:1=/nowhere", "tessera:1=/tmp"])
def test_anything_else_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"^image '.*': (write IMAGE=PATH|.* is neither a wheel nor a folder)"):
        parse_image(text)
