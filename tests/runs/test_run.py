import contextlib
import json
import shutil
import subprocess
from pathlib import Path

import counting_env
import jax
import numpy as np
import pytest

import rlref
from rlref import ppo, stats
from rlref.errors import UsageError
from rlref.runs import files
from rlref.runs.folder import Folder
from rlref.runs.run import Run, summarise

SMALL = ppo.Config(
    total_timesteps=10 * 12, num_envs=3, num_steps=4, num_minibatches=1, update_epochs=1, hidden_sizes=(8,)
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "deep" / "one"
    return rlref.train(
        "ppo", SMALL, num_seeds=2, env=counting_env.Counting(), run_dir=path, note="does it?", command=["x"]
    )


@pytest.fixture
def folder(run, tmp_path):
    config = files.read_json(run.path / "config.json")
    with contextlib.closing(Folder.create(tmp_path / "run", Path(ppo.__file__), {}, config)) as folder:
        yield folder


def test_folder_has_what_it_takes_to_know_the_run(run):
    config = json.loads((run.path / "config.json").read_text())
    assert config["config"]["num_envs"] == 3
    assert config["config"]["hidden_sizes"] == [8]
    assert (config["note"], config["command"], config["seeds"]) == ("does it?", ["x"], [0, 1])
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["versions"]["jax"]
    assert environment["devices"]
    assert (run.path / "source" / "ppo.py").read_text() == Path(ppo.__file__).read_text()


def test_load_gives_the_same_run(run):
    loaded = rlref.load(run.path)
    assert loaded.metrics.keys() == run.metrics.keys()
    for name, x in run.metrics.items():
        np.testing.assert_array_equal(loaded.metrics[name], x, err_msg=name)
    assert loaded.seeds == run.seeds
    assert loaded.config == json.loads(json.dumps(run.config))
    assert loaded.summary["iqm"] == run.summary["iqm"]


def test_loaded_run_has_the_same_policy(run):
    loaded = rlref.load(run.path, env=counting_env.Counting())
    observations = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    for seed in (0, 1):
        trained, again = run.policy(seed), loaded.policy(seed)
        for obs in observations:
            key = jax.random.key(int(1000 * abs(obs[0])))
            assert (trained(obs), trained(obs, key)) == (again(obs), again(obs, key))


def test_loaded_run_says_which_environment_it_lacks(run):
    with pytest.raises(UsageError, match="an environment given from Python, Counting"):
        rlref.load(run.path).policy(0)


def test_frame_has_a_line_per_seed_and_update(run):
    frame = run.to_frame()
    assert len(frame) == 2 * 10
    assert frame.loc[(frame["seed"] == 1) & (frame["update"] == 9), "env_steps"].item() == 120
    assert frame["entropy"].to_numpy().tolist() == run.metrics["entropy"].ravel().tolist()


def test_existing_folder_is_never_overwritten(run):
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    with pytest.raises(UsageError, match="never overwritten"):
        rlref.train("ppo", SMALL, num_seeds=1, env=counting_env.Counting(), run_dir=run.path)
    assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before


def test_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write the run"):
        rlref.train("ppo", SMALL, num_seeds=1, env=counting_env.Counting(), run_dir=tmp_path / "file" / "run")


def test_killed_run_loads_up_to_what_was_written(folder, tmp_path):
    folder.write_metrics(
        {(0, 0): {"env_steps": np.ones((2, 3), np.float32), "return_mean": np.ones((2, 3), np.float32)}}
    )
    (tmp_path / "run" / "metrics" / "row000000-update00000003.npz.part").write_bytes(b"half a file")
    loaded = rlref.load(tmp_path / "run")
    assert loaded.summary["status"] == "being trained"  # as long as a process holds its lock
    assert loaded.metrics["env_steps"].shape == (2, 3)
    folder.close()
    assert rlref.load(tmp_path / "run").summary["status"] == "killed"


@pytest.mark.skipif(not shutil.which("git"), reason="there is no git")
def test_changes_that_are_not_committed_are_kept_byte_for_byte(run, tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, timeout=60)

    git("init")
    (tmp_path / "my_ppo.py").write_text("")
    (tmp_path / "notes.csv").write_bytes(b"a\r\n")
    git("add", "-A")
    git("commit", "-m", "all")
    (tmp_path / "notes.csv").write_bytes(b"caf\xe9\r\n")  # Latin-1, and no UTF-8
    config = files.read_json(run.path / "config.json")
    Folder.create(tmp_path / "run", tmp_path / "my_ppo.py", {}, config).close()
    diff = (tmp_path / "run" / "source" / "uncommitted.diff").read_bytes()
    assert b"-a\r\n+caf\xe9\r\n" in diff
    assert len(files.read_json(tmp_path / "run" / "environment.json")["git_commit"]) == 40


def test_group_that_never_ran_is_nan(folder, tmp_path):
    folder.write_metrics(
        {(0, 0): {"env_steps": np.ones((1, 3), np.float32), "return_mean": np.ones((1, 3), np.float32)}}
    )
    loaded = rlref.load(tmp_path / "run")
    assert np.isnan(loaded.metrics["env_steps"][1]).all()
    assert len(loaded.to_frame()) == 3


def test_pieces_are_written_once_and_joined(folder, tmp_path):
    pieces = {
        (0, u): {"env_steps": np.full((2, 2), u, np.float32), "return_mean": np.zeros((2, 2), np.float32)}
        for u in (0, 2)
    }
    folder.write_metrics(pieces)
    pieces[0, 4] = {"env_steps": np.full((2, 1), 4, np.float32), "return_mean": np.zeros((2, 1), np.float32)}
    folder.write_metrics(pieces)
    assert len(list((tmp_path / "run" / "metrics").iterdir())) == 2
    assert rlref.load(tmp_path / "run").metrics["env_steps"].tolist() == [[0, 0, 2, 2, 4]] * 2


def test_load_of_no_run_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="no run's folder"):
        rlref.load(tmp_path)


