"""`rlref probe` of an agent that hangs."""

import json
import subprocess
import sys
import time

import pytest
from helpers import child_environment

from rlref.cli import watchdog
from rlref.contract import load_agent

HANGING = """
from rlref.ppo import *
from rlref import ppo
Agent = ppo.Agent
def make(config, env=None, env_params=None):
    agent = ppo.make(config, env, env_params)
    def update(state, step):
        never = jax.lax.while_loop(lambda k: k >= 0, lambda k: (k + 1) % 7, step)
        return agent.update(state, never)
    return agent._replace(update=update)
"""


def probe(folder, source, *options):
    (folder / "hanging.py").write_text(source)
    command = [sys.executable, "-m", "rlref.cli", "probe", "./hanging.py", "--only", "discount", "--num-seeds", "1"]
    return subprocess.run([*command, *options], env=child_environment(), cwd=folder, timeout=200, check=False,
                          capture_output=True, text=True)  # fmt: skip


@pytest.mark.slow
def test_a_loop_without_an_end_is_cut_and_told_in_one_line(tmp_path):
    done = probe(tmp_path, HANGING, "--time-limit", "12")
    assert (done.returncode, done.stdout) == (1, "")
    line = done.stderr.splitlines()[-1]
    assert line.startswith("HANGS while training discount: ./hanging.py has done nothing for 1")
    assert "Likely cause: a loop that never ends." in line


@pytest.mark.slow
def test_a_file_that_never_loads_is_cut_as_json(tmp_path):
    done = probe(tmp_path, "while True: pass\n", "--time-limit", "4", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert (report["verdict"], report["hung"]["check"]) == ("WRONG", "loading the file")
    assert report["hung"]["cause"] == "a loop that never ends"
    assert report["says"].startswith("HANGS while loading the file: ./hanging.py has done nothing for ")


def test_progress_keeps_it_quiet(monkeypatch):
    monkeypatch.setattr(watchdog.os, "_exit", lambda code: pytest.fail("ended"))
    with watchdog.Watchdog("ppo", 0.5, False) as dog:
        for _ in range(8):
            time.sleep(0.1)
            dog.progress("asking")
    time.sleep(0.6)


def test_linear_algebra_is_the_cause_where_nothing_runs_and_the_file_has_it(tmp_path):
    path = tmp_path / "decomposes.py"
    path.write_text("from rlref.ppo import Agent, Config, make, train\n")
    load_agent(str(path))
    assert "its init does linear algebra (qr)" in watchdog.cause(str(path), 0.0)
    assert watchdog.cause(str(path), 1.0) == "a loop that never ends"
    assert watchdog.cause("ppo", 0.0) == "something waits for itself: no processor is in use"


def test_long_lists_of_checks_are_counted():
    assert watchdog.shortened("training a, b") == "training a, b"
    assert watchdog.shortened("training a, b, c, d, e, f") == "training a, b, c and 3 more"
