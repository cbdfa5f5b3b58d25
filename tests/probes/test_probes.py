"""The probes themselves: their tables, their truths, and that every check can fail."""

import contextlib
import dataclasses
import functools
import io
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from probes import check, environments, ladder, registration, solve, verdict
from probes.ladder import LADDER, Answer
from rlref import ppo
from rlref.contract import ALL, load_agent

TABULAR = [name for name, probe in LADDER.items() if isinstance(probe.case(0).params, environments.Tables)]
VALUED = [name for name in TABULAR if LADDER[name].case(0).truth.value is not None]
FINGERPRINTS = [name for name, probe in LADDER.items() if probe.fingerprints]


def right_policy(case):
    """The truth's policy; even odds where it says nothing."""
    shape = case.params.reward.shape
    policy = np.full(shape, np.nan) if case.truth.policy is None else case.truth.policy
    if case.params.choices:  # of all combinations
        first, second = np.split(policy, [case.params.choices[0]], axis=1)
        policy = (first[:, :, None] * second[:, None]).reshape(shape)
    return np.where(np.isnan(policy), 1 / shape[1], policy)


# Truths.


# In reset_temptation_visible nothing leads to the second state once the policy is right.
@pytest.mark.parametrize("name", [name for name in VALUED if name != "reset_temptation_visible"])
def test_the_declared_truth_is_what_the_exact_solver_finds(name):
    for seed in range(8):
        case = LADDER[name].case(seed)
        if name == "phase_flip":  # after the flip
            case = dataclasses.replace(case, params=dataclasses.replace(case.params, reward=-case.params.reward))
        value = solve.state_values(case.params, right_policy(case), LADDER[name].gamma)
        np.testing.assert_allclose(value, case.truth.value, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["discount", "bandit", "context_bandit", "table", "env_axis", "password", "target_chain"]
)
def test_no_policy_is_better_than_the_truth(name):
    for seed in range(4):
        case = LADDER[name].case(seed)
        np.testing.assert_allclose(solve.best_values(case.params, LADDER[name].gamma), case.truth.value, atol=1e-6)


# By hand: V of the first and of the last state.
WRONG_ANSWERS = {
    "discount": [(0.5, 1), (2 / 3, 4 / 3), (0.5, 1), (1, 2), (1, 1), (0.25, 1), (0, 1), (0.25, 0.5)],
    "truncation_pair": [(1, 1), (2.5, 2.5), (1, 1.857), (2.5, 2.5), (1, 2), (1, 1.36), (1, 2.5), (0.6, 0.96)],
    "truncation_loop": [
        (-2.23, 3.08), (-5.92, -1.02), (-5.92, -1.02), (4, 10), None, (-0.74, 5.26), (-50, 10), (3.6, 9)
    ],
    "reset_leak": [(-1, 2), (-4 / 3, 4 / 3), (-1, 2), (0, 4), (0, 2), (-1.5, 2), (-4, 2), (-0.5, 1)],
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_ANSWERS)
def test_wrong_learners_end_where_arithmetic_says(name):
    case = LADDER[name].case(0)
    for learner, wanted in zip(solve.WRONG.values(), WRONG_ANSWERS[name], strict=True):
        value = solve.state_values(case.params, right_policy(case), LADDER[name].gamma, learner)
        if wanted is None:
            assert value is None
        else:
            np.testing.assert_allclose(value[[0, 1]], wanted, atol=0.006)


def fitness(case, policy):
    """The undiscounted return of an episode from each state, on average; what begins after its end does not count."""
    n = len(case.params.obs)
    onward = np.einsum("sa,sa,sat->st", policy, ~(case.params.terminated | case.params.truncated),
                       np.eye(n)[case.params.next])  # fmt: skip
    # Of states that an episode can begin in; from others (a password already wrong) it may never end.
    return np.linalg.lstsq(np.eye(n) - onward, (policy * case.params.reward).sum(1), rcond=None)[0]


