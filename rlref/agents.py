"""Finding the module of an agent, by name or by file, and checking it against the agent contract."""

import ast
import dataclasses
import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from rlref.errors import UsageError, nearest

NAMES = ("ppo", "dqn", "cem")
CONTRACT = {
    "Config": "the settings, a frozen flax.struct dataclass",
    "make": "make(config, env=None, env_params=None) -> Agent",
    "Agent": "a NamedTuple of init, update, policy, value, num_updates and steps_per_update",
    "train": "train(config, key, env=None, env_params=None) -> (state, diagnostics)",
}
FIELDS = ("init", "update", "policy", "value", "num_updates", "steps_per_update")


def load_agent(agent: str | os.PathLike[str] | ModuleType) -> ModuleType:
    """The module of `agent`: a name out of NAMES, the path of a Python file that keeps the contract, or such a module.

    Raises UsageError for an unknown name, a missing file, a file that cannot be imported, or one without the contract.
    """
    if isinstance(agent, ModuleType):
        return _checked(agent, agent.__name__)
    agent = os.fspath(agent)
    if agent in NAMES:
        return importlib.import_module(f"rlref.{agent}")
    path = Path(agent)
    if path.suffix != ".py":
        raise UsageError(
            f"no agent is named {agent!r}; there is {', '.join(NAMES)}, or give a file such as ./my_ppo.py."
            + nearest(agent, NAMES)
        )
    if not path.is_file():
        raise UsageError(f"there is no file {agent}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    previous = sys.modules.get(path.stem)
    sys.modules[path.stem] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code: anything can come
        if previous is None:
            del sys.modules[path.stem]
        else:
            sys.modules[path.stem] = previous
        raise UsageError(f"{agent}, line {line_of(error, path) or '?'}: {type(error).__name__}: {error}") from error
    return _checked(module, agent)


def _checked(module: ModuleType, agent: str) -> ModuleType:
    """`module`, if it keeps the contract."""
    missing = [f"{name} ({what})" for name, what in CONTRACT.items() if not hasattr(module, name)]
    if missing:
        raise UsageError(f"{agent} is no agent: it lacks {'; '.join(missing)}")
    if not dataclasses.is_dataclass(module.Config):
        raise UsageError(f"{agent} is no agent: its Config is no dataclass; it must be a frozen flax.struct dataclass")
    lacking = [name for name in FIELDS if name not in getattr(module.Agent, "_fields", ())]
    if lacking:
        raise UsageError(f"{agent} is no agent: its Agent lacks {', '.join(lacking)}")
    return module


def line_of(error: Exception, path: str | Path | None) -> int | None:
    """The line of the file `path` that `error` came from; None if it came from elsewhere."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return error.lineno
    if path is None:
        return None
    here = Path(path).resolve()
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == here]
    return frames[-1].lineno if frames else None


def where_raised(error: Exception, path: str | Path | None) -> str:
    """The place in the file `path` that `error` came from, as "line 7", with the diagnostic under way if it was one.

    That is the entry of a dictionary that the line stands in, or that a loop over names has come to. '' if the error
    came from elsewhere.
    """
    line = line_of(error, path)
    if path is None or line is None:
        return ""
    here, entries = Path(path).resolve(), entries_of(path)
    frames = traceback.extract_tb(error.__traceback__)
    for summary, (frame, _) in reversed(list(zip(frames, traceback.walk_tb(error.__traceback__), strict=True))):
        if Path(summary.filename).resolve() != here:
            continue
        place = summary.lineno or 0, summary.colno or 0
        around = [e for e in entries if e.begins <= place <= e.ends]
        named = [e for e in entries if e.name == frame.f_locals.get("name")]
        if found := max(around, default=None) or max(named, default=None):
            return f"line {found.begins[0] if found in named else line}, the diagnostic {found.name!r}"
    return f"line {line}"


class Entry(NamedTuple):
    """Where a file gives a value a name: `"name": value` in a dictionary, or `x["name"] = value`."""

    begins: tuple[int, int]
    """line and column of the value"""
    ends: tuple[int, int]
    name: str


def entries_of(path: str | Path) -> list[Entry]:
    """All such places in a file."""
    pairs: list[tuple[ast.expr | None, ast.expr]] = []
    for node in ast.walk(ast.parse(Path(path).read_bytes())):
        if isinstance(node, ast.Dict):
            pairs += zip(node.keys, node.values, strict=True)
        elif isinstance(node, ast.Assign):
            pairs += [(target.slice, node.value) for target in node.targets if isinstance(target, ast.Subscript)]
    return [
        Entry((x.lineno, x.col_offset), (x.end_lineno or x.lineno, x.end_col_offset or 0), key.value)
        for key, x in pairs
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    ]
