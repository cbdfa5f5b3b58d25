import json
from pathlib import Path

import numpy as np
import pytest

import rlref
from rlref.cli import main
from rlref.errors import Stopped
from rlref.reports import selftest
from rlref.reports.markup import GENERATOR
from rlref.runs.folder import Folder
from rlref.runs.run import Run
from rlref.search import variants

HERE = Path(__file__).parents[1]
SMALL = (
    "--env-id counting_env:make_env --total-timesteps 48 --num-envs 3 --num-steps 4 --num-minibatches 1 "
    "--update-epochs 1 --hidden-sizes 8"
).split()


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(HERE))


def kept(name, scores, learning_rate=1e-3):
    """A run's folder, as a training of one update would leave it."""
    about = {
        "agent": "ppo", "source_sha256": "", "config": {"env_id": "CartPole-v1", "learning_rate": learning_rate},
        "batched": [], "seeds": list(range(len(scores))), "env": None, "env_params": "", "env_params_values": {},
        "num_settings": None, "num_updates": 1, "note": "", "command": [],
    }  # fmt: skip
    folder = Folder.create(Path(name), None, {}, about)
    rows = np.array(scores, np.float32)[:, None]
    folder.write_metrics({(0, 0): {"env_steps": np.full_like(rows, 100), "return_mean": rows}})
    folder.write_summary({"status": "finished"})
    folder.close()
    return name


@pytest.fixture
def two():
    rng = np.random.default_rng(0)
    return kept("a", 100 + rng.normal(size=12)), kept("b", 110 + rng.normal(size=12), 1e-2)


def test_compare(two, capsys):
    assert main(["compare", *two]) == 0
    printed = capsys.readouterr().out
    assert "b is better than a: IQM difference" in printed
    assert "differ in learning_rate alone" in printed
    assert main(["compare", *two, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["results"][0]["contrasts"][0]["verdict"] == "better"


def test_compare_over_environments_takes_references(two, capsys):
    assert main(["compare", "x=a", "y=b", "--reference", "CartPole-v1=200", "--json"]) == 0
    for wrong in ("CartPole-v1", "CartPole-v1=x", "=3", "CartPole-v1=nan"):
        assert main(["compare", *two, "--reference", wrong]) == 2
        assert "takes ENV=SCORE" in capsys.readouterr().err


def test_selftest(two, capsys):
    assert main(["compare", "a", "--selftest", "--splits", "50"]) == 0
    assert "of 50 random splits" in capsys.readouterr().out
    assert main(["compare", *two, "--selftest"]) == 2
    assert main(["compare", "a", "--selftest", "--splits", "0"]) == 2


def test_selftest_fails_where_the_test_errs_too_often(two, capsys, monkeypatch):
    wrong = selftest.SelfTest(12, 0, 1000, 0.0, 0.12, 0.2, True, "12 % of 1,000")
    monkeypatch.setattr(selftest, "selftest", lambda run, splits: wrong)
    assert main(["compare", "a", "--selftest"]) == 1


def test_report_of_one_and_of_several(two, capsys):
    assert main(["report", "a"]) == 0
    assert GENERATOR in Path("a/report.html").read_text()
    assert main(["report", *two, "--pictures", "plots"]) == 0
    assert GENERATOR in Path("comparison.html").read_text()
    assert any(Path("plots").glob("*.svg"))
    assert main(["report", "nowhere"]) == 2


@pytest.mark.slow
def test_sweep(capsys):
    command = ["sweep", "ppo", *SMALL, "--num-settings", "6", "--confirm-seeds", "2", "--num-seeds", "2"]
    command += ["--vary", "learning_rate=1e-4:1e-2", "--run-dir", "mine"]
    assert main(command) in (0, 1)
    printed = capsys.readouterr().out
    assert "learning_rate" in printed
    assert "written to mine" in printed
    assert rlref.load("mine/search/000").scores.shape == (6, 2)
    assert rlref.load("mine/confirm/000").batched == ["learning_rate"]
    assert main([*command, "--json"]) in (0, 1)  # nothing is trained again
    assert len(json.loads(capsys.readouterr().out)["trials"]) == 6
    assert main([*command, "--seed", "1"]) == 2
    assert "was begun with other" in capsys.readouterr().err


@pytest.mark.slow
def test_ablate(capsys):
    command = ["ablate", "ppo", *SMALL, "--num-seeds", "2", "--only", "ent_coef", "--also", "gamma=.9,.95"]
    assert main([*command, "--run-dir", "mine"]) == 0
    printed = capsys.readouterr().out
    assert all(label in printed for label in ("ent_coef off", "gamma 0.9", "gamma 0.95"))
    assert main([*command, "--run-dir", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"]["ent_coef off"] == {"ent_coef": 0.0}


@pytest.mark.slow
def test_baselines(monkeypatch, capsys):
    def trained(module, config, given, *, num_seeds, folder, **_):
        (name,) = given
        metrics = {"env_steps": np.full((num_seeds, 1), 5e4), "return_mean": np.arange(100.0, 100 + num_seeds)[:, None]}
        about = {"env_id": config.env_id}
        return {name: Run(name, about, list(range(num_seeds)), metrics, {"status": "finished"})}

    monkeypatch.setattr(variants, "train", trained)
    assert main("baselines CartPole-v1 --total-timesteps 200000 --run-dir mine".split()) == 0
    printed = capsys.readouterr().out
    assert "random" in printed
    assert "reaches most: IQM 103.5" in printed
    assert main("baselines CartPole-v1 --total-timesteps 200000 --json".split()) == 0
    assert json.loads(capsys.readouterr().out)["unfit"] == {}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("sweep ppo --vary num_envs=2:8", "shapes the program"),
        ("sweep ppo --num-setings 3", "Did you mean '--num-settings'"),
        ("sweep pppo", "Did you mean 'ppo'"),
        ("ablate ppo --only nothing", "no option 'nothing'"),
        ("ablate ppo --also gamma=.9:.99", "takes values to try"),
        ("ablate ppo --also learning_rate=abc", "learning_rate cannot be 'abc'"),
        ("ablate ppo --num-seeds 0", "num_seeds is 0"),
        ("sweep ppo --seed -1", "seed is -1"),
        ("sweep ppo --confirm-seeds -1", "confirm_seeds is -1"),
        ("sweep ppo --vary gamma=" + "(" * 3000, "gamma"),
        ("sweep ppo --run-dir .", "never overwritten"),
        ("baselines CartPole-v1 --run-dir .", "never overwritten"),
        ("baselines CartPol-v1", "Did you mean 'CartPole-v1'"),
        ("baselines CartPole-v1 --total-timesteps 0", "total_timesteps is 0"),
        ("compare nowhere other", "nowhere does not exist"),
    ],
)
def test_wrong_usage_gets_one_line(command, message, capsys):
    Path("letter.txt").write_text("dear")
    assert main(command.split()) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert [path.name for path in Path().iterdir()] == ["letter.txt"]  # nothing was begun


@pytest.mark.parametrize(("signal", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_stopped_says_how_to_go_on(signal, code, monkeypatch, capsys):
    def stopped(*_, **__):
        raise Stopped(signal)

    monkeypatch.setattr(variants, "train", stopped)
    assert main(["sweep", "ppo", "--run-dir", "mine"]) == code
    assert "with --run-dir mine goes on" in capsys.readouterr().err


def test_commands_of_agents_show_their_options(capsys):
    for name in ("train", "sweep", "ablate"):
        assert main([name]) == 2
        with pytest.raises(SystemExit):
            main([name, "ppo", "--help"])
        assert "--learning-rate" in capsys.readouterr().out
