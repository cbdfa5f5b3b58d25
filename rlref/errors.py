"""Errors that are the user's to mend: each one line, and where it comes from in the user's own file."""

import ast
import contextlib
import difflib
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class UsageError(ValueError):
    """Wrong usage: one line that says what was wrong and what would be right. The command line exits with 2."""


class Stopped(Exception):  # noqa: N818
    """Training was stopped by the signal of this name; what was reached is kept."""


def nearest(word: str, words: Iterable[str]) -> str:
    """' Did you mean ...?' with the nearest of `words`, ignoring case; '' if none is near."""
    known = {w.lower(): w for w in words}
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return f" Did you mean {known[near[0]]!r}?" if near else ""


def first_line(error: BaseException) -> str:
    """What an error says, in a line: the first one of its text; '' if it says nothing."""
    if isinstance(error, OSError) and error.strerror:  # without its number
        return error.strerror + (f": {error.filename}" if error.filename else "")
    return next(iter(lines_of(error)), "")


def lines_of(error: BaseException) -> list[str]:
    """The lines of an error's text that are not empty."""
    try:
        return [line.strip() for line in str(error).splitlines() if line.strip()]
    except Exception:  # its text can be the user's own code, too
        return []


def in_a_line(error: BaseException) -> str:
    """An error's kind and what it says, in a line of at most 300 letters or so."""
    return f"{type(error).__name__}: {first_line(error):.300}"


@contextlib.contextmanager
def errors_with_line(
    agent: str, source: str | Path | None, named: bool = True, anywhere: bool = False
) -> Iterator[None]:
    """Turn what an agent's own code raises into one line that says where.

    Args:
      agent: what it is called there.
      source: its file.
      named: whether the diagnostic under way is named as well, see `where_raised`.
      anywhere: whether to do so with what comes from elsewhere than its file, too; without, that is passed on.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # the user's own code: anything can come
        where = where_raised(error, source, named)
        if not where and not anywhere:
            raise
        lines = lines_of(error)
        said = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
        place = f"{agent}, {where}" if where else agent
        raise UsageError(f"{place}: {type(error).__name__}: {said}") from error


def line_of(error: BaseException, path: str | Path | None) -> int | None:
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
    """Whether a file is the user's: not installed, nor Python's, nor of rlref or the probes."""
    path = Path(filename)
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    here = Path(__file__).parent
    others = (here, here.with_name("probes"), Path(sysconfig.get_paths()["stdlib"]))
    return not installed and not filename.startswith("<") and not any(folder in path.parents for folder in others)


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
