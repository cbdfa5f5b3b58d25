import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

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


def test_the_first_stage_is_left_out_as_it_chose_the_others():
    given, much = list(range(5)), list(range(10, 15))
    rows = {
        name: {"summaries": [{"method": "as given", "scores": given}, {"method": "swish", "scores": scores}]}
        for name, scores in (("gymnasium:Hopper-v5", much), ("gymnasium:Hopper-v5 again", given))
    }
    assert ablation.together(rows).splitlines()[-1] == "| swish | Hopper-v5 again 0.50 | 1 | 1 |"
