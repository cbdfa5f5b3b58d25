"""Sinks hold the run's metrics, to the bit, whatever happened to the run; and nothing of theirs stops it."""

import dataclasses
import errno
import io
import shutil
import signal
import sys
import textwrap
import time
import types
from pathlib import Path

import counting_env
import numpy as np
import pandas as pd
import pytest

import rlref
from rlref import cem
from rlref.errors import UsageError
from rlref.runs import checkpoint, hosts, programs, sinks
from rlref.runs.display import Silent
from rlref.runs.folder import read_about
from rlref.runs.footprint import trace_row
from rlref.runs.metric_pieces import assembled, extent

SMALL = cem.Config(num_generations=20, population_size=8, elite_fraction=0.25, num_rollouts=1, hidden_sizes=(4,))
SEEDS = 4
ALL = ("tensorboard", "csv", "parquet")
ROW = sinks.Row(0, "seed-0", 0, None, {}, ())


class Collect:
    """Keeps all that it is given, and can fail."""

    def __init__(self, fails=""):
        self.fails, self.calls, self.groups = fails, [], []

    def called(self, method):
        self.calls.append(method)
        if method == self.fails:
            raise ZeroDivisionError("planted")

    def open(self, path, rows, history):
        self.path = path
        self.groups.append((rows, [(0, history)]))
        self.called("open")

    def write(self, update, values):
        self.groups[-1][1].append((update, values))
        self.called("write")

    def flush(self):
        self.called("flush")

    def close(self):
        self.called("close")

    def metrics(self, group=0):
        """What it was given of a group, `[rows, updates]`, each piece where it says that it belongs."""
        pieces = {(0, update): values for update, values in self.groups[group][1]}
        return assembled(pieces, extent(pieces))


class StopAfter(Silent):
    def __init__(self, updates):
        self.updates, self.sent = updates, False

    def progress(self, done, total, metrics, verdict):
        if done >= self.updates * SEEDS and not self.sent:
            self.sent = True
            signal.raise_signal(signal.SIGTERM)


@pytest.fixture(autouse=True, scope="module")
def _short_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "MAX_CHUNK", 3)
        yield


def train(path=None, config=SMALL, **options):
    options = {"num_seeds": SEEDS, "checkpoint_every": 4, "eval_every": 6, "eval_episodes": 2} | options
    return rlref.train("cem", config, env=counting_env.Counting(), run_dir=path, **options)


def resume(path, **options):
    return rlref.resume(path, env=counting_env.Counting(), **options)


def assert_same(frame, run):
    """The lines are those of the run, in any order, every number to the bit."""
    expected = run.to_frame()
    order = [name for name in ("setting", "seed", "update") if name in expected]
    assert list(frame.columns) == list(expected.columns)
    assert len(frame) == len(expected)
    frame = frame.sort_values(order)
    for name, x in expected.items():
        found = frame[name].to_numpy(x.dtype)
        assert np.where(np.isnan(found), np.nan, found).tobytes() == np.where(np.isnan(x), np.nan, x).tobytes(), name


def assert_files_same(run):
    assert_same(pd.read_csv(run.path / "metrics.csv"), run)
    parquet = pd.read_parquet(run.path / "metrics.parquet")
    assert (parquet.dtypes == run.to_frame().dtypes).all()
    assert_same(parquet, run)


@pytest.fixture(scope="module")
def collected():
    return Collect()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, collected):
    return train(tmp_path_factory.mktemp("sinks") / "run", sinks=[*ALL, collected])


@pytest.fixture
def rewound(whole, tmp_path):
    """A copy of that run's folder which lost its newest checkpoint: its sinks have more than can be gone on from."""
    shutil.copytree(whole.path, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "row000000" / "20")
    (tmp_path / "run" / "summary.json").unlink()
    return tmp_path / "run"


@pytest.mark.slow
def test_files_hold_what_the_run_has(whole):
    assert np.isnan(whole.metrics["eval_return_greedy"]).any()
    assert_files_same(whole)


def test_csv_keeps_to_rfc_4180(whole):
    content = (whole.path / "metrics.csv").read_bytes()
    assert content.count(b"\r\n") == content.count(b"\n") == content.count(b"\r") == 1 + SEEDS * 20
    assert content.endswith(b"\r\n")
    assert len({line.count(b",") for line in content.splitlines()}) == 1


def test_a_sink_of_ones_own_gets_every_update(whole, collected):
    assert collected.path == whole.path
    ((rows, pieces),) = collected.groups
    assert [(row.index, row.label, row.seed, row.setting) for row in rows[:2]] == [
        (0, "seed-0", 0, None),
        (1, "seed-1", 1, None),
    ]
    assert rows[0].config["population_size"] == 8
    history = pieces[0][1]
    assert history.keys() == whole.metrics.keys()
    assert {x.shape for x in history.values()} == {(SEEDS, 0)}
    for name, x in collected.metrics().items():
        np.testing.assert_array_equal(x, whole.metrics[name], err_msg=name)
    assert collected.calls[0] == "open"
    assert collected.calls[-1] == "close"
    assert collected.calls.count("close") == 1
    assert collected.calls.count("flush") >= 5  # before each checkpoint


