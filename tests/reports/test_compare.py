import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from gymnax.environments import spaces

from rlref.envs import episodes
from rlref.errors import UsageError
from rlref.reports import compare, reference
from rlref.reports.figure_data import Group
from rlref.reports.methods import Method, read
from rlref.reports.selftest import selftest
from rlref.reports.tables import comparison_tables, comparison_to_json
from rlref.runs import files
from rlref.runs.run import Run, load, summarise

SPREAD = np.random.default_rng(3).normal(0, 1, 64)


def run_of(scores, env_id="CartPole-v1", *, agent="ppo", seeds=None, metrics=None, status="finished", **config):
    """A training of ten updates of 100 steps whose score rises from 0 to each of `scores`."""
    scores = np.asarray(scores, np.float32)
    steps = np.tile(np.arange(100, 1001, 100, dtype=np.float32), (len(scores), 1))
    curves = {"env_steps": steps, "return_mean": np.linspace(0, scores, 10, axis=1).astype(np.float32)}
    seeds = list(range(len(scores))) if seeds is None else seeds
    settings = {"env_id": env_id, "learning_rate": 1e-3, **config}
    return Run(agent, settings, seeds, curves | (metrics or {}), {"status": status}, num_updates=10)


def compared(*scores, **options):
    """A comparison on one environment, of methods a, b, c ..."""
    return compare.compare([Method("abcdef"[i], {"CartPole-v1": run_of(x, **options)}) for i, x in enumerate(scores)])


def final(comparison):
    """The contrasts of the final score."""
    return next(result for result in comparison.results if result.quantity == "final").contrasts


def folder_of(path, env_id="CartPole-v1", agent="ppo", batched=(), digest="0123456789", **config):
    """A run's folder: two seeds, one update, score 1 for each setting's number."""
    settings = len(config[batched[0]]) if batched else 1
    about = {
        "agent": agent,
        "config": {"env_id": env_id, **config},
        "batched": list(batched),
        "seeds": [0, 1],
        "num_settings": settings if batched else None,
        "num_updates": 1,
        "env": None,
        "env_params_values": {"max_steps_in_episode": config.pop("limit", 500)},
        "source_sha256": digest,
    }
    for folder in ("metrics", "source"):
        (path / folder).mkdir(parents=True)
    for name in ("config.json", "source/config.json"):
        files.write_json(path / name, about)
    score = np.repeat(np.arange(settings, dtype=np.float32), 2)[:, None]
    values = {"env_steps": np.full_like(score, 100), "return_mean": score}
    files.save_arrays(path / "metrics" / "row000000-update00000000.npz", values)
    files.write_json(path / "summary.json", {"status": "finished"})
    return str(path)


def described(methods):
    return {method.label: {name: run.agent for name, run in method.runs.items()} for method in methods}


def test_runs_on_one_environment_are_called_by_their_folders(tmp_path):
    one, other = folder_of(tmp_path / "one"), folder_of(tmp_path / "lr=.1")
    assert described(read([one, other])) == {"one": {"CartPole-v1": "ppo"}, "lr=.1": {"CartPole-v1": "ppo"}}


def test_folders_of_one_name_are_called_by_their_paths(tmp_path):
    paths = [folder_of(tmp_path / place / "run") for place in "ab"]
    assert list(described(read(paths))) == paths


def test_a_folder_that_one_stands_in_has_a_name(tmp_path, monkeypatch):
    one, other = folder_of(tmp_path / "one"), folder_of(tmp_path / "other")
    monkeypatch.chdir(one)
    assert list(described(read([".", other]))) == ["one", "other"]


def test_runs_on_several_environments_are_grouped_by_agent(tmp_path):
    paths = [
        folder_of(tmp_path / f"{agent}{env_id}", env_id, agent)
        for agent in ("ppo", "dqn")
        for env_id in ("CartPole-v1", "Acrobot-v1")
    ]
    assert described(read(paths)) == {agent: {"CartPole-v1": agent, "Acrobot-v1": agent} for agent in ("ppo", "dqn")}
    with pytest.raises(UsageError, match=r"ppo has two runs on CartPole-v1: .*LABEL=PATH\[,PATH\.\.\.\]"):
        read([*paths, folder_of(tmp_path / "again")])


