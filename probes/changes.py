"""What a copy of an agent's file has changed of its original.

Each agent's file has a stamp, a hash of its text, which a copy keeps: so the original of a copy is known. Texts of
earlier versions are in `originals/`.
"""

import ast
import difflib
import hashlib
import re
import sys
import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rlref.contract import AGENTS

STAMP = re.compile(r"^# Original: (\w+) ([0-9a-f]{12})\b", re.MULTILINE)
EARLIER = Path(__file__).parent / "originals"
TOO_DIFFERENT = 0.5  # of the lines of the longer file, which have to be in both
BLANK = "0" * 12


class Hunk(NamedTuple):
    """Lines that differ: what stands at `[start, stop)` of the copy, from 0, stood as `old` in the original."""

    start: int
    stop: int
    old: tuple[str, ...]


class Changed(NamedTuple):
    """A function, class or constant of the file that is not as in the original; or what stands between them."""

    name: str
    """'' of what stands between them"""
    first: int
    """the first and the last line of the copy that is another, from 1; both 0 if it is gone"""
    last: int
    what: str
    """new, gone, or which fields were added or removed; '' for other changes"""

    def __str__(self) -> str:
        if not self.name:
            return f"{in_lines(self.first, self.last)} at the top level"
        if self.what:
            return f"`{self.name}` ({self.what})"
        return f"`{self.name}` ({in_lines(self.first, self.last)})"


class Changes(NamedTuple):
    """What a file has changed of its original."""

    original: str
    """in words"""
    text: str
    """of the file"""
    hunks: tuple[Hunk, ...]
    changed: tuple[Changed, ...]
    too_different: bool

    def undone(self, hunks: Iterable[Hunk]) -> str:
        """The file's text without these of its changes."""
        lines = self.text.splitlines(keepends=True)
        for hunk in sorted(hunks, reverse=True):
            lines[hunk.start : hunk.stop] = hunk.old
        return "".join(lines)

    def name_at(self, line: int) -> str:
        """The name of the function, class or constant in a line of the file, from 1; '' if it is in none."""
        return next((name for name, (first, last) in definitions(self.text).items() if first <= line <= last), "")

    def __str__(self) -> str:
        if self.too_different:
            return f"changed: too much to compare, nearest is {self.original}"
        if not self.changed:
            return f"changed: nothing of {self.original} but comments"
        return f"changed, of {self.original}: {', '.join(map(str, self.changed))}"


def in_lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first}-{last}"


def stamp_of(text: str) -> str:
    """The hash that belongs into a file's stamp: of its text with the stamp left blank."""
    blank = STAMP.sub(lambda found: f"# Original: {found[1]} {BLANK}", text)
    return hashlib.sha256(blank.encode()).hexdigest()[:12]


def originals() -> dict[tuple[str, str], str]:
    """(agent, stamp) -> text, of the installed agents and of those of earlier versions."""
    agents = Path(__file__).parent.parent / "rlref"
    texts = {name: (agents / f"{name}.py").read_text() for name in AGENTS}
    found = {(name, stamp_of(text)): text for name, text in texts.items()}
    for path in sorted(EARLIER.glob("*.txt")):  # such as ppo_0123456789ab.txt
        name, _, stamp = path.stem.rpartition("_")
        found.setdefault((name, stamp), path.read_text())
    return found


def changes(text: str) -> Changes:
    """What a file has changed of the agent that it is a copy of; of the nearest one if it has no known stamp."""
    known = originals()
    installed = {key: known[key] for key in list(known)[: len(AGENTS)]}
    stamp = STAMP.search(text)
    key: tuple[str, str] | None = (stamp[1], stamp[2]) if stamp else None
    if key in known:
        said = f"rlref's {key[0]}.py" + ("" if key in installed else ", as it was")
    else:
        key = max(installed, key=lambda k: in_common(installed[k], text))
        why = "its stamp is of no version that is known" if stamp else "there is no stamp"
        said = f"rlref's {key[0]}.py as it is installed, the nearest ({why})"
    original = known[key]
    old, new = original.splitlines(keepends=True), text.splitlines(keepends=True)
    codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    hunks = tuple(Hunk(c, d, tuple(old[a:b])) for how, a, b, c, d in codes if how != "equal")
    return Changes(said, text, hunks, named(original, text, hunks), in_common(original, text) < TOO_DIFFERENT)