def test_a_sink_cannot_change_the_runs_metrics(collected, whole):
    _, values = collected.groups[0][1][1]
    with pytest.raises(ValueError, match="read-only"):
        values["kl"][:] = 0


def test_what_came_after_the_checkpoint_is_replaced(rewound):
    before = pd.read_csv(rewound / "metrics.csv")
    collected = Collect()
    run = resume(rewound, sinks=[collected])
    assert collected.groups[0][1][0][1]["kl"].shape == (SEEDS, 16)
    for name, x in collected.metrics().items():
        np.testing.assert_array_equal(x, run.metrics[name], err_msg=name)
    assert_files_same(run)
    after = pd.read_csv(rewound / "metrics.csv")
    speeds = [frame.set_index(["seed", "update"])["steps_per_second"].sort_index() for frame in (before, after)]
    changed = speeds[0] != speeds[1]  # no other metric would tell
    assert not changed[changed.index.get_level_values("update") < 16].any()
    assert changed[changed.index.get_level_values("update") >= 16].all()


def test_a_run_that_begins_again_has_each_line_once(rewound):
    shutil.rmtree(rewound / "checkpoints")
    with pytest.warns(UserWarning, match="begins again"):
        run = resume(rewound)
    assert_files_same(run)


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_its_sinks_and_more(tmp_path):
    stopped = train(tmp_path / "run", display=StopAfter(5), sinks=["csv", Collect(), "csv"])
    assert stopped.summary["status"] == "interrupted"
    assert_same(pd.read_csv(tmp_path / "run" / "metrics.csv"), stopped)
    assert read_about(tmp_path / "run")["sinks"] == ["csv"]
    assert_files_same(resume(tmp_path / "run", sinks=["parquet", "csv"]))
    assert read_about(tmp_path / "run")["sinks"] == ["csv", "parquet"]
    assert not (tmp_path / "run" / "tensorboard").exists()


@pytest.mark.slow
def test_groups_and_batched_settings_share_the_files(tmp_path):
    config = SMALL.replace(init_variance=np.array([1.0, 0.1]))
    traced = trace_row(lambda config: cem.make(config, counting_env.Counting()), SMALL)
    row = traced.peak_bytes + traced.state_bytes
    collected, bad = Collect(), Collect(fails="write")
    options = {"num_seeds": 2, "memory_gb": 2.5 * row / 1e9, "sinks": ["csv", "parquet", collected, bad]}
    with pytest.warns(UserWarning, match="Collect could not be written from update 0 on") as warned:
        stopped = train(tmp_path / "run", config, display=StopAfter(13), **options)
    assert len(warned) == 1
    assert bad.calls == ["open", "write", "close"]  # it is not opened for the second group
    assert_files_same(stopped)
    rows = [rows for rows, _ in collected.groups]
    assert [[row.label for row in group] for group in rows] == [
        ["setting-0-seed-0", "setting-0-seed-1"],
        ["setting-1-seed-0", "setting-1-seed-1"],
    ]
    assert rows[1][0].config["init_variance"] == 0.1
    np.testing.assert_array_equal(collected.metrics(1)["kl"][:, :5], stopped.metrics["kl"][1, :, :5])
    with (tmp_path / "run" / "metrics.csv").open("a") as file:
        file.write("1,0.1,1,2")  # killed as it wrote
    run = resume(tmp_path / "run")
    assert run.metrics["kl"].shape == (2, 2, 20)
    assert_files_same(run)


@pytest.mark.parametrize("method", ["open", "write", "flush", "close"])
def test_a_sink_that_raises_is_warned_of_once_and_ends(method):
    bad, good, warned = Collect(fails=method), Collect(), []
    values = {"env_steps": np.ones((1, 3), np.float32)}
    both = sinks.Sinks([bad, good], Path("run"), warned.append)
    both.open([ROW], {})
    both.write(0, values)
    both.write(3, values)
    both.flush()
    both.close()
    both.close()
    (text,) = warned
    assert text.startswith("run: the sink Collect could not be ")
    assert text.endswith(" and ends: ZeroDivisionError: planted")
    assert good.calls == ["open", "write", "write", "flush", "close"]
    until = good.calls.index(method) + 1
    assert bad.calls == [*good.calls[:until], "close"]


