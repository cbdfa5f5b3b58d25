"""Checkpoints, resuming and extending: whatever happens to a run, it ends with the same bits, or says why not."""

import contextlib
import dataclasses
import errno
import functools
import gc
import importlib
import json
import re
import shutil
import signal
import warnings
from pathlib import Path

import counting_env
import jax
import numpy as np
import pytest
from helpers import SMALL
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import rlref
from rlref import cem, dqn, ppo
from rlref.cli import main
from rlref.cli.train import print_summary
from rlref.contract import load_agent
from rlref.errors import UsageError
from rlref.runs import checkpoint, files, group, programs, trained, training
from rlref.runs.display import Silent
from rlref.runs.extension import check_extension
from rlref.runs.folder import Folder
from rlref.runs.footprint import trace_row
from rlref.runs.group import Group
from rlref.runs.job import Job, check_same, lengthened
from rlref.runs.leaves import named_leaves, with_leaves
from rlref.runs.metric_pieces import metric_files
from rlref.runs.plan import Plan, make_plan
from rlref.settings import config_of, in_json, out_of_json

SEEDS = 6


class StopAfter(Silent):
    """Stops the training once so many of its updates are shown, as SIGTERM from outside does."""

    def __init__(self, updates):
        self.updates, self.sent = updates, False

    def progress(self, done, total, metrics, verdict):
        if done >= self.updates * SEEDS and not self.sent:
            self.sent = True
            signal.raise_signal(signal.SIGTERM)


compile_programs = programs.compile_programs
compiled = {}


def compiled_once(job, plan, display):
    """The programs of a job, traced once for all of its runs here: what is tested comes after."""
    key = json.dumps(job.about), plan
    if key not in compiled:
        compiled[key] = compile_programs(job, plan, display)
    with display.compiling("the training"):
        return compiled[key]


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch):
    monkeypatch.setattr(programs, "MAX_CHUNK", 3)
    monkeypatch.setattr(training, "compile_to_fit", functools.partial(programs.compile_to_fit, compile=compiled_once))


def train(agent, path, config=None, **options):
    options = {"env": counting_env.Counting(), "num_seeds": SEEDS, "checkpoint_every": 4, "eval_every": 6} | options
    return rlref.train(agent, config or SMALL[agent], run_dir=path, eval_episodes=2, **options)


def resume(path, **options):
    return rlref.resume(path, **({"env": counting_env.Counting()} | options))


def final_leaves(path, first_row=0):
    with contextlib.closing(checkpoint.Checkpoints(path, first_row)) as checkpoints:
        return checkpoints.load(checkpoints.record(checkpoints.updates()[0]))


def steps_of(path):
    return sorted(int(p.name) for p in (path / "checkpoints" / "row000000").iterdir() if p.name.isdecimal())


