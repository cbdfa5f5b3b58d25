"""Every check on a series that is healthy, and on one in which it must fire at a known update of a known seed."""

import dataclasses
import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from healthy import COUNT, PART, SEEDS, UPDATES, healthy

import rlref
from rlref import cem, dqn, health, ppo, ppo_rnn
from rlref.cli import main
from rlref.cli.terminal import Terminal
from rlref.cli.train import TrainOptions, train_and_report
from rlref.health import checks, findings
from rlref.health.checks import CHECKS
from rlref.health.engine import Diagnosis, diagnose, full_precision, nest_by_cause, settings_in_words
from rlref.health.explained import fit_in_words
from rlref.runs import files
from rlref.runs.run import Run, diagnosed

BAD = 5  # the seed that things happen to


def flat(findings):
    for finding in findings:
        yield finding
        yield from flat(finding.follows)


def fired(metrics, config, name, **options):
    """The finding of one check; None if it did not fire."""
    verdict = diagnose(metrics, config, num_updates=UPDATES, **options)
    assert name in verdict.checked, verdict.unchecked.get(name)
    return next((f for f in flat(verdict.findings) if f.check == name), None)


# Check -> its kind, from which update, and what metrics are from then on that fires, and what just does not.
LATE = {
    "nonfinite": ("ppo", 60, {"nonfinite": 1}, {"nonfinite": 0}),
    "first_ratio_off": ("ppo", 60, {"first_ratio_error": 2e-4}, {"first_ratio_error": 9e-5}),
    "ratio_never_moves": ("ppo", 60, {"approx_kl": 0, "clip_fraction": 0}, {"approx_kl": 1e-6, "clip_fraction": 0}),
    "kl_negative": ("cem", 60, {"kl": -1e-5}, {"kl": -1e-7}),
    "gradient_zero": ("dqn", 60, {"grad_norm": 0}, {"grad_norm": 1e-8}),
    "parameters_frozen": ("dqn", 60, {"update_ratio": 0}, {"update_ratio": 1e-4}),
    "learning_rate_off": ("ppo", 60, {"learning_rate": 2.5e-4}, {}),
    "gradient_steps_off": ("ppo", 60, {"gradient_steps": 15}, {"gradient_steps": 16}),
    "epsilon_off": ("dqn", 60, {"epsilon": 0.1}, {"epsilon": 0.055}),
    "exploration_missing": ("dqn", 20, {"action_entropy": 0.0}, {"action_entropy": 0.5}),
    "buffer_off": ("dqn", 60, {"buffer_fill": 0.5}, {"buffer_fill": 0.95}),
    "observations_changed": ("dqn", 60, {"unstorable_fraction": 1e-3}, {"unstorable_fraction": 0}),
    "sample_age_off": ("dqn", 60, {"sample_age": 9000}, {"sample_age": 5500}),
    "target_frozen": ("dqn", 60, {"target_step": 0}, {"target_step": 1e-6}),
    "target_aliased": ("dqn", 60, {"target_distance": 0}, {"target_distance": 1e-6}),
    "elites_below": ("cem", 60, {"elite_mean": 30, "elite_threshold": 20}, {"elite_mean": 190, "elite_threshold": 170}),
    "elites_not_best": ("cem", 60, {"elite_threshold": 10}, {"elite_threshold": 100}),
    "extra_variance_off": ("cem", 60, {"extra_variance": 0.1}, {"extra_variance": 0.002}),
    "floor_not_held": ("cem", 40, {"std_min": 0.1}, {"std_min": 0.25}),
    "targets_out_of_range": ("dqn", 60, {"target_max": 11}, {"target_max": 9}),
    "targets_huge": ("ppo", 60, {"target_min": -500, "reward_min": -10}, {"target_min": -300, "reward_min": -10}),
    "max_return_far": ("cem", 60, {"return_max": 300}, {"return_max": 105}),
    "length_constant": ("ppo", 60, {"length_std": 0, "length_mean": 200}, {"length_std": 0.1}),
    "kl_huge": ("ppo", 60, {"kl": 11}, {"kl": 9}),
    "kl_high": ("ppo", 60, {"kl": 0.2}, {"kl": 0.05}),
    "kl_above_usual": ("ppo", 60, {"kl": 0.03}, {"kl": 0.019}),
    "kl_tiny": ("ppo", 30, {"kl": 1e-6}, {"kl": 1e-4}),
    "update_ratio_high": ("dqn", 60, {"update_ratio": 0.02}, {"update_ratio": 0.004}),
    "update_ratio_low": ("dqn", 60, {"update_ratio": 1e-5}, {"update_ratio": 2e-4}),
    "gradient_clipped": ("ppo", 60, {"grad_norm": 3}, {"grad_norm": 0.49}),
    "explained_variance_negative": ("ppo", 60, {"explained_variance": -0.5}, {"explained_variance": -0.05}),
    "explained_variance_zero": ("dqn", 50, {"explained_variance": 0.01}, {"explained_variance": 0.1}),
    "value_bias": ("dqn", 60, {"value_bias": -5}, {"value_bias": -0.4}),
    "advantage_mean": ("ppo", 70, {"advantage_mean": 5}, {"advantage_mean": 0.4}),
    "value_bound": ("ppo", 60, {"value_max": 150}, {"value_max": 110}),
    "value_impossible": ("ppo", 60, {"value_min": -250}, {"value_min": -150}),
    "soft_divergence": ("dqn", 60, {"value_max": 130}, {"value_max": 110}),
    "entropy_impossible": ("ppo", 60, {"relative_entropy": 1.1}, {"relative_entropy": 1.0}),
    "entropy_collapse": ("ppo", 8, {"relative_entropy": 0.01}, {"relative_entropy": 0.2}),
    "entropy_plateau": ("ppo", 60, {"relative_entropy": np.log(2) / np.log(3)}, {"relative_entropy": 0.6}),
    "dormant_units": ("dqn", 60, {"dormant_fraction": 0.9}, {"dormant_fraction": 0.7}),
    "kl_at_floor": ("cem", 60, {"kl_excess": 0.05}, {"kl_excess": 0.5}),
    "search_widens": ("cem", 60, {"std_mean": 10}, {"std_mean": 1.5}),
    "worse_than_start": ("dqn", 60, {"return_mean": 5}, {"return_mean": 20}),
    "fell_back": ("ppo", 60, {"return_mean": 22}, {"return_mean": 70}),
    "memory_unused": ("ppo_rnn", 60, {"memory_kl": 1e-4}, {"memory_kl": 2e-3}),
    "memory_saturated": ("ppo_rnn", 60, {"memory_saturation": 0.65}, {"memory_saturation": 0.55}),
    "memory_explodes": ("ppo_rnn", 60, {"memory_gradient": 1.3}, {"memory_gradient": 1.05}),
}  # fmt: skip