def test_labels_say_what_is_one_method(tmp_path):
    a, b = folder_of(tmp_path / "a"), folder_of(tmp_path / "b", "Acrobot-v1")
    c, d = folder_of(tmp_path / "c"), folder_of(tmp_path / "d", "Acrobot-v1", "dqn")
    methods = read([f"mine={a},{b}", f"other={c},{d}"])
    assert described(methods) == {
        "mine": {"CartPole-v1": "ppo", "Acrobot-v1": "ppo"},
        "other": {"CartPole-v1": "ppo", "Acrobot-v1": "dqn"},
    }
    for wrong in (f"={a}", f"mine={a},"):
        with pytest.raises(UsageError, match=r"a method is PATH, or LABEL=PATH"):
            read([wrong])


def test_a_setting_is_chosen_by_its_number(tmp_path):
    sweep = folder_of(tmp_path / "sweep", batched=["gamma"], gamma=[0.9, 0.99, 0.999])
    first, last = read([f"{sweep}#0", f"{sweep}#2"])
    assert (first.label, last.label) == ("sweep#0", "sweep#2")
    run = last.runs["CartPole-v1"]
    assert (run.config["gamma"], run.batched, run.scores.tolist()) == (0.999, [], [2, 2])
    assert run.summary["iqm"] == 2
    assert compare.compare([first, last]).differing[0] == ("CartPole-v1", "gamma", ("0.9", "0.999"))
    with pytest.raises(UsageError, match="has no setting 3; it has 0 to 2"):
        read([f"{sweep}#3"])
    with pytest.raises(UsageError, match=r"several settings on CartPole-v1: choose one, as .*sweep#0"):
        compare.compare([first, Method("all", {"CartPole-v1": load(sweep)})])
    with pytest.raises(UsageError, match="has no setting 0; its settings are not batched"):
        read([folder_of(tmp_path / "one") + "#0"])


def test_what_is_no_method_is_refused():
    one = Method("a", {"CartPole-v1": run_of([1, 2])})
    with pytest.raises(UsageError, match="two methods at least"):
        compare.compare([one])
    with pytest.raises(UsageError, match="two methods are called a"):
        compare.compare([one, one])
    with pytest.raises(UsageError, match="a has no run on Acrobot-v1"):
        compare.compare([one, Method("b", {**one.runs, "Acrobot-v1": run_of([1, 2], "Acrobot-v1")})])
    unscored = run_of([1, 2])
    del unscored.metrics["return_mean"]
    with pytest.raises(UsageError, match="b has no score on CartPole-v1: its agent reports no return_mean"):
        compare.compare([one, Method("b", {"CartPole-v1": unscored})])


def test_a_clear_difference_is_found_and_said():
    comparison = compared(100 + SPREAD[:8], 110 + SPREAD[8:16], 90 + SPREAD[16:24])
    better, worse = final(comparison)
    assert (better.verdict, worse.verdict) == ("better", "worse")
    assert better.low < 10 < better.high
    assert better.probability == 1
    assert worse.probability == 0
    assert comparison.sentences[0].startswith("CartPole-v1, final score: b is better than a: IQM difference 9.9")
    assert "p = .0019 (Holm, 2 comparisons)" in comparison.sentences[0]  # 12 of 12,870 splits, twice
    assert better.p_holm == pytest.approx(2 * better.p)


def test_no_difference_is_said_with_the_seeds_it_would_take():
    (contrast,) = final(compared(100 + SPREAD[:8], 100.3 + SPREAD[8:16]))
    assert contrast.verdict == "not shown"
    assert contrast.seeds_needed > 8
    assert contrast.sentence.startswith("no difference shown between b and a with these 8 seeds: IQM difference ")
    assert contrast.sentence.endswith(f"; about {contrast.seeds_needed:,} per method would show one of this size")


