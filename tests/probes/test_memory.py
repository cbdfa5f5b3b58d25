"""The rungs of agents with a memory: their truths, how far off wrong answers are, and what planted bugs end at."""

import importlib.util
import inspect
import sys

import numpy as np
import pytest

from probes import check, solve
from probes.ladder import LADDER
from probes.memory import FORGETS, MEMORY, is_markov
from probes.oracles import MEMORY_ORACLES
from probes.oracles.base import CYCLE
from probes.oracles.contract import apart
from probes.ways import ways
from rlref import ppo_rnn
from rlref.errors import UsageError

rungs = pytest.mark.parametrize("name", MEMORY)


@rungs
@pytest.mark.parametrize("seed", range(4))
def test_values_are_those_of_the_best_policy_that_knows_the_state(name, seed):
    case, gamma = MEMORY[name].case(seed), MEMORY[name].gamma
    says = np.isfinite(case.truth.value)
    np.testing.assert_allclose(case.truth.value[says], solve.best_values(case.params, gamma)[says], atol=1e-6)
    if case.truth.policy is not None:
        q = solve.action_values(case.params, solve.best_values(case.params, gamma), gamma)
        rows = np.isfinite(case.truth.policy).all(axis=1)
        np.testing.assert_array_equal(q[rows].argmax(axis=1), case.truth.policy[rows].argmax(axis=1))


@rungs
def test_a_way_leads_to_its_state(name):
    params = MEMORY[name].case(0).params
    for i, (states, actions, length) in enumerate(zip(*ways(params, 20), strict=True)):
        states, actions = states[-length:], actions[-length:]
        assert states[-1] == i
        assert params.start[states[0]] > 0
        for k, (at, action, to) in enumerate(zip(states, actions, states[1:], strict=False)):
            assert params.next[at, action] == to
            if (params.terminated | params.truncated)[at, action]:  # to what is met as a final observation alone
                assert k == length - 2
                assert np.isnan(MEMORY[name].case(0).truth.value[i])


@rungs
def test_some_states_show_the_same_and_are_worth_different_things(name):
    case = MEMORY[name].case(0)
    worth = [
        {round(float(v), 6) for v, o in zip(case.truth.value, case.params.obs, strict=True) if (o == obs).all()}
        for obs in case.params.obs
    ]
    acts = case.truth.policy is not None and [
        {tuple(p) for p, o in zip(case.truth.policy, case.params.obs, strict=True) if (o == obs).all()}
        for obs in case.params.obs
    ]
    assert max(map(len, worth)) > 1 or max(map(len, acts)) > 1


@rungs
def test_wrong_answers_are_four_tolerances_away(name):
    probe = MEMORY[name]
    for seed in range(4):
        case = probe.case(seed)
        for cause, answer in probe.wrong(case).items():
            filled = check.Answer(
                np.where(np.isfinite(answer.value), answer.value, case.truth.value),
                None if answer.policy is None else np.nan_to_num(answer.policy, nan=0.5),
            )
            assert check.error(probe, "ppo", case, filled) >= 3.3, cause


def test_of_the_ladder_what_shows_the_same_or_is_cut_is_left_out():
    left_out = {name for name, probe in LADDER.items() if "ppo" in probe.kinds and not is_markov(probe)}
    assert left_out == {
        "truncation_pair", "truncation_loop", "reset_temptation", "delayed_credit", "will_to_live", "large_rewards",
    }  # fmt: skip


def test_agents_without_a_memory_are_asked_by_name_alone():
    with pytest.raises(UsageError) as error:
        check.run("dqn", only=["recall_1"])
    assert "the check 'recall_1' is not for this kind of agent" in str(error.value)


def test_agents_with_a_memory_are_not_asked_what_theirs_cannot_answer():
    with pytest.raises(UsageError) as error:
        check.run("ppo_rnn", only=["statistics_seen"])
    assert "the check 'statistics_seen' is not for this kind of agent" in str(error.value)


