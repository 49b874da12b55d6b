"""Scenes of one node on virtual time: one for an async test, or one for each story that a test plays."""

import functools
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from tessera_lab.simulation.virtual_time import run_virtual


class Scene(Protocol):
    """One node with its processes."""

    async def end(self) -> None:
        """Ends all processes of the node."""


S = TypeVar("S", bound=Scene)
T = TypeVar("T")


def marked_scene(request: pytest.FixtureRequest, make_scene: Callable[..., T], *args: Any) -> T:
    """Returns a new scene; the arguments of the test's mark ``scene`` follow the given ones."""
    mark = request.node.get_closest_marker("scene")
    return make_scene(*args, *mark.args, **mark.kwargs) if mark else make_scene(*args)


def play_scene(
    make_scene: Callable[..., S], folder: Path, story: Callable[[S], Awaitable[None]], *args: Any, **options: Any
) -> None:
    """Plays the story on a new scene, on virtual time, and ends the scene; the other arguments make the scene."""

    async def whole() -> None:
        scene = make_scene(folder, *args, **options)
        try:
            await story(scene)
        finally:
            await scene.end()

    run_virtual(whole())


def scene_player(make_scene: Callable[..., S], folder: Path) -> Callable[..., None]:
    """Returns a function that plays one story, with its files in the folder."""
    return functools.partial(play_scene, make_scene, folder)


def repeated_scene_player(make_scene: Callable[..., S], folder: Path) -> Callable[..., None]:
    """Returns a function that plays many stories, each on a new scene with a folder of its own."""
    numbers = itertools.count()

    def play_next(*args: Any, **options: Any) -> None:
        own = folder / str(next(numbers))
        own.mkdir()
        play_scene(make_scene, own, *args, **options)

    return play_next