def test_load_before_the_first_update_says_so(folder, tmp_path):
    with pytest.raises(UsageError, match="no metrics yet"):
        rlref.load(tmp_path / "run")


def cut_off(path):
    path.write_bytes(path.read_bytes()[:20])


def change_a_digit(path):
    path.write_text(path.read_text().replace("0", "7", 1))


@pytest.mark.parametrize("damage", [cut_off, change_a_digit, Path.unlink])
def test_a_damaged_config_has_a_copy(run, tmp_path, damage):
    shutil.copytree(run.path, tmp_path / "run")
    damage(tmp_path / "run" / "config.json")
    with pytest.warns(UserWarning, match="its copy is read in its place"):
        assert rlref.load(tmp_path / "run").config == run.config
    damage(tmp_path / "run" / "source" / "config.json")
    with pytest.raises(UsageError, match=r"config.json") as error:
        rlref.load(tmp_path / "run")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", [cut_off, change_a_digit])
def test_scores_do_not_come_from_a_damaged_summary(run, tmp_path, damage):
    shutil.copytree(run.path, tmp_path / "run")
    damage(tmp_path / "run" / "summary.json")
    with pytest.warns(UserWarning, match="how the run ended is not known"):
        loaded = rlref.load(tmp_path / "run")
    assert (loaded.summary["status"], loaded.summary["scores"]) == ("killed", run.summary["scores"])


def test_damaged_metrics_are_nan_and_the_rest_loads(folder, tmp_path):
    for u in (0, 2):
        folder.write_metrics({(0, u): {"env_steps": np.ones((2, 2), np.float32), "return_mean": np.ones((2, 2))}})
    file = tmp_path / "run" / "metrics" / "row000000-update00000000.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.warns(UserWarning, match="update00000000.npz is damaged"):
        loaded = rlref.load(tmp_path / "run")
    assert np.isnan(loaded.metrics["env_steps"][:, :2]).all()
    assert (loaded.metrics["env_steps"][:, 2:] == 1).all()


def test_last_is_each_rows_own_last_defined_value():
    nan = np.nan
    assert stats.last(np.array([[1, 2, 3], [4, 5, nan], [6, nan, nan]])).tolist() == [3, 5, 6]
    assert np.isnan(stats.last(np.array([[nan, nan]]))[0])


def test_nonfinite_seeds_are_named_with_their_first_update():
    bad = np.array([[0, 0, 0], [0, 1, 1], [1, 0, 1]], np.float32)
    run = Run(
        "ppo", {}, [5, 6, 7], {"nonfinite": bad, "return_mean": np.ones((3, 3)), "env_steps": np.ones((3, 3))}, {}
    )
    assert summarise(run)["nonfinite"] == [{"seed": 6, "update": 1}, {"seed": 7, "update": 0}]


def test_json_has_null_for_nan(tmp_path):
    files.write_json(tmp_path / "x.json", {"a": [float("nan"), 1.0], "b": float("inf")})
    written = json.loads((tmp_path / "x.json").read_text())
    assert (written["a"], written["b"]) == ([None, 1.0], None)


@pytest.mark.slow
def test_one_setting_of_several():
    both = rlref.train("ppo", SMALL.replace(learning_rate=[1e-3, 1e-2]), num_seeds=2, env=counting_env.Counting())
    one = both.of_setting(1)
    assert one.config == both.config | {"learning_rate": 1e-2}
    assert (one.batched, one.setting) == ([], 1)
    np.testing.assert_array_equal(one.scores, both.scores[1])
    np.testing.assert_allclose(one.metrics["learning_rate"][0, 0], 1e-2)
    assert one.summary["iqm"] == both.summary["iqm"][1]
    for wrong in (-1, 2):
        with pytest.raises(UsageError, match="it has 0 to 1"):
            both.of_setting(wrong)
    with pytest.raises(UsageError, match="not batched"):
        one.of_setting(0)