@pytest.mark.parametrize("name", LATE)
def test_fires_from_where_it_begins_in_the_seed_it_is_in(name):
    kind, since, bad, _ = LATE[name]
    metrics, config = healthy(kind)
    for metric, value in bad.items():
        metrics[metric][BAD, since:] = value
    finding = fired(metrics, config, name)
    assert finding is not None
    assert finding.seeds == (BAD,)
    late = {"fell_back": 10, "search_widens": 10, "entropy_plateau": 20}  # these look at smoothed series
    assert since <= finding.onset <= since + late.get(name, 0)


@pytest.mark.parametrize("name", LATE)
def test_does_not_fire_just_inside_its_limit(name):
    kind, since, _, good = LATE[name]
    metrics, config = healthy(kind)
    for metric, value in good.items():
        metrics[metric][BAD, since:] = value
    assert fired(metrics, config, name) is None


def ramp(start, stop, since=0):
    """From `start` at update `since` to `stop` at the end."""
    return np.interp(COUNT, [since, UPDATES - 1], [start, stop])


# Check -> its kind, settings, all of what it looks at for a seed in which it fires, and the update at which it does.
WHOLE = {
    "no_signal": ("cem", {}, {"return_mean": -200, "return_max": -200, "return_min": -200, "return_std": 0}, 0),
    "undiscounted_without_ends": ("ppo", {"gamma": 1.0}, {"episodes": 0}, 0),
    "entropy_maximal": ("ppo", {}, {"relative_entropy": 0.99, "return_mean": 20}, 40),
    "kl_rises": ("ppo", {}, {"kl": ramp(0.005, 0.2)}, 30),
    "values_drift": ("ppo", {"gamma": 1.0}, {"target_mean": ramp(1, 500)}, 50),
    "overestimation_grows": ("dqn", {}, {"overestimation": ramp(0, 50)}, 30),
    "policy_stuck": ("dqn", {}, {"action_entropy": healthy("dqn")[0]["entropy"][0]}, 30),
    "candidates_alike": ("cem", {}, {"return_std": np.where(COUNT == 0, 0, 10)}, 0),
    "search_collapse": ("cem", {}, {"std_mean": np.where(COUNT < 40, 1, 0.01)}, 40),
    "policy_apart": ("cem", {}, {"mean_policy_return": np.where(COUNT < 40, 60, -20)}, 40),
    "no_progress": ("ppo", {}, {"return_mean": 21}, 50),
}