@pytest.mark.parametrize(("m", "n"), [(1, 1), (4, 4), (32, 1), (32, 4)])
def test_too_few_seeds_decide_nothing_however_large_the_difference(m, n):
    (contrast,) = final(compared(SPREAD[:m], 100 + SPREAD[:n]))
    assert contrast.verdict == "undecidable"
    few = f"too few seeds to decide anything: {n} against {m}; it takes 5 of each at least"
    assert contrast.sentence == f"b against a: {few}"
    (contrast,) = final(compared(SPREAD[: max(m, 5)], 100 + SPREAD[:5]))
    assert contrast.verdict == "better"


def test_many_methods_can_be_too_many_for_few_seeds():
    # 4 of 252 splits are as extreme as can be: p < .05, but not four times that.
    assert [c.verdict for c in final(compared(*(100 * i + SPREAD[:5] for i in range(4))))] == ["better"] * 3
    contrasts = final(compared(*(100 * i + SPREAD[:5] for i in range(5))))
    assert {c.verdict for c in contrasts} == {"undecidable"}
    assert "too few seeds to decide anything: with 5 against 5 and 4 comparisons" in contrasts[0].sentence


def test_scores_tied_at_a_ceiling_are_no_evidence():
    (contrast,) = final(compared([500] * 8, [500] * 8))
    assert contrast.sentence == "b against a: no difference: all 16 scores are 500"
    assert (contrast.p, contrast.seeds_needed, contrast.probability) == (1, None, 0.5)
    (contrast,) = final(compared([500] * 8, [500] * 7 + [300]))
    assert contrast.verdict == "undecidable"
    assert "nothing can be decided: 15 of 16 scores are tied, and the smallest p that can come out is 1" in (
        contrast.sentence
    )


def test_the_same_seeds_with_the_same_scores_are_the_same():
    (contrast,) = final(compared(SPREAD[:12], SPREAD[:12]))
    assert contrast.paired
    assert contrast.sentence == "b against a: no difference: the scores are the same, seed by seed"


def test_a_small_p_alone_is_no_difference():
    # Equal middles, unequal spreads: labels matter, but not for the IQM.
    narrow, wide = SPREAD[:24], 6 * SPREAD[24:36]
    (contrast,) = final(compared(narrow, wide - np.sort(wide)[3:9].mean() + 1.2))
    assert contrast.p < 0.05
    assert contrast.low < 0 < contrast.high
    assert contrast.verdict == "not shown"
    assert contrast.sentence.endswith("; they are not distributed alike, but their IQMs may well be equal")


def test_seeds_are_paired_where_they_are_the_same_and_many():
    a = run_of(SPREAD[:12])
    for b, paired in (
        (run_of(SPREAD[:12]), True),
        (run_of(SPREAD[:12], seeds=range(1, 13)), False),
        (run_of(SPREAD[:11]), False),
    ):
        comparison = compare.compare([Method("a", {"CartPole-v1": a}), Method("b", {"CartPole-v1": b})])
        assert final(comparison)[0].paired is paired
    assert not final(compared(SPREAD[:9], SPREAD[9:18]))[0].paired
    assert "with these 12 pairs of seeds" in final(compared(SPREAD[:12], SPREAD[12:24]))[0].sentence


def area_of(**metrics):
    steps = np.arange(100, 1001, 100, dtype=np.float32)[None]
    run = run_of([0], metrics={"env_steps": steps, "return_mean": steps} | metrics)
    return compare.seeds_of([run])[0].area[0]


def test_area_is_the_mean_of_the_score_over_steps():
    # Over 1,000 steps: the first 100 with the first score, 100, and then the steps themselves, 550 on average.
    assert area_of() == pytest.approx(0.1 * 100 + 0.9 * 550)
    late = np.array([[np.nan, np.nan, 300, 400, np.nan, 600, 700, 800, 900, 1000]], np.float32)
    assert area_of(return_mean=late) == pytest.approx(0.3 * 300 + 0.7 * 650)


