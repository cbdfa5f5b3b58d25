"""The probes themselves: their tables, their truths, and that every check can fail."""

import contextlib
import dataclasses
import functools
import io
import re
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from probes import check, environments, ladder, oracles, registration, solve
from probes.ladder import LADDER, Answer
from rlref import cem, dqn, ppo
from rlref.agents import load_agent
from rlref.errors import UsageError

TABULAR = [name for name, probe in LADDER.items() if isinstance(probe.case(0).params, environments.Tables)]
VALUED = [name for name in TABULAR if LADDER[name].case(0).truth.value is not None]
FINGERPRINTS = [name for name, probe in LADDER.items() if probe.fingerprints]


def right_policy(case):
    """The truth's policy; even odds where it says nothing."""
    shape = case.params.reward.shape
    policy = np.full(shape, np.nan) if case.truth.policy is None else case.truth.policy
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


@pytest.mark.parametrize("name", [name for name in TABULAR if "C" in LADDER[name].kinds])
def test_the_truth_for_agents_of_a_policy_alone_has_the_highest_fitness(name):
    for seed in range(4):
        case = LADDER[name].case(seed, "C")
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
        case = LADDER["bandit"].case(seed, "C")
        np.testing.assert_array_equal(case.params.obs[:, 0], [1, -1])
        np.testing.assert_array_equal(case.truth.policy[0], case.truth.policy[1, ::-1])
        np.testing.assert_array_equal(case.params.reward[0], case.params.reward[1, ::-1])
    temptation = LADDER["reset_temptation"].case(0, "C").params  # where the next episode begins stays in its half
    np.testing.assert_array_equal(temptation.after[2:], temptation.after[:2, ::-1] + 2)


# A learner without a network, and automata written by hand: the environments behave as their tables say.


def walk(case, policy, steps=240, seed=0):
    """Transitions of one environment under a policy, through gymnax's `step` with its reset."""
    env = environments.Tabular(case.params)

    def step(carry, key):
        obs, state = carry
        key_act, key_env = jax.random.split(key)
        action = jax.random.categorical(key_act, jnp.log(jnp.asarray(policy))[state.index])
        next_obs, new, reward, terminated, truncated, info = env.step(key_env, state, action)
        seen = (obs, action, reward, terminated, truncated, info["final_observation"], next_obs, state.index)
        return (next_obs, new), seen

    key_reset, key_walk = jax.random.split(jax.random.key(seed))
    _, seen = jax.jit(lambda: jax.lax.scan(step, env.reset(key_reset), jax.random.split(key_walk, steps)))()
    return [np.asarray(x) for x in seen]


@pytest.mark.parametrize("name", [n for n in VALUED if n not in ("noisy_reward", "phase_flip")])
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
        assert reward[t] == pytest.approx(r)
        assert (terminated[t], truncated[t]) == (ends, cut)
        np.testing.assert_array_equal(final[t], obs_of[to])
        if starts is None:
            assert at[t + 1] == to
        else:
            assert int(at[t + 1]) in starts
        np.testing.assert_array_equal(next_obs[t], obs_of[at[t + 1]])


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


RUNGS = [(name, kind) for kind in "AQC" for name, probe in LADDER.items() if kind in probe.kinds]


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

    return [cause for cause, wrong in probe.wrong(case).items() if kind != "C" or shows(wrong)]


def answering(probe, kind, answers, seeds=range(8)):
    """A Result of an agent that gives `answers` (of a case) as V or Q, and policy."""
    cases = [probe.case(seed, kind) for seed in seeds]
    given = [answers(case) for case in cases]
    value = []
    for case, answer in zip(cases, given, strict=True):
        x = probe.values(kind, case, answer)
        shape = case.params.reward.shape if kind == "Q" else len(case.params.obs)
        value.append(np.zeros(shape) if x is None else x)
    empty = [
        np.full(c.params.reward.shape if isinstance(c.params, environments.Tables) else c.params.optimum.shape, 0.5)
        for c in cases
    ]
    policy = np.stack([e if a.policy is None else a.policy for e, a in zip(empty, given, strict=True)])
    outcome = check.Outcome(None if kind == "C" else np.stack(value), np.nan_to_num(policy, nan=0.5))
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
            return Answer(policy=policy, **{"q" if kind == "Q" else "value": value})

        result = answering(probe, kind, give)
        assert not result.passed.any(), cause
        if not probe.fingerprints:
            report = check.Report("planted", kind, [], [result])
            assert check.cause(report, result) == cause
            assert f"FAIL at {name}: look at {probe.isolates}" in check.verdict(report)


