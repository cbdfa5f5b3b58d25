"""The guide's page quotes ppo.py as it is, and its notebook was executed as it stands."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import helpers
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import guide  # noqa: E402
from mutants import plant  # noqa: E402

from rlref import metrics  # noqa: E402
from rlref.health.checks import CHECKS  # noqa: E402

PAGE = guide.PAGE.read_text()
SOURCE = guide.AGENT.read_text()
NOTEBOOK = json.loads(guide.NOTEBOOK.read_text())
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]

QUOTES = """\
Read [`f`, line 9](ppo.py#L9) and [`ppo.py`, line 9](ppo.py#L9):

```python
return x + 1
```

and [`ppo.py`, line 9](ppo.py#L9):

```python
if x:
    return x + 1
```
"""


def test_the_page_quotes_lines_as_they_are_under_their_numbers():
    assert PAGE.count("```python\n") >= 15
    assert len(re.findall(r"\]\(ppo\.py#L\d+(?:-L\d+)?\).?\n\n```python\n", PAGE)) == PAGE.count("```python\n")
    assert guide.with_line_numbers(PAGE, SOURCE.splitlines()) == PAGE


def test_line_numbers_follow_the_file():
    page = guide.with_line_numbers(QUOTES, ["", "def f(x):", "    if x:", "        return x + 1"])
    assert "[`f`, line 2](ppo.py#L2)" in page
    assert "[`ppo.py`, line 4](ppo.py#L4):\n\n```python\nreturn x + 1\n```" in page
    assert "[`ppo.py`, lines 3 to 4](ppo.py#L3-L4):\n\n```python\nif x:\n    return x + 1\n```" in page


@pytest.mark.parametrize(("source", "count"), [(["y = 1"], 0), (["x = 1", "    x = 1"], 2)])
def test_a_quotation_that_is_not_in_one_place_is_refused(source, count):
    with pytest.raises(ValueError, match=f"ppo.py has {count} places, not one, that read: x = 1"):
        guide.place_of("x = 1", source)


def test_names_on_the_page_are_metrics_verdicts_and_probes():
    probes = (SCRIPTS.parent / "probes" / "checks.md").read_text()
    named = {letter: set(re.findall(rf"\[`(\w+)`\]\[{letter}\]", PAGE)) for letter in "mvp"}
    assert named["m"] <= set(metrics.BY_NAME)
    assert named["v"] <= set(CHECKS)
    assert {name for name in named["p"] if f"| `{name}` |" not in probes} == set()
    assert min(map(len, named.values())) >= 8


def test_pictures_are_those_that_are_shown_and_small():
    pictures = sorted((SCRIPTS / "results").glob("guide-*.png"))
    assert sorted(re.findall(r"results/(guide-[\w-]+\.png)\)", PAGE)) == [path.name for path in pictures]
    assert {path.stem for path in pictures} == {f"guide-{name}" for name in guide.PICTURES}
    assert all(10_000 < path.stat().st_size < 60_000 for path in pictures)


def test_the_table_of_bugs_is_the_one_that_was_measured():
    table = (SCRIPTS / "results" / "guide-bugs.md").read_text()
    assert table in PAGE
    assert [row.split(" | ")[0] for row in table.splitlines()[2:]] == [f"| {name}" for name in ("none", *guide.BUGS)]


@pytest.mark.parametrize("name", guide.BUGS)
def test_bugs_can_be_planted_and_compile(name):
    planted = plant(name, SOURCE, [guide.BUGS[name]])
    assert planted != SOURCE
    compile(planted, "my_ppo.py", "exec")


def test_all_of_the_notebook_was_executed_as_it_stands():
    assert NOTEBOOK["metadata"]["executed"]["code_sha256"] == guide.code_digest(NOTEBOOK)
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    assert sum(bool(cell["outputs"]) for cell in CODE) >= 8
    assert not [x for cell in CODE for x in cell["outputs"] if x["output_type"] == "error"]


def test_a_changed_notebook_has_another_digest():
    cells = [{"cell_type": "code", "source": ["a\n", "b"]}, {"cell_type": "markdown", "source": ["text"]}]
    assert guide.code_digest({"cells": cells}) == guide.code_digest({"cells": cells[:1]})
    assert guide.code_digest({"cells": cells}) != guide.code_digest({"cells": [cells[0] | {"source": ["a\n", "c"]}]})


def test_the_notebook_is_small_and_shows_no_paths_of_a_machine():
    assert guide.NOTEBOOK.stat().st_size < 400_000
    shown = json.dumps([x for cell in CODE for x in cell["outputs"] if "image/png" not in x.get("data", {})])
    shown = re.sub(r"base64,[\w+/=]+", "", shown)
    assert not re.search(r"/(tmp|home|root|usr|var|opt|Users)/|site-packages", shown)


def texts_of(notebook):
    """What its code cells show, without pictures."""
    outputs = [x for cell in notebook["cells"] for x in cell.get("outputs", [])]
    shown = [
        [x.get("text", ""), *(x.get("data", {}).get(kind, "") for kind in ("text/plain", "text/html"))] for x in outputs
    ]
    return "\n".join("".join(text) for texts in shown for text in texts)


def says_what_it_should(notebook):
    shown = texts_of(notebook)
    assert re.search(r"100% in \d+ s", shown)  # the display of a training
    assert re.search(r"(OK|WARN|ERROR)</span> .*checks were made", shown)  # a Run that displays itself
    assert "WRONG at advantages: look at advantages" in shown
    assert "0 of 64" in shown
    assert "Steps too large. Optimiser steps are large" in shown


def test_the_notebook_says_what_is_wrong():
    says_what_it_should(NOTEBOOK)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_notebook_runs(tmp_path):
    out = tmp_path / "executed.ipynb"
    # In a process of its own: what Jupyter warns of is not rlref's. Without the settings of tests, which make it slow.
    kept = {name: x for name, x in helpers.child_environment().items() if name != "JAX_DISABLE_MOST_OPTIMIZATIONS"}
    command = [sys.executable, SCRIPTS / "guide.py", "notebook", "--out", out]
    subprocess.run(command, env=kept, check=True, timeout=550, cwd=tmp_path)
    executed = json.loads(out.read_text())
    assert executed["metadata"]["executed"]["code_sha256"] == guide.code_digest(NOTEBOOK)
    says_what_it_should(executed)
    assert os.listdir(tmp_path) == ["executed.ipynb"]