def test_areas_are_over_the_shortest_training():
    short, long = run_of([1, 1]), run_of([0, 0])
    long.metrics["env_steps"] = long.metrics["env_steps"] * 2
    long.metrics["return_mean"] = long.metrics["env_steps"].copy()
    comparison = compare.compare([Method("a", {"CartPole-v1": short}), Method("b", {"CartPole-v1": long})])
    area = comparison.results[1].summaries[1]
    assert area.mean == pytest.approx(0.2 * 200 + 0.8 * 600)  # of 1,000 steps of 2,000
    assert comparison.warnings == ("the trainings on CartPole-v1 are of different lengths, in steps: a 1,000, b 2,000",)


def test_areas_are_over_the_shortest_seed():
    steps = np.arange(100, 1001, 100) * np.array(
        [[1], [2]]
    )  # CEM's seeds take as many steps as their episodes are long
    areas = compare.seeds_of([run_of([0, 0], metrics={"env_steps": steps, "return_mean": steps})])[0].area
    assert areas == pytest.approx([0.1 * 100 + 0.9 * 550, 0.2 * 200 + 0.8 * 600])


def test_failed_seeds_count_as_the_worst_and_are_told():
    comparison = compared([1, 2, 3, 4], [5, 6, np.nan, np.nan])
    summary = comparison.results[0].summaries[1]
    assert (summary.failed, summary.num_seeds, summary.min) == (2, 4, 1)
    assert summary.mean == pytest.approx((5 + 6 + 1 + 1) / 4)
    assert comparison.warnings == (
        "b on CartPole-v1: 2 of 4 seeds have no score, and count as the lowest of any method",
    )
    assert comparison_tables(comparison)[0].rows[1]["seeds"] == "4, 2 failed"
    with pytest.raises(UsageError, match="no seed of any method has a score"):
        compared([np.nan, np.nan], [np.nan, np.nan])


def test_a_seed_that_diverged_does_not_keep_its_last_score():
    run = run_of([10, 10, 10])
    for name in ("return_mean", "nonfinite"):
        run.metrics[name] = run.metrics.get(name, np.zeros((3, 10), np.float32))
    run.metrics["nonfinite"][0, 5] = run.metrics["nonfinite"][1, 5] = 1
    run.metrics["return_mean"][0, 6:] = np.nan  # seed 1 goes on to be scored; seed 2 ends an episode seldom
    run.metrics["return_mean"][2, 9] = np.nan
    seeds = compare.seeds_of([run])[0]
    assert np.isnan(seeds.final).tolist() == np.isnan(seeds.area).tolist() == [True, False, False]
    assert np.isnan(run.scores).tolist() == [True, False, False]
    assert np.isnan(Group("", run.metrics, run.seeds).scores).tolist() == [True, False, False]
    assert summarise(run)["iqm"] == pytest.approx((run.scores[1] + run.scores[2]) / 2)
    batched = dataclasses.replace(run, metrics={name: np.stack([x, x]) for name, x in run.metrics.items()})
    np.testing.assert_array_equal(batched.scores, np.stack([run.scores] * 2))


def test_what_speaks_against_a_comparison_is_told():
    killed = run_of([1, 2, 3, 4], status="killed")
    for name in killed.metrics:
        killed.metrics[name][3] = np.nan
    diverged = run_of([1, 2, 3, 4], metrics={"nonfinite": np.ones((4, 10), np.float32)})
    diverged.metrics["mean_policy_return"] = diverged.metrics.pop("return_mean")
    comparison = compare.compare([Method("a", {"CartPole-v1": killed}), Method("b", {"CartPole-v1": diverged})])
    status, left, error, kind = comparison.warnings
    assert status == "a on CartPole-v1 did not finish: it is killed"
    assert left == "a on CartPole-v1: 1 of 4 seeds were never begun, and are left out"
    assert error.startswith("b on CartPole-v1 is diagnosed with an ERROR: ")
    assert kind.endswith("are not the same quantity: a return_mean, b mean_policy_return")
    assert comparison.results[0].summaries[0].num_seeds == 3