def assert_same(path, whole):
    """The folder's metrics and final state are those of the uninterrupted run, bit for bit."""
    a, b = rlref.load(path).metrics, rlref.load(whole).metrics
    assert a.keys() == b.keys()
    for name in a.keys() - {"steps_per_second"}:
        assert a[name].tobytes() == b[name].tobytes(), name
    first, second = final_leaves(path), final_leaves(whole)
    assert first.keys() == second.keys()
    for name, x in first.items():
        assert x.tobytes() == second[name].tobytes(), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of an uninterrupted PPO run, with checkpoints after 16 and 20 updates."""
    path = tmp_path_factory.mktemp("whole") / "run"
    train("ppo", path, eval_every=0)
    return path


@pytest.fixture
def run(whole, tmp_path):
    """A copy of that folder whose last updates are lost: its newest checkpoint is that of update 16."""
    shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "row000000" / "20")
    (tmp_path / "run" / "summary.json").unlink()
    return tmp_path / "run"


@pytest.mark.parametrize(
    "agent", ["cem", *(pytest.param(x, marks=pytest.mark.slow) for x in ("ppo", "ppo_rnn", "dqn"))]
)
def test_a_stopped_run_ends_with_the_same_bits(agent, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "compile_to_fit", programs.compile_to_fit)  # of what each folder says
    train(agent, tmp_path / "whole")
    stopped = train(agent, tmp_path / "run", display=StopAfter(5))
    assert stopped.summary["status"] == "interrupted"
    assert stopped.summary["stopped_by"] == "SIGTERM"
    assert 5 <= stopped.metrics["env_steps"].shape[1] < 20
    again = resume(tmp_path / "run")
    assert again.summary["status"] == "finished"
    assert_same(tmp_path / "run", tmp_path / "whole")
    assert (again.scores == rlref.load(tmp_path / "whole").scores).all()


@pytest.mark.slow
def test_the_newest_two_checkpoints_are_kept(whole):
    assert steps_of(whole) == [16, 20]


@pytest.mark.slow
def test_metrics_after_the_checkpoint_come_again(run, whole):
    assert rlref.load(run).metrics["env_steps"].shape[1] == 20
    assert resume(run).metrics["env_steps"].shape[1] == 20
    assert_same(run, whole)
    starts = [start for start, _ in metric_files(run, 0)]
    assert len(starts) == len(set(starts))


@pytest.mark.slow
def test_the_folder_tells_of_the_resume(run):
    resume(run, command=["rlref", "train", "--resume", "x"])
    (resumed,) = files.read_json(run / "environment.json")["resumed"]
    assert resumed["command"] == ["rlref", "train", "--resume", "x"]
    assert resumed["versions"]["jax"] == jax.__version__


@pytest.mark.slow
def test_a_run_without_checkpoints_begins_again(run, whole):
    shutil.rmtree(run / "checkpoints")
    with pytest.warns(UserWarning, match="begins again"):
        resume(run)
    assert_same(run, whole)


@pytest.mark.slow
def test_a_run_killed_before_its_first_update_can_be_resumed(run, whole):
    for name in ("checkpoints", "metrics"):
        shutil.rmtree(run / name)
    (run / "metrics").mkdir()
    resume(run)
    assert_same(run, whole)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def largest(folder):
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "damage"),
    [
        ("state/d", flip),
        ("state/d", truncate),
        ("state/d", Path.unlink),
        ("record", flip),
        ("state/manifest.ocdbt", flip),
    ],
)
def test_a_damaged_checkpoint_is_not_used(run, whole, damage, which):
    newest = run / "checkpoints" / "row000000" / "20"
    shutil.copytree(whole / "checkpoints" / "row000000" / "20", newest)
    damage(largest(newest / which) if (newest / which).is_dir() else newest / which)
    with pytest.warns(UserWarning, match=r"row000000/20 is not used, and is now called damaged-20"):
        resume(run)
    assert_same(run, whole)


@pytest.mark.slow
def test_if_all_checkpoints_are_damaged_the_run_begins_again(run, whole):
    flip(largest(run / "checkpoints" / "row000000" / "16" / "state" / "d"))
    with pytest.warns(UserWarning, match="16 is not used"), pytest.warns(UserWarning, match="begins again"):
        resume(run)
    assert_same(run, whole)


@pytest.mark.slow
def test_an_empty_folder_with_a_number_for_a_name_is_not_used(run, whole):
    (run / "checkpoints" / "row000000" / "19").mkdir()
    with pytest.warns(UserWarning, match="19 is not used"):
        resume(run)
    assert_same(run, whole)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_damaged_metrics_come_again(run, whole, damage):
    damage(metric_files(run, 0)[1][1])
    with pytest.warns(UserWarning, match="16 is not used"), pytest.warns(UserWarning, match="begins again"):
        resume(run)
    assert_same(run, whole)


def test_a_full_disk_is_warned_of_and_the_training_goes_on(tmp_path, whole, monkeypatch):
    real, calls = checkpoint.Checkpoints.save, []

    def save(self, *arguments):
        calls.append(arguments)
        if len(calls) < 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, *arguments)

    monkeypatch.setattr(checkpoint.Checkpoints, "save", save)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        train("ppo", tmp_path / "run", eval_every=0)
    texts = [str(w.message).partition(": ")[2] for w in warned]
    assert texts == [
        f"the checkpoint of update {n} could not be written: OSError: No space left on device" for n in (4, 8)
    ]
    assert_same(tmp_path / "run", whole)


@pytest.mark.slow
def test_a_disk_that_fills_up_hangs_nothing_and_loses_nothing(tmp_path, whole):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Full(Silent):
        def progress(self, done, total, metrics, verdict):
            if done >= 7 * SEEDS:  # no file can grow any more
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            run = train("ppo", tmp_path / "run", eval_every=0, display=Full())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (run.summary["status"], run.summary["all_written"]) == ("incomplete", False)
    assert (run.scores == rlref.load(whole).scores).all()
    texts = " ".join(str(w.message) for w in warned)
    assert len(re.findall("the sink TensorBoard could not be [a-z0-9 ]+ and ends: OSError: File too large", texts)) == 1
    for what in ("the checkpoint of update 12", "the checkpoint of update 20"):
        assert f"{what} could not be written: OSError: File too large" in texts
    assert rlref.load(tmp_path / "run").summary["status"] == "killed"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whether a checkpoint was whole before the disk was full is a matter of luck
        assert resume(tmp_path / "run").summary["status"] == "finished"
        gc.collect()  # a save that was cut off leaves a coroutine, whose end would be warned of in another test
    assert_same(tmp_path / "run", whole)


def test_a_stopped_run_that_could_not_be_written_says_so(tmp_path, monkeypatch, capsys):
    def save(self, *arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.Checkpoints, "save", save)
    with pytest.warns(UserWarning, match="could not be written"):
        run = train("ppo", tmp_path / "run", eval_every=0, display=StopAfter(7))
    assert (run.summary["status"], run.summary["all_written"]) == ("interrupted", False)
    print_summary(run)
    said = capsys.readouterr().out
    assert "stopped by SIGTERM\n" in said
    assert "not all of it could be written" in said
    assert "is kept" not in said


@pytest.mark.slow
def test_without_a_number_of_updates_checkpoints_are_written_by_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(group, "CHECKPOINT_SECONDS", 0.0)
    train("ppo", tmp_path / "often", eval_every=0, checkpoint_every=None)
    monkeypatch.setattr(group, "CHECKPOINT_SECONDS", 3600.0)
    train("ppo", tmp_path / "rarely", eval_every=0, checkpoint_every=None)
    assert len(steps_of(tmp_path / "often")) == 2  # the newest two are kept
    assert steps_of(tmp_path / "rarely") == [20]


def test_metrics_that_cannot_be_written_wait(tmp_path, whole, monkeypatch):
    real, calls = files.save_arrays, []

    def save(path, values):
        calls.append(path)
        if len(calls) < 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, values)

    monkeypatch.setattr(files, "save_arrays", save)
    with pytest.warns(UserWarning, match="could not be written"):
        train("ppo", tmp_path / "run", eval_every=0)
    # No checkpoint was written before its metrics were.
    assert_same(tmp_path / "run", whole)


@pytest.mark.slow
def test_groups_resume_where_they_were(tmp_path):
    env = counting_env.Counting()
    traced = trace_row(lambda config: cem.make(config, env), SMALL["cem"])
    row = traced.peak_bytes + traced.state_bytes
    options = {"memory_gb": 3.5 * row / 1e9}
    train("cem", tmp_path / "whole", **options)
    stopped = train("cem", tmp_path / "run", display=StopAfter(13), **options)
    assert stopped.summary["status"] == "interrupted"
    assert np.isfinite(stopped.metrics["env_steps"]).all(1).sum() == 3
    with pytest.raises(UsageError, match="interrupted before this seed began"):
        train("cem", tmp_path / "first", display=StopAfter(5), **options).policy(5)
    resume(tmp_path / "run")
    assert_same(tmp_path / "run", tmp_path / "whole")
    for first in (0, 3):
        a, b = final_leaves(tmp_path / "run", first), final_leaves(tmp_path / "whole", first)
        assert all(a[name].tobytes() == b[name].tobytes() for name in a)
    loaded = trained.of_folder(tmp_path / "run", env=env)
    for seed in range(SEEDS):
        group = final_leaves(tmp_path / "run", 3 * (seed // 3))
        for name, x in loaded.of_row(loaded.row(seed)).items():
            np.testing.assert_array_equal(x, group[name][seed % 3], err_msg=name)


@pytest.mark.slow
def test_batched_settings_resume(tmp_path, capsys):
    config = SMALL["cem"].replace(init_variance=np.array([1.0, 4.0]), smoothing=np.array([0.0, 0.5]))
    config = config.replace(env_id="counting_env:make_env")
    train("cem", tmp_path / "whole", config, env=None)
    train("cem", tmp_path / "run", config, env=None, display=StopAfter(10))
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert len(re.findall(r"setting [01]  mean_policy_return  IQM", capsys.readouterr().out)) == 2
    assert rlref.load(tmp_path / "run").metrics["kl"].shape == (2, SEEDS, 20)
    assert_same(tmp_path / "run", tmp_path / "whole")
    assert rlref.load(tmp_path / "run").config["smoothing"] == [0.0, 0.5]
    assert main(["export", str(tmp_path / "run"), "--seed", "2", "--setting", "1"]) == 0
    with np.load(tmp_path / "run" / "setting-1-seed-2.npz") as file:
        kept, about = json.loads(str(file["config"])), json.loads(str(file["about"]))
        assert (kept["init_variance"], kept["smoothing"], about["seed"]) == (4.0, 0.5, 2)
        leaves = final_leaves(tmp_path / "run")
        for name in set(file) - {"config", "about"}:
            np.testing.assert_array_equal(file[name], leaves[name.removeprefix("state/")][SEEDS + 2], err_msg=name)


def test_infinite_settings_come_back():
    assert out_of_json(json.loads(json.dumps(in_json({"a": [0.5, np.inf], "b": "tanh"})))) == {
        "a": [0.5, np.inf],
        "b": "tanh",
    }


@pytest.mark.slow
def test_an_extended_run_is_the_longer_run(tmp_path):
    train("ppo", tmp_path / "run")
    longer = SMALL["ppo"].replace(total_timesteps=27 * 12)
    train("ppo", tmp_path / "longer", longer)
    assert resume(tmp_path / "run", total_timesteps=27 * 12).summary["status"] == "finished"
    assert_same(tmp_path / "run", tmp_path / "longer")
    assert rlref.load(tmp_path / "run").config["total_timesteps"] == 27 * 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "change", "reason"),
    [
        ("ppo", {"anneal_lr": True}, r"learning_rate runs from 0.00025 to .* over all 20 updates"),
        ("dqn", {}, "epsilon runs from"),
        ("cem", {"extra_variance": 1.0}, "extra_variance runs from 1 to"),
        ("ppo", {}, None),
        ("dqn", {"start_e": 0.05, "end_e": 0.05}, None),  # a schedule from a value to itself
        ("cem", {"extra_variance": 0.0}, None),
        ("ppo", {"learning_rate": np.float32([1e-3, 1e-4])}, None),
        ("ppo", {"anneal_lr": True, "learning_rate": np.float32([0, 1e-4])}, "learning_rate runs from 0.0001 to"),
        ("cem", {"extra_variance": np.float32([0, 1])}, "extra_variance runs from 1 to"),
        ("cem", {"extra_variance": np.float32([0, 0]), "smoothing": np.float32([0, 0.5])}, None),
    ],
)
def test_a_schedule_forbids_extending(agent, change, reason):
    with contextlib.nullcontext() if reason is None else pytest.raises(UsageError, match=reason):
        extend({"ppo": ppo, "dqn": dqn, "cem": cem}[agent], SMALL[agent].replace(**change))


def extend(module, config):
    env = counting_env.Counting()
    job = Job(module, config, env, env.default_params, [0], 0, 1, True)
    longer = lengthened(job, 100_000)
    saved = check_same(longer, json.loads(json.dumps(job.about)), Path("run"))
    assert saved.about == job.about
    state = jax.vmap(job.agent.init)(jax.random.split(jax.random.key(0), job.num_rows))
    arrays = {name: np.asarray(checkpoint.raw(x)) for name, x in named_leaves(state).items()}
    check_extension(saved, longer, arrays, Path("run"))


@pytest.mark.slow
def test_a_schedule_that_is_no_metric_forbids_extending(tmp_path):
    """Of a user's own: something that falls over the training and that no diagnostic tells of."""
    source = Path(ppo.__file__).read_text()
    hidden = source.replace("indices, learning_rate)\n", "indices, learning_rate * (2 - step / num_updates))\n")
    assert hidden != source
    (tmp_path / "annealed.py").write_text(hidden)
    module = load_agent(tmp_path / "annealed.py")
    config = config_of(module, dataclasses.asdict(SMALL["ppo"]), [])
    with pytest.raises(UsageError, match="its updates depend on how many there are"):
        extend(module, config)