@pytest.mark.parametrize("name", WHOLE)
def test_fires_on_what_takes_a_whole_training(name):
    kind, changed, bad, onset = WHOLE[name]
    metrics, config = healthy(kind)
    assert fired(metrics, config | {"gamma": 1.0} if name == "values_drift" else config, name) is None
    for metric, value in bad.items():
        metrics[metric][BAD] = value
    finding = fired(metrics, config | changed, name)
    assert finding is not None
    assert finding.seeds == (BAD,)
    assert finding.onset == onset


@pytest.mark.parametrize(("name", "kind"), [("no_signal", "cem"), ("undiscounted_without_ends", "ppo")])
def test_what_is_over_is_withdrawn(name, kind):
    """A signal that came, or an end, however late."""
    _, changed, bad, _ = WHOLE[name]
    metrics, config = healthy(kind)
    for metric, value in bad.items():
        metrics[metric][BAD, :90] = value
    assert fired({metric: x[:, :90] for metric, x in metrics.items()}, config | changed, name).seeds == (BAD,)
    assert fired(metrics, config | changed, name) is None


def test_throughput_falls_in_all_seeds():
    metrics, config = healthy("dqn")
    metrics["steps_per_second"][:, 60:] = 7e4
    assert fired(metrics, config, "throughput_falls") is None
    metrics["steps_per_second"][:, 60:] = 2e4
    finding = fired(metrics, config, "throughput_falls")
    assert 60 <= finding.onset <= 70
    assert finding.seeds == ()


def test_a_generation_as_long_as_its_longest_episode_is_no_fall_of_throughput():
    metrics, config = healthy("cem")
    metrics["steps_per_second"][:, 60:] = 2e4
    metrics["length_std"][:] = 0  # all episodes are alike
    assert fired(metrics, config, "throughput_falls") is not None
    metrics["length_std"][:] = 5
    assert fired(metrics, config, "throughput_falls") is None


@pytest.mark.parametrize(("failed", "disagree"), [(2, False), (3, True)])
def test_seeds_disagree_from_three_in_ten_on(failed, disagree):
    metrics, config = healthy("ppo")
    metrics["return_mean"][:failed] = 25
    finding = fired(metrics, config, "seeds_disagree")
    assert (finding is not None) == disagree
    if finding:
        assert (finding.onset, finding.seeds, finding.value) == (UPDATES - 1, (), failed / SEEDS)


@pytest.mark.parametrize(
    ("ends", "shape", "fires"),
    [
        (100, "over", "policy_class_limits"),
        (np.linspace(99, 102, SEEDS), "over", "policy_class_limits"),
        ([21, *[100] * (SEEDS - 1)], "over", "policy_class_limits"),  # of the middle half it is true
        (np.linspace(85, 115, SEEDS), "over", ""),
        (np.linspace(60, 140, SEEDS), "over", "search_limits"),
        (np.linspace(60, 140, SEEDS), "rising", ""),
        (np.linspace(60, 140, SEEDS), "falling", ""),
        (100, "falling", ""),
    ],
)
def test_searches_that_are_over_end_alike_or_apart(ends, shape, fires):
    metrics, config = healthy("cem")
    rise = {
        "over": np.minimum(np.linspace(0, 3, UPDATES), 1),
        "rising": np.linspace(0, 1, UPDATES),
        "falling": np.interp(np.arange(UPDATES), [0, 60, 99], [0, 2, 1]),
    }[shape]
    metrics["mean_policy_return"][:] = 20 + (np.broadcast_to(ends, SEEDS)[:, None] - 20) * rise
    for name in ("policy_class_limits", "search_limits"):
        finding = fired(metrics, config, name)
        assert (finding is not None) == (name == fires)
        assert finding is None or (finding.onset, finding.seeds) == (UPDATES - 1, ())