@pytest.mark.parametrize("name", [name for name in TABULAR if "cem" in LADDER[name].kinds])
def test_the_truth_for_agents_of_a_policy_alone_has_the_highest_fitness(name):
    for seed in range(4):
        case = LADDER[name].case(seed, "cem")
        if size := case.params.action_mask:  # what is forbidden is no policy's
            reward = np.where(case.params.obs[:, -size:] > 0, case.params.reward, -9)
            case = dataclasses.replace(case, params=dataclasses.replace(case.params, reward=reward))
        right = right_policy(case)
        best = case.params.start @ fitness(case, right)
        for obs in np.unique(case.params.obs, axis=0):
            shown = (case.params.obs == obs).reshape(len(right), -1).all(axis=1)
            if case.truth.policy is None or np.isnan(case.truth.policy[shown]).all():
                continue
            for action in set(range(right.shape[1])) - {int(right[shown][0].argmax())}:
                other = np.where(shown[:, None], np.eye(right.shape[1])[action], right)
                assert case.params.start @ fitness(case, other) < best - 1e-3


def test_a_mirrored_pair_wants_opposite_actions():
    for seed in range(8):
        case = LADDER["bandit"].case(seed, "cem")
        np.testing.assert_array_equal(case.params.obs[:, 0], [1, -1])
        np.testing.assert_array_equal(case.truth.policy[0], case.truth.policy[1, ::-1])
        np.testing.assert_array_equal(case.params.reward[0], case.params.reward[1, ::-1])
    temptation = LADDER["reset_temptation"].case(0, "cem").params  # where the next episode begins stays in its half
    np.testing.assert_array_equal(temptation.after[2:], temptation.after[:2, ::-1] + 2)


# A learner without a network, and automata written by hand: the environments behave as their tables say.


def walk(case, policy, steps=240, seed=0):
    """Transitions of one environment under a policy, through gymnax's `step` with its reset."""
    env = environments.Tabular(case.params)

    def step(carry, key):
        obs, state = carry
        key_act, key_env = jax.random.split(key)
        action = jax.random.categorical(key_act, jnp.log(jnp.asarray(policy))[state.index])
        taken = jnp.stack(jnp.unravel_index(action, case.params.choices)) if case.params.choices else action
        next_obs, new, reward, terminated, truncated, info = env.step(key_env, state, taken)
        seen = (obs, action, reward, terminated, truncated, info["final_observation"], next_obs, state.index)
        return (next_obs, new), seen

    key_reset, key_walk = jax.random.split(jax.random.key(seed))
    _, seen = jax.jit(lambda: jax.lax.scan(step, env.reset(key_reset), jax.random.split(key_walk, steps)))()
    return [np.asarray(x) for x in seen]


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in VALUED if n not in ("noisy_reward", "will_to_live", "phase_flip")])
def test_a_learner_without_a_network_reaches_the_truth_exactly(name):
    probe, case = LADDER[name], LADDER[name].case(1)
    obs, _, reward, terminated, _, final, _, _ = walk(case, right_policy(case))
    known, group = np.unique(obs.reshape(len(obs), -1), axis=0, return_inverse=True)
    after = np.array([np.flatnonzero((known == x.ravel()).all(1))[0] for x in final])
    visits = np.eye(len(known))[group.ravel()]
    count = visits.sum(0)
    onward = (visits.T @ (np.eye(len(known))[after] * ~terminated[:, None])) / count[:, None]
    value = np.linalg.solve(np.eye(len(known)) - probe.gamma * onward, visits.T @ reward / count)
    flat = case.params.obs.reshape(len(case.params.obs), -1)
    wanted = {x.tobytes(): v for x, v in zip(flat, case.truth.value, strict=True)}
    np.testing.assert_allclose(value, [wanted[x.tobytes()] for x in known], atol=1e-5)


