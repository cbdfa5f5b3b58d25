"""Edits that users make to a copy of an agent: right ones train, wrong diagnostics are told of in a line."""

import inspect
import re

import numpy as np
import pytest

import rlref
from rlref import cem, dqn, ppo
from rlref.errors import UsageError

SMALL = {
    ppo: {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "total_timesteps": 96},
    dqn: {"num_envs": 2, "train_frequency": 4, "cycles_per_update": 4, "total_timesteps": 96, "learning_starts": 32,
          "buffer_size": 64, "batch_size": 8, "target_network_frequency": 16},
    cem: {"num_generations": 3, "population_size": 8, "elite_fraction": 0.5, "num_rollouts": 1, "num_eval_rollouts": 1},
}  # fmt: skip
CLIP = r"return optax\.chain\(.*\)\n"
WHOLE = [  # as the comment in the agents says
    (r"= optimizer\.update\(gradient, (.*), params\)\n",
     "= optimizer.update(unravel(gradient), OPT_STATE, unravel(params))\n        change = ravel_pytree(change)[0]\n"),
    (r"\.init\(ravel_pytree\(params\)\[0\]\)", ".init(params)"),
]  # fmt: skip
PLAIN = """class Network(nn.Module):
    num_outputs: int
    discrete: bool
    hidden_sizes: tuple
    activation: str
    conv_layers: tuple

    @nn.compact
    def __call__(self, x, init_log_std=None):
        outputs = nn.Dense(self.num_outputs)(nn.tanh(nn.Dense(8)(x)))
        return RETURN


"""
OPTIMISERS = {
    "rmsprop": "optax.rmsprop(learning_rate)",
    "adamw": "optax.adamw(learning_rate, weight_decay=1e-3)",
    "sgd with momentum": "optax.sgd(learning_rate, momentum=0.9)",
    "two of Adam": "optax.chain(optax.adam(learning_rate), optax.scale_by_adam())",
    "a schedule of its own": "optax.adam(optax.linear_schedule(1e-3, 0.0, 100))",
}


def copy_of(agent, folder, *edits):
    """A file with the agent's source, edited by regular expressions that must match once."""
    source = inspect.getsource(agent)
    for old, new in edits:
        source, count = re.subn(old, lambda _, new=new: new, source)
        assert count == 1, old
    path = folder / f"my_{agent.__name__.rpartition('.')[2]}.py"
    path.write_text(source)
    return path


def trained(agent, path):
    from rlref.agents import load_agent

    module = load_agent(path)
    return rlref.train(module, module.Config(**SMALL[agent]), num_seeds=2)


@pytest.mark.parametrize("agent", [ppo, dqn], ids=["ppo", "dqn"])
@pytest.mark.parametrize("optimiser", OPTIMISERS.values(), ids=OPTIMISERS)
def test_any_optimiser_trains(agent, optimiser, tmp_path):
    run = trained(agent, copy_of(agent, tmp_path, (CLIP, f"return {optimiser}\n")))
    assert (run.metrics["nonfinite"] == 0).all()
    assert (run.metrics["update_ratio"][:, -1] > 0).all()
    if agent is ppo:
        adam = "adamw" in optimiser or "schedule" in optimiser
        assert np.isfinite(run.metrics["gradient_noise_scale"]).all() == adam


@pytest.mark.parametrize("agent", [ppo, dqn], ids=["ppo", "dqn"])
@pytest.mark.parametrize("optimiser", ["optax.lamb(learning_rate)", "optax.contrib.muon(learning_rate)"])
def test_an_optimiser_that_looks_at_layers_trains_as_the_comment_says(agent, optimiser, tmp_path):
    own = ("opt_state", " " * 8) if agent is ppo else ("state.opt_state", " " * 4)
    whole = [(old, new.replace("OPT_STATE", own[0]).replace(" " * 8, own[1])) for old, new in WHOLE]
    run = trained(agent, copy_of(agent, tmp_path, (CLIP, f"return {optimiser}\n"), *whole))
    assert (run.metrics["nonfinite"] == 0).all()
    assert (run.metrics["update_ratio"][:, -1] > 0).all()


@pytest.mark.parametrize("agent", [ppo, dqn], ids=["ppo", "dqn"])
def test_a_network_of_ones_own_that_sows_nothing_trains(agent, tmp_path):
    value = "Categorical(jax.nn.log_softmax(outputs)), nn.Dense(1)(x)[..., 0]" if agent is ppo else "outputs"
    own = (r"class Network\(nn\.Module\):(.|\n)*?\n\n\n", PLAIN.replace("RETURN", value))
    run = trained(agent, copy_of(agent, tmp_path, own))
    assert np.isnan(run.metrics["dormant_fraction"]).all()
    assert (run.metrics["nonfinite"] == 0).all()


def test_settings_of_ones_own_are_checked_as_their_fields_say(tmp_path):
    own = '    my_coef: float = leaf(0.5, "[0, 1]")\n    anything: Any = static("x")\n    loose: int = 0\n'
    path = copy_of(ppo, tmp_path, (r"    env_id: str = .*\n", '    env_id: str = static("CartPole-v1")\n' + own))
    assert trained(ppo, path).metrics["env_steps"][0, -1] == 96
    from rlref.agents import load_agent

    module = load_agent(path)
    with pytest.raises(UsageError, match=r"my_coef is 2.0; it must be float in \[0, 1\]"):
        rlref.train(module, module.Config(**SMALL[ppo], my_coef=2.0))


ENTRY = '        "explained_variance": explained_variance('
WRONG = {
    "raises": ('        "my_metric": jnp.concatenate([]),\n', "ValueError: Need at least one array"),
    "raises in a function": ('        "my_metric": static(1, 2, 3),\n', "TypeError: static()"),
    "raises over two lines": ('        "my_metric": jnp.sum(\n            1 + absent\n        ),\n', "NameError: name"),
    "no scalar": ('        "my_metric": jnp.ones(3),\n', "must return one number as the diagnostic"),
    "no number": ('        "my_metric": "high",\n', "Error"),
}  # fmt: skip


@pytest.mark.parametrize("agent", [ppo, dqn, cem], ids=["ppo", "dqn", "cem"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_diagnostic_is_one_line_with_its_name_and_line(agent, wrong, tmp_path):
    text, said = WRONG[wrong]
    path = copy_of(agent, tmp_path, (re.escape(ENTRY), text + ENTRY))
    lines = path.read_text().splitlines()
    line = 1 + next(i for i, x in enumerate(lines) if "my_metric" in x)
    with pytest.raises(UsageError) as error:
        trained(agent, path)
    message = str(error.value)
    assert "\n" not in message
    assert "'my_metric'" in message
    assert said in message
    assert re.search(rf"my_\w+, line ({line}|{line + 1})\b", message), message


def test_a_mistake_elsewhere_is_one_line_with_its_place(tmp_path):
    path = copy_of(ppo, tmp_path, (r"    ratio = jnp\.exp\(log_ratio\)\n", "    ratio = jnp.exp(log_ratio, 1, 2)\n"))
    with pytest.raises(UsageError, match=r"^my_ppo, line \d+: TypeError") as error:
        trained(ppo, path)
    assert "\n" not in str(error.value)