def test_all_checks_are_tested():
    across = {"throughput_falls", "seeds_disagree", "policy_class_limits", "search_limits"}
    assert set(CHECKS) == set(LATE) | set(WHOLE) | across


def test_every_check_says_what_it_means_what_to_try_and_who_says_so():
    for one in CHECKS.values():
        assert one.meaning.endswith("."), one.name
        assert one.tries, one.name
        assert one.source, one.name
        assert set(one.explains) <= set(CHECKS), one.name


@pytest.mark.parametrize("kind", ["ppo", "dqn", "cem"])
def test_outcomes_are_not_called_checked_where_no_episode_ended_at_the_start(kind):
    metrics, config = healthy(kind)
    for name in ("return_mean", "return_std", "return_max", "return_min"):
        metrics[name][:, :20] = np.nan
    verdict = diagnose(metrics, config, num_updates=UPDATES)
    for name in ("worse_than_start", "no_progress", "fell_back"):
        assert verdict.unchecked[name] == "an episode that ends in the first tenth of the training"


def test_what_to_try_says_what_the_settings_are_now():
    metrics, _ = healthy("ppo")
    metrics["kl"][BAD, 20:] = 0.5
    default = {"learning_rate": 2.5e-4, "update_epochs": 4, "target_kl": None}
    for known, said in (
        (default, " (now learning_rate 0.00025, update_epochs 4, no target_kl)"),
        ({"learning_rate": 0.07, "target_kl": 0.02}, " (now learning_rate 0.07, target_kl 0.02)"),
        ({}, ""),
    ):
        assert fired(metrics, known, "kl_high", kind="ppo").tries == CHECKS["kl_high"].tries + said
    assert settings_in_words(("anneal_lr", "dueling"), {"anneal_lr": True, "dueling": False}) == (
        " (now with anneal_lr, no dueling)"
    )
    assert settings_in_words(("hidden_sizes", "loss"), {"hidden_sizes": [64, 64], "loss": "huber"}) == (
        " (now hidden_sizes [64, 64], loss huber)"
    )


def test_the_settings_that_advice_speaks_of_exist():
    fields = {"ppo": ppo.Config, "dqn": dqn.Config, "cem": cem.Config, "ppo_rnn": ppo_rnn.Config}
    for one in CHECKS.values():
        known = [{field.name for field in dataclasses.fields(fields[kind])} for kind in one.kinds]
        for name in one.turns:
            assert any(name in names for names in known), (one.name, name)


def test_readme_has_the_table_of_checks():
    assert checks.markdown() in Path(health.__file__).with_name("checks.md").read_text()


@pytest.mark.parametrize("kind", ["ppo", "ppo_rnn", "dqn", "cem"])
def test_a_healthy_run_has_no_findings(kind):
    metrics, config = healthy(kind)
    verdict = diagnose(metrics, config)
    assert verdict.findings == []
    assert len(verdict.checked) > 12


@pytest.mark.parametrize("kind", ["ppo", "dqn", "cem"])
def test_undefined_metrics_never_fire(kind):
    metrics, config = healthy(kind)
    undefined = {name: np.full_like(x, np.nan) for name, x in metrics.items()}
    assert diagnose(undefined, config).findings == []
    for name in metrics:
        assert diagnose(metrics | {name: undefined[name]}, config).findings == [], name
        for part in (slice(0, 50), slice(50, None), slice(None, None, 2)):
            some = metrics[name].copy()
            some[:, part] = np.nan
            assert diagnose(metrics | {name: some}, config).findings == [], (name, part)


@pytest.mark.parametrize("kind", ["ppo", "dqn", "cem"])
def test_what_a_run_lacks_is_named_and_the_rest_is_checked(kind):
    metrics, _ = healthy(kind)
    for name in metrics:
        rest = {other: x for other, x in metrics.items() if other != name}
        verdict = diagnose(rest, {}, kind=kind)
        assert verdict.findings == []
    assert "setting" in diagnose(metrics, {}).unchecked[{"cem": "extra_variance_off"}.get(kind, "learning_rate_off")]


