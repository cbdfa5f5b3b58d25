"""A check may be likeness only if a deliberate, right edit fails it; else it would be a truth that shies away."""

import json
import sys
from pathlib import Path

import pytest

from probes import check
from probes.ladder import LADDER
from probes.oracles import ORACLES
from probes.oracles.base import LIKENESS
from probes.oracles.memory import MEMORY_ORACLES
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
    "optimiser_goes_on": "Adam afresh at each sync",
    "learned_targets": "cosine learning rate",
    "convolved_images": "padded convolutions",
    "named_activation": "GELU",
    "schedule": "cosine learning rate",
    "whole_batches": "V-trace",
    "exact_policy": "KL penalty beside the clip",
    "exact_value": "Huber value loss",
    "exact_entropy": "entropy bonus annealed",
    "fraction_clipped": "clip around an average policy",
    "traced_targets": "policy and value in phases of their own",
    "smoothed_away": "restarts about the best mean",
    "far_optimum": "normalised observations",
    "counted_steps": "two gradient steps a cycle",
    "counted_episodes": "restarts about the best mean",
    "generation_counts": "restarts about the best mean",
    "floor_of_kl": "relative entropy policy search",
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
    "losses_apart": "burn-in",
    "known_cell": "minimal gated unit",
    "memory_gradients": "a critic that teaches the memory half as much",
    "soft_bandit_1": "entropy bonus annealed",
    "soft_bandit_2": "entropy bonus annealed",
}

STAND_INS = [name for name in FAILED_BY if name in ORACLES and ORACLES[name].instead_of]
NOT_IN_ROWS = [*STAND_INS, *(name for name in FAILED_BY if name in MEMORY_ORACLES)]


def test_each_likeness_has_a_right_edit():
    likeness = {name for name, x in (ORACLES | MEMORY_ORACLES | LADDER).items() if x.holds == LIKENESS}
    assert FAILED_BY.keys() == likeness
    assert edits.BY_NAME.keys() >= {*FAILED_BY.values()}


def test_a_right_edit_fails_each_likeness_that_an_edited_agent_is_asked():
    """By the rows of `python scripts/edits_score.py`."""
    rows = json.loads((SCRIPTS / "results" / "edits.json").read_text())
    for name in FAILED_BY.keys() - NOT_IN_ROWS:
        assert [name, LIKENESS] in rows[f"edit/{FAILED_BY[name]}"]["failed"], name


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_IN_ROWS)
def test_a_right_edit_fails_a_likeness_that_no_row_shows(name, tmp_path):
    edit = edits.BY_NAME[FAILED_BY[name]]
    (tmp_path / "edited.py").write_text(edits.edited(edit))
    asked = check.ask((ORACLES | MEMORY_ORACLES)[name], load_agent(str(tmp_path / "edited.py")))
    assert asked.fault, asked.why
