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


def where_raised(error: Exception, path: str | Path | None, named: bool = True) -> str:
    """The place in the file `path` that `error` came from, as "line 7"; '' if it came from elsewhere.

    With `named`, followed by the diagnostic under way, if it was one: the entry of a dictionary that the line stands
    in, or that a loop over names in a comprehension has come to. If the user's own code that the file calls is what
    raised, its file and line follow.
    """
    line = line_of(error, path)
    if path is None or line is None:
        return ""
    here, found = Path(path).resolve(), ""
    frames = list(zip(traceback.extract_tb(error.__traceback__), traceback.walk_tb(error.__traceback__), strict=True))
    own = [i for i, (summary, _) in enumerate(frames) if Path(summary.filename).resolve() == here]
    nodes = nodes_of(path)
    entries, loops = entries_of(nodes), loops_of(nodes)
    for i in reversed(own if named else []):
        summary, (frame, _) = frames[i]
        place = summary.lineno or 0, summary.colno or 0
        around = [e for e in entries if e.begins <= place <= e.ends]
        reached = [frame.f_locals.get(loop.name) for loop in loops if loop.begins <= place <= loop.ends]
        if around:
            found = f", the diagnostic {max(around).name!r}"
        elif at := [e for e in entries if e.name in reached]:
            line, found = at[-1].begins[0], f", the diagnostic {at[-1].name!r}, raised in line {line}"
        if found:
            break
    called = [f for f, _ in frames[own[-1] + 1 :] if is_users(f.filename)]
    return f"line {line}{found}" + (f" ({Path(called[-1].filename).name}, line {called[-1].lineno})" if called else "")


def is_users(filename: str) -> bool:
    """Whether a file is the user's: not installed, nor Python's, nor rlref's."""
    parts = Path(filename).parts
    return (
        not {"site-packages", "dist-packages", "lib"} & set(parts)
        and Path(__file__).parent not in Path(filename).parents
    )


class Entry(NamedTuple):
    """Where a file gives a value a name: `"name": value` in a dictionary, `x["name"] = value`; or loops over one."""

    begins: tuple[int, int]
    """line and column of the value"""
    ends: tuple[int, int]
    name: str


def nodes_of(path: str | Path) -> list[ast.AST]:
    """All nodes of a file; none if it is not there any more, or has been edited to what is no Python."""
    try:
        return list(ast.walk(ast.parse(Path(path).read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return []


def entries_of(nodes: list[ast.AST]) -> list[Entry]:
    """The places where values get names."""
    pairs: list[tuple[ast.expr | None, ast.expr]] = []
    for node in nodes:
        if isinstance(node, ast.Dict):
            pairs += zip(node.keys, node.values, strict=True)
        elif isinstance(node, ast.Assign):
            pairs += [(target.slice, node.value) for target in node.targets if isinstance(target, ast.Subscript)]
    return [entry(x, key.value) for key, x in pairs if isinstance(key, ast.Constant) and isinstance(key.value, str)]


def loops_of(nodes: list[ast.AST]) -> list[Entry]:
    """The comprehensions, by each of their variables."""
    found = [x for x in nodes if isinstance(x, ast.DictComp | ast.ListComp | ast.GeneratorExp)]
    loops = [(x, variable) for x in found for each in x.generators for variable in ast.walk(each.target)]
    return [entry(x, variable.id) for x, variable in loops if isinstance(variable, ast.Name)]


def entry(node: ast.expr, name: str) -> Entry:
    return Entry((node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0), name)
