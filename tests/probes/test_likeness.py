"""A check may be likeness only if a deliberate, right edit fails it; else it would be a truth that shies away."""

import sys
from pathlib import Path

import pytest

from probes import check
from probes.ladder import LADDER
from probes.oracles import ORACLES
from probes.oracles.base import LIKENESS
from rlref.contract import load_agent

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import edits  # noqa: E402

FAILED_BY = {
    "each_sample_once": "minibatches with replacement",
    "entropy_bonus": "L2 term in PPO's loss",
    "value_loss": "Huber value loss",
    "policy_loss": "ratio not clipped",
    "gradient_steps": "AdamW",
    "learned_targets": "cosine learning rate",
    "convolved_images": "padded convolutions",
    "schedule": "cosine learning rate",
    "whole_batches": "V-trace",
    "exact_policy": "KL penalty beside the clip",
    "exact_value": "Huber value loss",
    "exact_entropy": "entropy bonus annealed",
    "known_losses": "minibatches with replacement",
    "cut_actions": "actions rescaled to the Box",
    "drawn_spread": "actions rescaled to the Box",
    "chosen_actions": "an epsilon of each environment's own",
    "exploration": "exponential epsilon",
    "replay_odds": "newest replayed more often",
    "bootstrapped_targets": "mean of both networks in the target",
    "td_loss": "L2 term in the loss",
    "optimiser": "Nesterov's momentum",
    "known_epsilon": "exponential epsilon",
    "adam_steps": "Nesterov's momentum",
    "first_after_warm_up": "Nesterov's momentum",
    "two_kinds": "Nesterov's momentum",
    "first_step_size": "Nesterov's momentum",
    "known_target_network": "mean of both networks in the target",
    "known_q_targets": "mean of both networks in the target",
    "newest_targets": "mean of both networks in the target",
    "extra_variance_schedule": "exponential noise",
    "common_numbers": "random numbers of each candidate's own",
    "policy_outputs": "actions cut at their bounds",
    "next_gaussian": "rank-weighted refit",
    "search_distribution": "mirrored sampling",
    "common_starts": "random numbers of each candidate's own",
    "squashed_actions": "actions cut at their bounds",
    "extra_variance_line": "exponential noise",
    "number_of_elites": "rank-weighted refit",
    "refitted_variance": "floor of the standard deviation",
    "large_rewards": "Boltzmann exploration",
    "curved_target": "actions cut at their bounds",
    "soft_bandit_1": "entropy bonus annealed",
    "soft_bandit_2": "entropy bonus annealed",
}


def test_each_likeness_has_a_right_edit():
    likeness = {name for name, x in (ORACLES | LADDER).items() if x.holds == LIKENESS}
    assert FAILED_BY.keys() == likeness
    assert edits.BY_NAME.keys() >= {*FAILED_BY.values()}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAILED_BY if name in ORACLES])
def test_a_right_edit_fails_an_oracle_of_likeness(name, tmp_path):
    edit = edits.BY_NAME[FAILED_BY[name]]
    (tmp_path / "edited.py").write_text(edits.edited(edit))
    asked = check.ask(ORACLES[name], load_agent(str(tmp_path / "edited.py")))
    assert asked.fault, asked.why


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAILED_BY if name in LADDER])
def test_a_right_edit_fails_a_rung_of_likeness(name, tmp_path):
    (tmp_path / "edited.py").write_text(edits.edited(edits.BY_NAME[FAILED_BY[name]]))
    (rung,) = check.run(str(tmp_path / "edited.py"), only=[name], bisect=False).rungs
    assert not rung.ok