def test_settings_that_differ_are_listed_and_counted():
    def told(**changes):
        one, other = run_of(SPREAD[:4]), run_of(SPREAD[:4], **changes)
        comparison = compare.compare([Method("a", {"CartPole-v1": one}), Method("b", {"CartPole-v1": other})])
        return comparison.differing, comparison.sentences[-1]

    assert told() == ((), "the runs have the same settings")
    rows, sentence = told(learning_rate=0.01)
    assert rows == (("CartPole-v1", "learning_rate", ("0.001", "0.01")),)
    assert sentence == "the runs differ in learning_rate alone"
    rows, sentence = told(learning_rate=0.01, tau=0.5)
    assert rows[1] == ("CartPole-v1", "tau", ("-", "0.5"))
    assert (
        sentence == "the runs differ in 2 settings (learning_rate, tau): no difference can be put down to one of them"
    )
    rows, sentence = told(agent="dqn", learning_rate=0.01, tau=0.5)  # of two agents, what both have counts
    assert [row.setting for row in rows] == ["agent", "learning_rate"]


def test_an_agent_that_was_edited_is_told(tmp_path):
    folders = [folder_of(tmp_path / name, digest=digest * 64) for name, digest in (("a", "a"), ("b", "b"))]
    methods = read(folders)
    assert compare.compare(methods).differing == (("CartPole-v1", "agent's file", ("aaaaaaaa", "bbbbbbbb")),)
    methods[1].runs["CartPole-v1"].path = None  # one that was not kept does not tell its file
    assert "agent's file" not in {row.setting for row in compare.compare(methods).differing}


def test_another_environment_of_the_same_name_is_warned_of(tmp_path):
    paths = [folder_of(tmp_path / "a"), folder_of(tmp_path / "b", limit=200)]
    comparison = compare.compare(read(paths))
    assert "env_params.max_steps_in_episode" in {row.setting for row in comparison.differing}
    assert "the parameters of CartPole-v1 differ: the methods had other tasks there" in comparison.warnings


@pytest.fixture
def random_scores(monkeypatch):
    known = {"CartPole-v1": 20.0, "Own-v0": -10.0}
    monkeypatch.setattr(reference, "random_return", lambda env_id, values: known[env_id])


def on_two(*per_method):
    """Methods a, b, ... from pairs of scores on CartPole-v1 and Own-v0."""
    return [
        Method("abc"[i], {"CartPole-v1": run_of(x), "Own-v0": run_of(y, "Own-v0")})
        for i, (x, y) in enumerate(per_method)
    ]


def test_scores_on_several_environments_are_normalised_and_pooled(random_scores):
    methods = on_two(([20, 260, 500, 980], [-10, 0, 5, 10]), ([500] * 4, [10] * 4))
    comparison = compare.compare(methods, {"Own-v0": 10})
    assert comparison.scales[0][:3] == ("CartPole-v1", 20, 500)
    assert comparison.scales[1] == ("Own-v0", -10, 10, "given")
    overall = comparison.overall[0]
    assert overall.summaries[0].scores == pytest.approx((0, 0.5, 1, 2, 0, 0.5, 0.75, 1))
    assert overall.summaries[0].iqm == pytest.approx((0.5 + 0.5 + 0.75 + 1) / 4)
    assert overall.summaries[1].iqm == 1
    assert overall.contrasts[0].probability == pytest.approx((10 / 16 + 14 / 16) / 2)
    assert comparison.sentences[0].startswith("all environments, final score: ")
    share = overall.profiles[0].share[np.searchsorted(overall.profiles[0].thresholds, 0.6)]
    assert share == 4 / 8


