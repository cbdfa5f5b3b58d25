"""scripts/ablation.py: its trial of more options can be planted, and has them."""

import importlib
from pathlib import Path

import jax
import pytest

from rlref.contract import load_agent


@pytest.fixture
def ablation(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    return importlib.import_module("ablation")


def test_the_trial_has_every_option_and_is_traced_with_all_of_them(ablation, tmp_path):
    path = tmp_path / "ppo_options.py"
    path.write_text(ablation.ppo_options.source())
    module = load_agent(str(path))
    settings = ablation.SETTINGS | {"env_id": "Pendulum-v1", "total_timesteps": 2048}
    all_on = {"layer_norm": True, "state_std": True, "squash": True, "activation": "swish", "critic_sizes": (8,)}
    assert set(all_on) <= {*ablation.ONLY, *ablation.ALSO}
    _, metrics = jax.eval_shape(lambda key: module.train(module.Config(**settings | all_on), key), jax.random.key(0))
    assert metrics["loss"].shape == (1,)
