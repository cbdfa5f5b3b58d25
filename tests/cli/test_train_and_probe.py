import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import rlref
from rlref import ppo
from rlref.cli import main, trim
from rlref.cli.terminal import compiling_takes
from rlref.cli.train import TrainOptions, print_summary, train_and_report
from rlref.contract import AGENTS, load_agent
from rlref.errors import UsageError
from rlref.runs import reproduce
from rlref.runs.run import Run

HERE = Path(__file__).parents[1]
SMALL = "--total-timesteps 48 --num-envs 3 --num-steps 4 --num-minibatches 1 --hidden-sizes 8 --num-seeds 2".split()
SMALL_DQN = (
    "--total-timesteps 160 --num-envs 2 --train-frequency 4 --cycles-per-update 4 --learning-starts 16 "
    "--buffer-size 40 --batch-size 16 --target-network-frequency 8 --hidden-sizes 8 --num-seeds 2"
).split()


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(HERE))


def test_help_needs_no_jax():
    code = "import sys, rlref.cli\ntry: rlref.cli.main(['--help'])\nexcept SystemExit: assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300, stdout=subprocess.DEVNULL)


def test_a_terminal_hears_of_a_command_before_jax_is_imported():
    code = """
import io, sys
from rlref import cli
class Terminal(io.StringIO):
    def isatty(self):
        return True
    def write(self, text):
        print(repr(text), "jax" in sys.modules)
sys.stderr = Terminal()
cli.main(["envs", "nosuite"])
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=300, capture_output=True, text=True)
    assert done.stdout.splitlines()[0] == f"'rlref {rlref.__version__} envs: loading' False"


def test_ctrl_c_does_not_wait_for_the_interpreter_to_be_taken_down():
    # A compiler's thread that is under way then crashes the process in one case of three.
    code = """
import atexit, sys
from rlref import cli
def interrupted(options):
    raise KeyboardInterrupt
cli.envs.run = interrupted
atexit.register(print, "taken down")
sys.exit(cli.main(["envs"]))
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=300, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "rlref: stopped by Ctrl-C\n")


def test_the_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"rlref {rlref.__version__}\n")


def test_train_without_an_agent_says_what_there_is(capsys):
    assert main(["train"]) == 2
    assert "AGENT is ppo" in capsys.readouterr().err
    assert main(["train", "--help"]) == 0


@pytest.mark.parametrize("agent", AGENTS)
def test_every_setting_has_help(agent, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "79")  # one panel below the other
    with pytest.raises(SystemExit) as stop:
        main(["train", agent, "--help"])
    assert stop.value.code == 0
    text = re.sub(r"\s+", " ", re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().out))
    settings = [*dataclasses.fields(load_agent(agent).Config), *dataclasses.fields(TrainOptions)]
    for field in settings:
        name = field.name.replace("_", "-")
        found = re.search(rf" --{name}(, --no-{name})? (.*?)\(default:", text)
        assert found, name
        assert re.search(r"\b[a-z]{3,}", found[2]), name  # more than what it takes, such as FLOAT
    assert "discount per step" in text or agent == "cem"


SAYS = [('"""My own: PPO\nwith less.\n\nInner notes.\n"""\n', "My own: PPO with less."), ("", "")]


@pytest.mark.parametrize(("docstring", "said"), SAYS)
def test_help_begins_with_the_first_paragraph_of_the_agents_docstring(docstring, said, capsys):
    source = Path(ppo.__file__).read_text()
    Path("mine.py").write_text(docstring + source[source.index('"""', 3) + 3 :].lstrip())
    with pytest.raises(SystemExit):
        main(["train", "./mine.py", "--help"])
    before, _, _ = capsys.readouterr().out.partition(" options ")  # the frame around them depends on the terminal
    assert before.rstrip("╭─+- \n").split() == f"usage: rlref train ./mine.py [-h] [OPTIONS] {said}".split()


