"""Pictures that several suites share."""

import contextlib
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np

from rlref.errors import in_a_line

SCALE = 24  # pixels of a cell


def planes(obs: Any) -> np.ndarray:
    """Planes of 0 and 1 `[height, width, channels]`, each in a colour of its own, as a picture."""
    obs = np.asarray(obs, np.float32)
    colours = mpl.colormaps["tab20"](np.arange(obs.shape[-1]) % 20)[:, :3]
    shown = np.zeros((*obs.shape[:2], 3))
    for plane, colour in zip(np.moveaxis(obs, -1, 0), colours, strict=True):  # later planes lie on top
        shown = np.where(plane[..., None] > 0, colour, shown)
    return np.kron((shown * 255).astype(np.uint8), np.ones((SCALE, SCALE, 1), np.uint8))


@contextlib.contextmanager
def opengl() -> Iterator[None]:
    """Says what MuJoCo's drawing takes, where it raises."""
    try:
        yield
    except Exception as error:
        how = "on a machine without a screen set MUJOCO_GL=egl or osmesa, and install that library"
        raise RuntimeError(f"MuJoCo cannot draw: {in_a_line(error)}; {how}") from error


class MuJoCoPictures:
    """Pictures of a MuJoCo model, from positions and velocities."""

    def __init__(self, model: Any) -> None:
        import mujoco

        self.mujoco, self.model, self.data = mujoco, model, mujoco.MjData(model)
        with opengl():
            self.renderer = mujoco.Renderer(model, 240, 320)

    def __call__(self, positions: Any, velocities: Any) -> np.ndarray:
        self.data.qpos, self.data.qvel = positions, velocities
        self.mujoco.mj_forward(self.model, self.data)
        self.renderer.update_scene(self.data)
        return self.renderer.render()
