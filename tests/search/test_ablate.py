import numpy as np
import pytest

from rlref import cem, dqn, ppo
from rlref.errors import UsageError
from rlref.reports.comparison_result import Comparison
from rlref.runs.run import Run
from rlref.search import ablate, variants


def labels(module, **settings):
    changes = ablate.option_switches(module, module.Config(**settings))
    return {label: change for option in changes.values() for label, change in option.items()}


def test_every_option_is_switched():
    assert set(labels(ppo)) == {
        "anneal_lr off", "norm_adv off", "clip_vloss off", "normalize_observations on", "scale_rewards on",
        "activation relu", "activation swish", "layer_norm on", "clip_coef off", "max_grad_norm off", "ent_coef off",
        "gae_lambda off", "target_kl on", "update_epochs off",
    }  # fmt: skip
    assert set(labels(dqn)) == {
        "buffer_dtype uint8", "buffer_dtype bool", "anneal_lr on", "target max", "target expected_sarsa", "loss huber",
        "dueling on", "activation tanh", "max_grad_norm on", "n_step on", "exploration off", "target_network off",
    }  # fmt: skip
    assert set(labels(cem)) == {
        "activation relu", "extra_variance off", "smoothing on", "num_rollouts off", "normalize_observations on",
    }  # fmt: skip


def test_what_is_off_is_switched_on():
    off = {"ent_coef": 0.0, "clip_coef": 1000.0, "norm_adv": False, "target_kl": 0.1, "activation": "relu"}
    changes = labels(ppo, **off)
    assert changes["ent_coef on"] == {"ent_coef": 0.01}
    assert changes["clip_coef on"] == {"clip_coef": 0.2}
    assert changes["norm_adv on"] == {"norm_adv": True}
    assert changes["target_kl off"] == {"target_kl": None}
    assert changes["activation tanh"] == {"activation": "tanh"}
    assert labels(dqn, start_e=0.0, end_e=0.0)["exploration on"] == {"start_e": 1.0, "end_e": 0.05}


def test_without_a_target_network_every_gradient_step_syncs():
    off = {"target_network_frequency": 20, "tau": 1.0}
    assert labels(dqn, train_frequency=20)["target_network off"] == off
    # Syncs that mix are a target network, however often they come.
    assert labels(dqn, train_frequency=20, target_network_frequency=20, tau=0.05)["target_network off"] == off
    assert labels(dqn, train_frequency=20, **off)["target_network on"] == off | {"target_network_frequency": 1000}


@pytest.fixture
def trained(monkeypatch):
    """In place of training: no bonus costs 20, relu brings 20, nothing else matters."""
    given = []

    def train(module, config, variants, *, num_seeds, seed, **_):
        given.append(variants)
        out = {}
        for i, (label, changes) in enumerate(variants.items()):
            effect = -20 * (changes.get("ent_coef") == 0) + 20 * (changes.get("activation") == "relu")
            scores = 100 + effect + np.random.default_rng(100 + i).normal(size=num_seeds)
            metrics = {"env_steps": np.full((num_seeds, 1), 100.0), "return_mean": scores[:, None]}
            seeds = list(range(seed, seed + num_seeds))
            out[label] = Run("ppo", {"env_id": config.env_id}, seeds, metrics, {"status": "finished"})
        return out

    monkeypatch.setattr(variants, "train", train)
    return given


def test_says_which_matter(trained):
    found = ablate.ablate("ppo", ppo.Config())
    assert found.with_verdict("worse") == ["ent_coef off"]
    assert found.with_verdict("better") == ["activation relu"]
    assert set(found.with_verdict("not shown")) == set(labels(ppo)) - {"ent_coef off", "activation relu"}
    hurts, helps, rest = ablate.sentences(found)
    assert hurts == "hurts: ent_coef off"
    assert helps == "helps: activation relu"
    assert rest.startswith("makes no difference that these seeds show: ")
    (table,) = ablate.tables(found)
    assert [row["change"] for row in (table.rows[0], table.rows[-1])] == ["ent_coef off", "activation relu"]
    assert ablate.to_json(found)["changes"]["ent_coef off"] == {"ent_coef": 0.0}
    assert isinstance(found.comparison, Comparison)


def test_one_seed_has_no_interval(trained):
    found = ablate.ablate("ppo", ppo.Config(), num_seeds=1)
    (table,) = ablate.tables(found)
    assert "[undefined]" in table.title
    assert "nan" not in str(table)


def test_only_some_and_others_also(trained):
    ablate.ablate("ppo", ppo.Config(), only=["ent_coef"], also={"num_envs": (8, 16)})
    assert list(trained[0]) == ["as given", "ent_coef off", "num_envs 8", "num_envs 16"]
    with pytest.raises(UsageError, match="Did you mean 'ent_coef'"):
        ablate.ablate("ppo", ppo.Config(), only=["ent_cof"])


def test_what_cannot_be_switched_is_said(trained):
    # CartPole's observations are neither bytes nor bits.
    found = ablate.ablate("dqn", dqn.Config(), only=["buffer_dtype", "dueling"])
    assert list(trained[0]) == ["as given", "dueling on"]
    assert set(found.not_tried) == {"buffer_dtype uint8", "buffer_dtype bool"}
    with pytest.raises(UsageError, match="no option can be switched here"):
        ablate.ablate("dqn", dqn.Config(), only=["buffer_dtype"])