def test_the_line_on_a_wrong_option_names_the_file_as_it_is_given(capsys):
    Path("mine.py").write_text(Path(ppo.__file__).read_text())
    assert main(["train", "./mine.py", "--lr", "3"]) == 2
    assert "`rlref train ./mine.py --help` shows all" in capsys.readouterr().err


def test_train_writes_a_run_and_prints_json(capsys):
    arguments = [
        "train",
        "ppo",
        "--env-id",
        "counting_env:make_env",
        "--env-params",
        "reward=3",
        "--json",
        "--note",
        "why",
    ]
    assert main([*arguments, "--run-dir", "run", *SMALL]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["status"] == "finished"
    assert len(summary["scores"]) == 2
    config = json.loads(Path("run/config.json").read_text())
    assert config["note"] == "why"
    assert config["command"][:3] == ["rlref", "train", "ppo"]
    assert "reward=3.0" in config["env_params"]


def test_train_hands_its_options_on(monkeypatch):
    given = {}

    def train(module, config, **options):
        given.update(options, config=config)
        raise UsageError("far enough")

    monkeypatch.setattr("rlref.runs.training.train", train)
    words = "--num-seeds 3 --seed 5 --run-dir here --note why --eval-every 7 --eval-episodes 9 --checkpoint-every 11 "
    words += "--memory-gb 1.5 --log csv parquet --gamma 0.5 --env-id counting_env:make_env --env-params reward=3"
    assert main(["train", "ppo", *words.split()]) == 2
    expected = {"num_seeds": 3, "seed": 5, "run_dir": Path("here"), "note": "why", "eval_every": 7, "eval_episodes": 9}
    expected |= {"checkpoint_every": 11, "memory_gb": 1.5, "sinks": ("csv", "parquet")}
    assert {name: given[name] for name in expected} == expected
    assert given["config"].gamma == 0.5
    assert given["env_params"].reward == 3


def of_one_seed(**summary):
    """A run of two updates with this summary, finished if nothing else is said."""
    metrics = {name: np.ones((1, 2)) for name in ("return_mean", "entropy", "env_steps")}
    return Run("ppo", {}, [0], metrics, {"status": "finished", "nonfinite": [], "all_written": True} | summary)


@pytest.mark.parametrize(("changed", "code"), [({}, 0), ({"status": "incomplete"}, 1), ({"nonfinite": [{}]}, 1)])
def test_a_run_that_could_not_be_written_or_lost_a_seed_exits_with_1(changed, code, capsys):
    assert train_and_report(TrainOptions(json=True), lambda display: of_one_seed(**changed)) == code


def test_reproduce_exits_with_1_where_the_runs_part(monkeypatch, capsys):
    part = reproduce.Difference(3, 1, None, "kl", 0.5, 0.25, ["kl"])
    for difference, code in ((None, 0), (part, 1)):
        report = reproduce.Report(10, 2, difference, [])
        monkeypatch.setattr(reproduce, "reproduce", lambda *_, report=report, **__: report)
        assert main(["reproduce", "run"]) == code
    assert "the runs part at update 3" in capsys.readouterr().out


def test_train_shows_progress_and_a_summary(capsys):
    assert main(["train", "ppo", "--env-id", "counting_env:with_params", *SMALL]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("compiling takes some ten seconds the first time, then comes from the cache\n")
    assert "XLA compiles the training" in captured.err
    assert "100%" in captured.err
    for word in ("return_mean", "entropy", "explained_variance", "95% interval", "rlref.load('runs/ppo-counting_env"):
        assert word in captured.out


def test_of_one_seed_no_interval_is_shown(capsys):
    summary = {"score": "return_mean", "iqm": 1.0, "iqm_interval_95": (np.nan, np.nan), "min": 1.0, "max": 1.0}
    summary |= {"env_steps": 1, "train_seconds": 1.0, "steps_per_second": 1, "compile_seconds": 1.0}
    print_summary(of_one_seed(**summary))
    said = capsys.readouterr().out
    assert "return_mean  IQM 1\nmin 1  max 1  (1 seed)" in said
    assert "nan" not in said


def test_without_a_cache_compiling_is_not_said_to_be_kept():
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        assert compiling_takes("a minute") == "compiling takes a minute at every start"
    finally:
        jax.config.update("jax_enable_compilation_cache", True)


@pytest.mark.slow
def test_dqn_shows_progress_and_a_summary(capsys):
    assert main(["train", "dqn", "--env-id", "counting_env:with_params", *SMALL_DQN]) == 0
    captured = capsys.readouterr()
    assert "100%" in captured.err
    for word in ("return_mean", "entropy", "explained_variance", "95% interval", "rlref.load('runs/dqn-counting_env"):
        assert word in captured.out


@pytest.mark.slow
def test_cem_trains_as_many_generations_as_environment_steps_allow(capsys):
    # Episodes of 5 steps: a generation takes 6 x 2 x 5 = 60.
    arguments = (
        "train cem --env-id counting_env:make_env --population-size 6 --elite-fraction .5 --num-rollouts 2".split()
    )
    assert main([*arguments, "--total-timesteps", "200", "--num-seeds", "2", "--run-dir", "run"]) == 0
    assert json.loads(Path("run/config.json").read_text())["config"]["num_generations"] == 3
    captured = capsys.readouterr()
    assert "100%" in captured.err
    assert "of the mean policy" in captured.err
    for word in ("mean_policy_return  IQM", "entropy", "explained_variance", "360 environment steps", "95% interval"):
        assert word in captured.out


def test_nonfinite_training_exits_with_1_and_names_seed_and_update(capsys):
    assert main(["train", "ppo", "--env-id", "counting_env:poisoned", *SMALL]) == 1
    assert "seed 0 became non-finite at update 0" in capsys.readouterr().out


@pytest.mark.slow
def test_python_m_of_an_agent_is_rlref_train(tmp_path):
    command = [sys.executable, "-m", "rlref.ppo", "--env-id", "Catch-bsuite", "--json", "--run-dir", "run", *SMALL]
    # As users have it: compiled as rlref chooses, and kept.
    mine = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "JAX_COMPILATION_CACHE_DIR")
    environment = {k: v for k, v in os.environ.items() if k not in mine} | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command, check=True, timeout=500, capture_output=True, text=True, env=environment)
    assert json.loads(done.stdout)["status"] == "finished"
    assert list((tmp_path / "cache" / "rlref").glob("*/jit_chunk*"))