def test_several_environments_decide_together(random_scores):
    # 4 seeds decide nothing on one environment, but on two.
    methods = on_two((20 + SPREAD[:4], SPREAD[:4]), (60 + SPREAD[:4], 3 + SPREAD[:4]))
    comparison = compare.compare(methods, {"Own-v0": 10})
    assert [result.contrasts[0].verdict for result in comparison.results] == ["undecidable"] * 4
    assert [result.contrasts[0].verdict for result in comparison.overall] == ["better"] * 2


def test_a_missing_reference_is_asked_for(random_scores):
    with pytest.raises(
        UsageError, match="no reference score of Own-v0 is known: give one, as --reference Own-v0=SCORE"
    ):
        compare.compare(on_two(([1, 2], [1, 2]), ([1, 2], [1, 2])))
    with pytest.raises(UsageError, match="reference score of Own-v0 is -20, not above a random policy's -10"):
        compare.compare(on_two(([1, 2], [1, 2]), ([1, 2], [1, 2])), {"Own-v0": -20})


def test_a_reference_that_has_no_use_is_told(random_scores):
    methods = on_two(([1, 2], [1, 2]), ([1, 2], [1, 2]))
    with pytest.raises(UsageError, match="of CartPole-v0, which is not compared; it is of CartPole-v1, Own-v0"):
        compare.compare(methods, {"CartPole-v0": 200, "Own-v0": 10})
    one = [Method(label, {"CartPole-v1": run_of([1, 2])}) for label in "ab"]
    assert "the reference score changes nothing" in compare.compare(one, {"CartPole-v1": 200}).warnings[-1]


def test_scores_of_a_changed_environment_are_not_normalised_by_another_without_a_word(tmp_path):
    tasks = {"CartPole-v1": 10, "Acrobot-v1": 20}  # limits of an episode
    paths = [folder_of(tmp_path / f"{a}{task}", task, a, limit=x) for a in ("ppo", "dqn") for task, x in tasks.items()]
    comparison = compare.compare(read(paths), {"Acrobot-v1": 0})
    assert 8 < comparison.scales[0].random <= 10  # a random policy lasts 22 steps, by itself
    assert comparison.scales[1].random == -20
    assert [text for text in comparison.warnings if "published" in text] == [
        "the published score of CartPole-v1, 500, is of its default parameters, and here it has max_steps_in_episode "
        "10: give one, as --reference CartPole-v1=SCORE"
    ]


def test_environments_with_other_numbers_of_seeds_are_not_pooled(random_scores):
    comparison = compare.compare(on_two(([1, 2, 3], [1, 2]), ([1, 2], [1, 2])), {"Own-v0": 10})
    assert comparison.overall == ()
    assert "a has 3 on CartPole-v1, 2 on Own-v0" in comparison.warnings[-1]


class ThreeSteps:
    """Reward is the action, 0 or 1; an episode is terminated or truncated after three steps."""

    def action_space(self, params):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(-1, 1, (1,))

    def reset(self, key, params):
        return jnp.zeros(1), jnp.int32(0)

    def step(self, key, state, action, params):
        over, cut = (state == 2) & params, (state == 2) & ~params
        return jnp.zeros(1), state + 1, action.astype(float), over, cut, {}


@pytest.mark.parametrize("terminated", [True, False])
def test_returns_of_a_random_policy_are_of_whole_episodes(terminated):
    returns = np.asarray(reference.random_returns(ThreeSteps(), jnp.bool(terminated), episodes=400))
    counts = [np.mean(returns == total) for total in range(4)]
    assert counts == pytest.approx([1 / 8, 3 / 8, 3 / 8, 1 / 8], abs=0.07)


def test_random_actions_are_numbers_where_a_box_has_no_bounds():
    space = spaces.Box(np.array([-1, -np.inf, 0]), np.array([1, np.inf, 1e38]), (3,))
    drawn = np.asarray(
        jax.vmap(lambda key: episodes.random_in_box(space, key))(jax.random.split(jax.random.key(0), 500))
    )
    assert np.abs(drawn).max() < 10
    assert drawn.min(axis=0) == pytest.approx([-1, -3, 0], abs=1)
    whole = spaces.Box(-2, 3, (2,))
    for key in jax.random.split(jax.random.key(1), 3):
        np.testing.assert_array_equal(episodes.random_action(whole, None, key, None), whole.sample(key))


