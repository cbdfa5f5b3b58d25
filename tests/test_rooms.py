"""Imports go one way: which packages a file may import, and that no files import each other in a circle."""

import re
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import rooms  # noqa: E402

from rlref import contract  # noqa: E402

ORDER = [
    {"version", "errors"},
    {"contract"},
    {"metrics", "stats", "settings"},
    {"envs"},
    {"tuned"},
    {"health"},
    {"inspection"},
    {"runs"},
    {"reports"},
    {"search"},
    {"cli"},
]
"""A room may import those before it alone."""
AGENTS = {"rlref.ppo", "rlref.dqn", "rlref.cem"}
FOR_PROBES = {"rlref.errors", "rlref.contract", "rlref.envs.spaces", "rlref.runs.compiling"}


def room_of(module):
    return module.split(".")[1] if "." in module else ""


def wrong_ways(graph):
    """The imports that are not allowed, as (module, what it imports)."""
    rank = {room: i for i, rooms_there in enumerate(ORDER) for room in rooms_there}
    found = []
    for module, imports in graph.items():
        own = room_of(module)
        if module == "rlref":  # its public names are those of several rooms, imported late
            continue
        for other in imports:
            there = room_of(other)
            if own != there and not (module not in AGENTS and there in rank and rank[there] < rank[own]):
                found.append((module, other))
    return found


@pytest.fixture(scope="module")
def graph():
    return rooms.graph_of(ROOT / "rlref")


def test_every_file_is_in_a_room(graph):
    assert {room_of(module) for module in graph} == set().union({"", "ppo", "dqn", "cem", "ppo_rnn"}, *ORDER)


def test_imports_go_one_way(graph):
    assert wrong_ways(graph) == []


def test_no_circles(graph):
    assert rooms.circles_of(graph) == []


@pytest.mark.parametrize(
    "room", sorted(path.name for path in (ROOT / "rlref").iterdir() if path.is_dir() and path.name[0] != "_")
)
def test_readme_of_a_room_names_its_files(room):
    folder = ROOT / "rlref" / room
    named = set(re.findall(r"`(\w+\.py)`", (folder / "README.md").read_text()))
    files = {file.name for file in folder.glob("*.py")}
    assert named <= files
    assert room == "cli" or files - {"__init__.py", "__main__.py"} <= named


def test_contract_stands_in_the_readme_as_in_the_code():
    said = (ROOT / "rlref" / "README.md").read_text()
    blocks = [part for part in contract.__doc__.split("\n\n") if part.startswith("    ")]
    assert len(blocks) == 2
    assert all(textwrap.dedent(block).strip() in textwrap.dedent(said) for block in blocks)


def test_files_that_the_readme_speaks_of_are_there():
    said = (ROOT / "rlref" / "README.md").read_text().partition("## How to change it")[2]
    for row in said.splitlines()[4:]:
        for path in re.findall(r"`((?:\w+/)*(?:\w+\.(?:py|md)|\w+/))`", row.replace("tests/test_NAME.py", "")):
            places = [ROOT, ROOT / "rlref", ROOT / "rlref" / "inspection", ROOT / "tests", ROOT / "tests" / "runs"]
            assert any((place / path).exists() for place in places), path


def test_probes_import_little():
    known = rooms.modules_of(ROOT / "rlref")
    for file in (ROOT / "probes").rglob("*.py"):
        table = {"rlref.cli.probe"} if file.name == "trainers.py" else set()  # which it prints as the command does
        assert rooms.imports_of(file, known) <= FOR_PROBES | table, file


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        (
            "health/engine.py",
            "def f():\n    from rlref.runs import files",
            [("rlref.health.engine", "rlref.runs.files")],
        ),
        ("ppo.py", "import rlref.errors", [("rlref.ppo", "rlref.errors")]),
        ("ppo.py", "if __name__ == '__main__':\n    import rlref.errors", []),
        ("stats.py", "from rlref import settings", [("rlref.stats", "rlref.settings")]),
        ("cli/train.py", "from rlref.runs import files", []),
    ],
)
def test_wrong_imports_are_seen(tmp_path, file, text, found):
    for path, content in {"errors.py": "", "settings.py": "", "runs/files.py": "", file: text}.items():
        (tmp_path / "rlref" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "rlref" / path).write_text(content)
    assert wrong_ways(rooms.graph_of(tmp_path / "rlref")) == found


def test_circles_and_levels_are_seen():
    graph = {"a": set(), "b": {"a"}, "c": {"b", "d"}, "d": {"c"}}
    assert rooms.circles_of(graph) == [["c", "d"]]
    assert rooms.levels_of(graph) == {"a": 0, "b": 1, "c": 2, "d": 2}