def test_sinks_are_flushed_every_few_seconds(monkeypatch):
    monkeypatch.setattr(sinks, "FLUSH_SECONDS", 0.0)
    collected = Collect()
    one = sinks.Sinks([collected], None, print)
    one.open([ROW], {})
    one.write(0, {"env_steps": np.ones((1, 3), np.float32)})
    assert collected.calls == ["open", "write", "flush"]


def test_sinks_of_a_run_in_memory_are_closed_when_the_training_fails():
    class Fails(Silent):
        def progress(self, done, total, metrics, verdict):
            raise RuntimeError("no terminal")

    collected = Collect()
    with pytest.raises(RuntimeError, match="no terminal"):
        train(sinks=[collected], display=Fails())
    assert collected.path is None
    assert collected.calls == ["open", "write", "close"]


@pytest.mark.slow
def test_a_file_that_could_not_be_written_is_whole_after_a_resume(tmp_path, monkeypatch):
    real = sinks.frame

    def full(rows, update, values):
        if update > 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(rows, update, values)

    monkeypatch.setattr(sinks, "frame", full)
    with pytest.warns(UserWarning, match="OSError: No space left on device") as warned:
        train(tmp_path / "run", sinks=["csv", "parquet"], display=StopAfter(14))
    monkeypatch.setattr(sinks, "frame", real)
    assert len(warned) == 2
    assert pd.read_csv(tmp_path / "run" / "metrics.csv")["update"].max() < 12
    assert_files_same(resume(tmp_path / "run"))


def test_without_a_choice_there_is_tensorboard_where_it_is_installed(monkeypatch):
    assert sinks.default(Path("run")) == ["tensorboard"]
    assert sinks.default(None) == []
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert sinks.default(Path("run")) == []


def test_a_run_goes_on_where_a_library_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    warned, own = [], Collect()
    assert sinks.for_resumed_run(["csv", "parquet", "x"], [own, "csv"], Path("run"), warned.append) == ["csv", own]
    assert warned == [
        "run goes on without its sink parquet, which takes pyarrow",
        "run goes on without its sink x, which this rlref does not know",
    ]
    assert sinks.for_resumed_run(None, [], Path("run"), warned.append) == ["tensorboard"]  # it is older than the record


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("csv", r"sinks is 'csv'; it must be a list, such as \['csv'\]"),
        (["cvs"], "no sink 'cvs'; there are tensorboard, csv, parquet. Did you mean 'csv'"),
        ([print], "is no sink: it lacks open"),
        ([Collect], r"is a class; sinks takes objects, as in Collect\(\)"),
        (["parquet"], r"parquet takes pyarrow: pip install pyarrow"),
    ],
)
def test_what_is_no_sink_is_refused_before_training(tmp_path, monkeypatch, given, message):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=message) as error:
        train(tmp_path / "run", sinks=given)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_files_take_a_folder():
    with pytest.raises(UsageError, match="writes into the run's folder: give run_dir as well"):
        train(sinks=["csv"])


def test_a_wrong_sink_leaves_the_run_as_it_was(rewound):
    before = {p: p.read_bytes() for p in rewound.rglob("*") if p.is_file()}
    with pytest.raises(UsageError, match="no sink 'x'"):
        resume(rewound, sinks=["x"])
    assert {p: p.read_bytes() for p in rewound.rglob("*") if p.is_file()} == before


def test_tensorboard_has_the_last_update_under_cleanrls_tags(whole):
    folders = sorted((whole.path / "tensorboard").iterdir())
    assert [p.name for p in folders] == [f"seed-{i}" for i in range(SEEDS)]
    for seed, folder in enumerate(folders):
        (file,) = folder.glob("events.*")
        *_, last = events(file)
        assert last.step == whole.metrics["env_steps"][seed, -1]
        values = {value.tag: value.simple_value for value in last.summary.value}
        assert values["losses/entropy"] == whole.metrics["entropy"][seed, -1]
        assert values["diag/kl"] == whole.metrics["kl"][seed, -1]
        assert np.isfinite(list(values.values())).all()


def test_events_after_the_checkpoint_are_hidden_when_a_run_goes_on(tmp_path):
    from tensorboardX.proto.event_pb2 import SessionLog

    for history in (np.empty((1, 0)), np.array([[8.0, 16.0]]), np.empty((1, 0))):
        board = sinks.TensorBoard()
        board.open(tmp_path, [ROW], {"env_steps": history})
        board.write(2, {"env_steps": np.array([[32.0]]), "kl": np.array([[0.5]])})
        board.close()
    first, second, anew = sorted((tmp_path / "tensorboard" / "seed-0").iterdir(), key=lambda p: p.name.split(".")[-2])
    assert [e.session_log.status for e in events(first)] == [0, 0]
    _, begin, scalars = events(second)
    assert (begin.step, begin.session_log.status) == (17, SessionLog.START)
    assert (scalars.step, scalars.summary.value[1].tag) == (32, "diag/kl")
    assert events(anew)[1].step == 1  # killed before its first checkpoint: it begins again, and all of it is hidden


