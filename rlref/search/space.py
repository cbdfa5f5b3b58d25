"""What a search draws settings from: ranges on scales, and choices."""

import ast
import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rlref.contract import NAMES, load_agent
from rlref.errors import UsageError
from rlref.runs.job import agent_of
from rlref.search import variants
from rlref.settings import LENGTHS, traced_settings, tuples

Array = np.ndarray
SCALES = ("linear", "log", "complement")


class Range(NamedTuple):
    """What a setting is drawn from: uniform between two numbers, on a scale."""

    low: float
    high: float
    scale: str = "linear"
    """log: uniform in log(x); complement: uniform in log(1 - x), for values near 1"""

    def at(self, place: Array) -> Array:
        """The values at places in [0, 1], rounded to six digits of x, or of 1 - x on the scale complement."""
        low, high = self._forward(np.array([self.low, self.high]))
        y = low + (high - low) * np.asarray(place)
        x = {"linear": lambda: y, "log": lambda: np.exp(y), "complement": lambda: np.exp(-y)}[self.scale]()
        x = np.vectorize(lambda value: float(f"{value:.6g}"), otypes=[float])(x)
        return np.clip(1 - x if self.scale == "complement" else x, self.low, self.high)

    def place(self, value: float) -> float:
        """The position of a value in the range, on its scale, in [0, 1]."""
        low, here, high = self._forward(np.array([self.low, value, self.high]))
        return float((here - low) / (high - low))

    def _forward(self, x: Array) -> Array:
        return {"linear": lambda: x, "log": lambda: np.log(x), "complement": lambda: -np.log1p(-x)}[self.scale]()

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}" + ("" if self.scale == "linear" else f", {self.scale}")


Choices = tuple[Any, ...]
Space = Mapping[str, Range | Choices]


def default_ranges(config: Any) -> dict[str, Range]:
    """The default ranges of a search: those that the agent's Config gives as `search` metadata of its settings.

    For a setting without one, the range that rlref's own agents give for a setting of that name.
    """
    agents = (load_agent(name).Config for name in NAMES)
    known = {
        f.name: f.metadata["search"] for agent in agents for f in dataclasses.fields(agent) if "search" in f.metadata
    }
    found = {f.name: f.metadata.get("search", known.get(f.name)) for f in dataclasses.fields(config)}
    return {name: Range(*search) for name, search in found.items() if search}


def parse(texts: Sequence[str], module: ModuleType, config: Any) -> dict[str, Range | Choices]:
    """The space that a command line names: NAME=LOW:HIGH, NAME=LOW:HIGH:SCALE or NAME=A,B,C each.

    The default scale is that of the setting's usual range; without one, log for two positive numbers that are a factor
    of 100 or more apart, else linear. Raises UsageError for anything else.
    """
    space: dict[str, Range | Choices] = {}
    ranges = default_ranges(config)
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not values:
            raise UsageError(f"{text!r} says nothing to search: NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=A,B,C")
        if name in space:
            raise UsageError(f"{name} is given twice")
        variants.changed(module, config, {name: None})
        space[name] = parsed_range(name, values, ranges.get(name)) if ":" in values else parsed_choices(values)
    return space


def parsed_range(name: str, text: str, here: Range | None) -> Range:
    """LOW:HIGH[:SCALE]; without a scale, that of the usual range `here`, if there is one."""
    low, high, *rest = text.split(":")
    try:
        ends = float(low), float(high)
    except ValueError:
        raise UsageError(f"{name}={text}: the ends of a range must be numbers, as in {name}=0.1:0.9") from None
    if rest:
        return Range(*ends, ":".join(rest))
    far = 0 < 100 * ends[0] <= ends[1]
    return Range(*ends, here.scale if here else "log" if far else "linear")


def parsed_choices(text: str) -> Choices:
    """A,B,C: Python literals (numbers, tuples, True, False, None), or else strings."""
    try:
        return tuples(ast.literal_eval(f"({text},)"))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return tuple(word.strip() for word in text.split(","))


def check_space(module: ModuleType, config: Any, space: Space | None, env: Any, env_params: Any) -> Space:
    """The space to search. Raises UsageError where a setting cannot be drawn from it."""
    traced = traced_settings(config)
    if space is None:
        space = {name: x for name, x in default_ranges(config).items() if traced.get(name) is not None}
    if not space:
        raise UsageError("there is nothing to search: name settings and their ranges, as learning_rate=1e-5:1e-2:log")
    for name, x in space.items():
        variants.changed(module, config, {name: None})
        if name in ("env_id", *LENGTHS):
            raise UsageError(f"{name} is not to be searched: scores would not be of the same thing")
        if isinstance(x, Range):
            check_range(name, x, traced.get(name, config))
        elif len(x) < 2 or len(set(x)) < len(x):
            raise UsageError(f"{name} has the choices {', '.join(map(str, x))}; there must be several, all different")
        for value in x[:2] if isinstance(x, Range) else x:
            check_value(name, getattr(config, name), value)
            # Finds values that are invalid by themselves; invalid combinations are found once settings are drawn.
            agent_of(module, dataclasses.replace(config, **{name: value}), env, env_params)
    return space


def check_range(name: str, x: Range, here: Any) -> None:
    """Raise UsageError for a range that nothing can be drawn from; `here` is the setting as given, if it is traced."""
    if not isinstance(here, float | int | None):
        raise UsageError(f"{name} shapes the program: give choices, as {name}=A,B,C, not a range")
    if x.scale not in SCALES:
        raise UsageError(f"{name}: there is no scale {x.scale!r}; there are {', '.join(SCALES)}")
    least, most = {"linear": (-math.inf, math.inf), "log": (0, math.inf), "complement": (-math.inf, 1)}[x.scale]
    if not least < x.low < x.high < most:
        need = {"linear": "two numbers", "log": "numbers above 0", "complement": "numbers below 1"}[x.scale]
        raise UsageError(
            f"{name} ranges from {x.low:g} to {x.high:g}; the scale {x.scale} takes {need}, the lower first"
        )


def check_value(name: str, here: Any, value: Any) -> None:
    """Raise UsageError where a value is of another type than the setting is."""
    number = isinstance(here, float) and isinstance(value, int | float) and not isinstance(value, bool)
    if here is not None and value is not None and not number and type(value) is not type(here):
        raise UsageError(f"{name} cannot be {value!r}: it is of the type {type(here).__name__}, as {here!r} is")


def draw(space: Space, num_settings: int, seed: int) -> tuple[dict[str, Array], list[dict[str, Any]]]:
    """Draw settings: the position of each in its range, or the index of its choice, `[K]`; and their values."""
    uniform = np.random.default_rng(seed).random((len(space), num_settings))
    places = {
        name: u if isinstance(x, Range) else (u * len(x)).astype(int)
        for u, (name, x) in zip(uniform, space.items(), strict=True)
    }
    columns = {
        name: x.at(places[name]).tolist() if isinstance(x, Range) else [x[i] for i in places[name]]
        for name, x in space.items()
    }
    return places, [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
