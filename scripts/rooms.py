"""How the files of a package import each other: levels, circles, and the longest file of each folder.

    python scripts/rooms.py                     of this rlref
    python scripts/rooms.py --tree FOLDER       of another one, such as a work tree of an older commit

Every import counts, those inside functions and of type checkers too; but not what stands under `if __name__ ==
"__main__":`, which runs only where a file is the program. A file that imports none of the others is on level 0, any
other one a level above the highest that it imports; of a circle, all on the same.
"""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def modules_of(folder: Path) -> dict[str, Path]:
    """Module name -> file, of all Python files of a package."""
    files = sorted(folder.rglob("*.py"))
    return {
        ".".join(file.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__"): file
        for file in files
    }


def imports_of(file: Path, known: dict[str, Path]) -> set[str]:
    """Which of the modules `known` a file imports."""
    found = set()
    for node in statements(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {name for alias in node.names if (name := alias.name) in known}
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {part if part in known else node.module for part in parts} & known.keys()
    return found - {module for module, path in known.items() if path == file}


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a file but those under `if __name__ == "__main__":`."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)):
            yield node
            yield from statements(node)


def graph_of(folder: Path) -> dict[str, set[str]]:
    """Module -> the modules of the same package that it imports."""
    known = modules_of(folder)
    return {module: imports_of(file, known) for module, file in known.items()}


def reached(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Module -> all that it imports, directly or through others."""
    out = {module: set(imports) for module, imports in graph.items()}
    for through in graph:
        for imports in out.values():
            if through in imports:
                imports |= out[through]
    return out


def circles_of(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules that import each other, directly or through others."""
    all_of = reached(graph)
    found = {tuple(sorted(x for x in all_of[m] if m in all_of[x])) for m in graph if m in all_of[m]}
    return [list(circle) for circle in sorted(found)]


def levels_of(graph: dict[str, set[str]]) -> dict[str, int]:
    """Module -> its level."""
    all_of = reached(graph)
    levels: dict[str, int] = {}

    def level(module: str) -> int:
        if module not in levels:
            below = [level(x) for x in all_of[module] if module not in all_of[x]]
            levels[module] = 1 + max(below, default=-1)
        return levels[module]

    for module in graph:
        level(module)
    return levels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the folder that holds rlref (default: this one)")
    folder = parser.parse_args().tree / "rlref"
    graph = graph_of(folder)
    levels = levels_of(graph)
    print(f"{len(graph)} modules on {max(levels.values()) + 1} levels")
    for level in range(max(levels.values()) + 1):
        print(f"  {level}: {', '.join(sorted(m for m, x in levels.items() if x == level))}")
    print(f"circles: {'; '.join(', '.join(circle) for circle in circles_of(graph)) or 'none'}")
    lengths = {file: len(file.read_text().splitlines()) for file in modules_of(folder).values()}
    for room in sorted({file.parent for file in lengths}):
        longest = max((file for file in lengths if file.parent == room), key=lengths.__getitem__)
        count, name = sum(file.parent == room for file in lengths), room.relative_to(folder.parent)
        print(f"{name}: {count} files; the longest, {longest.name}, has {lengths[longest]} lines")


if __name__ == "__main__":
    main()
