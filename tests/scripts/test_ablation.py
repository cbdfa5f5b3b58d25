"""scripts/ablation.py: its trial of more options can be planted, and has them; its test over environments."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from rlref.contract import load_agent

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import ablation

RANDOM = np.random.default_rng(0)


def test_in_one_environment_it_is_the_rank_sum_test():
    x, y = RANDOM.normal(1, 1, size=10), RANDOM.normal(0, 1, size=10)
    assert ablation.stratified([("", x, y)]) == pytest.approx(mannwhitneyu(x, y, method="exact").pvalue, abs=0.01)


def test_a_little_everywhere_is_shown_together_and_scales_do_not_matter():
    group = [("", scale * (np.arange(8) + 1.5), scale * np.arange(8.0)) for scale in (1.0, 100.0, 1e4, 1e6)]
    assert ablation.stratified(group) < 0.05 < ablation.stratified(group[:1])
    assert ablation.stratified([*group[:2], *((name, y, x) for name, x, y in group[2:])]) > 0.9


def test_a_stage_that_chose_an_option_does_not_judge_it():
    given, much = list(range(5)), list(range(10, 15))
    for option, chose, judges in (
        ("swish", "", "again"),
        ("layer_norm", "long", "tuned"),
        ("layer_norm", "last", "tuned"),
    ):
        rows = {
            f"gymnasium:Hopper-v5 {stage}".strip(): {
                "summaries": [{"method": "as given", "scores": given}, {"method": option, "scores": scores}]
            }
            for stage, scores in ((chose, much), (judges, given))
        }
        assert ablation.together(rows).splitlines()[-1] == f"| {option} | Hopper-v5 {judges} 0.50 | 1 | 1 |"


def test_the_trial_has_every_option_and_is_traced_with_all_of_them(tmp_path):
    path = tmp_path / "ppo_options.py"
    path.write_text(ablation.ppo_options.source())
    module = load_agent(str(path))
    settings = ablation.SETTINGS | {"env_id": "Pendulum-v1", "total_timesteps": 2048}
    all_on = {"layer_norm": True, "state_std": True, "squash": True, "activation": "swish", "critic_sizes": (8,)}
    assert set(all_on) <= {*ablation.ONLY, *ablation.ALSO}
    _, metrics = jax.eval_shape(lambda key: module.train(module.Config(**settings | all_on), key), jax.random.key(0))
    assert metrics["loss"].shape == (1,)