@pytest.mark.parametrize("kind", ["ppo", "dqn", "cem"])
def test_one_update_of_one_seed_is_checked_for_what_shows_at_once(kind):
    metrics, config = healthy(kind)
    one = {name: x[:1, :1].copy() for name, x in metrics.items()}
    verdict = diagnose(one, config, num_updates=UPDATES)
    assert verdict.findings == []
    assert "nonfinite" in verdict.checked
    assert "1 updates, of the 25" in verdict.unchecked["no_signal"]
    one["nonfinite"][:] = 1
    (finding,) = diagnose(one, config, num_updates=UPDATES).findings
    assert (finding.check, finding.onset, finding.seeds) == ("nonfinite", 0, (0,))


def test_an_infinite_metric_fires():
    metrics, config = healthy("ppo")
    metrics["kl"][BAD, 70] = np.inf
    assert fired(metrics, config, "kl_huge").onset == 70


def test_one_noisy_value_is_no_finding():
    metrics, config = healthy("ppo")
    metrics["kl"][:, ::10] = 0.5
    assert fired(metrics, config, "kl_high") is None


def test_target_kl_moves_what_is_usual():
    metrics, config = healthy("ppo")
    metrics["kl"][BAD, 60:] = 0.05
    assert fired(metrics, config, "kl_above_usual").threshold == pytest.approx(0.02)
    assert fired(metrics, config | {"target_kl": 0.01}, "kl_above_usual").threshold == pytest.approx(0.015)
    assert fired(metrics, config | {"target_kl": 0.1}, "kl_above_usual") is None


def test_the_box_of_continuous_actions_counts_in_nats():
    metrics, config = healthy("ppo")
    metrics["relative_entropy"][:] = -0.5 * PART
    metrics["entropy"][:] = 1.4 - 0.5 * PART
    assert diagnose(metrics, config).findings == []
    metrics["relative_entropy"][BAD, 5:] = -5
    assert fired(metrics, config, "entropy_collapse").seeds == (BAD,)


def test_rounding_is_allowed_for_where_matrix_products_are_not_of_full_precision():
    metrics, config = healthy("ppo")
    metrics["first_ratio_error"][:] = 1e-3
    assert fired(metrics, config, "first_ratio_off") is not None
    assert fired(metrics, config, "first_ratio_off", exact=False) is None
    assert full_precision(["cpu", "cpu"], None)
    assert not full_precision(["NVIDIA H200"], None)
    assert full_precision(["NVIDIA H200"], "highest")


def test_where_nothing_more_can_be_gained_there_was_progress():
    metrics, config = healthy("ppo")
    metrics["return_max"][:] = 1
    metrics["return_std"][:, :50], metrics["return_mean"][:, :50] = 1, 0
    metrics["return_std"][:, 50:], metrics["return_mean"][:, 50:] = 0.2, 0.98
    metrics["return_mean"][BAD, 50:] = 0.4
    assert fired(metrics, config, "no_progress").seeds == (BAD,)


def test_a_sick_run_has_one_leading_finding():
    metrics, config = healthy("ppo")
    metrics["relative_entropy"][:, 5:] = 0.001
    metrics["grad_norm"][:, 10:] = 0
    metrics["return_mean"][:] = 21
    (finding,) = [f for f in diagnose(metrics, config).findings if f.worst != "INFO"]
    assert finding.check == "entropy_collapse"
    assert {f.check for f in finding.follows} == {"gradient_zero", "no_progress", "max_return_far"}
    assert finding.worst == "ERROR"
    assert findings.exit_code([finding]) == 1


def one(check, onset=0, last=99, seeds=(0, 1)):
    c = CHECKS[check]
    return findings.Finding(
        check, c.severity, c.title, c.meaning, "", "", onset=onset, last=last, seeds=seeds, num_seeds=8
    )


def test_of_two_that_could_explain_each_other_the_earlier_does():
    early, late = one("gradient_zero", 5), one("entropy_collapse", 9)
    assert [f.check for f in nest_by_cause([late, early])] == ["gradient_zero"]
    early, late = one("gradient_zero", 9), one("entropy_collapse", 5)
    assert [f.check for f in nest_by_cause([late, early])] == ["entropy_collapse"]


def test_nothing_explains_what_was_over_before_it_or_what_other_seeds_have():
    later = one("kl_high", 50), one("entropy_maximal", 10, 40)
    assert len(nest_by_cause(later)) == 2
    elsewhere = one("kl_high", seeds=(0,)), one("entropy_maximal", seeds=(1, 2, 3))
    assert [f.check for f in nest_by_cause(elsewhere)] == ["kl_high", "entropy_maximal"]


