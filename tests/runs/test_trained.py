"""Trained seeds: exported, loaded by a copied file, played, drawn; and runs run again."""

import importlib.util
import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import counting_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SMALL, child_environment
from PIL import Image

import rlref
from rlref import cem, dqn, ppo
from rlref.cli import main
from rlref.errors import UsageError
from rlref.runs import files, playing, trained
from rlref.runs.leaves import policy_leaves
from rlref.runs.metric_pieces import metric_files, read_metrics
from rlref.runs.reproduce import reproduce

MODULES = {"ppo": ppo, "dqn": dqn, "cem": cem}
ENV = counting_env.Counting()


@pytest.fixture(scope="module", params=["ppo", "dqn", "cem"])
def run(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "run"
    config = SMALL[request.param].replace(env_id="counting_env:make_env")
    return rlref.train(request.param, config, num_seeds=3, seed=5, run_dir=path)


@pytest.fixture(scope="module")
def ppo_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "run"
    config = SMALL["ppo"].replace(env_id="counting_env:make_env")
    params = counting_env.Params(reward=3.0)
    return rlref.train("ppo", config, num_seeds=2, run_dir=path, env_params=params)


def observations():
    return np.random.default_rng(0).uniform(0, 5, (10, 2)).astype(np.float32)


def test_policy_leaves_are_what_acting_reads():
    def leaves(agent):
        return policy_leaves(agent, ENV, ENV.default_params)

    normalised = leaves(ppo.make(SMALL["ppo"], ENV))
    assert {"obs_moments/mean", "obs_moments/variance", "return_moments/variance"} <= set(normalised)
    assert not [
        name for name in normalised if name.startswith(("opt_state", "key", "env_state", "ring", "obs_moments/c"))
    ]
    plain = leaves(ppo.make(SMALL["ppo"].replace(normalize_observations=False, scale_rewards=False), ENV))
    assert plain
    assert all(name.startswith("params/") for name in plain)
    assert all(name.startswith("params/") for name in leaves(dqn.make(SMALL["dqn"], ENV)))
    assert leaves(cem.make(SMALL["cem"], ENV)) == ["mean"]


def test_exported_seed_is_loaded_by_the_copied_file(run, tmp_path):
    one = trained.of_folder(run.path)
    file = tmp_path / "seed.npz"
    one.export(one.row(6), file)
    copy = tmp_path / f"copied_{run.agent}.py"
    copy.write_text((run.path / "source" / f"{run.agent}.py").read_text())
    spec = importlib.util.spec_from_file_location(copy.stem, copy)
    module = sys.modules[copy.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    agent, state = module.load(file, ENV)
    act = run.policy(6)
    first, *others = observations()
    assert playing.choose(agent.policy(state, first), ENV.action_space(), None) == act(first)
    policies = jax.jit(jax.vmap(agent.policy, (None, 0)))(state, np.stack(others))
    for obs, policy in zip(others, policies, strict=True):
        assert playing.choose(policy, ENV.action_space(), None) == act(obs)
    with pytest.raises(UsageError, match="exists already"):
        one.export(one.row(6), file)


@pytest.mark.slow
def test_exported_values_are_the_trained_ones(ppo_run, tmp_path):
    one = trained.of_folder(ppo_run.path)
    one.export(1, tmp_path / "seed.npz")
    agent, state = ppo.load(tmp_path / "seed.npz", ENV)
    final = {name: x[1] for name, x in one.leaves.items()}
    values = [agent.value(state, jnp.asarray(obs)) for obs in observations()]
    expected = [agent.value(one.state(one.job.config, final), jnp.asarray(obs)) for obs in observations()]
    np.testing.assert_array_equal(values, expected)
    assert len(set(map(float, values))) == 10


def test_loading_with_another_agent_says_so(run, tmp_path):
    one = trained.of_folder(run.path)
    one.export(0, tmp_path / "seed.npz")
    other = MODULES[{"ppo": "dqn", "dqn": "cem", "cem": "ppo"}[run.agent]]
    with pytest.raises((TypeError, ValueError), match=r"unexpected keyword|of another agent"):
        other.load(tmp_path / "seed.npz", ENV)
    with pytest.raises(UsageError, match="settings do not fit"):
        trained.of_file(tmp_path / "seed.npz", agent=other.__name__.rpartition(".")[2])


def test_play_plays_what_the_policy_does(run):
    one = trained.of_folder(run.path)
    played = one.play(one.row(7), episodes=4, seed=0)
    assert played.keys() == ({"greedy"} if run.agent == "dqn" else {"greedy", "sampled"})
    returns, lengths = played["greedy"]
    assert (lengths == 5).all()
    assert set(returns) <= {0, 2, 4, 6, 8, 10}
    act = run.policy(7)
    # The same four episodes by hand.
    for i, key in enumerate(jax.random.split(jax.random.key(0), 4)):
        key, key_reset = jax.random.split(key)
        obs, state = ENV.reset(key_reset, ENV.default_params)
        total = 0.0
        for t in range(5):
            _, key_env = jax.random.split(jax.random.fold_in(key, t))
            obs, state, reward, *_ = ENV.step(key_env, state, act(obs), ENV.default_params)
            total += float(reward)
        assert total == returns[i]


@pytest.mark.slow
def test_environment_parameters_come_from_the_folder(ppo_run, tmp_path):
    one = trained.of_folder(ppo_run.path)
    assert one.job.env_params.reward == 3.0
    one.export(0, tmp_path / "seed.npz")
    assert trained.of_file(tmp_path / "seed.npz").job.env_params.reward == 3.0
    assert set(one.play(0, 8, 0)["greedy"][0]) <= {0, 3, 6, 9, 12, 15}


@pytest.mark.slow
def test_commands(ppo_run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = str(ppo_run.path)
    assert main(["export", path, "--seed", "1", "--out", "one.npz", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == "one.npz"
    assert main(["play", "one.npz", "--episodes", "3", "--json"]) == 0
    from_file = json.loads(capsys.readouterr().out)
    assert main(["play", path, "--seed", "1", "--episodes", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == from_file
    assert len(from_file["sampled"]["returns"]) == 3
    assert main(["play", path]) == 0
    assert re.search(r"greedy .* sampled ", capsys.readouterr().out.replace("\n", " "))
    assert main(["reproduce", path, "--updates", "7"]) == 0
    assert "the same: 7 updates of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["play", "RUN", "--seed", "9"], "no seed 9; it has 0 to 1"),
        (["play", "RUN", "--setting", "1"], "no setting 1"),
        (["play", "RUN", "--episodes", "0"], "--episodes is 0"),
        (["play", "RUN", "--gif", "x.png"], "must end in .gif"),
        (["play", "RUN", "--gif", "x.gif"], "nothing draws Counting: a method render"),
        (["play", "nothing"], "does not exist"),
        (["play", "RUN/config.json"], "is not what `rlref export` writes"),
        (["export", "RUN", "--seed", "3"], "no seed 3"),
        (["export", "RUN", "--out", "no/such/folder.npz"], "cannot write"),
        (["reproduce", "nothing"], "does not exist"),
        (["diagnose", "n" * 300], "File name too long: nnn"),
        (["reproduce", "RUN", "--updates", "21"], "--updates is 21; the run has 20"),
        (["train", "--resume", "nothing"], "does not exist"),
        (["train", "--resume", "RUN"], "is finished"),
        (
            ["train", "--resume", "RUN", "--gamma", "0.5", "--num-seeds", "3"],
            "gamma is 0.99 there, not 0.5; num_seeds is 2",
        ),
        (["train", "--resume", "RUN", "--env-params", "reward=2"], "env_params are"),
        (["train", "dqn", "--resume", "RUN"], "another agent, or changed since"),
        (["train", "ppo", "--coordinator", "localhost:1"], "--coordinator goes with --distributed"),
        (["train", "ppo", "--resume", "RUN", "--total-timesteps", "12"], "fewer than the 20"),
    ],
)
def test_wrong_usage_is_one_line(ppo_run, arguments, message, capsys):
    arguments = [a.replace("RUN", str(ppo_run.path)) for a in arguments]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_an_exported_seed_of_an_edited_agent_needs_its_file(tmp_path):
    edited = tmp_path / "cem.py"
    edited.write_text(Path(cem.__file__).read_text() + "# edited\n")
    config = SMALL["cem"].replace(env_id="counting_env:make_env")
    own = rlref.train(edited, config, num_seeds=1, run_dir=tmp_path / "own", checkpoint_every=0)
    trained.of_folder(own.path).export(0, tmp_path / "own.npz")
    with pytest.raises(UsageError, match=r"trained with another .*: give it, as --agent"):
        trained.of_file(tmp_path / "own.npz")
    assert trained.of_file(tmp_path / "own.npz", agent=str(edited)).play(0, 2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["Catch-bsuite", "stacked:2:Catch-bsuite"])
def test_gif_is_written(tmp_path, env_id):
    config = SMALL["cem"].replace(env_id=env_id)
    run = rlref.train("cem", config, num_seeds=1, run_dir=tmp_path / "run", checkpoint_every=0)
    one = trained.of_folder(run.path)
    one.draw(0, 0, tmp_path / "catch.gif")
    with Image.open(tmp_path / "catch.gif") as image:
        assert image.n_frames == 9  # a ball that falls through nine rows
    with pytest.raises(UsageError, match="exists already"):
        one.draw(0, 0, tmp_path / "catch.gif")


class Drawn(counting_env.Counting):
    """It draws itself: the brighter the later."""

    def render(self, state):
        return np.full((8, 8, 3), 40 * int(state.time), np.uint8)

    def html(self, states):
        return " ".join(f"{int(state.time)}" for state in states)


@pytest.mark.slow
def test_an_environment_that_draws_itself_is_drawn_up_to_its_end(tmp_path):
    run = rlref.train("cem", SMALL["cem"], env=Drawn(), num_seeds=2, run_dir=tmp_path / "run", checkpoint_every=0)
    one = trained.of_folder(run.path, env=Drawn())
    one.draw(1, 0, tmp_path / "counting.gif")
    with Image.open(tmp_path / "counting.gif") as image:
        shades = []
        for i in range(image.n_frames):
            image.seek(i)
            shades.append(np.asarray(image.convert("RGB"))[0, 0, 0])
    assert shades == [0, 40, 80, 120, 160]  # before each of its five steps, and nothing of the next episode
    one.page(1, 0, tmp_path / "counting.html")
    assert (tmp_path / "counting.html").read_text() == "0 1 2 3 4"
    with pytest.raises(UsageError, match="exists already"):
        one.page(1, 0, tmp_path / "counting.html")


@pytest.mark.slow
def test_reproduce_finds_the_same(ppo_run):
    report = reproduce(ppo_run.path)
    assert report.difference is None
    assert report.updates == 20
    assert report.changed == []
    assert report.metrics == len(ppo_run.metrics) - 1


@pytest.mark.slow
def test_reproduce_finds_the_update_that_parts(ppo_run, tmp_path):
    shutil.copytree(ppo_run.path, tmp_path / "run")
    (start, file), *_ = reversed(metric_files(tmp_path / "run", 0))
    metrics = read_metrics(file)
    metrics["entropy"] = metrics["entropy"].copy()
    metrics["entropy"].view(np.int32)[1, 2] += 1  # the last bit of one number
    files.save_arrays(file, metrics)
    difference = reproduce(tmp_path / "run").difference
    assert (difference.update, difference.seed, difference.metrics) == (start + 2, 1, ["entropy"])
    environment = files.read_json(tmp_path / "run" / "environment.json")
    environment["versions"]["jax"] = "0.0.1"
    files.write_json(tmp_path / "run" / "environment.json", environment)
    report = reproduce(tmp_path / "run", updates=start + 3)
    assert f"part at update {start + 2} of {start + 3} updates" in report.text()
    assert f"jax was 0.0.1 and is {jax.__version__}" in report.text()
    environment["versions"]["jax"] = jax.__version__
    resumed = environment | {"cpu": "another", "versions": environment["versions"] | {"jax": "0.0.2"}}
    files.write_json(tmp_path / "run" / "environment.json", environment | {"resumed": [resumed]})
    report = reproduce(tmp_path / "run", updates=start + 2)
    assert report.difference is None
    assert [text.partition(" and is")[0] for text in report.changed] == ["jax was 0.0.2", "cpu was another"]


@pytest.mark.slow
def test_two_processes_train_one_run_and_one_goes_on(tmp_path):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    small = "--extra-variance 0 --num-generations 12 --population-size 8 --elite-fraction .25 --num-rollouts 1"
    small += " --hidden-sizes 4 --num-seeds 3"
    common = ["train", "cem", *small.split(), "--run-dir", str(tmp_path / "run"), "--checkpoint-every", "4", "--json"]
    hosts = ["--distributed", "--coordinator", f"localhost:{port}", "--num-processes", "2"]
    variables = child_environment() | {"JAX_NUM_CPU_DEVICES": "1"}
    command = [sys.executable, "-m", "rlref.cli", *common, *hosts, "--process-id"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": variables}
    processes = [subprocess.Popen([*command, str(i)], **pipes) for i in range(2)]
    try:
        outputs = [process.communicate(timeout=500) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    summary = json.loads(outputs[0][0])
    assert (summary["status"], len(summary["scores"])) == ("finished", 3)
    assert outputs[1][0] == ""  # one speaks for both
    run = rlref.load(tmp_path / "run")
    assert np.isfinite(run.metrics["env_steps"]).all()
    alone = rlref.train("cem", cem.Config(**settings(run)), num_seeds=3)
    np.testing.assert_allclose(run.metrics["std_mean"][:, 0], alone.metrics["std_mean"][:, 0], rtol=1e-5)
    with pytest.warns(UserWarning, match="goes on elsewhere.*devices was"):
        longer = rlref.resume(tmp_path / "run", total_timesteps=20 * 8 * 500)
    assert longer.metrics["env_steps"].shape == (3, 20)
    assert np.isfinite(longer.metrics["env_steps"]).all()


def settings(run):
    return run.config | {"hidden_sizes": tuple(run.config["hidden_sizes"])}
