"""An environment's parameters: set by name from the command line, and as plain numbers."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlref.errors import UsageError, nearest


def with_params(params: Any, assignments: Sequence[str]) -> Any:
    """`params` with each `name=value` of `assignments` set. Raises UsageError for a wrong name or value."""
    if not assignments:
        return params
    if not dataclasses.is_dataclass(params) or isinstance(params, type):
        raise UsageError(f"the environment's parameters are {type(params).__name__}, no dataclass: none can be set")
    fields = [field.name for field in dataclasses.fields(params)]
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(f"--env-params takes name=value, not {assignment!r}")
        if name not in fields:
            near = nearest(name, fields)
            raise UsageError(f"the environment has no parameter {name!r}.{near} It has {', '.join(fields)}")
        kind = type(getattr(params, name))
        kind = int if kind is type(None) else kind  # a limit that is not set
        try:
            parse: Any = {bool: lambda x: {"true": True, "false": False}[x.lower()], int: int}.get(kind, float)
            value = parse(text)
        except (KeyError, ValueError):
            raise UsageError(f"the environment's {name} takes {kind.__name__}, not {text!r}") from None
        if not math.isfinite(value):
            raise UsageError(f"the environment's {name} must be finite, not {text}")
        if name == "max_steps_in_episode" and not 1 <= value < 2**31:
            raise UsageError(f"the environment's {name} must be at least 1, and below 2^31, not {text}")
        params = dataclasses.replace(params, **{name: value})
    return params


def plain_values(env_params: Any) -> dict[str, Any]:
    """The environment's parameters that are plain numbers, by name."""
    if not dataclasses.is_dataclass(env_params):
        return {}
    values = {f.name: getattr(env_params, f.name) for f in dataclasses.fields(env_params)}
    return {name: x for name, x in values.items() if isinstance(x, bool | int | float)}


def with_values(env_params: Any, values: Mapping[str, Any]) -> Any:
    """`env_params` with what `plain_values` gave of others of their kind."""
    if not dataclasses.is_dataclass(env_params) or isinstance(env_params, type):
        return env_params
    known = {f.name for f in dataclasses.fields(env_params)}
    return dataclasses.replace(env_params, **{name: x for name, x in values.items() if name in known})