def test_information_explains_no_warning():
    assert len(nest_by_cause([one("kl_at_floor"), one("no_progress")])) == 2


def test_errors_come_first():
    order = [f.check for f in nest_by_cause([one("value_bias"), one("gradient_clipped"), one("kl_negative")])]
    assert order == ["kl_negative", "value_bias", "gradient_clipped"]


def test_a_finding_in_words():
    metrics, config = healthy("ppo")
    metrics["kl"][[2, 3, 4, 7], 60:] = 0.2
    said = findings.headline(fired(metrics, config, "kl_high"))
    assert said == "KL high (updates 60 to 99, 4 of 8 seeds (2-4, 7); kl 0.2, against 0.1)"
    assert findings.ranges([]) == ""


def test_the_settings_of_a_sweep_are_checked_each_by_itself():
    metrics, config = healthy("ppo")
    two = {name: np.stack([x, x]) for name, x in metrics.items()}
    two["kl"][1, BAD, 60:] = 0.2
    two["learning_rate"][1] *= 2
    config["learning_rate"] = [2.5e-4, 5e-4]
    run = Run("ppo", config, list(range(SEEDS)), two, {}, ["learning_rate"], UPDATES)
    (finding,) = diagnosed(run).findings
    assert (finding.check, finding.setting, finding.seeds) == ("kl_high", 1, (BAD,))
    assert finding.follows[0].setting == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A short run of CEM."""
    path = tmp_path_factory.mktemp("runs") / "run"
    config = cem.Config(num_generations=6, population_size=16, num_rollouts=2, num_eval_rollouts=2)
    rlref.train("cem", config, num_seeds=2, run_dir=path)
    return path


def test_diagnose_reads_a_run(folder, capsys):
    code = main(["diagnose", str(folder)])
    said = capsys.readouterr().out
    assert "cem on CartPole-v1, finished: 2 seeds, 6 updates" in said
    assert "checks" in said
    assert code == 0
    assert main(["diagnose", str(folder), "--json"]) == code
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"findings", "checked", "unchecked"}
    assert files.read_json(folder / "summary.json")["findings"] == report["findings"]


def test_diagnose_exits_with_1_for_an_error(folder, tmp_path, capsys):
    metrics = rlref.load(folder).metrics
    metrics["elite_mean"][1, 3] = -5
    copy = copied(folder, tmp_path, metrics)
    assert main(["diagnose", str(copy)]) == 1
    said = capsys.readouterr().out
    assert "ERROR  Elites score below the population (update 3, 1 of 2 seeds (1); elite_mean - return_mean" in said
    assert "Try: look at the sign" in said


def test_a_run_that_was_stopped_is_checked_as_far_as_it_got(folder, tmp_path, capsys):
    metrics = {name: x[:, :2] for name, x in rlref.load(folder).metrics.items()}
    assert main(["diagnose", str(copied(folder, tmp_path, metrics))]) == 0
    assert "not checked, for want of 2 updates, of the 3 that it takes" in capsys.readouterr().out


def copied(folder, tmp_path, metrics):
    """The run with other metrics in it."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.npz", "checkpoints"))
    np.savez(copy / "metrics" / "row000000-update00000000.npz", **metrics)
    return copy


def test_damaged_metrics_are_warned_of_and_the_rest_is_checked(folder, tmp_path, capsys):
    metrics = rlref.load(folder).metrics
    copy = copied(folder, tmp_path, {name: x[:, :3] for name, x in metrics.items()})
    second = copy / "metrics" / "row000000-update00000003.npz"
    np.savez(second, **{name: x[:, 3:] for name, x in metrics.items()})
    first = copy / "metrics" / "row000000-update00000000.npz"
    first.write_bytes(first.read_bytes()[:200])
    with pytest.warns(UserWarning, match="is damaged"):
        assert main(["diagnose", str(copy)]) == 0
    second.write_bytes(b"")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(["diagnose", str(copy)]) == 2
    assert "rlref: error: " in capsys.readouterr().err


