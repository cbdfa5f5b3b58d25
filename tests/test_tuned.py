import importlib.util
import shutil
from pathlib import Path

import pytest

from rlref import cem, dqn, ppo, tuned
from rlref.cli import main, train
from rlref.envs.ids import make_env
from rlref.envs.suites import SUITES, is_installed
from rlref.errors import UsageError
from rlref.runs import training
from rlref.runs.job import agent_of

MODULES = {"ppo": ppo, "dqn": dqn, "cem": cem}


def tuned_pairs():
    """Agents with environments that have settings; what DQN stores of images is tried out, which takes a while.

    Other suites' are tried where these are installed: by .ci/suites.
    """
    for agent, known in tuned.TABLE.items():
        for env_id in known:
            images = agent == "dqn" and env_id.endswith("-MinAtar") and env_id != "Breakout-MinAtar"
            suite = env_id.partition(":")[0]
            there = suite not in SUITES or is_installed(suite)
            if suite == "gymnasium":  # itself among the tests' packages; those with settings are MuJoCo's
                there = importlib.util.find_spec("mujoco") is not None
            absent = pytest.mark.skipif(not there, reason=f"takes {suite}")
            yield pytest.param(agent, env_id, marks=[absent, pytest.mark.study] if images else absent)


@pytest.mark.parametrize(("agent", "env_id"), list(tuned_pairs()))
def test_settings_make_an_agent_and_say_how_they_were_found(agent, env_id):
    config = tuned.config(agent, env_id)
    assert config.env_id == env_id
    agent_of(MODULES[agent], config, *make_env(env_id))
    known = tuned.TABLE[agent][env_id]
    assert known.how
    changed = {name for name, x in known.settings.items() if x != getattr(MODULES[agent].Config(), name)}
    assert changed == set(known.settings), "what is as by default need not be said"


def test_settings_given_come_on_top():
    assert tuned.config("ppo", "Acrobot-v1", learning_rate=0.5).learning_rate == 0.5
    assert tuned.config("ppo", "FourRooms-misc") == ppo.Config(env_id="FourRooms-misc")
    with pytest.raises(UsageError, match="no agent is named 'pp0'"):
        tuned.config("pp0", "Acrobot-v1")


def test_a_file_of_the_users_own_keeps_its_defaults(tmp_path):
    shutil.copy(ppo.__file__, tmp_path / "ppo.py")
    assert tuned.tuned(tmp_path / "ppo.py", "Acrobot-v1") is None
    assert tuned.tuned(Path(ppo.__file__), "Acrobot-v1") is tuned.TABLE["ppo"]["Acrobot-v1"]  # `python -m rlref.ppo`


def test_a_copy_is_told_what_its_original_has(tmp_path, trained, capsys):
    shutil.copy(ppo.__file__, tmp_path / "my_ppo.py")
    told = "the file's own settings; the original's for CartPole-v1 have clip_vloss False, scale_rewards True\n"
    for options, said in (([], told), (["--no-clip-vloss", "--scale-rewards"], ""), (["--defaults"], "")):
        assert main(["train", str(tmp_path / "my_ppo.py"), *options]) == 0
        assert capsys.readouterr().out == said


@pytest.fixture
def trained(monkeypatch):
    """The Configs that `rlref train` would have trained."""
    configs = []
    monkeypatch.setattr(training, "train", lambda module, config, **_: configs.append(config))
    monkeypatch.setattr(train, "train_and_report", lambda options, run_it: run_it() or 0)
    return configs


def test_train_starts_from_them_and_says_so(trained, capsys):
    assert main(["train", "dqn", "--env-id", "MountainCar-v0", "--gamma", ".9", "--num_envs=10"]) == 0
    (config,) = trained
    assert config == tuned.config("dqn", "MountainCar-v0", gamma=0.9, num_envs=10)
    said = capsys.readouterr().out
    assert "settings tuned for MountainCar-v0: train_frequency 5" in said
    assert "buffer_size 50,000" in said
    assert "given otherwise: num_envs, gamma (--defaults: without them)" in said


@pytest.mark.parametrize(
    "written", [["--env-id=Acrobot-v1"], ["--env_id", "Acrobot-v1"], ["--seed", "3", "--env-id", "Acrobot-v1"]]
)
def test_the_environment_is_found_however_it_is_given(trained, written):
    main(["train", "ppo", *written])
    assert trained == [tuned.config("ppo", "Acrobot-v1")]


def test_train_can_do_without(trained, capsys):
    main(["train", "dqn", "--env-id", "MountainCar-v0", "--defaults"])
    main(["train", "dqn", "--env-id", "FourRooms-misc"])
    assert trained == [dqn.Config(env_id="MountainCar-v0"), dqn.Config(env_id="FourRooms-misc")]
    assert capsys.readouterr().out == ""


def test_a_budget_replaces_the_generations(trained, capsys):
    main(["train", "cem", "--env-id", "Acrobot-v1", "--total-timesteps", "5000000"])
    assert "num_rollouts 8; given otherwise: num_generations" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (["--env-id"], "Missing value for argument '--env-id"),
        (["--env-id", "-x"], "Missing value for argument '--env-id"),
        (["--env-id", "Acrobot-v1", "--defaults=True"], "'True' is too much; what is on or off takes no value"),
    ],
)
def test_what_cannot_be_read_is_one_line(trained, capsys, written, message):
    assert main(["train", "ppo", *written]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("rlref: error: ")
    assert said.count("\n") == 1


def test_json_stays_json(trained, capsys):
    main(["train", "dqn", "--env-id", "MountainCar-v0", "--json"])
    assert trained == [tuned.config("dqn", "MountainCar-v0")]
    assert capsys.readouterr().out == ""


def test_help_shows_them(capsys):
    with pytest.raises(SystemExit):
        main(["train", "dqn", "--env-id", "MountainCar-v0", "--help"])
    assert "(default: 50000)" in capsys.readouterr().out  # buffer_size; the agent's own is 10000