def automaton(name, at, action, case):
    """By hand: (reward, terminated, truncated, the state it leads to, the next episode's states to begin in)."""
    policy = case.truth.policy
    right = None if policy is None or np.isnan(policy[at, 0]) else action == policy[at].argmax()
    match name:
        case "discount":
            return (0.0, False, False, 1, None) if at == 0 else (1.0, True, False, 1, {0})
        case "reset_leak":
            return (-2.0, False, False, 1, None) if at == 0 else (2.0, True, False, 1, {0})
        case "truncation_pair":
            return 1.0, at == 0, at == 1, 1 - at, {0, 1}
        case "truncation_loop":
            return -5.0 if at == 0 else 1.0, False, at == 4, at + 1, {0} if at == 4 else None
        case "context_bandit":
            return 1.0 if right else -1.0, True, False, 1 - at, {0, 1}
        case "delayed_credit":
            if at == 0:
                return 0.0, False, False, 1 if right else 4, None
            if at in (3, 6):
                return 1.0 if at == 3 else -1.0, True, False, at, {0}
            return 0.0, False, False, at + 1, None
        case "reset_temptation":
            return (0.1 if right else 0.0) + at, True, False, 0 if action == 0 else 1, {0} if right else {1}
        case "will_to_live":
            lives = case.truth.value[0] == 10
            ends = right != lives
            return (1.0 if lives else -1.0), ends, not ends and at == 4, at + 1, {0} if ends or at == 4 else None
        case "password":
            if not right:
                return 0.05, True, False, at, {0}
            return (1.0, True, False, 2, {0}) if at == 2 else (0.0, False, False, at + 1, None)
    raise AssertionError(name)


@pytest.mark.parametrize(
    "name",
    ["discount", "reset_leak", "truncation_pair", "truncation_loop", "context_bandit", "delayed_credit",
     "reset_temptation", "will_to_live", "password"],
)  # fmt: skip
def test_environments_behave_like_automata_written_by_hand(name):
    case = LADDER[name].case(2)
    obs_of = case.params.obs
    _, action, reward, terminated, truncated, final, next_obs, at = walk(case, np.full(case.params.reward.shape, 0.5))
    for t in range(len(at) - 1):
        r, ends, cut, to, starts = automaton(name, int(at[t]), int(action[t]), case)
        assert abs(reward[t] - r) == pytest.approx(case.params.noise, abs=1e-6)
        assert (terminated[t], truncated[t]) == (ends, cut)
        np.testing.assert_array_equal(final[t], obs_of[to])
        if starts is None:
            assert at[t + 1] == to
        else:
            assert int(at[t + 1]) in starts
        np.testing.assert_array_equal(next_obs[t], obs_of[at[t + 1]])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["env_axis", "noisy_reward", "pixels"])
def test_environments_are_pure(name):
    case = LADDER[name].case(0)
    policy = np.full(case.params.reward.shape, 1 / case.params.reward.shape[1])
    for a, b in zip(walk(case, policy, 30), walk(case, policy, 30), strict=True):
        np.testing.assert_array_equal(a, b)
    env = environments.Tabular(case.params)
    keys = jax.random.split(jax.random.key(1), 5)
    one_step = lambda key: env.step(key, env.reset(key)[1], 0)  # noqa: E731
    together = jax.vmap(one_step)(keys)
    for i in range(5):
        alone = jax.jit(one_step)(keys[i])
        for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
            np.testing.assert_array_equal(a, b[i])


def test_the_flip_counts_over_resets():
    case = LADDER["phase_flip"].case(0)
    case = dataclasses.replace(case, params=dataclasses.replace(case.params, flip_at=np.int32(10)))
    _, action, reward, *_ = walk(case, right_policy(case), 30)
    sign = reward / case.params.reward[0, action]
    np.testing.assert_array_equal(sign, [1] * 10 + [-1] * 20)


