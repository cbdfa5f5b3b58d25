import json
import sys
import time

import numpy as np
import pytest
from tensorboardX import SummaryWriter

from rlref.cli import main
from rlref.errors import UsageError
from rlref.health import foreign

NAN, INF = float("nan"), float("inf")


def write_events(folder, points, seed=None):
    """As CleanRL does: a table of settings, then (tag, value, step) after (tag, value, step)."""
    with SummaryWriter(str(folder)) as writer:
        if seed is not None:
            settings = {"seed": seed, "gamma": 0.99, "target_kl": None, "anneal_lr": True, "env_id": "CartPole-v1"}
            lines = "\n".join(f"|{name}|{value}|" for name, value in settings.items())
            writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{lines}")
        for tag, value, step in points:
            writer.add_scalar(tag, value, step)
    return folder


def write_csv(path, text):
    path.write_text(text.replace(" ", "").strip() + "\n")
    return path


def ppo_points(steps=(8, 16)):
    return [
        point
        for step in steps
        for point in [
            ("charts/episodic_return", step, step - 3),
            ("charts/episodic_length", 3, step - 3),
            ("charts/learning_rate", 0.5, step),
            ("losses/value_loss", 2.0, step),
            ("losses/approx_kl", step / 1024, step),
            ("losses/old_approx_kl", 0.25, step),
        ]
    ]


SB3_PPO = """
time/total_timesteps,rollout/ep_rew_mean,time/fps,train/entropy_loss,train/value_loss,train/loss,train/clip_fraction
10,1.5,100,,,,
20,2.5,101,-0.5,4.0,-3.0,0.25
"""


def assert_row(log, name, expected, seed=0):
    np.testing.assert_array_equal(log.metrics[name][seed], np.array(expected, np.float32), err_msg=name)


# CleanRL


def test_cleanrl_events_are_read_under_our_names(tmp_path):
    log = foreign.read([write_events(tmp_path, ppo_points(), seed=3)])
    assert (log.source, log.kind, log.seeds, log.unknown) == ("CleanRL", "ppo", [3], ["losses/old_approx_kl"])
    assert_row(log, "env_steps", [8, 16])
    assert_row(log, "value_loss", [2, 2])
    assert_row(log, "approx_kl", [8 / 1024, 16 / 1024])
    assert_row(log, "learning_rate", [0.5, 0.5])
    assert_row(log, "return_mean", [8, 12])
    assert_row(log, "length_mean", [3, 3])
    assert_row(log, "nonfinite", [0, 0])
    assert all(x.dtype == np.float32 and x.shape == (1, 2) for x in log.metrics.values())


