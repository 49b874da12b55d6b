"""The problems for which a reader refuses a file."""

from collections.abc import Callable

import pytest

from tessera.api.problems import FileRefused


def refused_problems(read: Callable[[str], object], text: str) -> list[str]:
    """Returns the problems of a text that the reader must refuse."""
    with pytest.raises(FileRefused) as refused:
        read(text)
    return list(map(str, refused.value.problems))