def test_a_run_cannot_be_made_shorter(whole):
    with pytest.raises(UsageError, match="gives 10 updates, fewer than the 20"):
        resume(whole, total_timesteps=120)


def test_a_finished_run_says_so(whole):
    with pytest.raises(UsageError, match="is finished: it has all of its 20 updates"):
        resume(whole)


def test_changed_settings_are_refused_by_name(run):
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text.replace('"gamma": 0.99', '"gamma": 0.5'))
    with pytest.raises(UsageError, match=r"changed by hand.*gamma is 0.5 in the one, 0.99 in the other"):
        resume(run)
    about = files.read_json(run / "source" / "config.json")
    about["config"] |= {"gamma": 0.5, "num_steps": 8}
    for file in ("config.json", "source/config.json"):
        files.write_json(run / file, about)
    with pytest.raises(UsageError, match=r"gamma was 0.99 and is 0.5, num_steps was 4 and is 8"):
        resume(run)


def test_a_changed_agent_is_refused(run):
    with (run / "source" / "ppo.py").open("a") as file:
        file.write("# a change\n")
    with pytest.raises(UsageError, match=r"is not what .* was trained with"):
        resume(run)


def test_a_run_that_is_being_trained_is_refused(run):
    with contextlib.closing(Folder(run)), pytest.raises(UsageError, match="being trained by another process"):
        resume(run)


