"""An agent's file that imports modules of its own."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rlref
from rlref import cem
from rlref.cli import main
from rlref.errors import UsageError
from rlref.runs import trained
from rlref.runs.sources import code_of, hashes_of

TIME_LIMIT = 300  # seconds
CONFIG = cem.Config(
    env_id="counting_env:make_env", population_size=4, elite_fraction=0.5, num_rollouts=1, num_generations=2
)
BESIDE = "sources_beside"  # a name of its own: a module stays imported


def module_of(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with modules beside each other; what was imported from there is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_modules_beside_the_agent_belong_to_it_and_others_do_not(folder):
    (folder / "sources_parts").mkdir()
    texts = {
        "agent.py": "import json, jax, sources_a\n",
        "sources_a.py": "from sources_parts import head\ndef late():\n    import sources_late\n",
        "sources_parts/__init__.py": "",
        "sources_parts/head.py": "from . import body\n",
        "sources_parts/body.py": "x = 1\n",
        "sources_late.py": "y = 1\n",
        "sources_unused.py": "z = 1\n",
        "json.py": "raise RuntimeError('the standard library has this name')\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    code = code_of(module_of(folder / "agent.py"))
    assert code == {name: text.encode() for name, text in texts.items() if name not in ("json.py", "sources_unused.py")}
    assert next(iter(code)) == "agent.py"
    before = hashes_of(code)
    assert set(before["modules_sha256"]) == code.keys() - {"agent.py"}
    (folder / "sources_parts/body.py").write_text("x = 2\n")
    after = hashes_of(code_of(module_of(folder / "agent.py")))
    assert before["source_sha256"] == after["source_sha256"]
    assert {n for n, x in after["modules_sha256"].items() if x != before["modules_sha256"][n]} == {
        "sources_parts/body.py"
    }


def test_an_agent_of_rlref_is_one_file():
    assert code_of(cem) == {"cem.py": Path(cem.__file__).read_bytes()}
    assert set(hashes_of(code_of(cem))) == {"source_sha256"}


@pytest.mark.slow
def test_a_run_is_rebuilt_with_the_modules_beside_its_agent_and_refuses_others(folder, capsys):
    (folder / "mine.py").write_text(Path(cem.__file__).read_text() + f"\nfrom {BESIDE} import SCALE\n")
    (folder / f"{BESIDE}.py").write_text("SCALE = 1.0\n")
    run = rlref.train(folder / "mine.py", CONFIG, num_seeds=1, run_dir=folder / "run")
    assert {x.name for x in (run.path / "source").glob("*.py")} == {"mine.py", f"{BESIDE}.py"}
    assert rlref.load(run.path).policy(0) is not None

    # Elsewhere, with nothing of the folder to be found but the run.
    elsewhere = folder / "elsewhere"
    shutil.copytree(run.path, elsewhere / "run")
    play = [sys.executable, "-m", "rlref.cli", "play", "run", "--episodes", "2", "--json"]
    paths = ":".join([str(Path(__file__).parents[1]), str(Path(rlref.__file__).parents[1])])
    done = subprocess.run(
        play, cwd=elsewhere, env={"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True,
        timeout=TIME_LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["greedy"]["returns"]) == 2

    (folder / f"{BESIDE}.py").write_text("SCALE = 2.0\n")
    del sys.modules[BESIDE]
    with pytest.raises(UsageError, match=rf"or what it imports: {BESIDE}.py\) is not what .* was trained with"):
        trained.of_folder(run.path, agent=str(folder / "mine.py"))
    assert main(["train", str(folder / "mine.py"), "--resume", str(run.path)]) == 2
    assert "changed since" in capsys.readouterr().err