def test_random_policy_of_an_environment_that_never_ends(monkeypatch):
    monkeypatch.setattr(reference, "MAX_STEPS", 10)
    endless = ThreeSteps()
    endless.step = lambda key, state, action, params: (jnp.zeros(1), state, 1.0, jnp.bool(False), jnp.bool(False), {})
    assert reference.random_returns(endless, None, episodes=2).tolist() == [[10, 10]]


def test_references_are_published_or_given():
    assert reference.reference_of("CartPole-v1").score == 500
    assert reference.reference_of("CartPole-v1", {"CartPole-v1": 400}) == (400, "given")
    assert reference.random_return("CartPole-v1") < 30
    assert reference.random_return("Acrobot-v1") < -490  # its parameters hold arrays


def test_profiles_run_from_all_seeds_to_none():
    for scores in ([3, 4, 5], [500] * 3):
        for profile in compared(scores, scores).results[0].profiles:
            assert (profile.share[0], profile.share[-1]) == (1, 0)
            assert (profile.low <= profile.share).all()
            assert (profile.share <= profile.high).all()


def test_tables_are_text_in_columns():
    tables = comparison_tables(compared(SPREAD[:5], 9 + SPREAD[:5]))
    assert [len(table.rows) for table in tables] == [2, 1, 2, 1]
    for table in tables:
        frame = pd.DataFrame(table.rows)
        assert all(isinstance(x, str) and x for x in frame.to_numpy().ravel())
    assert tables[1].title == "CartPole-v1: final score, against a"
    assert tables[1].rows[0]["P(better) [95 % interval]"] == "1.00 [1.00, 1.00]"
    (_, contrast, *_) = comparison_tables(compared([1], [2]))
    assert contrast.rows[0]["IQM difference [95 % interval]"] == "1 [undefined]"


def test_json_holds_everything(random_scores):
    methods = on_two(([1, 2], [1, np.nan]), ([1, 2], [1, 2]))
    comparison = compare.compare(methods, {"Own-v0": 10})
    read = json.loads(files.json_text(comparison_to_json(comparison)))
    assert read["methods"][0] == {"label": "a", "runs": {"CartPole-v1": None, "Own-v0": None}}
    assert read["sentences"] == list(comparison.sentences)
    assert read["scales"][1]["reference"] == 10
    assert read["results"][2]["summaries"][0]["scores"] == [1, None]
    assert len(read["overall"][0]["profiles"][1]["share"]) == compare.THRESHOLDS


def test_selftest_finds_one_split_of_twenty_different():
    found = selftest(run_of(SPREAD[:32]), splits=200)
    assert found.usable
    assert (found.num_seeds, found.tied) == (32, 0)
    assert 0.02 < found.rejected < 0.085
    assert 0.02 < found.excluded < 0.12
    assert f"p < .05 in {100 * found.rejected:.3g} % of 200 random splits, where 5 % is right" in found.sentence
    assert found.sentence.endswith(f"leaves 0 out in {100 * found.excluded:.3g} %")


def test_selftest_finds_a_planted_shift():
    found = selftest(run_of(SPREAD[:32]), splits=100, shift=2)
    assert found.rejected > 0.95
    assert "moved by 2 standard deviations" in found.sentence


def test_selftest_cannot_use_ties_or_few_seeds():
    tied = selftest(run_of([500] * 31 + [492]), splits=20)
    assert not tied.usable
    assert tied.sentence.endswith("31 of its 32 seeds are tied")
    few = selftest(run_of(SPREAD[:8]), splits=20)
    assert not few.usable
    assert few.sentence.endswith("4 against 4 seeds are too few")
    with pytest.raises(UsageError, match="has 3 seeds"):
        selftest(run_of(SPREAD[:3]))
