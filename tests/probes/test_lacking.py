"""Agents whose Config lacks what a probe would set."""

import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from probes import check, lacking
from probes.ladder import LADDER
from probes.oracles import settings_in
from probes.oracles.base import Unknown, emitted
from probes.oracles.contract import COUNT, CannotAskError, Trial
from rlref import cem, dqn, ppo
from rlref.contract import ALL, load_agent


def without(tmp_path, agent, names, *replaced):
    """The path of an agent's file, settings of which have names that no probe knows."""
    source = Path(agent.__file__).read_text()
    for name in names.split():
        source = re.sub(rf"\b{name}\b", f"my_{name}", source)
    for old, new in replaced:
        assert source.count(old) == 1
        source = source.replace(old, new)
    (tmp_path / "lacks.py").write_text(source)
    return str(tmp_path / "lacks.py")


@pytest.mark.parametrize("kind", ALL)
def test_a_config_that_has_everything_gets_what_the_probes_say(kind):
    module = load_agent(kind)
    fields = settings_in(module)
    for probe in LADDER.values():
        if kind not in probe.kinds:
            continue
        own = {**check.SETTINGS[kind], "gamma": probe.gamma, **probe.settings.get(kind, {})}
        if kind == "cem":
            own["num_generations"] = own["updates"]
        else:
            own["total_timesteps"] = math.prod(own[x] for x in ("updates", *lacking.BATCH[kind]))
        settings = check.settings_of(probe, kind, module)
        assert settings == {name: x for name, x in own.items() if name in fields}
        agent = lacking.made(probe, kind, module, settings)
        assert agent.num_updates == own["updates"]
        steps = lacking.steps_of(agent, kind, fields, 5)
        np.testing.assert_array_equal(steps, np.arange(own["updates"]))


def test_only_probes_of_one_step_that_terminates_do_without_gamma():
    free = [name for name, probe in LADDER.items() if not lacking.depends_on_gamma(probe)]
    assert free == [
        "constant", "obs_value", "bandit", "context_bandit", "noisy_bandit", "table", "allowed", "two_choices",
        "exclusive_or", "reset_temptation", "reset_temptation_visible", "noisy_reward", "small_rewards",
        "large_rewards", "soft_bandit_1", "soft_bandit_2", "offset_obs", "continuous_target", "far_optimum",
        "curved_target", "boundary", "pixels", "phase_flip",
    ]  # fmt: skip


@pytest.mark.slow
def test_an_agent_without_any_setting_that_all_probes_set_is_trained_where_the_answer_is_known(tmp_path):
    path = without(tmp_path, ppo, "gamma total_timesteps learning_rate")
    report = check.run(path, only=["constant", "discount", "large_rewards"], num_seeds=1)
    constant, discount, large = report.rungs
    assert (constant.ok, discount.why) == (True, "its Config lacks gamma, on which the answer depends")
    assert large.why == "its Config lacks learning_rate, which the probe has to set"


@pytest.mark.slow
def test_generations_are_as_many_as_the_probe_needs(tmp_path):
    path = without(tmp_path, cem, "num_generations")
    assert check.run(path, only=["bandit"], num_seeds=2).rungs[0].ok


def test_steps_stay_within_those_that_an_agent_means_to_take():
    def steps(count, fields=frozenset()):
        return lacking.steps_of(SimpleNamespace(num_updates=count), "ppo", fields, 6).tolist()

    assert steps(1000) == [0, 1, 2, 3, 4, 5]
    assert steps(3) == [0, 0, 1, 1, 2, 2]
    assert steps(1) == [0]
    assert steps(4, {"total_timesteps"}) == [0, 1, 2, 3]


def test_an_agent_with_a_batch_of_its_own_gets_as_many_updates(tmp_path):
    module = load_agent(without(tmp_path, ppo, "num_envs num_steps"))
    settings = check.settings_of(LADDER["bandit"], "ppo", module)
    assert settings["total_timesteps"] == 100 * 512
    # To average over more than it has, it has to be told; this one has more.
    assert check.settings_of(LADDER["noisy_reward"], "ppo", module)["total_timesteps"] == 100 * 512
    small = load_agent(without(tmp_path, ppo, "num_envs num_steps", ("static(128)", "static(16)")))
    with pytest.raises(ValueError, match="its Config lacks num_steps, which the probe has to set"):
        check.settings_of(LADDER["noisy_reward"], "ppo", small)


@pytest.mark.slow
def test_metrics_of_a_batch_of_its_own_are_not_judged(tmp_path):
    module = load_agent(without(tmp_path, ppo, "num_envs num_steps", ("static(128)", "static(21)")))
    with pytest.raises(CannotAskError, match="one update of it takes 84 steps, whatever is set"):
        emitted(Trial(module, COUNT).run(1), "env_steps")
    assert not Unknown("why")


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "own"), [(ppo, "2.5e-4"), (dqn, "1e-3")])
def test_an_agent_at_its_own_learning_rate_passes_what_can_be_asked(agent, own, tmp_path):
    kind = agent.__name__.removeprefix("rlref.")
    default = r"(my_learning_rate: float = leaf\()[^,]*"
    path = Path(without(tmp_path, agent, "learning_rate"))
    path.write_text(re.sub(default, rf"\g<1>{own}", path.read_text()))
    too_slow = {"ppo": ["large_rewards"], "dqn": ["exclusive_or", "env_axis", "large_rewards"]}[kind]
    report = check.run(str(path), only=["discount", "bandit", "truncation_loop", *too_slow], num_seeds=4)
    assert {rung.probe.name for rung in report.rungs if isinstance(rung, check.Skipped)} == {*too_slow}
    assert [rung.probe.name for rung in report.failures] == []