def test_a_sink_cannot_change_what_others_get():
    class Meddler(Collect):
        def open(self, path, rows, history):
            rows[0].config.clear()
            history["env_steps"] = history["env_steps"] * 0
            with pytest.raises(ValueError, match="read-only"):
                history["kl"][...] = 7
            super().open(path, rows, history)

    other, row = Collect(), dataclasses.replace(ROW, config={"gamma": 0.9})
    both = sinks.Sinks([Meddler(), other], None, pytest.fail)
    both.open([row], {"env_steps": np.ones((1, 2)), "kl": np.ones((1, 2))})
    ((rows, [(_, history)]),) = other.groups
    assert rows[0].config == {"gamma": 0.9}
    assert history["env_steps"].tolist() == [[1, 1]]


def events(file):
    """The events of a file: each is its length in 8 bytes, 4 bytes of checksum, itself, and 4 bytes more."""
    from tensorboardX.proto.event_pb2 import Event

    content, found = file.read_bytes(), []
    while content:
        length = int.from_bytes(content[:8], "little")
        found.append(Event.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    return found


def test_csv_gives_every_float32_back():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2**32, 50_000, dtype=np.uint32).view(np.float32)
    text = sinks.frame([ROW], 0, {"env_steps": x[None]}).to_csv(index=False)
    back = pd.read_csv(io.StringIO(text))["env_steps"].to_numpy(np.float32)
    np.testing.assert_array_equal(back, x)


def test_the_example_of_weights_and_biases_works(whole, collected, monkeypatch):
    class FakeRun:
        def __init__(self, **about):
            self.about, self.logged, self.finished = about, [], False

        def log(self, values, step):
            self.logged.append((step, values))

        def finish(self):
            self.finished = True

    made = []
    fake = types.ModuleType("wandb")
    fake.init = lambda **about: made.append(FakeRun(**about)) or made[-1]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    lines = sinks.__doc__.splitlines()
    begin, end = lines.index("    import math"), lines.index("                run.finish()") + 1
    scope = {}
    exec(textwrap.dedent("\n".join(lines[begin:end])), scope)
    at = 11  # as if the run went on from there
    sink = scope["WandB"]()
    sink.open(whole.path, collected.groups[0][0], {name: x[:, :at] for name, x in whole.metrics.items()})
    sink.write(at, {name: x[:, at:] for name, x in whole.metrics.items()})
    sink.flush()
    sink.close()
    assert [(one.about["name"], one.about["group"]) for one in made] == [(f"seed-{i}", "run") for i in range(SEEDS)]
    for one, steps, kl in zip(made, whole.metrics["env_steps"], whole.metrics["kl"], strict=True):
        assert one.about["mode"] == "offline"
        assert one.about["config"]["population_size"] == 8
        assert [step for step, _ in one.logged] == steps.tolist()
        assert [values["kl"] for _, values in one.logged] == kl.tolist()
        assert ["eval_return_greedy" in values for _, values in one.logged] == [i in (5, 11, 17, 19) for i in range(20)]
        assert one.finished


@pytest.mark.slow
def test_time_is_booked_where_it_goes(tmp_path, monkeypatch):
    class Slow(Collect):
        def write(self, update, values):
            time.sleep(0.05)

    class SlowCompiler(Silent):
        def compiling(self, what):
            time.sleep(0.3)
            return super().compiling(what)

    save, to_host, read = checkpoint.Checkpoints.save, hosts.to_host, []

    def slow_to_host(x):
        read.append(x.ndim == 3)  # of a chunk; the others are evaluations', and at the end what acting takes
        time.sleep(0.02 if read[-1] else 0.05)
        return to_host(x)

    monkeypatch.setattr(hosts, "to_host", slow_to_host)
    monkeypatch.setattr(checkpoint.Checkpoints, "save", lambda *given: (time.sleep(0.2), save(*given)))
    summary = train(tmp_path / "run", sinks=[Slow()], display=SlowCompiler(), checkpoint_every=0).summary
    seconds, chunks = summary["seconds"], sum(read)
    assert sum(seconds.values()) == pytest.approx(summary["compile_seconds"] + summary["train_seconds"], abs=0.05)
    assert seconds["compiling"] >= 0.3
    assert seconds["logging"] >= 0.05 * chunks
    assert seconds["checkpoints"] >= 0.2
    assert seconds["training"] >= 0.02 * chunks
    evaluations = 4 * 4 * 0.05  # four metrics of the evaluations after 6, 12, 18 and 20 updates
    assert evaluations <= seconds["evaluation"] < evaluations + 0.3