def test_noise_is_added_with_equal_odds():
    case = LADDER["noisy_reward"].case(0)
    _, _, reward, *_ = walk(case, right_policy(case), 2000)
    assert set(reward.tolist()) == {1.0, -0.5}
    assert reward.mean() == pytest.approx(0.25, abs=0.1)


def test_actions_reach_the_continuous_environment_as_they_come():
    case = LADDER["boundary"].case(0)
    env = environments.Target(case.params)
    _, state = env.reset(jax.random.key(0))
    far = 3 * np.sign(case.params.slope[state.index])
    assert env.step(jax.random.key(0), state, far)[2] == pytest.approx(3)


# Checks that can fail.


RUNGS = [(name, kind) for kind in ALL for name, probe in LADDER.items() if kind in probe.kinds]


def distance(probe, kind, case, wrong):
    """How far a wrong answer is from the truth, in tolerances, in what it says."""
    parts = []
    value, truth = (probe.values(kind, case, answer) for answer in (wrong, case.truth))
    if value is not None and truth is not None:
        parts.append(np.nanmax(np.abs(value - truth)) / probe.tolerance)
    if wrong.policy is not None and case.truth.policy is not None:
        parts.append(np.nanmax(np.abs(wrong.policy - case.truth.policy)) / probe.policy_tolerance)
    return max(parts)


@pytest.mark.parametrize(("name", "kind"), RUNGS)
def test_tolerances_are_below_a_quarter_of_the_way_to_every_wrong_answer(name, kind):
    probe = LADDER[name]
    assert causes(probe, kind)
    for seed in range(8):
        case = probe.case(seed, kind)
        for cause in causes(probe, kind):
            assert distance(probe, kind, case, probe.wrong(case)[cause]) > 4, cause


def causes(probe, kind):
    """Those of a probe's wrong answers that show in an agent of a kind: one without values has its policy alone."""
    case = probe.case(0, kind)
    right = case.truth.policy

    def shows(wrong):
        return wrong.policy is not None and not np.array_equal(wrong.policy, right, equal_nan=True)

    return [cause for cause, wrong in probe.wrong(case).items() if kind != "cem" or shows(wrong)]


def answering(probe, kind, answers, seeds=range(8)):
    """The outcome of an agent that gives `answers` (of a case) as V or Q, and policy."""
    cases = [probe.case(seed, kind) for seed in seeds]
    given = [answers(case) for case in cases]
    value = []
    for case, answer in zip(cases, given, strict=True):
        x = probe.values(kind, case, answer)
        shape = case.params.reward.shape if kind == "dqn" else len(case.params.obs)
        value.append(np.zeros(shape) if x is None else x)
    empty = [
        np.full(c.params.reward.shape if isinstance(c.params, environments.Tables) else c.params.optimum.shape, 0.5)
        for c in cases
    ]
    policy = np.stack([e if a.policy is None else a.policy for e, a in zip(empty, given, strict=True)])
    outcome = check.Outcome(None if kind == "cem" else np.stack(value), np.nan_to_num(policy, nan=0.5))
    return check.judge(probe, kind, seeds, cases, outcome, outcome)


@pytest.mark.parametrize(("name", "kind"), RUNGS)
def test_an_agent_that_answers_the_truth_passes(name, kind):
    assert answering(LADDER[name], kind, lambda case: case.truth).ok


@pytest.mark.parametrize(("name", "kind"), RUNGS)
def test_every_wrong_answer_fails_and_is_named(name, kind):
    probe = LADDER[name]
    for cause in causes(probe, kind):

        def give(case, cause=cause):
            wrong = probe.wrong(case)[cause]
            value, truth = (probe.values(kind, case, answer) for answer in (wrong, case.truth))
            value = truth if value is None else value
            policy = case.truth.policy if wrong.policy is None else wrong.policy
            return Answer(policy=policy, **{"q" if kind == "dqn" else "value": value})

        result = answering(probe, kind, give)
        assert not result.passed.any(), cause
        if not probe.fingerprints:
            report = check.Report("planted", kind, [], [result])
            assert verdict.cause(report, result) == cause
            said = verdict.verdict(report)
            assert f"That is what comes out if {cause}." in said
            if probe.holds == "truth":
                assert said.startswith(f"WRONG at {name}: look at {probe.isolates}")
            else:
                assert said.startswith(f"DIFFERS at {name}: ")