def test_agents_of_action_values_have_to_know_every_action():
    # The right policy and V do not help where the value of the other arm is wrong.
    probe = LADDER["bandit"]

    def give(case):
        q = case.params.reward.copy()
        q[0, q[0].argmin()] = 0.5
        return Answer(q=q, policy=case.truth.policy)

    assert not answering(probe, "Q", give).passed.any()
    result = answering(probe, "Q", give, range(1))
    assert "expected Q (" in check.verdict(check.Report("planted", "Q", [], [result]))


def test_the_truth_of_phase_flip_is_that_of_the_new_sign():
    case = LADDER["phase_flip"].case(0)
    q = LADDER["phase_flip"].values("Q", case, case.truth)
    np.testing.assert_array_equal(q, -case.params.reward)
    assert q.max() == 1
    assert (q.argmax() == case.truth.policy.argmax()).all()


@pytest.mark.parametrize("kind", ["A", "Q"])
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
    assert check.cause(report, report.failures[0]) == cause
    assert cause in check.verdict(report)


def test_no_cause_is_named_for_what_only_half_of_the_seeds_end_at():
    probe = LADDER["delayed_credit"]
    seeds = iter(range(8))

    def give(case):
        if next(seeds) % 2:
            return case.truth
        return probe.wrong(case)["it learns the worst action: a sign is wrong"]

    result = answering(probe, "A", give)
    assert result.passed.sum() == 4
    assert check.cause(check.Report("planted", "A", [], [result]), result) == ""


def test_a_value_that_is_not_a_number_fails():
    result = answering(LADDER["discount"], "A", lambda case: Answer(np.array([0.5, np.nan])))
    assert not result.passed.any()
    assert "nan" in check.verdict(check.Report("planted", "A", [], [result]))


def test_the_bound_is_that_of_clopper_and_pearson():
    result = answering(LADDER["discount"], "A", lambda case: case.truth, range(64))
    assert result.bound == pytest.approx(1 - 0.05 ** (1 / 64))
    assert dataclasses.replace(result, passed=np.zeros(64, bool)).bound == 1


# The ladder.


@pytest.fixture(scope="module")
def climbed():
    """A function of an agent's name: its report, trained once."""
    return functools.cache(lambda name: check.run(name, only=list(LADDER_OF[name])))