def copy(tmp_path, name, *changes):
    source = inspect.getsource(ppo_rnn)
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    path = tmp_path / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BUGS = {  # text, with what; the rung; the wrong answer that comes out, if it has a name
    "always_reset": ("jnp.where(reset[:, None], empty", "jnp.where(True, empty", "recall_1", FORGETS),
    "final_after_reset": (
        "reward, jnp.zeros_like(ended))", "reward, ended)", "remembered_limit",
        "a final observation is valued with the memory after the reset, or a limit ends the value",
    ),
    "time_shuffled": (
        ".swapaxes(0, 1).reshape(length, -1, *x.shape[2:])", ".reshape(length, -1, *x.shape[2:])", "recall_cut",
        FORGETS,
    ),
    "always_reset_in_the_rollout": (
        "Seen(obs, sent, reward, ended)", "Seen(obs, sent, reward, state.seen.reset)", "recall_1", "",
    ),
    "memory_outlives_a_limit": (
        "Seen(obs, sent, reward, ended)", "Seen(obs, sent, reward, terminated)", "remembered_limit", "",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_fails_where_the_right_agent_passes(name, tmp_path):
    old, new, rung, cause = BUGS[name]
    (right,) = check.run(copy(tmp_path, "right"), only=[rung], num_seeds=8).rungs
    assert right.ok
    assert not right.slow
    (wrong,) = check.train_group(copy(tmp_path, name, (old, new)), "ppo", [MEMORY[rung]], range(8))
    assert wrong.failures >= 6
    if cause:
        case, answer = list(wrong.rows())[wrong.worst]
        errors = {c: check.error(wrong.probe, "ppo", case, answer, to) for c, to in wrong.probe.wrong(case).items()}
        assert min(errors, key=errors.get) == cause


FAULTS = {  # text, with what; the oracle; what it says
    "never_remembered": (
        "jnp.where(reset[:, None], empty(task.config), memory)", "0 * memory", "later_steps",
        "the same whatever the memory",
    ),
    "never_reset": (
        "jnp.where(reset[:, None], empty(task.config), memory)", "memory", "first_steps",
        "with a memory of another episode",
    ),
    "lstm_half_reset": (
        "jnp.where(reset[:, None], empty(task.config), memory)",
        "jnp.where(reset[:, None] & (jnp.arange(memory.shape[1]) < task.config.memory_size), 0.0, memory)",
        "first_steps", "with a memory of another episode",
    ),
    "always_reset_in_the_rollout": (
        "Seen(obs, sent, reward, ended)", "Seen(obs, sent, reward, state.seen.reset)", "remembered_values",
        "as where the memory is emptied before every step",
    ),
    "reset_with_another": (
        "Seen(obs, sent, reward, ended)", "Seen(obs, sent, reward, ended | ended.any())", "memories_apart",
        "in two environments, value_",
    ),
    "limit_outlived": (
        "Seen(obs, sent, reward, ended)", "Seen(obs, sent, reward, terminated)", "remembered_values",
        "as where the memory outlives a time limit",
    ),
    "rollouts_begin_empty": (
        "    start = state.memory\n",
        "    state = replace(state, memory=jnp.zeros_like(state.memory))\n    start = state.memory\n",
        "remembered_values", "as where the memory is emptied where a rollout begins",
    ),
    "final_after_reset": (
        "reward, jnp.zeros_like(ended))", "reward, ended)", "remembered_finals",
        "as where a final observation is valued with the memory after the reset",
    ),
    "next_values_from_nothing": (
        "state.obs_moments, memory, final)", "state.obs_moments, 0 * memory, final)", "remembered_finals",
        "as where what a step leads to is valued with an empty memory",
    ),
    "action_never_shown": (
        "seen = Seen(obs, sent,", "seen = Seen(obs, state.seen.last_action,", "last_shown",
        "as where the network is not shown the last action",
    ),
    "sequences_begin_empty": (
        "ends = jnp.stack([before,", "ends = jnp.stack([0 * before,", "cut_sequences", "first_ratio_error is",
    ),
    "c_forgotten_where_sequences_begin": (
        "ends = jnp.stack([before,", "ends = jnp.stack([before.at[:, config.memory_size :].set(0.0),",
        "cut_sequences", "first_ratio_error is",
    ),
    "learning_sees_actions_a_step_late": (
        "flat(batch.seen))", "flat(batch.seen._replace(last_action=jnp.roll(batch.seen.last_action, 1, axis=0))))",
        "cut_sequences", "first_ratio_error is",
    ),
    "learning_sees_the_reward_that_is_to_come": (
        "flat(batch.seen))", "flat(batch.seen._replace(last_reward=jnp.roll(batch.seen.last_reward, -1, axis=0))))",
        "cut_sequences", "first_ratio_error is",
    ),
    "last_step_alone": (
        "value_loss = 0.5 * squared_error.mean()", "value_loss = 0.5 * squared_error[-1:].mean()", "losses_apart",
        "value_loss in sequences of 4 of 12 steps",
    ),
    "reward_scaled_in_training": (
        "        seen = Seen(obs, sent, reward, ended)",
        "        seen = Seen(obs, sent, reward if state.return_moments is None"
        " else reward / reward_scale(state.return_moments), ended)",
        "last_unscaled", "where rewards are scaled",
    ),
    "finals_with_the_reward_before": (
        'info["final_observation"], sent, reward,', 'info["final_observation"], sent, state.seen.last_reward,',
        "last_shown", "as where what a step leads to is valued with the reward before",
    ),
    "finals_with_the_action_before": (
        'Seen(info["final_observation"], sent,', 'Seen(info["final_observation"], state.seen.last_action,',
        "last_shown", "as where what a step leads to is valued with the action before",
    ),
    "learning_ignores_resets": (
        "memory = remember(task, params, memory, *x)", "memory = remember(task, params, memory, x[0], 0 * x[1] > 0)",
        "first_ratio", "the first ratio is off by",
    ),
    "action_as_sampled": (
        "seen = Seen(obs, sent,", "seen = Seen(obs, action.astype(sent.dtype).reshape(sent.shape),", "last_taken",
        "where actions are cut to nearly 0, value_",
    ),
    "kl_reversed": ("policy.kl(without).mean()", "without.kl(policy).mean()", "known_memory", "memory_kl, to what it"),
    "no_gradient_through_time": (
        "memory = remember(task, params, memory, *x)",
        "memory = remember(task, params, jax.lax.stop_gradient(memory), *x)", "exact_policy", "learning rates away",
    ),
    "no_gradient_through_what_is_kept": (
        "return keep * memory +", "return keep * jax.lax.stop_gradient(memory) +", "memory_gradients",
        "beside what small changes of the parameters do: something stops them",
    ),
    "no_gradient_through_c": (
        "c = nn.sigmoid(forget + 1) * c +", "c = nn.sigmoid(forget + 1) * jax.lax.stop_gradient(c) +",
        "memory_gradients", "with {'cell': 'lstm'}, gradients of values are",
    ),
    "c_learned_as_a_constant": (
        "        memory = remember(task, params, memory, *x)\n",
        "        memory = jnp.where(jnp.arange(memory.shape[1]) < task.config.memory_size, memory, "
        "jax.lax.stop_gradient(memory))\n        memory = remember(task, params, memory, *x)\n",
        "memory_gradients", "with {'cell': 'lstm'}, after three gradient steps a parameter is",
    ),
    "c_lost": (
        "nn.sigmoid(forget + 1) * c +", "nn.sigmoid(forget + 1) * h +", "known_cell",
        "lstm: the memory after a step is",
    ),
    "c_shown": (
        "h = memory[:, : self.config.memory_size]", "h = memory[:, -self.config.memory_size :]", "known_cell",
        "lstm: what is decided with another c, and the same h, is",
    ),
    "gru_without_its_reset_gate": ("nn.sigmoid(xr + hr) * hn", "hn", "known_cell", "gru: the memory after a step is"),
    "saturation_of_h": (
        "jnp.tanh(memory[..., size:])", "memory[..., :size]", "known_memory",
        "with {'cell': 'lstm'}, memory_saturation is",
    ),
    "gradient_goes_on_over_resets": (
        "jnp.where(reset[:, None], unit, gradient / norm[:, None])", "gradient / norm[:, None]", "known_memory",
        "memory_gradient is",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_each_oracle_of_memory_fails_on_a_planted_fault(name, tmp_path):
    old, new, oracle, said = FAULTS[name]
    (asked,) = check.run(copy(tmp_path, name, (old, new)), only=[oracle], bisect=False).oracles
    assert said in asked.fault


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_the_agent_passes_every_oracle_of_its_kind(cell, tmp_path):
    names = [name for name, x in check.checks_for("ppo", with_memory=True).items() if isinstance(x, check.Oracle)]
    module = "ppo_rnn" if cell == "gru" else copy(tmp_path, cell, ('= static("gru")', '= static("lstm")'))
    report = check.run(module, only=names, bisect=False)
    assert not [x for x in report.oracles if x.fault]
    asked = {x.oracle.name for x in report.oracles if x.fault == ""}
    assert asked >= MEMORY_ORACLES.keys()
    assert asked >= {"known_rollout", "known_advantages", "exact_policy", "exact_value", "exact_batch", "first_ratio"}


def test_what_ends_or_leads_back_leads_to_a_state_of_its_own():
    new = apart(CYCLE)
    assert new.next[:4, 0].tolist() == [1, 4, 3, 5]
    assert len(np.unique(new.obs, axis=0)) == len(new.obs) == 6
    states, _, length = ways(new)
    assert [row[-n:].tolist() for row, n in zip(states, length, strict=True)] == [
        [0], [0, 1], [2], [2, 3], [0, 1, 4], [2, 3, 5],
    ]  # fmt: skip


def test_oracles_of_memory_are_for_agents_that_have_one():
    with pytest.raises(UsageError) as error:
        check.run("ppo", only=["first_steps"])
    assert "the check 'first_steps' is not for this kind of agent" in str(error.value)


@pytest.mark.slow
def test_agents_that_remember_otherwise_are_not_called_wrong(tmp_path):
    """An LSTM's carry as a pair; and a network that is always shown the last action and reward, without a setting."""
    pair = (
        ("steps_per_update, empty(config))", "steps_per_update, tuple(jnp.split(empty(config), 2)))"),
        ("        seen = Seen(*(", "        memory = jnp.concatenate(memory)\n        seen = Seen(*("),
        ("        return jax.tree.map(lambda x: x[0], forward(", "        new = jax.tree.map(lambda x: x[0], forward("),
        (
            "memory[None], seen))\n",
            "memory[None], seen))\n        return *new[:2], tuple(jnp.split(new[2], 2))\n",
        ),
    )
    always = (
        (next(x for x in inspect.getsource(ppo_rnn).splitlines(True) if x.startswith("    last_inputs: bool")), ""),
        ("    if not task.config.last_inputs:\n        return jnp.zeros((seen.reset.shape[0], 0))\n", ""),
    )
    for name, edits in (("pair", pair), ("always", always)):
        report = check.run(copy(tmp_path, name, *edits), only=[*MEMORY_ORACLES], bisect=False)
        assert not [x.fault for x in report.oracles if x.fault]
        assert {x.oracle.name for x in report.oracles if x.fault == ""} >= {"remembered_values", "remembered_finals"}