def test_agents_of_action_values_have_to_know_every_action():
    # The right policy and V do not help where the value of the other arm is wrong.
    probe = LADDER["bandit"]

    def give(case):
        q = case.params.reward.copy()
        q[0, q[0].argmin()] = 0.5
        return Answer(q=q, policy=case.truth.policy)

    assert not answering(probe, "dqn", give).passed.any()
    result = answering(probe, "dqn", give, range(1))
    assert "expected Q (" in verdict.verdict(check.Report("planted", "dqn", [], [result]))


def test_the_truth_of_phase_flip_is_that_of_the_new_sign():
    case = LADDER["phase_flip"].case(0)
    q = LADDER["phase_flip"].values("dqn", case, case.truth)
    np.testing.assert_array_equal(q, -case.params.reward)
    assert q.max() == 1
    assert (q.argmax() == case.truth.policy.argmax()).all()


@pytest.mark.parametrize("kind", ["ppo", "dqn"])
@pytest.mark.parametrize("cause", solve.WRONG)
def test_bugs_of_bootstrapping_are_told_apart_over_all_their_rungs(cause, kind):
    def give(case):
        value = solve.state_values(case.params, right_policy(case), gamma, solve.WRONG[cause])
        return Answer(np.full(len(case.params.obs), 1e6) if value is None else value)

    rungs = []
    for name in FINGERPRINTS:
        gamma = LADDER[name].gamma
        rungs.append(answering(LADDER[name], kind, give))
    report = check.Report("planted", kind, [], rungs)
    assert not report.ok
    assert verdict.cause(report, report.failures[0]) == cause
    assert cause in verdict.verdict(report)


def test_no_cause_is_named_for_what_only_half_of_the_seeds_end_at():
    probe = LADDER["delayed_credit"]
    seeds = iter(range(8))

    def give(case):
        if next(seeds) % 2:
            return case.truth
        return probe.wrong(case)["it learns the worst action: a sign is wrong"]

    result = answering(probe, "ppo", give)
    assert result.passed.sum() == 4
    assert verdict.cause(check.Report("planted", "ppo", [], [result]), result) == ""


def test_a_value_that_is_not_a_number_fails():
    result = answering(LADDER["discount"], "ppo", lambda case: Answer(np.array([0.5, np.nan])))
    assert not result.passed.any()
    assert "nan" in verdict.verdict(check.Report("planted", "ppo", [], [result]))


def test_the_bound_is_that_of_clopper_and_pearson():
    result = answering(LADDER["discount"], "ppo", lambda case: case.truth, range(64))
    assert result.bound == pytest.approx(1 - 0.05 ** (1 / 64))
    assert dataclasses.replace(result, passed=np.zeros(64, bool)).bound == 1


# The ladder.


@pytest.fixture(scope="module")
def climbed():
    """A function of an agent's name and a number of seeds: its report on the rungs, trained once."""
    return functools.cache(lambda name, seeds: check.run(name, only=rungs_of(name, seeds), num_seeds=seeds))


# 64 is what `rlref probe` takes; of 4, those that train in one program.
NUM_SEEDS = [4, pytest.param(16, marks=pytest.mark.slow), pytest.param(64, marks=pytest.mark.study)]


def rungs_of(agent, num_seeds):
    rungs = [probe for probe in LADDER.values() if agent in probe.kinds]
    usual = [x for x in rungs if agent not in x.settings and check.fills_up(x.case(0, agent).params)]
    return [x.name for x in (usual if num_seeds == 4 else rungs)]


