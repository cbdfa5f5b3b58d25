"""Edits that users make to a copy of an agent: right ones train, wrong diagnostics are told of in a line."""

import inspect
import re

import flax
import numpy as np
import pytest

import rlref
from rlref import cem, dqn, ppo
from rlref.contract import load_agent
from rlref.errors import UsageError
from rlref.search import space

SMALL = {
    ppo: {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "total_timesteps": 96},
    dqn: {"num_envs": 2, "train_frequency": 4, "cycles_per_update": 4, "total_timesteps": 96, "learning_starts": 32,
          "buffer_size": 64, "batch_size": 8, "target_network_frequency": 16},
    cem: {"num_generations": 3, "population_size": 8, "elite_fraction": 0.5, "num_rollouts": 1, "num_eval_rollouts": 1},
}  # fmt: skip
CLIP = r"return optax\.chain\(.*\)\n"
WHOLE = [  # as the comment in the agents says
    (r"( +)(change, \w+) = optimizer\.update\(gradient, (.*), params\)\n",
     r"\1\2 = optimizer.update(unravel(gradient), \3, unravel(params))\n\1change = ravel_pytree(change)[0]\n"),
    (r"\.init\(ravel_pytree\(params\)\[0\]\)", ".init(params)"),
]  # fmt: skip
PLAIN = """class Network(nn.Module):
    num_outputs: int
    discrete: bool
    hidden_sizes: tuple
    activation: str
    layer_norm: bool  # of DQN it is conv_layers: it has one field less
    conv_layers: tuple = ()

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
        source, count = re.subn(old, new, source)
        assert count == 1, old
    path = folder / f"my_{agent.__name__.rpartition('.')[2]}.py"
    path.write_text(source)
    return path


def trained(agent, path):
    module = load_agent(path)
    return rlref.train(module, module.Config(**SMALL[agent]), num_seeds=2)


@pytest.mark.parametrize("agent", [pytest.param(ppo, id="ppo"), pytest.param(dqn, id="dqn", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "optimiser",
    [pytest.param(x, id=name, marks=[] if name == "rmsprop" else pytest.mark.study) for name, x in OPTIMISERS.items()],
)
def test_optimisers_of_optax_train(agent, optimiser, tmp_path):
    run = trained(agent, copy_of(agent, tmp_path, (CLIP, f"return {optimiser}\n")))
    assert (run.metrics["nonfinite"] == 0).all()
    assert (run.metrics["update_ratio"][:, -1] > 0).all()
    if agent is ppo:
        adam = "adamw" in optimiser or "schedule" in optimiser
        assert np.isfinite(run.metrics["gradient_noise_scale"]).all() == adam


@pytest.mark.slow
@pytest.mark.parametrize("agent", [ppo, dqn], ids=["ppo", "dqn"])
@pytest.mark.parametrize(
    "optimiser",
    ["optax.lamb(learning_rate)", pytest.param("optax.contrib.muon(learning_rate)", marks=pytest.mark.study)],
)
def test_an_optimiser_that_looks_at_layers_trains_as_the_comment_says(agent, optimiser, tmp_path):
    run = trained(agent, copy_of(agent, tmp_path, (CLIP, f"return {optimiser}\n"), *WHOLE))
    assert (run.metrics["nonfinite"] == 0).all()
    assert (run.metrics["update_ratio"][:, -1] > 0).all()


@pytest.mark.parametrize("agent", [pytest.param(ppo, id="ppo"), pytest.param(dqn, id="dqn", marks=pytest.mark.slow)])
def test_a_network_of_ones_own_that_sows_nothing_trains(agent, tmp_path):
    value = "Categorical(jax.nn.log_softmax(outputs)), nn.Dense(1)(x)[..., 0]" if agent is ppo else "outputs"
    own = (r"class Network\(nn\.Module\):(.|\n)*?\n\n\n", PLAIN.replace("RETURN", value))
    run = trained(agent, copy_of(agent, tmp_path, own))
    assert np.isnan(run.metrics["dormant_fraction"]).all()
    assert (run.metrics["nonfinite"] == 0).all()


@pytest.mark.slow
def test_settings_of_ones_own_are_checked_as_their_fields_say(tmp_path):
    own = '    my_coef: float = leaf(0.5, "[0, 1]")\n    anything: Any = static("x")\n    loose: int = 0\n'
    path = copy_of(ppo, tmp_path, (r"    env_id: str = .*\n", '    env_id: str = static("CartPole-v1")\n' + own))
    assert trained(ppo, path).metrics["env_steps"][0, -1] == 96
    module = load_agent(path)
    with pytest.raises(UsageError, match=r"my_coef is 2.0; it must be float in \[0, 1\]"):
        rlref.train(module, module.Config(**SMALL[ppo], my_coef=2.0))


ENTRY = '        "explained_variance": explained_variance('
WRONG = {  # what is written, what is said, and how many lines further down it stands
    "raises": ('        "my_metric": jnp.concatenate([]),\n', "ValueError: Need at least one array", 0),
    "raises in a function": ('        "my_metric": static(1, 2, 3),\n', "TypeError: static()", 0),
    "raises further down": ('        "my_metric": jnp.sum(\n            1 + absent\n        ),\n', "NameError", 1),
    "no scalar": ('        "my_metric": jnp.ones(3),\n', "one number as the diagnostic 'my_metric', not float32[3]", 0),
    "no number": ('        "my_metric": jnp.asarray,\n', "TypeError", 0),
}  # fmt: skip


def refused(agent, path):
    """The line that training says of a file."""
    with pytest.raises(UsageError) as error:
        trained(agent, path)
    message = str(error.value)
    assert "\n" not in message
    return message


def line_with(path, text):
    (line,) = (i for i, x in enumerate(path.read_text().splitlines(), 1) if text in x)
    return line


@pytest.mark.slow
@pytest.mark.parametrize("agent", [ppo, dqn, cem], ids=["ppo", "dqn", "cem"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_diagnostic_is_one_line_with_its_name_and_line(agent, wrong, tmp_path):
    text, said, further = WRONG[wrong]
    path = copy_of(agent, tmp_path, (re.escape(ENTRY), text + ENTRY))
    message = refused(agent, path)
    assert "the diagnostic 'my_metric'" in message
    assert said in message
    assert message.startswith(f"{path.stem}, line {line_with(path, 'my_metric') + further}")


def test_a_computed_name_is_told_of_by_its_line(tmp_path):
    path = copy_of(ppo, tmp_path, (re.escape(ENTRY), '        f"my_{1}": jnp.concatenate([]),\n' + ENTRY))
    assert refused(ppo, path).startswith(f"my_ppo, line {line_with(path, 'my_{1}')}: ValueError: Need at least one")


def test_a_name_that_a_loop_left_behind_is_not_blamed(tmp_path):
    loop = '    for name in ("kl", "loss"):\n        pass\n    bad = jnp.concatenate([])\n'
    path = copy_of(ppo, tmp_path, (r"    finished = jnp\.arange", loop + "    finished = jnp.arange"))
    assert refused(ppo, path).startswith(f"my_ppo, line {line_with(path, 'bad =')}: ValueError: Need at least one")


def test_a_mistake_in_a_network_is_no_diagnostic(tmp_path):
    path = copy_of(ppo, tmp_path, (r"\(critic\)\[\.\.\., 0\]", "(critic.T @ critic.T)[..., 0]  # here"))
    assert refused(ppo, path).startswith(f"my_ppo, line {line_with(path, '# here')}: TypeError")


def test_a_mistake_elsewhere_is_one_line_with_its_place(tmp_path):
    path = copy_of(ppo, tmp_path, (r"    ratio = jnp\.exp\(log_ratio\)\n", "    ratio = jnp.exp(log_ratio, 1, 2)\n"))
    assert refused(ppo, path).startswith(f"my_ppo, line {line_with(path, 'log_ratio, 1, 2')}: TypeError")


def test_a_policy_that_cannot_act_is_one_line_before_anything_is_written(tmp_path):
    path = copy_of(ppo, tmp_path, (r"jnp\.exp\(distribution\.log_probs\[0\]\)", "jnp.exp(distribution.absent[0])"))
    module = load_agent(path)
    with pytest.raises(UsageError, match=rf"my_ppo, line {line_with(path, 'absent')}: AttributeError"):
        rlref.train(module, module.Config(**SMALL[ppo]), num_seeds=2, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_message_goes_on_where_its_first_line_ends_with_a_colon(tmp_path):
    wrong = "advantage = (x[0] + x[1] * advantage)[None]"
    path = copy_of(ppo, tmp_path, (re.escape("advantage = x[0] + x[1] * advantage"), wrong))
    message = refused(ppo, path)
    assert "equal types" in message
    assert not message.endswith(":")


def test_a_mistake_in_another_file_of_the_user_is_placed_there_too(tmp_path, monkeypatch):
    (tmp_path / "my_metrics.py").write_text("def broken(x):\n    return x.absent\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = '        "my_metric": __import__("my_metrics").broken(1),\n'
    path = copy_of(ppo, tmp_path, (re.escape(ENTRY), text + ENTRY))
    message = refused(ppo, path)
    assert "the diagnostic 'my_metric' (my_metrics.py, line 2): AttributeError" in message


@pytest.mark.parametrize("now", ["", "def ("])
def test_a_file_that_was_changed_since_still_says_what_was_wrong(now, tmp_path):
    path = copy_of(ppo, tmp_path, (re.escape(ENTRY), '        "my_metric": jnp.concatenate([]),\n' + ENTRY))
    module = load_agent(path)
    path.write_text(now)
    with pytest.raises(UsageError, match="ValueError: Need at least one array"):
        rlref.train(module, module.Config(**SMALL[ppo]), num_seeds=2)


def test_settings_in_a_class_of_ones_own_are_refused_in_a_line():
    @flax.struct.dataclass
    class Own(ppo.Config):
        coef: float = ppo.leaf(0.5, "[0, 1]")
        either: float | str | None = ppo.static("auto")

    ppo.check_settings(Own())
    with pytest.raises(ValueError, match=r"coef is 2\.0; it must be"):
        ppo.check_settings(Own(coef=2.0))


def test_a_copy_without_ranges_is_searched_in_the_usual_ones(tmp_path):
    module = load_agent(copy_of(ppo, tmp_path, (r'"interval": interval, "search": search', '"interval": interval')))
    assert space.default_ranges(module.Config()) == space.default_ranges(ppo.Config())