LADDER_OF = {
    agent: [name for name, probe in LADDER.items() if kind in probe.kinds]
    for agent, kind in (("ppo", "A"), ("dqn", "Q"), ("cem", "C"))
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("agent", LADDER_OF)
def test_agents_pass_every_rung_on_every_seed(agent, climbed):
    report = climbed(agent)
    assert {r.probe.name: int(r.passed.sum()) for r in report.rungs} == dict.fromkeys(LADDER_OF[agent], 64)
    assert check.verdict(report).startswith(f"PASS: {agent} answers every check right, each rung on 64 of 64 seeds")


@pytest.mark.parametrize("agent", LADDER_OF)
def test_an_untrained_agent_fails_every_rung(agent, climbed):
    for rung in climbed(agent).rungs:
        untrained = check.judge(rung.probe, rung.kind, rung.seeds, rung.cases, rung.untrained, rung.untrained)
        assert untrained.passed.sum() <= 2, rung.probe.name


def test_the_program_that_trains_is_sharded_and_seeds_keep_their_meaning(climbed):
    again = check.train_group(ppo, "A", [LADDER["bandit"]], range(2, 5))[0]
    bandit = next(r for r in climbed("ppo").rungs if r.probe.name == "bandit")
    np.testing.assert_array_equal([c.truth.policy for c in again.cases], [c.truth.policy for c in bandit.cases[2:5]])
    np.testing.assert_allclose(again.outcome.policy, bandit.outcome.policy[2:5], atol=0.02)


SOURCE = Path(ppo.__file__).read_text()


def planted(tmp_path, old, new, agent=ppo):
    """A copy of an agent's file with a fault."""
    source = Path(agent.__file__).read_text()
    assert source.count(old) == 1
    path = tmp_path / "planted.py"
    path.write_text(source.replace(old, new))
    return str(path)


# Each oracle with a fault that it is to find: alone, or of those that share one program, all at once.
FAULTS = {ppo: [
    ("advantages", "jnp.where(terminated, 0.0, next_value)", "jnp.where(terminated | truncated, 0.0, next_value)"),
    ("categorical", "return -jnp.sum(jnp.exp(self.log_probs)", "return -jnp.mean(jnp.exp(self.log_probs)"),
    ("gaussian", "return jnp.sum(-0.5 * z**2", "return jnp.mean(-0.5 * z**2"),
    ("each_sample_once", "order = jnp.sort(", "order = ("),
    ("running_moments", "+ delta**2 * share * (1 - share)", ""),
    ("normalised", "(x - moments.mean) / jnp.sqrt", "x / jnp.sqrt"),
    ("reward_scaling", "return jnp.where(x[1], 0.0, total), total", "return total, total"),
    ("explained_variance", "1 - (target - value).var() / variance", "1 - (target - value).var() / value.var()"),
    ("shown_features", "(255 if obs.dtype == jnp.uint8 else 1)", "1"),
    ("dormant_units", "score <= tau * score.mean()", "score <= tau"),
    ("noise_scale", "(1 - 0.9**adam.count)", "1.0"),
    ("summaries", "mean = x.sum(where=where) / count", "mean = x.mean()"),
    ("policy_loss", "-jnp.minimum(ratio", "-jnp.maximum(ratio"),
    ("value_loss", "error = (value - batch.target) ** 2", "error = (value[:, None] - batch.target) ** 2"),
    ("entropy_bonus", "policy.entropy().mean()\n    return total", "batch.policy.entropy().mean()\n    return total"),
    ("gradient_steps", "optax.clip_by_global_norm(config.max_grad_norm)", "optax.identity()"),
    ("transitions", 'info["final_observation"], terminated', "next_obs, terminated"),
    ("clipped_actions", "space.low, space.high).astype(space.dtype)", "-1.0, 1.0).astype(space.dtype)"),
    ("boxed_transitions", "return distribution.mean[0], jnp.exp(", "return distribution.mean[0], (2 * "),
    ("convolved_images", "row[:, :, c : c + stride * width : stride]", "row[:, :, c : c + width]"),
    ("observations_apart", "jax.nn.log_softmax(outputs)", "jax.nn.log_softmax(outputs, axis=0)"),
    ("means_of_steps", "x.mean(where=applied > 0)", "x.mean()"),
    ("learned_batch", "rollout.log_prob, value, advantage, target))", "rollout.log_prob, value, advantage.T, target))"),
    ("scaled_batch", "jnp.clip(reward / reward_scale(moments)", "jnp.clip(reward / moments.variance"),
    ("statistics_seen", "rollout.obs[1:], state.obs[None]", "rollout.obs[:1], state.obs[None]"),
    ("keys_used_once", "collect(task, replace(state, key=key), key_collect)", "collect(task, state, key_collect)"),
    ("given_parameters", "env.default_params if env_params is None else env_params", "env.default_params"),
], dqn: [
    ("explained_variance", "1 - (target - value).var() / variance", "1 - (target - value).var() / value.var()"),
    ("shown_features", "jax.nn.one_hot(obs, space.n)", "jax.nn.one_hot(obs + 1, space.n)"),
    ("dormant_units", "score <= tau * score.mean()", "score < tau * 0"),
    ("summaries", "jnp.sqrt(((x - mean) ** 2).sum(where=where) / count)", "jnp.sqrt(((x - mean) ** 2).mean())"),
    ("next_state_values", "taken(target_q, online_q.argmax(axis=-1))", "taken(online_q, target_q.argmax(axis=-1))"),
    ("exploration", "progress * (config.end_e - config.start_e)", "progress * config.end_e"),
    ("replay_slots", "(row + k) % capacity", "jnp.minimum(row + k, capacity - 1)"),
    ("replay_draws", "jax.random.bits(key_replay, (cycles + 1, config.batch_size))",
     "jnp.repeat(jax.random.bits(key_replay, (1, config.batch_size)), cycles + 1, axis=0)"),
    ("sampled_returns", "jnp.where(buffer.terminated[last]", "jnp.where(ended[:, -1]"),
    ("sampled_returns", "counted &= ~ended[:, k]", "counted &= ~buffer.terminated[index[:, k]]"),
    ("td_loss", "return error.mean(), q", "return error.sum(), q"),
    ("storage", "jnp.packbits(obs.reshape(obs.shape[0], -1) != 0, axis=-1)",
     "jnp.packbits(obs.reshape(obs.shape[0], -1) != 0, axis=-1, bitorder='little')"),
    ("bootstrapped_targets", "batch.reward + batch.discount * next_values", "batch.reward + next_values"),
    ("exploring_steps", "jnp.arange(shape[1])) * num_envs)", "jnp.arange(shape[1])))"),
    ("convolved_images", "(n - kernel) // stride + 1 for n in x.shape[1:3]", "n - kernel + 1 for n in x.shape[1:3]"),
    ("dueling_heads", "- outputs.mean(axis=-1, keepdims=True)", ""),
    ("evaluated", "epsilon_greedy(value(state, obs), 0.0)", "epsilon_greedy(value(state, obs), 0.1)"),
    ("collected_steps", "jnp.where(uniform < epsilon, random_action,", "jnp.where(uniform > epsilon, random_action,"),
    ("optimiser", "optimizer = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optimizer)", "pass"),
    ("stored_transitions", 'encoded(info["final_observation"])', "encoded(next_obs)"),
    ("keys_used_once", "jax.random.split(key_env, shape)", "jax.random.split(jax.random.key(0), shape)"),
    ("newest_parameters", "targets(task, state.target_params, unravel(params)",
     "targets(task, state.target_params, state.params"),
    ("given_parameters", "env.default_params if env_params is None else env_params", "env.default_params"),
], cem: [
    ("selection", "jnp.zeros(len(score), bool).at[order].set(jnp.arange(len(score)) < num_elites)",
     "score >= score[order[jnp.int32(num_elites) - 1]]"),
    ("extra_variance_schedule", "jnp.maximum(1 - generation / last, 0.0)", "1.0"),
    ("analysis_of_variance", "residual = returns - of_candidate - of_key + returns.mean()",
     "residual = returns - of_candidate"),
    ("divergences", "digamma((num_elites - 1) / 2)", "digamma(num_elites / 2)"),
    ("first_episodes", "alive & ~(terminated | truncated)", "alive & ~terminated"),
    ("actions", "(high + low) / 2 + (high - low) / 2 * squashed", "squashed"),
    ("shown_features", "scale = 255 if", "scale = 127 if"),
    ("given_parameters", "env.default_params if env_params is None else env_params", "env.default_params"),
    ("dense_layers", "return x @ kernel + bias", "return x @ kernel"),
    ("policy_outputs", "x = activation(dense(x, kernel, bias))", "x = dense(x, kernel, bias)"),
    ("drawn_candidates", "jnp.sqrt(state.variance) * noise", "2 * jnp.sqrt(state.variance) * noise"),
    ("next_gaussian", "score = returns.mean(axis=1)\n    num", "score = returns.mean(axis=1, where=ended)\n    num"),
    ("evaluated_gaussian", "concatenate([mean[None]", "concatenate([state.mean[None]"),
    ("generation_metrics", '"kl_excess": refit_kl - floor', '"kl_excess": of_mean + of_variance - floor'),
    ("keys_used_once", "jax.random.normal(key_noise,", "jax.random.normal(key_rollout,"),
]}  # fmt: skip
TOGETHER = {ppo: [
    ("fresh_randomness", "jax.random.split(key_env, shape)",
     "jnp.broadcast_to(jax.random.split(key_env, (1, shape[1])), shape)"),
    ("fresh_samples", "distribution.noise(key_act, (*shape, task.network.num_outputs))",
     "jnp.repeat(distribution.noise(key_act, (shape[0], 1, task.network.num_outputs)), shape[1], axis=1)"),
    ("episode_metrics", "jnp.where(ended, 0.0, total)", "total"),
    ("known_metrics", '"kl": part.policy.kl(policy).mean()', '"kl": policy.kl(part.policy).mean()'),
    ("known_targets", '"value_bias": (batch.target - batch.value).mean()', '"value_bias": batch.target.mean()'),
    ("first_ratio", "log_prob = policy.log_prob(action)\n", "log_prob = 0.9 * policy.log_prob(action)\n"),
    ("schedule", "(1 - step / num_updates)", "(step / num_updates)"),
    ("nonfinite_shows", "~jnp.isfinite(jnp.stack([*means", "~jnp.isinf(jnp.stack([*means"),
], dqn: [
    ("fresh_randomness", "jax.random.split(key_env, shape)", "jax.random.split(jax.random.key(0), shape)"),
    ("episode_metrics", "jnp.where(ended, new, x), new_episodes", "jnp.where(False, new, x), new_episodes"),
    ("schedule", "(1 - step / num_updates)", "(step / num_updates)"),
    ("fresh_actions", "jax.random.bits(key_replay,", "jax.random.bits(jax.random.key(0),"),
    ("every_parameter_moves", "update(gradient, state.opt_state)", "update(gradient, task.optimizer.init(params))"),
    ("target_network", "mixed = jnp.where(config.tau == 1, new,", "mixed = jnp.where(config.tau == 1, old,"),
    ("semi_gradient", "lambda p: loss(unravel(p), task, batch, target)",
     "lambda p: loss(unravel(p), task, batch, targets(task, unravel(p), unravel(p), batch, 0.0))"),
    ("known_q_targets", "jnp.where(truncated & ~terminated, q_taken, reward)", "reward"),
    ("known_q_metrics", "jnp.sum(old * jnp.log(old / new)", "jnp.sum(old * jnp.log(new / old)"),
    ("nonfinite_shows", "~jnp.isfinite(jnp.stack([steps.reward.sum(), *sums]))",
     "~jnp.isfinite(jnp.zeros_like(steps.reward[:1]))"),
], cem: [
    ("fresh_rollouts", "jax.random.split(key_eval,", "jax.random.split(key_rollout,"),
    ("search_distribution", "fitted = refit(candidates, elite)",
     "fitted = refit(candidates, elite)[0], ((candidates - state.mean) ** 2).mean(axis=0, where=elite[:, None])"),
    ("known_c_metrics", "concatenate([mean[None]", "concatenate([state.mean[None]"),
    ("nonfinite_shows", "~jnp.isfinite(jnp.stack([returns.sum(),", "~jnp.isfinite(jnp.stack([jnp.float32(0),"),
    ("searches_apart", "State(jnp.zeros(task.num_params), variance, key,",
     "State(jnp.zeros(task.num_params), variance, jax.random.key(0),"),
]}  # fmt: skip


@pytest.mark.parametrize("agent", FAULTS, ids=lambda agent: agent.__name__)
def test_agents_pass_every_oracle(agent):
    kind = check.kind_of(agent)
    own = [name for name, oracle in oracles.ORACLES.items() if kind in oracle.kinds]
    report = check.run(agent, only=own)
    assert [(c.oracle.name, c.fault, c.why) for c in report.oracles] == [(name, "", "") for name in own]
    # Two have tests of their own below.
    faulty = {name for name, *_ in FAULTS[agent] + TOGETHER[agent]}
    assert set(own) - {"every_parameter_moves", "seeds_apart"} <= faulty


@pytest.mark.parametrize(
    ("agent", "name", "old", "new"), [(a, *fault) for a, faults in FAULTS.items() for fault in faults]
)
def test_each_oracle_fails_on_a_planted_fault(agent, name, old, new, tmp_path):
    report = check.run(planted(tmp_path, old, new, agent), only=[name])
    assert [c.oracle.name for c in report.failures] == [name]
    assert f"FAIL at {name}: look at {oracles.ORACLES[name].isolates}." in check.verdict(report)


@pytest.mark.parametrize("agent", TOGETHER, ids=lambda agent: agent.__name__)
def test_oracles_of_one_program_fail_on_faults_planted_together(agent, tmp_path):
    source = Path(agent.__file__).read_text()
    for _, old, new in TOGETHER[agent]:
        assert source.count(old) == 1
        source = source.replace(old, new)
    (tmp_path / "planted.py").write_text(source)
    names = [name for name, *_ in TOGETHER[agent]]
    report = check.run(str(tmp_path / "planted.py"), only=names)
    assert sorted(c.oracle.name for c in report.failures) == sorted(names)


def test_fail_fast_stops_at_the_first_fault(tmp_path):
    path = planted(tmp_path, "gamma * jnp.where(terminated, 0.0, next_value)", "gamma * next_value")
    report = check.run(path, fail_fast=True)
    assert [(c.oracle.name, bool(c.fault)) for c in report.oracles] == [("advantages", True)]
    assert report.rungs == []
    # constant and pixels train in different programs.
    report = check.run(path, only=["constant", "pixels"], num_seeds=3, fail_fast=True)
    assert [r.probe.name for r in report.failures] == ["constant"]
    assert [r.probe.name for r in report.rungs] == ["constant"]


def test_an_agent_without_a_setting_is_not_asked_about_it(tmp_path):
    source = Path(dqn.__file__).read_text().replace('"loss": ("squared", "huber"),', "")
    source = source.replace('    loss: Literal["squared", "huber"] = static("squared")', "    half: float = 1.0")
    source = source.replace('if task.config.loss == "huber" ', "if False ")
    (tmp_path / "no_huber.py").write_text(source)
    (asked,) = check.run(str(tmp_path / "no_huber.py"), only=["td_loss"]).oracles
    assert (asked.fault, asked.why) == (None, "its Config lacks loss")


def test_a_parameter_that_stays_fails(tmp_path):
    # The critic learns from nothing: its gradient is zero.
    path = planted(tmp_path, "config.vf_coef * value_loss", "0.0 * value_loss")
    report = check.run(path, only=["every_parameter_moves"])
    assert "critic_0" in report.failures[0].fault


def test_seeds_that_share_something_fail(tmp_path):
    path = planted(
        tmp_path, "key, key_env, key_net = jax.random.split(key, 3)", "key = key_env = key_net = jax.random.key(0)"
    )
    report = check.run(path, only=["seeds_apart"])
    assert "different values" in report.failures[0].fault


def test_a_fault_in_training_is_found_and_named(tmp_path):
    path = planted(
        tmp_path, "jnp.where(terminated, 0.0, next_value)", "jnp.where(terminated | truncated, 0.0, next_value)"
    )
    report = check.run(path, only=FINGERPRINTS, num_seeds=5)
    assert [r.probe.name for r in report.failures] == ["truncation_pair", "truncation_loop"]
    said = check.verdict(report)
    assert (
        "FAIL at truncation_pair: look at truncation against termination. 0 of 5 seeds pass; expected V (1, 1.6)"
        in said
    )
    assert said.endswith("That is what comes out if truncation is treated as termination.")


def test_functions_that_a_file_lacks_are_reported_as_not_checked(tmp_path):
    path = tmp_path / "renamed.py"
    path.write_text(SOURCE.replace("gae(", "advantages_of("))
    report = check.run(str(path), only=["advantages"])
    assert report.ok
    assert (report.oracles[0].fault, report.oracles[0].why) == (None, "it has no gae")
    assert check.verdict(report).endswith("answers every check right; 1 not checked.")


def test_fields_under_another_name_are_reported_as_not_checked(tmp_path):
    path = tmp_path / "renamed.py"
    path.write_text(re.sub(r"\bfinal_obs\b", "led_to", SOURCE))
    report = check.run(str(path), only=["transitions", "learned_batch"])
    assert report.ok
    assert [c.fault for c in report.oracles] == [None, None]
    assert "has no attribute 'final_obs'" in report.oracles[0].why


def test_an_update_that_calls_other_functions_is_reported_as_not_checked(tmp_path):
    path = tmp_path / "inlined.py"
    path.write_text(
        SOURCE.replace("state, aux = learn(task, state,", "state, aux = (lambda *x: learn(*x))(task, state,")
    )
    assert check.run(str(path), only=["learned_batch"]).ok
    path.write_text(
        SOURCE.replace("state, aux = learn(task, state,", "state, aux = learning(task, state,")
        + """

learning = learn
"""
    )
    assert check.run(str(path), only=["learned_batch"]).oracles[0].why == "its update does not call collect and learn"


def test_metrics_and_settings_that_a_file_lacks_are_reported_as_not_checked(tmp_path):
    path = tmp_path / "renamed.py"
    path.write_text(SOURCE.replace("first_ratio_error", "r").replace('"kl"', '"k"').replace("approx_kl", "a"))
    assert (
        check.run(str(path), only=["first_ratio"]).oracles[0].why == "it emits no first_ratio_error or kl or approx_kl"
    )
    path.write_text(SOURCE.replace("anneal_lr", "anneal"))
    assert check.run(str(path), only=["schedule"]).oracles[0].why == "its Config lacks anneal_lr"


def test_a_probe_whose_setting_the_config_lacks_is_reported_as_not_checked(tmp_path):
    path = tmp_path / "renamed.py"
    path.write_text(SOURCE.replace("ent_coef", "bonus"))
    report = check.run(str(path), only=["soft_bandit_1"], num_seeds=2)
    assert report.rungs[0].why == "its Config lacks ent_coef, which the probe has to set"


def test_spaces_that_an_agent_does_not_take_are_reported_as_not_checked(tmp_path):
    old = '        if not is_discrete(space) and not hasattr(space, "low"):\n'
    path = planted(tmp_path, old, '        if what == "action" and not is_discrete(space):\n')
    report = check.run(path, only=["continuous_target"], num_seeds=2)
    assert "PPO takes Discrete or Box" in report.rungs[0].why


def test_a_file_that_raises_is_reported_with_its_line(tmp_path):
    path = planted(tmp_path, "    target = advantage + value\n", "    target = advantage + value + 1 / 0\n")
    line = SOURCE[: SOURCE.index("    target = advantage + value\n")].count("\n") + 1
    with pytest.raises(UsageError, match=f"line {line}: ZeroDivisionError"):
        check.run(path, only=["discount"], num_seeds=2)


def test_a_function_that_raises_is_at_fault_itself(tmp_path):
    path = planted(tmp_path, "    trace = gamma * gae_lambda *", "    trace = (1 / 0) * gamma * gae_lambda *")
    report = check.run(path, only=["advantages"])
    line = SOURCE[: SOURCE.index("    trace = gamma * gae_lambda *")].count("\n") + 1
    assert report.failures[0].fault == f"line {line}: ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("jnp.exp(distribution.log_probs[0])\n", "distribution.log_probs[0, :2]\n", "it must be their probabilities"),
        ("return value[0] * reward_scale", "return value * reward_scale", r"value gives an array of shape \(1,\)"),
        ("@flax.struct.dataclass\nclass Config", "class Config", "its Config is no dataclass"),
    ],
)
def test_a_file_that_breaks_the_contract_is_told_so(old, new, message, tmp_path):
    with pytest.raises(UsageError, match=message) as error:
        check.run(planted(tmp_path, old, new), only=["discount"])
    assert "\n" not in str(error.value)


