"""How programs over many rows are laid out on devices, and how much XLA is to optimise them.

A row is one seed of one setting, or of one probe. Rows never talk to each other.
"""

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType

ONCE = 0  # a program that runs once, such as the one that makes the first state
LOOP = 1  # loops of training: as fast as with all optimisations, and compiled in about half of the time


def platform(mesh: jax.sharding.Mesh | None = None) -> str:
    """The kind of the devices of `mesh`, or without one of this process's: "cpu", "gpu", "tpu"."""
    return str((jax.devices()[0] if mesh is None else mesh.devices.flat[0]).platform)


def on_cpu(mesh: jax.sharding.Mesh | None = None) -> bool:
    return platform(mesh) == "cpu"


def is_kept() -> bool:
    """Whether compiled programs are kept for later processes, in jax's cache on disk."""
    config: Any = jax.config
    return bool(config.jax_enable_compilation_cache and config.jax_compilation_cache_dir)


def options(level: int, mesh: jax.sharding.Mesh | None = None) -> dict[str, Any] | None:
    """The compiler options of a program, ONCE or LOOP; None elsewhere than on a CPU, or where the user has a say."""
    said = jax.config.read("jax_disable_most_optimizations") or "optimization_level" in os.environ.get("XLA_FLAGS", "")
    return {"xla_backend_optimization_level": level} if on_cpu(mesh) and not said else None


def mesh_for(rows: int, devices: Sequence[jax.Device] | None = None) -> tuple[jax.sharding.Mesh, int]:
    """The devices that so many rows fill up with the least padding, as a mesh of one axis "seed"; rows with padding.

    Of all devices there are, or of some.
    """
    devices = jax.devices() if devices is None else devices
    per_device = math.ceil(rows / len(devices))
    # Of several processes every one has to take part, with padding alone if there are not enough rows.
    used = math.ceil(rows / per_device) if jax.process_count() == 1 else len(devices)
    mesh = jax.make_mesh((used,), ("seed",), axis_types=(AxisType.Auto,), devices=devices[:used])
    return mesh, per_device * used


def padded_rows(rows: int, padded: int) -> np.ndarray:
    """Which of `rows` rows each of `padded` places holds, `[padded]`: those that are left over repeat the last one."""
    return np.minimum(np.arange(padded), rows - 1)


def on_each_device(f: Callable[..., Any], mesh: jax.sharding.Mesh, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """`f` over the rows of each device by itself.

    Else a loop over episodes, which ends when the last one has, would ask all devices at every step; and without
    check_vma=False gradients would be summed over devices.
    """
    return jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
