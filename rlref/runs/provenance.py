"""What it takes to run the same again: versions, devices, the state of the source; and what of it has changed."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from rlref.version import VERSION

JAX_CONFIG = ("jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable")  # change numbers
PACKAGES = ("jax", "jaxlib", "flax", "optax", "gymnax", "chex", "orbax-checkpoint", "numpy", "scipy")
SIMULATORS = (
    "brax", "craftax", "gymnasium", "jumanji", "mujoco", "mujoco-mjx", "navix", "pgx", "playground", "xminigrid",
)  # fmt: skip
SAID_ALONE = ("python", "devices", "cpu", "xla_flags")  # what `environment` gives by itself, and changes numbers


def changes(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Versions, devices and settings of jax that differ between two of what `environment` gives: other last bits."""
    one, other = (
        {**x.get("versions", {}), **x.get("jax_config", {}), **{name: x[name] for name in SAID_ALONE if name in x}}
        for x in (then, now)
    )
    return [f"{name} was {one[name]} and is {x}" for name, x in other.items() if name in one and one[name] != x]


def environment(source: Path | None) -> dict[str, Any]:
    """Versions, devices and the state of the source: what it takes to run the same again."""
    import jax

    versions: dict[str, str | None] = {"rlref": VERSION}  # of the code that runs, not as it was installed
    for package in (*PACKAGES, *SIMULATORS):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions |= {package: None} if package in PACKAGES else {}
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "versions": versions,
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "devices": [device.device_kind for device in jax.devices()],
        "jax_config": {name: getattr(jax.config, name, None) for name in JAX_CONFIG},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "git_commit": (git(source.parent, "rev-parse", "HEAD").decode().strip() if source else "") or None,
    }


def cpu_model() -> str:
    """What the processor calls itself: another one may round otherwise; '' where nothing says so."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def git(folder: Path, *arguments: str) -> bytes:
    """What git prints for `folder`, byte for byte; nothing where there is no git or no repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return b""
    return done.stdout