def in_common(old: str, new: str) -> float:
    """The share of the longer text's lines, without empty ones, that both have."""
    a, b = ([line for line in text.splitlines() if line.strip()] for text in (old, new))
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks()) / max(len(a), len(b), 1)


def definitions(text: str) -> dict[str, tuple[int, int]]:
    """Top-level functions, classes and constants of a file -> first and last line, from 1; {} if it does not parse."""
    return {name: (first_line_of(node), node.end_lineno or 0) for name, node in nodes(text).items()}


def nodes(text: str) -> dict[str, ast.stmt]:
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return {}
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    return found


def references(text: str) -> dict[str, set[str]]:
    """Top-level functions, classes and constants of a file -> those that each refers to, in annotations too."""
    defined, found = nodes(text), dict[str, set[str]]()
    for name, node in defined.items():
        inside = [*ast.walk(node)]
        names = [x for x in inside if isinstance(x, ast.Name)]
        local = {x.id for x in names if isinstance(x.ctx, ast.Store)}
        local |= {x.arg for x in inside if isinstance(x, ast.arg)}
        annotations = [y for x in inside for y in (getattr(x, "annotation", None), getattr(x, "returns", None)) if y]
        types = {y.id for x in annotations for y in ast.walk(x) if isinstance(y, ast.Name)}
        found[name] = ({x.id for x in names} - local | types) & {*defined}
    return found


def reached(references: dict[str, set[str]], names: set[str]) -> set[str]:
    """These names, and those that they refer to, directly or through others."""
    found, waiting = set[str](), names
    while waiting:
        found |= waiting
        waiting = set[str]().union(*(references.get(name, set()) for name in waiting)) - found
    return found


def between(text: str) -> list[ast.stmt]:
    """The statements at the top level that define nothing; without docstring and imports."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return []
    others = (
        ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
    )
    plain = [x for x in body if not isinstance(x, others)]
    return [x for x in plain if not (isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant))]


def first_line_of(node: ast.stmt) -> int:
    return min([node.lineno, *(x.lineno for x in getattr(node, "decorator_list", []))])


def without_docstrings(node: ast.stmt) -> str:
    """What a statement does, in one string: the same for another comment, layout or docstring."""
    for inner in ast.walk(node):
        body = getattr(inner, "body", None)
        if not isinstance(body, list) or not body or not isinstance(body[0], ast.Expr):
            continue
        if isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
            del body[0]
    return ast.dump(node)


def named(original: str, text: str, hunks: Sequence[Hunk]) -> tuple[Changed, ...]:
    """The functions, classes and constants that do something else than in the original, in the file's order."""
    was, now = nodes(original), nodes(text)
    found = []
    for name, node in now.items():
        first, last = first_line_of(node), node.end_lineno or 0
        if name in was and fields_of(was[name]) != fields_of(node):
            old, new = fields_of(was[name]), fields_of(node)
            count = [f"+{len(new - old)}"] * bool(new - old) + [f"-{len(old - new)}"] * bool(old - new)
            plural = "" if len(new ^ old) == 1 else "s"
            found.append(Changed(name, first, last, f"{' '.join(count)} field{plural}"))
        elif name not in was:
            found.append(Changed(name, first, last, f"new, {in_lines(first, last)}"))
        elif without_docstrings(was[name]) != without_docstrings(node):
            touched = [
                line
                for h in hunks
                for line in (range(h.start + 1, h.stop + 1) if h.stop > h.start else [h.start])
                if first <= line <= last
            ]
            found.append(Changed(name, min(touched, default=first), max(touched, default=last), ""))
    known = {without_docstrings(node) for node in between(original)}
    found += [
        Changed("", node.lineno, node.end_lineno or 0, "")
        for node in between(text)
        if without_docstrings(node) not in known
    ]
    return (*found, *(Changed(name, 0, 0, "gone") for name in was if name not in now))


def fields_of(node: ast.stmt) -> set[str]:
    """Names of a class's annotated fields."""
    inner = node.body if isinstance(node, ast.ClassDef) else []
    return {x.target.id for x in inner if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)}


def module_of(text: str, path: str) -> types.ModuleType:
    """A file's module with another text. Raises whatever that raises."""
    module = types.ModuleType(Path(path).stem)
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses and flax look their module up by name
    exec(compile(text, path, "exec"), module.__dict__)
    return module