def test_a_healthy_log_is_diagnosed_without_what_it_does_not_tell(tmp_path, capsys):
    points = [(tag, value, step) for tag, value, step in ppo_points(range(8, 800, 8)) if "learning_rate" not in tag]
    points += [("charts/learning_rate", 2.5e-4, step) for step in range(8, 800, 8)]  # not annealed, as its table says
    points += [("losses/of_their_own", 1.0, 8)]
    write_events(tmp_path / "log", points, seed=3)
    assert main(["diagnose", str(tmp_path / "log")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("a log of CleanRL: 1 seed, 99 updates\n")
    assert "Learning rate" not in said
    assert "not checked, for want of" in said
    assert "in the log, and not used: losses/of_their_own" in said
    assert main(["diagnose", str(tmp_path / "log"), "--json"]) == 0
    assert {"findings", "checked", "unchecked"} <= json.loads(capsys.readouterr().out).keys()


def test_cleanrl_settings_come_from_its_table(tmp_path):
    log = foreign.read([write_events(tmp_path, ppo_points(), seed=3)])
    assert log.config == {"seed": 3, "gamma": 0.99, "target_kl": None, "anneal_lr": True, "env_id": "CartPole-v1"}


def test_seeds_are_named_by_their_settings_and_share_the_others(tmp_path):
    log = foreign.read([write_events(tmp_path / str(seed), ppo_points(), seed=seed) for seed in (7, 4)])
    assert log.seeds == [7, 4]
    assert log.config == {"gamma": 0.99, "target_kl": None, "anneal_lr": True, "env_id": "CartPole-v1"}


def test_equal_or_missing_seeds_are_counted(tmp_path):
    paths = [write_events(tmp_path / str(i), ppo_points(), seed=seed) for i, seed in enumerate((1, 1, None))]
    assert foreign.read(paths[:2]).seeds == [0, 1]
    assert foreign.read(paths[1:]).seeds == [0, 1]


def test_episodes_count_for_the_update_they_ended_by(tmp_path):
    points = [
        ("losses/value_loss", 0, 8),
        ("charts/episodic_return", 1, 9),
        ("charts/episodic_return", 5, 16),  # ended in the step after which it is logged
        ("losses/value_loss", 0, 16),
        ("charts/episodic_return", 9, 17),
        ("charts/episodic_return", 9, 17),  # two environments ended at once
        ("losses/value_loss", 0, 24),
    ]
    log = foreign.read([write_events(tmp_path, points)])
    assert_row(log, "return_mean", [NAN, 3, 6])
    assert_row(log, "return_std", [NAN, 2, np.sqrt((25 + 1 + 9 + 9) / 4)])
    assert_row(log, "return_min", [NAN, 1, 1])
    assert_row(log, "return_max", [NAN, 5, 9])
    assert_row(log, "return_count", [0, 2, 4])
    assert_row(log, "episodes", [0, 2, 2])


def test_returns_are_those_of_the_last_100_episodes(tmp_path):
    points = [("charts/episodic_return", i, i) for i in range(150)]
    log = foreign.read([write_events(tmp_path, [*points, ("losses/value_loss", 0, 149)])])
    assert_row(log, "return_min", [50])
    assert_row(log, "return_max", [149])
    assert_row(log, "return_mean", [99.5])
    assert_row(log, "return_count", [100])
    assert_row(log, "episodes", [150])


def test_returns_agree_with_a_loop_over_random_episodes():
    random = np.random.default_rng(0)
    values, ended = random.normal(size=300), np.sort(random.integers(0, 301, size=50))
    got = foreign._episodes("return", values, ended)
    for u, count in enumerate(ended):
        window = values[max(count - 100, 0) : count]
        expected = (window.mean(), window.std(), window.min(), window.max()) if count else (NAN,) * 4
        assert [got[f"return_{how}"][u] for how in ("mean", "std", "min", "max")] == pytest.approx(
            expected, nan_ok=True
        )


def test_a_million_episodes_take_seconds():
    start = time.perf_counter()
    got = foreign._episodes("return", np.arange(1e6), np.arange(0, 1_000_001, 100))
    assert time.perf_counter() - start < 100  # every window anew would take hours
    assert got["return_mean"][-1] == 1e6 - 50.5


def test_cleanrl_dqn_has_half_the_squared_error_and_its_q_values(tmp_path):
    points = [("charts/epsilon", 0.5, 150), ("losses/td_loss", 3.0, 200), ("losses/q_values", 7.0, 200)]
    log = foreign.read([write_events(tmp_path, points)])
    assert log.kind == "dqn"
    assert_row(log, "td_loss", [1.5])
    assert_row(log, "value_mean", [7])
    assert_row(log, "epsilon", [0.5])  # logged when an episode ended: the update after it has it


def test_a_log_of_returns_alone_has_an_update_per_episode(tmp_path):
    log = foreign.read([write_csv(tmp_path / "x.csv", "global_step,charts/episodic_return\n5,1\n9,3")])
    assert log.kind == ""
    assert_row(log, "env_steps", [5, 9])
    assert_row(log, "return_mean", [1, 2])


def test_weights_and_biases_export_is_read(tmp_path):
    text = """"global_step","a - b - losses/approx_kl","a - b - losses/approx_kl__MIN","a - b - charts/SPS","_runtime"
"8","0.5","0.4","","1"
"16","","","100","2"
"24","0.25","0.2","120","3"
"""
    (tmp_path / "x.csv").write_text(text)
    log = foreign.read([tmp_path / "x.csv"])
    assert_row(log, "env_steps", [8, 24])
    assert_row(log, "approx_kl", [0.5, 0.25])
    assert_row(log, "steps_per_second", [NAN, 120])
    assert log.unknown == []


def test_several_runs_in_one_export_are_refused(tmp_path):
    (tmp_path / "x.csv").write_text("global_step,a - losses/approx_kl,b - losses/approx_kl\n8,1,2\n")
    with pytest.raises(UsageError, match=r"holds several runs: losses/approx_kl is in it twice"):
        foreign.read([tmp_path / "x.csv"])


# Stable-Baselines3


def test_sb3_ppo_is_converted(tmp_path):
    log = foreign.read([write_csv(tmp_path / "progress.csv", SB3_PPO)])
    assert (log.source, log.kind, log.seeds, log.config, log.unknown) == ("Stable-Baselines3", "ppo", [0], {}, [])
    assert_row(log, "env_steps", [10, 20])
    assert_row(log, "return_mean", [1.5, 2.5])
    assert_row(log, "steps_per_second", [100, 101])
    assert_row(log, "entropy", [NAN, 0.5])
    assert_row(log, "value_loss", [NAN, 2])
    assert_row(log, "loss", [NAN, -3])
    assert_row(log, "clip_fraction", [NAN, 0.25])
    assert "td_loss" not in log.metrics


def test_sb3_dqn_loss_is_the_td_loss(tmp_path):
    text = "rollout/exploration_rate,time/fps,time/total_timesteps,train/loss,train/n_updates\n0.5,9,40,0.75,3"
    log = foreign.read([write_csv(tmp_path / "progress.csv", text)])
    assert (log.kind, log.unknown) == ("dqn", ["train/n_updates"])
    assert_row(log, "td_loss", [0.75])
    assert_row(log, "epsilon", [0.5])
    assert "loss" not in log.metrics


def test_sb3_loss_of_another_algorithm_is_left_out(tmp_path):
    log = foreign.read([write_csv(tmp_path / "x.csv", "time/total_timesteps,time/fps,train/loss\n40,9,0.75")])
    assert (log.kind, log.unknown) == ("", ["train/loss"])


def test_what_the_evaluation_dumped_counts_for_the_next_update(tmp_path):
    text = """
    time/total_timesteps,rollout/ep_rew_mean,time/fps,train/clip_fraction,eval/mean_reward
    10,1,9,,
    15,,,0.25,70
    20,2,9,,
    20,,,,80
    25,,,,90
    """
    log = foreign.read([write_csv(tmp_path / "progress.csv", text)])
    assert_row(log, "env_steps", [10, 20])
    assert_row(log, "clip_fraction", [NAN, 0.25])
    assert_row(log, "eval_return_greedy", [NAN, 80])
    assert_row(log, "return_mean", [1, 2])


def test_sb3_events_are_read(tmp_path):
    points = [("rollout/ep_rew_mean", 1, 10), ("time/fps", 9, 10), ("train/entropy_loss", -0.5, 10)]
    log = foreign.read([write_events(tmp_path, points)])
    assert (log.source, log.kind) == ("Stable-Baselines3", "ppo")
    assert_row(log, "entropy", [0.5])


# rlref


def test_our_own_events_are_read_as_they_are(tmp_path):
    points = [
        ("charts/episodic_return", 4, 8),  # a mean already
        ("losses/td_loss", 0.5, 8),  # has the half already
        ("diag/td_error_mean", 0.25, 8),
        ("diag/of_the_user", 3, 16),
    ]
    log = foreign.read([write_events(tmp_path, points)])
    assert (log.source, log.kind, log.unknown) == ("rlref", "dqn", [])
    assert set(log.metrics) == {"env_steps", "return_mean", "td_loss", "td_error_mean", "of_the_user"}
    assert_row(log, "return_mean", [4, NAN])
    assert_row(log, "td_loss", [0.5, NAN])
    assert_row(log, "of_the_user", [NAN, 3])


# Files and folders


def test_folder_holds_the_log_in_its_one_subfolder(tmp_path):
    write_events(tmp_path / "runs" / "CartPole-v1__ppo__1", ppo_points())
    assert_row(foreign.read([tmp_path]), "env_steps", [8, 16])


def test_a_log_in_the_folder_itself_comes_before_those_below(tmp_path):
    write_csv(write_events(tmp_path / "below", ppo_points()) / "progress.csv", SB3_PPO)
    write_events(tmp_path, ppo_points((8,)))
    assert_row(foreign.read([tmp_path]), "env_steps", [8])


def test_folder_with_several_logs_is_refused(tmp_path):
    for name in ("a", "b"):
        write_events(tmp_path / name, ppo_points())
    with pytest.raises(UsageError, match=r"holds 2 logs \(a, b\); give one per seed"):
        foreign.read([tmp_path])


def test_csv_is_preferred_to_events_beside_it(tmp_path):
    write_events(tmp_path, ppo_points())
    write_csv(tmp_path / "progress.csv", SB3_PPO)
    assert foreign.read([tmp_path]).source == "Stable-Baselines3"


def test_files_of_a_resumed_run_are_joined(tmp_path):
    old, new = (
        write_events(tmp_path / "old", ppo_points((8, 16, 24))),
        write_events(tmp_path / "new", ppo_points((16,))),
    )
    for i, folder in enumerate((old, new)):
        next(folder.iterdir()).rename(tmp_path / f"events.out.tfevents.{[9, 10][i]}.host")
    with pytest.warns(UserWarning, match=r"steps go back to 13 in charts/episodic_return"):
        log = foreign.read([tmp_path])
    assert_row(log, "env_steps", [8, 16])
    assert_row(log, "approx_kl", [8 / 1024, 16 / 1024])


@pytest.mark.parametrize("lost", [1, 20])
def test_truncated_events_give_what_is_readable(tmp_path, lost):
    file = next(write_events(tmp_path, ppo_points()).iterdir())
    file.write_bytes(file.read_bytes()[:-lost])
    log = foreign.read([file])
    assert_row(log, "env_steps", [8, 16])
    assert_row(log, "approx_kl", [8 / 1024, 16 / 1024])


def test_damaged_events_give_what_came_before(tmp_path):
    file = next(write_events(tmp_path, ppo_points()).iterdir())
    data = bytearray(file.read_bytes())
    at = data.rindex(b"losses/value_loss") - 4
    data[at : at + 8] = b"\xff" * 8
    file.write_bytes(data)
    with pytest.warns(UserWarning, match=r"is damaged at byte \d+; what comes after is left out"):
        log = foreign.read([file])
    assert_row(log, "approx_kl", [8 / 1024])


def test_shorter_seeds_are_padded(tmp_path):
    log = foreign.read([write_events(tmp_path / str(len(s)), ppo_points(s)) for s in ((8,), (8, 16))])
    assert_row(log, "env_steps", [8, NAN], seed=0)
    assert_row(log, "approx_kl", [8 / 1024, 16 / 1024], seed=1)


def test_what_one_seed_lacks_is_nan(tmp_path):
    both = write_csv(tmp_path / "a.csv", "global_step,losses/approx_kl,losses/entropy\n8,1,2")
    one = write_csv(tmp_path / "b.csv", "global_step,losses/approx_kl\n8,1")
    log = foreign.read([both, one])
    assert_row(log, "entropy", [2], seed=0)
    assert_row(log, "entropy", [NAN], seed=1)


def test_nonfinite_losses_in_events_are_noted(tmp_path):
    log = foreign.read([write_events(tmp_path, [("losses/value_loss", NAN, 8), ("losses/value_loss", 1, 16)])])
    assert_row(log, "nonfinite", [1, 0])


def test_nonfinite_losses_are_noted_and_empty_cells_are_not(tmp_path):
    text = "global_step,losses/value_loss,losses/explained_variance\n8,nan,1\n16,,nan\n24,inf,1\n32,1,1"
    log = foreign.read([write_csv(tmp_path / "x.csv", text)])
    assert_row(log, "value_loss", [NAN, NAN, INF, 1])
    assert_row(log, "nonfinite", [1, 0, 1, 0])  # explained variance is NaN where targets do not vary


def test_infinite_returns_are_kept(tmp_path):
    text = "global_step,charts/episodic_return,losses/value_loss\n8,inf,1\n9,1,1\n10,-inf,1"
    log = foreign.read([write_csv(tmp_path / "x.csv", text)])
    assert_row(log, "return_mean", [INF, INF, NAN])
    assert_row(log, "return_max", [INF, INF, INF])


def test_a_return_that_is_nan_is_no_episode(tmp_path):
    text = "global_step,charts/episodic_return,losses/value_loss\n8,1,1\n9,nan,1"
    log = foreign.read([write_csv(tmp_path / "x.csv", text)])
    assert_row(log, "return_mean", [1, 1])
    assert_row(log, "return_count", [1, 1])


def test_words_in_cells_are_not_numbers(tmp_path):
    text = "global_step,losses/value_loss,losses/approx_kl\n8,broken,1\nword,5,5\n24,2,3"
    log = foreign.read([write_csv(tmp_path / "x.csv", text)])
    assert_row(log, "env_steps", [8, 24])
    assert_row(log, "value_loss", [NAN, 2])
    assert_row(log, "nonfinite", [0, 0])


def test_of_steps_logged_twice_the_last_stays(tmp_path):
    log = foreign.read([write_csv(tmp_path / "x.csv", "global_step,losses/value_loss\n8,1\n16,2\n16,3")])
    assert_row(log, "value_loss", [1, 3])


def test_steps_that_go_back_replace_what_came_before(tmp_path):
    path = write_csv(tmp_path / "x.csv", "global_step,losses/value_loss\n8,1\n16,2\n24,3\n12,4\n20,5")
    with pytest.warns(UserWarning, match="steps go back to 12 in losses/value_loss"):
        log = foreign.read([path])
    assert_row(log, "env_steps", [8, 12, 20])
    assert_row(log, "value_loss", [1, 4, 5])


def test_a_last_line_cut_off_in_its_step_is_left_out(tmp_path):
    (tmp_path / "x.csv").write_text("train/approx_kl,time/total_timesteps\n1,10240\n2,20480\n3,307")
    assert_row(foreign.read([tmp_path / "x.csv"]), "env_steps", [10240, 20480])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", b"", "is no CSV file in UTF-8 .No columns to parse"),
        ("x.csv", b"global_step,losses/value_loss\n", "has no number in its column global_step"),
        ("x.csv", b"global_step,losses/value_loss\n8,\n", "holds no known metric .it has no numbers"),
        ("x.csv", b"global_step,a,b\n1,2,3\n", "holds no known metric .it has a, b.; known are CleanRL's names"),
        ("x.csv", b"Step,losses/value_loss\n1,2\n", "has no column of steps: time/total_timesteps or global_step"),
        ("x.csv", b"global_step,losses/value_loss\n1,2\n1,2,3,4\n", "is no CSV file in UTF-8 .Error tokenizing"),
        ("x.csv", b"global_step,losses/value_loss\n1,2,3\n4,5,6\n", "is no CSV file in UTF-8 .Length of header"),
        ("x.csv", "global_step,losses/value_loss\n1,ü\n".encode("latin-1"), "is no CSV file in UTF-8 .'utf-8' codec"),
        ("x.txt", b"1", "is neither a .csv file nor TensorBoard's"),
        ("events.out.tfevents.1", b"", "holds no scalars that can be read"),
        ("events.out.tfevents.1", b"no events at all" * 9, "holds no scalars that can be read"),
        ("folder/x.txt", b"", "holds no log: neither progress.csv nor events.out.tfevents"),
        ("folder/progress.csv/x.txt", b"", "holds no log"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(tmp_path, name, content, message):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    with pytest.raises(UsageError, match=message) as error:
        foreign.read([tmp_path / name.split("/")[0]])
    assert "\n" not in str(error.value)


def test_missing_paths_are_refused(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        foreign.read([tmp_path / "none"])
    with pytest.raises(UsageError, match="no log was given"):
        foreign.read([])


def test_seeds_of_different_projects_or_algorithms_are_refused(tmp_path):
    ppo = write_csv(tmp_path / "a.csv", SB3_PPO)
    dqn = write_csv(tmp_path / "b.csv", "time/total_timesteps,rollout/exploration_rate\n8,1")
    cleanrl = write_csv(tmp_path / "c.csv", "global_step,losses/approx_kl\n8,1")
    with pytest.raises(UsageError, match=r"different algorithms \(\S+a.csv: ppo, \S+b.csv: dqn\)"):
        foreign.read([ppo, dqn])
    with pytest.raises(UsageError, match=r"different projects \(\S+a.csv: Stable-Baselines3, \S+c.csv: CleanRL\)"):
        foreign.read([ppo, cleanrl])


def test_a_seed_that_ended_before_it_trained_is_of_the_others_kind(tmp_path):
    short = write_csv(tmp_path / "a.csv", "time/total_timesteps,time/fps\n10,90")
    assert foreign.read([short, write_csv(tmp_path / "b.csv", SB3_PPO)]).kind == "ppo"


def test_without_tensorboardx_it_says_what_to_install(tmp_path, monkeypatch):
    write_events(tmp_path, ppo_points())
    monkeypatch.setitem(sys.modules, "tensorboardX.proto.event_pb2", None)
    with pytest.raises(UsageError, match="pip install tensorboardX, or rlref with its extra 'tensorboard'"):
        foreign.read([tmp_path])