def test_unknown_names_are_refused():
    with pytest.raises(UsageError, match=r"'discont' does not exist\. Did you mean 'discount'"):
        check.run("ppo", only=["discont"])
    with pytest.raises(UsageError, match="'phase_flip' is not for this kind of agent"):
        check.run("ppo", only=["phase_flip"])


# R5, and the names.


def test_sizes_are_primes_and_different():
    sizes = check.SETTINGS["A"]
    counts = {
        sizes["num_envs"],
        sizes["num_steps"],
        *(p.settings.get("A", {}).get("num_steps", 11) for p in LADDER.values()),
    }
    q = check.SETTINGS["Q"]
    counts |= {q["num_envs"], q["train_frequency"] // q["num_envs"], q["batch_size"]}
    widths = {check.WIDTH, check.ACTIONS, 3, 5, 13}
    c = check.SETTINGS["C"]
    counts |= {c["population_size"], c["num_rollouts"], c["num_eval_rollouts"]}
    counts |= {
        p.settings["C"]["population_size"] for p in LADDER.values() if "population_size" in p.settings.get("C", {})
    }
    assert all(n > 1 and all(n % k for k in range(2, n)) for n in counts | widths)
    assert not counts & widths
    for probe in LADDER.values():
        assert probe.settings.get("A", {}).get("num_minibatches", sizes["num_minibatches"]) in (1, sizes["num_envs"])


def test_what_a_seed_meets_differs_between_seeds():
    for name in ("constant", "obs_value", "bandit", "context_bandit", "table", "delayed_credit", "continuous_target"):
        met = {repr([x.tolist() for x in jax.tree.leaves(LADDER[name].case(seed).params)]) for seed in range(16)}
        assert len(met) > 1, name
    np.testing.assert_array_equal(LADDER["table"].case(3).truth.policy, LADDER["table"].case(3).truth.policy)


def test_readme_has_the_tables_that_the_code_prints():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_module("probes", run_name="__main__")
    assert printed.getvalue() in (Path(probes.__file__).parent / "README.md").read_text()


def test_gymnasium_knows_every_probe():
    assert list(LADDER) == list(registration.NAMES)


def test_agents_of_a_file_are_told_by_their_value():
    assert [check.kind_of(load_agent(name)) for name in ("ppo", "dqn", "cem")] == ["A", "Q", "C"]
    assert ladder.LADDER is probes.LADDER
