"""Which functions and classes of the agents' files can be copied alone, and what must come along.

    python scripts/components.py                    the table in rlref/agents.md
    python scripts/components.py ppo gae            the source of one, with all that it needs, as a file of its own

What comes along is what a definition calls, directly or through others. A type of the file that stands in annotations
alone does not: any object with the fields that are read serves. Those that step an environment or call the network of
their `Task` need the whole file, and are left out; as is what Config alone uses.
"""

import argparse
import ast
import functools
import symtable
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
AGENTS = ("ppo", "dqn", "cem")
OF_CONFIG = {"static", "leaf", "check", "check_settings"}
WHOLE = {"env", "env_params", "network"}  # fields of the Task that stand for the rest of the file


class Source(NamedTuple):
    """An agent's file: what stands at its top level, by name, and which of these each definition uses as it runs."""

    text: str
    defined: dict[str, ast.stmt]
    imported: dict[str, ast.stmt]
    used: dict[str, set[str]]


class Component(NamedTuple):
    """A function or class and what it needs, each in the order of the file."""

    name: str
    along: tuple[str, ...]
    """definitions that come along"""
    imports: tuple[str, ...]
    """imported names, those of annotations too"""
    reads: tuple[str, ...]
    """fields of types that need not come along, such as `Config.gamma`"""


@functools.cache
def read(agent: str) -> Source:
    """The file of an agent, by its name."""
    text = (ROOT / "rlref" / f"{agent}.py").read_text()
    defined: dict[str, ast.stmt] = {}
    imported: dict[str, ast.stmt] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported |= {alias.asname or alias.name.partition(".")[0]: node for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign):
            defined |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    known = defined.keys() | imported.keys()
    top = symtable.symtable(text, agent, "exec")
    used = {scope.get_name(): globals_of(scope) & known for scope in top.get_children()}
    for name, node in defined.items():  # decorators, bases and defaults are evaluated outside
        outside = list(getattr(node, "decorator_list", [])) + list(getattr(node, "bases", []))
        outside += getattr(getattr(node, "args", None), "defaults", [])
        outside += [node.value] if isinstance(node, ast.Assign) else []
        used[name] = used.get(name, set()) | {x for part in outside for x in names_in(part)} & known
    return Source(text, defined, imported, used)


def globals_of(scope: symtable.SymbolTable) -> set[str]:
    """The names of the file's top level that a function or class uses as it runs, inner functions and all."""
    own = {x.get_name() for x in scope.get_symbols() if x.is_global() and x.is_referenced()}
    return own.union(*map(globals_of, scope.get_children()))


def names_in(node: ast.AST) -> set[str]:
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}


def component(agent: str, name: str) -> Component:
    """What a definition of an agent's file needs."""
    source = read(agent)
    along, left = {name}, [name]
    while left:
        new = source.used[left.pop()] & source.defined.keys() - along
        along |= new
        left += new
    nodes = [source.defined[x] for x in along]
    hints = {x for node in nodes for hint in annotations_in(node) for x in names_in(hint)}
    imports = hints.union(*(source.used[x] for x in along)) & source.imported.keys()
    reads = {f"{kind}.{field}" for node in nodes for kind, field in fields_read(node) if kind not in along}
    return Component(
        name,
        tuple(x for x in source.defined if x in along - {name}),
        tuple(x for x in source.imported if x in imports),
        tuple(sorted(x for x in reads if x.partition(".")[0] in source.defined)),
    )


def annotations_in(node: ast.AST) -> Iterator[ast.expr]:
    for x in ast.walk(node):
        hint = getattr(x, "annotation", None) or getattr(x, "returns", None)
        if hint is not None:
            yield hint


def fields_read(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Type and field, of what a definition reads of its arguments. `config` is the Task's, wherever it stands."""
    kinds = {"config": "Config"}
    for x in ast.walk(node):
        if isinstance(x, ast.arg) and isinstance(x.annotation, ast.Name):
            kinds[x.arg] = x.annotation.id
    for x in ast.walk(node):
        if not isinstance(x, ast.Attribute):
            continue
        if isinstance(x.value, ast.Name) and x.value.id in kinds and x.attr != "config":
            yield kinds[x.value.id], x.attr
        elif isinstance(x.value, ast.Attribute) and x.value.attr == "config":
            yield "Config", x.attr


def components(agent: str) -> list[Component]:
    """Those of an agent that can be copied, in the order of its file."""
    source = read(agent)
    found = []
    for name, node in source.defined.items():
        methods = [x for x in getattr(node, "body", []) if isinstance(x, ast.FunctionDef)]
        if name not in OF_CONFIG and (
            isinstance(node, ast.FunctionDef) or (isinstance(node, ast.ClassDef) and methods)
        ):
            one = component(agent, name)
            if not {f"Task.{x}" for x in WHOLE} & set(one.reads) and "Task" not in one.along:
                found.append(one)
    return found


def lifted(agent: str, name: str) -> str:
    """A component as a file of its own."""
    source, one = read(agent), component(agent, name)
    lines = source.text.splitlines()
    parts = ["from __future__ import annotations\n", *(import_line(source.imported[x], x) for x in one.imports)]
    wanted = {*one.along, name}
    for node in dict.fromkeys(node for x, node in source.defined.items() if x in wanted):
        first = min(x.lineno for x in (node, *getattr(node, "decorator_list", [])))
        parts.append("\n\n" + "\n".join(lines[first - 1 : node.end_lineno]))
    return "\n".join(parts) + "\n"


def import_line(node: ast.stmt, name: str) -> str:
    """The import of one name."""
    assert isinstance(node, ast.Import | ast.ImportFrom)
    (alias,) = (x for x in node.names if (x.asname or x.name.partition(".")[0]) == name)
    return ast.unparse(type(node)(**{**vars(node), "names": [alias]}))


def table() -> str:
    """The table in rlref/agents.md: a row for each, those that agents have alike together."""
    rows: dict[tuple[Component, str], list[str]] = {}
    for agent in AGENTS:
        for one in components(agent):
            rows.setdefault((one, lifted(agent, one.name)), []).append(agent.upper())
    lines = ["| copy | of | with it | it reads | it imports |", "|---|---|---|---|---|"]
    for (one, _), agents in rows.items():
        cells = [", ".join(f"`{x}`" for x in names) for names in (one.along, one.reads, one.imports)]
        lines.append(f"| `{one.name}` | {', '.join(agents)} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", nargs="?", choices=AGENTS)
    parser.add_argument("name", nargs="?")
    options = parser.parse_args()
    if options.agent and options.name not in read(options.agent).defined:
        parser.error(f"{options.agent} defines no {options.name}")
    print(lifted(options.agent, options.name) if options.agent else table())
