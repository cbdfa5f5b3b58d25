"""An agent's settings as plain values: a Config as numbers, strings and lists, in JSON, and back; which are batched."""

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np

from rlref.contract import traced_names
from rlref.errors import UsageError


def in_json(x: Any) -> Any:
    """Settings for JSON, which has no infinity: as the word that float() reads."""
    if isinstance(x, list):
        return [in_json(y) for y in x]
    if isinstance(x, dict):
        return {name: in_json(y) for name, y in x.items()}
    return str(x) if isinstance(x, float) and not np.isfinite(x) else x


def out_of_json(x: Any) -> Any:
    """The settings that `in_json` wrote."""
    if isinstance(x, list):
        return [out_of_json(y) for y in x]
    if isinstance(x, dict):
        return {name: out_of_json(y) for name, y in x.items()}
    return float(x) if x in ("inf", "-inf", "nan") else x


LENGTHS = ("total_timesteps", "num_generations")  # the settings that say how long to train


def tuples(x: Any) -> Any:
    """Lists as tuples, also within: a Config's settings can be compared and hashed."""
    return tuple(map(tuples, x)) if isinstance(x, list | tuple) else x


def config_of(module: ModuleType, settings: dict[str, Any], batched: list[str]) -> Any:
    """A Config from plain settings."""
    return module.Config(**{name: np.asarray(x) if name in batched else tuples(x) for name, x in settings.items()})


def settings_of(config: Any) -> dict[str, Any]:
    """A Config as plain numbers, strings and lists."""
    return {f.name: plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def plain(x: Any) -> Any:
    """A setting as a number, a string or a list of these."""
    if isinstance(x, tuple | list):
        return [plain(y) for y in x]
    if isinstance(x, np.integer | np.floating):
        return x.item()
    return x if x is None or isinstance(x, bool | int | float | str) else np.asarray(x, np.float64).tolist()


def traced_settings(config: Any) -> dict[str, Any]:
    """The settings of a flax dataclass that are traced, and may be batched."""
    return {name: getattr(config, name) for name in traced_names(config)}


def arrays_for_lists(config: Any) -> Any:
    """`config` with settings given as lists, to be batched, as arrays: a list would be a branch of the pytree."""
    lists = {name: np.asarray(x) for name, x in traced_settings(config).items() if isinstance(x, list | tuple)}
    return dataclasses.replace(config, **lists)


def batched_settings(config: Any) -> dict[str, tuple[int, ...]]:
    """The names of batched settings with their shapes `[K]`. Raises UsageError unless these are one length."""
    shapes = {name: np.shape(x) for name, x in traced_settings(config).items() if x is not None and np.ndim(x) > 0}
    first = next(iter(shapes.values()), (1,))
    if len(set(shapes.values())) > 1 or len(first) != 1 or 0 in first:
        found = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise UsageError(f"batched settings must be lists of one length; they have the shapes {found}")
    return shapes