def test_a_wrong_path_is_one_clear_line(tmp_path, capsys):
    assert main(["diagnose", str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "none" in said


def test_the_training_display_shows_the_leading_finding_as_it_comes():
    display = Terminal()
    step = {"steps_per_second": np.ones((1, 1))}
    try:
        display.progress(1, 3, step, lambda: Diagnosis([], [], {}))
        assert display.verdict.plain == "healthy so far"
        display.progress(2, 3, step, lambda: pytest.fail("asked again at once"))
        display.next_verdict = 0
        display.progress(3, 3, step, lambda: Diagnosis([one("kl_tiny"), one("kl_high")], [], {}))
        assert display.verdict.plain == "WARN: KL high (updates 0 to 99, 2 of 8 seeds (0-1))"
    finally:
        display.live.stop()


@pytest.mark.parametrize(("check", "code"), [("kl_high", 0), ("kl_huge", 1), ("entropy_collapse", 1)])
def test_a_training_with_an_error_exits_with_1(check, code, capsys):
    found = one(check)
    if check == "entropy_collapse":
        found = nest_by_cause([found, one("gradient_zero", 9)])[0]
    summary = {"status": "finished", "nonfinite": [], "findings": [findings.to_json(found)]}
    run = Run("ppo", {}, [0], {}, summary, diagnosis=Diagnosis([found], [], {}))
    assert train_and_report(TrainOptions(json=True), lambda display: run) == code
    assert json.loads(capsys.readouterr().out)["findings"][0]["check"] == check


def test_a_deterministic_policy_and_one_of_a_single_action_have_nowhere_to_go():
    metrics, config = healthy("ppo")
    metrics["approx_kl"][:, 60:] = metrics["clip_fraction"][:, 60:] = 0
    metrics["relative_entropy"][:, 60:] = 0.001
    assert fired(metrics, config, "ratio_never_moves") is None
    metrics["relative_entropy"][:] = np.nan
    assert fired(metrics, config, "ratio_never_moves") is None


def test_a_gradient_of_0_where_nothing_is_left_to_learn_is_none_to_report():
    metrics, config = healthy("dqn")
    metrics["grad_norm"][:, 60:] = metrics["td_loss"][:, 60:] = 0
    metrics["update_ratio"][:, 60:] = 1e-8
    metrics["target_step"][:, 60:] = metrics["target_distance"][:, 60:] = 0
    assert [f for f in diagnose(metrics, config).findings if f.worst != "INFO"] == []


def test_values_are_no_larger_than_networks_begin_with():
    metrics, config = healthy("ppo")
    for name in ("reward_min", "reward_max"):
        metrics[name][:] = 1e-5
    metrics["value_max"][:] = metrics["target_max"][:] = 0.05
    metrics["value_min"][:] = metrics["target_min"][:] = -0.05
    assert fired(metrics, config, "value_impossible") is None


def test_falling_entropy_of_many_actions_is_no_plateau():
    metrics, config = healthy("ppo")
    metrics["relative_entropy"][:] = 1 - 0.35 * PART
    metrics["entropy"][:] = metrics["relative_entropy"] * np.log(64)
    assert fired(metrics, config, "entropy_plateau") is None
    metrics["relative_entropy"][BAD, 50:] = np.log(16) / np.log(64)
    assert fired(metrics, config, "entropy_plateau").seeds == (BAD,)


def test_seeds_that_ended_early_do_not_disagree():
    metrics, config = healthy("ppo")
    for x in metrics.values():
        x[:4, 80:] = np.nan
    assert fired(metrics, config, "seeds_disagree") is None


def test_an_infinite_return_spoils_nothing_after_it():
    metrics, config = healthy("ppo")
    metrics["return_mean"][BAD, 10] = np.inf
    assert [f.check for f in diagnose(metrics, config).findings] == []


def test_all_elites_leave_none_to_compare_with():
    metrics, config = healthy("cem")
    verdict = diagnose(metrics, config | {"elite_fraction": 1.0})
    assert "no elites" in verdict.unchecked["elites_not_best"]


def test_a_check_that_cannot_read_somebodys_settings_says_so():
    metrics, config = healthy("ppo")
    verdict = diagnose(metrics, config | {"gamma": "a schedule"})
    assert "TypeError" in verdict.unchecked["value_bound"] or "ValueError" in verdict.unchecked["value_bound"]


def test_random_findings_are_grouped_without_loss_and_only_with_what_they_can_explain():
    random = np.random.default_rng(0)
    for _ in range(200):
        some = []
        for name in random.choice(list(CHECKS), 8, replace=False):
            onset, length = random.integers(0, 80), random.integers(1, 40)
            seeds = tuple(np.flatnonzero(random.random(8) < 0.4).tolist())
            some.append(one(str(name), int(onset), int(onset + length), seeds))
        out = nest_by_cause(some, 10)
        assert sorted(f.check for f in flat(out)) == sorted(f.check for f in some)
        for root in out:
            for f in root.follows:
                assert not root.seeds or not f.seeds or set(root.seeds) & set(f.seeds)
                assert root.onset <= f.last
                assert f.onset <= root.last + 10


@pytest.mark.parametrize("broken", ["{", '{"lost": "once"}'])
def test_a_damaged_environment_file_costs_nothing_but_precision(folder, tmp_path, broken, capsys):
    copy = copied(folder, tmp_path, rlref.load(folder).metrics)
    (copy / "environment.json").write_text(broken)
    assert main(["diagnose", str(copy)]) == 0
    assert "checks" in capsys.readouterr().out


def test_nothing_defined_is_not_healthy(folder, tmp_path, capsys):
    metrics = {name: np.full_like(x, np.nan) for name, x in rlref.load(folder).metrics.items()}
    assert main(["diagnose", str(copied(folder, tmp_path, metrics))]) == 0
    assert "nothing could be checked" in capsys.readouterr().out


def test_runs_are_given_one_at_a_time(folder, capsys):
    assert main(["diagnose", str(folder), str(folder)]) == 2
    assert "one at a time" in capsys.readouterr().err


@pytest.mark.parametrize(
    "metrics", [{}, {"env_steps": np.zeros(3)}, {"env_steps": np.zeros((9, 3))}], ids=["none", "flat", "too many"]
)
def test_metrics_that_are_none_are_one_clear_line(folder, tmp_path, metrics, capsys):
    copy = copied(folder, tmp_path, metrics)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(["diagnose", str(copy)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_run_without_returns_is_checked_for_the_rest(folder, tmp_path, capsys):
    metrics = {name: x for name, x in rlref.load(folder).metrics.items() if not name.startswith("return_")}
    del metrics["mean_policy_return"]
    assert main(["diagnose", str(copied(folder, tmp_path, metrics))]) == 0
    assert "for want of the metric return_mean" in capsys.readouterr().out


CALM = {"explained_variance": -8.0, "target_std": 0.4, "target_mean": 100.0, "value_bias": 0.9}  # 3 x .4 and .9: 1.5
FITS = [
    (CALM, "value error 1.5 % of the return (targets hardly vary)"),
    (CALM | {"target_std": 20.0}, "explained_variance -8"),
    (CALM | {"explained_variance": np.nan, "target_std": 0.0}, "explained_variance undefined (targets hardly vary)"),
    (CALM | {"target_mean": 0.0, "target_std": 0.0}, "explained_variance undefined (targets hardly vary)"),
    ({"explained_variance": -8.0}, "explained_variance -8"),
]


@pytest.mark.parametrize(("last", "told"), FITS)
def test_explained_variance_is_told_where_targets_vary_else_the_error_of_values(last, told):
    assert fit_in_words({name: np.array([[0.5, x]] * 4) for name, x in last.items()}) == told


def test_before_anything_is_learned_explained_variance_is_undefined():
    assert fit_in_words({name: np.full((2, 1), np.nan) for name in CALM}) == "explained_variance undefined"


def test_seeds_whose_targets_hardly_vary_are_left_out_of_the_explained_variance():
    metrics = {name: np.full((4, 1), x) for name, x in CALM.items()}
    metrics["target_std"][:3], metrics["explained_variance"][:3] = 20.0, 0.7
    assert fit_in_words(metrics) == "explained_variance 0.7 (3 of 4 seeds)"


@pytest.mark.parametrize("std", [9.9, 10.1])
def test_the_words_and_the_check_agree_on_where_targets_vary(std):
    metrics, config = healthy("ppo")
    metrics |= {name: np.full((SEEDS, UPDATES), x) for name, x in (CALM | {"target_std": std}).items()}
    hardly = "hardly vary" in fit_in_words(metrics)
    assert hardly == (fired(metrics, config, "explained_variance_negative") is None) == (std < 10)


def test_the_display_shows_the_error_of_values_where_targets_hardly_vary():
    display = Terminal()
    step = {name: np.full((2, 1), x) for name, x in (CALM | {"steps_per_second": 1.0}).items()}
    try:
        display.progress(1, 3, step, lambda: Diagnosis([], [], {}))
        assert display.diagnostics.plain == "value error 1.5 %  1 steps/s"
    finally:
        display.live.stop()