@pytest.mark.slow
def test_editing_the_agent_while_it_trains_changes_nothing(tmp_path):
    file = tmp_path / "mine.py"
    source = Path(cem.__file__).read_text()
    file.write_text(source)

    class Edits(StopAfter):
        def progress(self, done, total, metrics, verdict):
            file.write_text(source + "# an edit\n")
            super().progress(done, total, metrics, verdict)

    rlref.train(
        file, SMALL["cem"], env=counting_env.Counting(), num_seeds=SEEDS, run_dir=tmp_path / "run", display=Edits(5)
    )
    assert (tmp_path / "run" / "source" / "mine.py").read_text() == source
    assert resume(tmp_path / "run").summary["status"] == "finished"


def test_reading_a_run_leaves_what_is_being_saved_alone(run):
    half = run / "checkpoints" / "row000000" / "20.orbax-checkpoint-tmp"
    half.mkdir()
    rlref.load(run, env=counting_env.Counting()).policy(0)
    assert half.is_dir()


@pytest.mark.slow
def test_a_finished_run_with_a_damaged_checkpoint_is_repaired(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    flip(largest(tmp_path / "run" / "checkpoints" / "row000000" / "20" / "state" / "d"))
    with pytest.warns(UserWarning, match="after update 20 is not used: .*; resuming repairs the run"):
        rlref.load(tmp_path / "run", env=counting_env.Counting()).policy(0)
    with pytest.warns(UserWarning, match="20 is not used"):
        resume(tmp_path / "run")
    assert_same(tmp_path / "run", whole)


@pytest.mark.slow
def test_a_signal_in_the_last_chunk_is_too_late(tmp_path):
    assert train("cem", tmp_path / "run", display=StopAfter(19)).summary["status"] == "finished"


def test_going_on_under_other_settings_of_jax_is_warned_of(run):
    environment = files.read_json(run / "environment.json")
    environment["jax_config"]["jax_threefry_partitionable"] = "another"
    files.write_json(run / "environment.json", environment)
    with pytest.warns(UserWarning, match="jax_threefry_partitionable was another and is"):
        resume(run)


def test_a_failure_lets_go_of_the_run_and_leaves_it_as_it_was(run, whole):
    class Fails(Silent):
        def compiling(self, what):
            raise RuntimeError("no compiler")

    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    with pytest.raises(RuntimeError, match="no compiler") as kept:
        resume(run, total_timesteps=10**9, display=Fails())  # a slip: without it the run goes on as it was
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
    assert resume(run).summary["status"] == "finished"
    assert_same(run, whole)
    assert kept


def test_policy_is_found_from_another_folder(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = rlref.load("run", env=counting_env.Counting())
    monkeypatch.chdir("/")
    assert loaded.policy(0)(np.zeros(2, np.float32)) in (0, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"checkpoint_every": -3}, "checkpoint_every is -3"), ({"memory_gb": float("inf")}, "memory_gb is inf")],
)
def test_wrong_options_leave_the_run_as_it_was(run, options, message):
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    with pytest.raises(UsageError, match=message):
        resume(run, **options)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_another_layout_of_leaves_is_refused(run, monkeypatch):
    """As other versions of a library may have it."""
    real = named_leaves
    monkeypatch.setattr(checkpoint, "named_leaves", lambda tree: {f"x/{k}": x for k, x in real(tree).items()})
    with pytest.raises(UsageError, match="is not there in the checkpoint and"):
        resume(run)


