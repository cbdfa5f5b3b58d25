"""Pictures that several suites share."""

from typing import Any

import matplotlib as mpl
import numpy as np

SCALE = 24  # pixels of a cell


def planes(obs: Any) -> np.ndarray:
    """Planes of 0 and 1 `[height, width, channels]`, each in a colour of its own, as a picture."""
    obs = np.asarray(obs, np.float32)
    colours = mpl.colormaps["tab20"](np.arange(obs.shape[-1]) % 20)[:, :3]
    shown = np.zeros((*obs.shape[:2], 3))
    for plane, colour in zip(np.moveaxis(obs, -1, 0), colours, strict=True):  # later planes lie on top
        shown = np.where(plane[..., None] > 0, colour, shown)
    return np.kron((shown * 255).astype(np.uint8), np.ones((SCALE, SCALE, 1), np.uint8))


class MuJoCoPictures:
    """Pictures of a MuJoCo model, from positions and velocities. It takes OpenGL, or MUJOCO_GL=egl or osmesa."""

    def __init__(self, model: Any) -> None:
        import mujoco

        self.mujoco, self.model = mujoco, model
        self.data, self.renderer = mujoco.MjData(model), mujoco.Renderer(model, 240, 320)

    def __call__(self, positions: Any, velocities: Any) -> np.ndarray:
        self.data.qpos, self.data.qvel = positions, velocities
        self.mujoco.mj_forward(self.model, self.data)
        self.renderer.update_scene(self.data)
        return self.renderer.render()
