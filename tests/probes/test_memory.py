"""The rungs of agents with a memory: their truths, how far off wrong answers are, and what planted bugs end at."""

import importlib.util
import inspect
import sys

import numpy as np
import pytest

from probes import check, solve
from probes.ladder import LADDER
from probes.memory import FORGETS, MEMORY, is_markov
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
        if params.start[states[0]] > 0:
            for at, action, to in zip(states, actions, states[1:], strict=False):
                assert params.next[at, action] == to
                assert not (params.terminated | params.truncated)[at, action]
        else:  # met as a final observation alone
            assert length == 1
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


def copy(tmp_path, name, old="", new=""):
    source = inspect.getsource(ppo_rnn)
    assert source.count(old) == 1 or not old
    path = tmp_path / f"{name}.py"
    path.write_text(source.replace(old, new) if old else source)
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
    "reset_one_step_late": (
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
    (wrong,) = check.train_group(copy(tmp_path, name, old, new), "ppo", [MEMORY[rung]], range(8))
    assert wrong.failures >= 6
    if cause:
        case, answer = list(wrong.rows())[wrong.worst]
        errors = {c: check.error(wrong.probe, "ppo", case, answer, to) for c, to in wrong.probe.wrong(case).items()}
        assert min(errors, key=errors.get) == cause