def state_on(devices, like):
    mesh = jax.make_mesh((devices,), ("seed",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
    return {name: jax.device_put(x, NamedSharding(mesh, P("seed"))) for name, x in like.items()}


@pytest.mark.cpus
def test_digest_sees_every_bit_and_no_layout():
    rng = np.random.default_rng(0)
    arrays = {"a": rng.normal(size=(8, 3)).astype(np.float32), "b": np.arange(8, dtype=np.uint8)}
    sums = checkpoint.digests(state_on(1, arrays), rows=7)
    assert checkpoint.digests(state_on(4, arrays), rows=7) == sums
    assert sums["a"] == checkpoint.row_digest(arrays["a"][:7], 0)
    for bit in rng.integers(0, 7 * 3 * 32, 50):
        changed = arrays["a"].copy()
        changed.reshape(-1).view(np.uint8)[bit // 8] ^= 1 << (bit % 8)
        assert checkpoint.digests(state_on(1, {"a": changed}), rows=7)["a"] != sums["a"]
    swapped = arrays["a"][[1, 0, *range(2, 8)]]
    assert checkpoint.digests(state_on(1, {"a": swapped}), rows=7)["a"] != sums["a"]
    filled = arrays["a"].copy()
    filled[7] = 0  # only fills up
    assert checkpoint.digests(state_on(1, {"a": filled}), rows=7)["a"] == sums["a"]


@pytest.mark.cpus
@pytest.mark.slow
@pytest.mark.parametrize("agent", ["ppo", "dqn"])
def test_four_devices_do_what_one_does(agent):
    assert worst_difference(agent) < 1e-5


@pytest.mark.cpus
@pytest.mark.slow
def test_four_devices_with_gradients_summed_over_them_are_seen(monkeypatch):
    """As jax.shard_map's default does with the gradients of what is initialised by a constant: every bias."""
    real = jax.shard_map

    def summed_over_devices(f, **options):
        def wrong(config, state, *rest):
            state, buffer = f(config, state, *rest)
            biases = {name: jax.lax.pmean(x, "seed") for name, x in named_leaves(state).items() if "bias" in name}
            return with_leaves(state, biases), buffer

        return real(wrong if len(options["in_specs"]) == 4 else f, **options)

    monkeypatch.setattr(jax, "shard_map", summed_over_devices)
    assert worst_difference("ppo") > 1e-4


def after_one_update(job, plan):
    compiled = compile_programs(job, plan, Silent())
    group = Group(compiled, plan, job, 0)
    state = compiled.init(group.config, group.seeds)
    state, _ = compiled.chunk(group.config, state, np.int32(0), np.int32(1))
    return {name: np.asarray(checkpoint.raw(x)) for name, x in named_leaves(state).items()}


def worst_difference(agent):
    """Between four devices and one, over the state's floats after one update of eight seeds."""
    module = {"ppo": ppo, "dqn": dqn, "cem": cem}[agent]
    env = counting_env.Counting()
    job = Job(module, SMALL[agent], env, env.default_params, list(range(8)), 0, 1, True)
    four = make_plan(8, 1, 1.0, Silent())
    assert four.mesh.size == 4
    one = Plan(jax.make_mesh((1,), ("seed",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1]), 8, 8)
    a, b = after_one_update(job, four), after_one_update(job, one)
    return max(np.abs(a[name] - x).max() for name, x in b.items() if x.dtype == np.float32 and x.size)


@pytest.mark.slow
def test_kill_and_resume(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    survival = importlib.import_module("survival")
    (kill,) = survival.kills(["cem"], count=1, seed=1)["cem"]["kills"]
    assert kill["differs"] == []