@pytest.mark.parametrize("num_seeds", NUM_SEEDS)
@pytest.mark.parametrize("agent", ALL)
def test_agents_pass_every_rung_on_every_seed_and_fail_untrained(agent, num_seeds, climbed):
    report = climbed(agent, num_seeds)
    assert {r.probe.name: int(r.passed.sum()) for r in report.rungs} == dict.fromkeys(
        rungs_of(agent, num_seeds), num_seeds
    )
    passed = f"each rung on {num_seeds} of {num_seeds} seeds"
    assert verdict.verdict(report).startswith(f"RIGHT: {agent} answers every check right, {passed}")
    for rung in report.rungs:
        untrained = check.judge(rung.probe, rung.kind, rung.seeds, rung.cases, rung.untrained, rung.untrained)
        assert untrained.passed.sum() <= max(1, num_seeds // 32), rung.probe.name


@pytest.mark.slow
def test_the_program_that_trains_is_sharded_and_seeds_keep_their_meaning(climbed):
    again = check.train_group(ppo, "ppo", [LADDER["bandit"]], range(1, 4))[0]
    bandit = next(r for r in climbed("ppo", 4).rungs if r.probe.name == "bandit")
    np.testing.assert_array_equal([c.truth.policy for c in again.cases], [c.truth.policy for c in bandit.cases[1:4]])
    np.testing.assert_allclose(again.outcome.policy, bandit.outcome.policy[1:4], atol=0.02)


# R5, and the names.


def test_sizes_are_primes_and_different():
    sizes = check.SETTINGS["ppo"]
    counts = {
        sizes["num_envs"],
        sizes["num_steps"],
        *(p.settings.get("ppo", {}).get("num_steps", 11) for p in LADDER.values()),
    }
    q = check.SETTINGS["dqn"]
    counts |= {q["num_envs"], q["train_frequency"] // q["num_envs"], q["batch_size"]}
    widths = {check.WIDTH, check.ACTIONS, 3, 5, 13}
    c = check.SETTINGS["cem"]
    counts |= {c["population_size"], c["num_rollouts"], c["num_eval_rollouts"]}
    counts |= {
        p.settings["cem"]["population_size"] for p in LADDER.values() if "population_size" in p.settings.get("cem", {})
    }
    assert all(n > 1 and all(n % k for k in range(2, n)) for n in counts | widths)
    assert not counts & widths
    assert q["train_frequency"] % q["num_envs"] == 0
    assert len({q["num_envs"], q["train_frequency"] // q["num_envs"], q["batch_size"]}) == 3
    for probe in LADDER.values():
        assert probe.settings.get("ppo", {}).get("num_steps", sizes["num_steps"]) != sizes["num_envs"]
        assert probe.settings.get("ppo", {}).get("num_minibatches", sizes["num_minibatches"]) in (1, sizes["num_envs"])


def test_what_a_seed_meets_differs_between_seeds():
    for name in ("constant", "obs_value", "bandit", "context_bandit", "table", "delayed_credit", "continuous_target"):
        met = {repr([x.tolist() for x in jax.tree.leaves(LADDER[name].case(seed).params)]) for seed in range(16)}
        assert len(met) > 1, name
    np.testing.assert_array_equal(LADDER["table"].case(3).truth.policy, LADDER["table"].case(3).truth.policy)


def test_the_page_has_the_tables_that_the_code_prints(monkeypatch):
    monkeypatch.setattr("sys.argv", ["probes"])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_module("probes", run_name="__main__")
    assert printed.getvalue() in (Path(probes.__file__).parent / "checks.md").read_text()


def test_gymnasium_knows_every_probe():
    assert list(LADDER) == list(registration.NAMES)


def test_agents_of_a_file_are_told_by_their_value():
    assert [check.kind_of(load_agent(name)) for name in ALL] == [*ALL]
    assert ladder.LADDER is probes.LADDER