def test_compiled_programs_used_longest_ago_go_when_they_are_too_many(tmp_path):
    for i in range(6):
        (tmp_path / f"{i}").write_bytes(b"x" * 100)
        os.utime(tmp_path / f"{i}", (10 * i, 10 * i))
    os.utime(tmp_path / "0", (100, 0))  # written first, and used last
    trim(tmp_path, 600)
    assert len(list(tmp_path.iterdir())) == 6
    trim(tmp_path, 599)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["0", "5"]
    trim(tmp_path / "none", 0)


def test_envs_lists_spaces_and_time_limits(capsys):
    assert main(["envs", "--json"]) == 0
    rows = {row["env_id"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["CartPole-v1"] == {
        "env_id": "CartPole-v1",
        "observations": "Box 4 float32",
        "actions": "Discrete 2",
        "time_limit": 500,
        "note": "",
    }
    assert rows["Pendulum-v1"]["actions"] == "Box 1 float32"
    assert "downloads" in rows["MNISTBandit-bsuite"]["note"]
    assert main(["envs"]) == 0
    assert "Breakout-MinAtar" in capsys.readouterr().out
    assert main(["envs", "gymnax:Pendulum-v1", "--json"]) == 0
    assert [row["env_id"] for row in json.loads(capsys.readouterr().out)] == ["Pendulum-v1"]


WRONG = [
    ("train ppoo", "Did you mean 'ppo'"),
    ("train ./none.py", "no file"),
    ("train ./syntax.py", "line 2: SyntaxError"),
    ("train ./raises.py", "line 3: ZeroDivisionError"),
    ("train ./lacks.py", "lacks make"),
    ("train ./half.py", "it lacks Agent.policy"),
    ("train ppo --env-id CartPol-v1", "Did you mean 'CartPole-v1'"),
    ("train ppo --env-id counting_env:not_an_env", "no gymnax environment"),
    ("train ppo --env-id counting_env:nothing", "does not give an environment"),
    ("train ppo --env-id no_such_module:make", "there is no suite and no Python module"),
    ("train ppo --env-id counting_env:five_values", "is written for gymnax 0.0.x"),
    ("train ppo --env-params gravty=3", "Did you mean 'gravity'"),
    ("train ppo --env-params gravity=x", "takes float"),
    ("train ppo --env-params gravity=inf", "must be finite"),
    ("train ppo --env-params gravity", "takes name=value"),
    ("train ppo --num-seeds 0", "num_seeds is 0"),
    ("train ppo --num-minibatches 3", "must be a divisor"),
    ("train ppo --learning-rate nan", "learning_rate is nan"),
    ("train ppo --learning-rate -1", "learning_rate is -1"),
    ("train ppo --gamma 1.5", "gamma is 1.5; it must be float in [0, 1]"),
    ("train ppo --gamma abc", "--gamma takes a number, not 'abc'. `rlref train"),
    ("train ppo --num-seeds", "Missing value for argument '--num-seeds'"),
    ("train ppo --num-envs 0", "num_envs is 0"),
    ("train ppo --total-timesteps 5", "at least one update"),
    ("train ppo --learning-rat 3", "Did you mean '--learning-rate'"),
    ("probe ppoo", "Did you mean 'ppo'"),
    ("probe ./none.py", "no file"),
    ("probe ./folder.py", "./folder.py is a folder"),
    ("probe ./syntax.py", "line 2: SyntaxError"),
    ("probe ./raises.py", "line 3: ZeroDivisionError"),
    ("probe ./lacks.py", "lacks make"),
    ("probe ./half.py", "it lacks Agent.policy"),
    ("probe ppo --only discont", "Did you mean 'discount'"),
    ("probe ppo --num-seeds 0", "--num-seeds is 0"),
    ("probe ppo --num-seeds 1000000000", "--num-seeds is 1000000000; it must be at most 4096"),
    ("probe ppo --seed -1", "--seed is -1"),
    ("train dqn --env-id Pendulum-v1", "DQN takes Discrete, PPO others too"),
    ("train dqn --buffer-size 100 --learning-starts 100", "buffer_size is 100; it must be at least batch_size = 128"),
    ("train dqn --learning-starts 20000", "it must be at least batch_size = 128 and learning_starts = 20000"),
    ("train dqn --target-network-frequency 700", "such as [250, 500, 1000]"),
    ("train dqn --buffer-dtype uint8", "which changes observations of CartPole-v1 by up to"),
    ("train dqn --target sarsa", "expected_sarsa"),
    ("train dqn --tau 0", "tau is 0.0; it must be float in (0, 1]"),
    ("probe dqn --only surrogate", "surrogate"),
    (
        "train cem --elite-fraction .01",
        "elite_fraction is 0.01; it must be enough for 2 elites of population_size 64, such as 0.0312",
    ),
    ("train cem --num-rollouts 0", "num_rollouts is 0; it must be int in [1, inf)"),
    ("train cem --extra-variance -1", "extra_variance is -1.0; it must be float in [0, inf)"),
    ("train cem --total-timesteps 100", "one generation takes up to 128000 environment steps"),
    ("train cem --total-timesteps 200000 --num-generations 15", "say the same; give one of them"),
    ("train cem --total-timestep 200000", "Did you mean '--total-timesteps'"),
    ("probe cem --only discount", "'discount' is not for this kind of agent"),
    ("train ppo --run-dir taken", "never overwritten"),
    ("train --resume", "--resume takes a run's folder"),
    ("train ppo --resume", "--resume takes a run's folder"),
    ("train --resume taken --env-id", "no run's folder"),
    ("train ppo --resume taken --process-id None --run-dir new", "--process-id goes with --distributed"),
    ("train ppo --resume taken --log nowhere --run-dir new", "no run's folder"),
    ("train ppo --coordinator", "--coordinator goes with --distributed"),
    ("train ppo --distributed --process-id None", "--process-id takes a whole number, not 'None'"),
    ("train ppo --distributed --coordinator", "--coordinator takes HOST:PORT"),
    ("train ppo --distributed=1 --num-seeds 1", "'1' is too much; what is on or off takes no value"),
    ("train ppo_rnn --sequence-length none", "--sequence-length takes {None}|INT, not 'none'. `rlref train"),
    ("train ppo_rnn --memory-size 1.5", "--memory-size takes a whole number, not '1.5'. `rlref train"),
    ("train ppo --hidden-sizes 64 x", "--hidden-sizes does not take '64', 'x'. `rlref train"),
    ("train ppo --conv-layers 3", "--conv-layers does not take '3'. `rlref train"),
    ("train ppo --anneal-lr False", "takes no value, but --NAME or --no-NAME"),
    ("report no/such/run", "no/such/run does not exist"),
    ("train ppo --run-dir file/run", "cannot write"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_wrong_usage_is_one_line_and_exits_with_2(arguments, message, capsys, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "syntax.py").write_text("x = 1\ny = (\n")
    (tmp_path / "raises.py").write_text("import os\n\n1 / 0\n")
    (tmp_path / "lacks.py").write_text("class Config: pass\n")
    (tmp_path / "half.py").write_text(
        Path(ppo.__file__).read_text().replace("    policy: Callable", "    acting: Callable")
    )
    before = sorted(tmp_path.iterdir())
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert "Traceback" not in error
    assert [p for p in sorted(tmp_path.iterdir()) if p.name != "__pycache__"] == before


def test_probe_does_not_take_its_own_files_for_the_users(capsys, tmp_path):
    source = Path(ppo.__file__).read_text()
    wrong = source.replace("state.env_state, sent, task.env_params", "state.env_state, sent[:, None], task.env_params")
    assert wrong != source
    (tmp_path / "wrong.py").write_text(wrong)
    assert main(["probe", str(tmp_path / "wrong.py"), "--only", "discount", "--num-seeds", "1"]) == 2
    said = capsys.readouterr().err
    line = wrong[: wrong.index("sent[:, None]")].count("\n") + 1
    assert f"wrong.py, line {line}: " in said
    assert "environments.py" not in said


def test_probe_prints_a_table_and_a_verdict_and_exits_with_0(capsys):
    assert main(["probe", "ppo", "--only", "discount", "--only", "categorical", "--num-seeds", "3"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("compiling takes up to a minute or so the first time, then comes from the cache\n")
    assert "3 of 3" in out
    assert out.splitlines()[-1].startswith("RIGHT: ppo answers every check right, each rung on 3 of 3 seeds")


@pytest.mark.slow
def test_probe_knows_dqn(capsys):
    assert main(["probe", "dqn", "--only", "discount", "--only", "replay_slots", "--num-seeds", "3"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("RIGHT: dqn answers every check right, each rung on 3 of 3 seeds")


@pytest.mark.slow
def test_probe_exits_with_1_and_says_what_is_wrong_as_json(capsys, tmp_path):
    source = Path(ppo.__file__).read_text().replace("delta = reward + gamma *", "delta = reward +")
    (tmp_path / "no_gamma.py").write_text(source)
    only = ["--only", "discount", "--num-seeds", "3", "--no-bisect"]
    assert main(["probe", str(tmp_path / "no_gamma.py"), *only, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["kind"]) == ("WRONG", "ppo")
    assert report["rungs"][0]["passed"] == 0
    assert report["rungs"][0]["cause"] == "gamma is missing"
    assert report["rungs"][0]["expected"] == "V (0.5, 1)"
    assert "gamma is missing" in report["says"]
