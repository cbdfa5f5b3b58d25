"""Reading training logs of CleanRL, Stable-Baselines3 (SB3) and rlref's TensorBoard files, under rlref's names.

CleanRL logs are TensorBoard events, or CSV exported from Weights & Biases; SB3 logs are progress.csv, or events. What
each name means is taken from their code (CleanRL: ppo.py, dqn.py; SB3: logger.py, on_policy_algorithm.py,
off_policy_algorithm.py, callbacks.py).

`S` seeds, `U` updates, `E` episodes. `Points` holds what was logged under each name: steps `[n]`, values `[n]`.
"""

import ast
import dataclasses
import re
import struct
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlref.errors import UsageError
from rlref.metrics import METRICS

Points = dict[str, tuple[np.ndarray, np.ndarray]]  # name in the log -> steps [n], values [n], in the log's order
Names = dict[str, tuple[str, float]]  # name in the log -> name here, and what to multiply by

CLEANRL: Names = {m.cleanrl: (m.name, 1.0) for m in METRICS if m.cleanrl} | {
    # CleanRL logs losses, entropy and approx_kl of the last minibatch, SB3 the mean approx_kl of the last epoch, rlref
    # means over all minibatches. KL grows within an update, so theirs is larger; the usual limit of 0.02 is for theirs
    # (37 details).
    "losses/td_loss": ("td_loss", 0.5),  # mse_loss: the whole squared error, ours is half of it
    "losses/q_values": ("value_mean", 1.0),  # Q of the actions taken, of one minibatch
    "charts/epsilon": ("epsilon", 1.0),  # at the end of an episode; not every version has it
}
SB3: Names = {
    m.sb3.removeprefix("-"): (m.name, -1.0 if m.sb3.startswith("-") else 1.0)
    for m in METRICS
    if m.sb3 and m.name not in ("env_steps", "loss", "td_loss")
} | {
    # SB3's PPO logs before it trains: a row's train/... belong to the previous rollout, and the last ones are missing.
    "train/value_loss": ("value_loss", 0.5),  # mse_loss: the whole squared error, ours is half of it
}
# train/loss is PPO's objective or DQN's loss; the latter is smooth_l1_loss, our Huber loss, with the factor 1/2.
SB3_LOSS: dict[str, Names] = {"ppo": {"train/loss": ("loss", 1.0)}, "dqn": {"train/loss": ("td_loss", 1.0)}}
EPISODE = {"charts/episodic_return": "return", "charts/episodic_length": "length"}  # CleanRL: a point per episode
KINDS = (  # the first that shares a name with the log; entropy comes last, as rlref's DQN and CEM log it too
    ("cem", {"diag/elite_mean"}),
    ("ppo", {"losses/clipfrac", "losses/approx_kl", "losses/policy_loss", "train/clip_fraction", "train/approx_kl"}),
    ("dqn", {"losses/td_loss", "losses/q_values", "charts/epsilon", "rollout/exploration_rate"}),
    ("ppo", {"losses/entropy", "train/entropy_loss"}),  # A2C too: PPO with one epoch (Huang et al. 2022)
)
FINITE = {"loss", "policy_loss", "value_loss", "td_loss", "value_mean", "entropy", "approx_kl"}
"""metrics that are never NaN in a healthy run: `nonfinite` is derived from them"""
STEPS = ("time/total_timesteps", "global_step")
WINDOW = 100  # episodes, as in our own metrics and in SB3's


@dataclasses.dataclass
class Log:
    """A training log of one or more seeds."""

    source: str
    """CleanRL, Stable-Baselines3 or rlref"""
    kind: str
    """ppo, dqn, or cem (only in rlref's own logs); '' if the names do not tell"""
    metrics: dict[str, np.ndarray]
    """`[S, U]` float32, named as in `rlref.metrics`; NaN where nothing was logged, and after a seed's end"""
    config: dict[str, Any]
    """the settings that are known and the same in all seeds, under CleanRL's names"""
    seeds: list[int]
    """from the settings, if all are known and differ; else 0, 1, ..."""
    unknown: list[str]
    """names in the log that have no counterpart here"""


def read(paths: Sequence[Path]) -> Log:
    """Read a log per seed: a CSV file, a TensorBoard events file, or a folder that holds one of them.

    An update is a step at which CleanRL logged losses, or SB3 wrote its row. A value logged between two updates, such
    as one by SB3's EvalCallback, counts for the later one. Seeds are aligned by update index. Where steps go back, as
    in a resumed run, earlier values for later steps are dropped, with a warning.

    Raises UsageError if a path is no such log, or if the seeds are of different projects or algorithms.
    """
    if not paths:
        raise UsageError("no log was given: give a CSV file, a TensorBoard events file, or a folder, per seed")
    logs, configs, sources, kinds = [], [], [], []
    for path in map(Path, paths):
        points, config = _read(path)
        logs.append(points)
        configs.append(config)
        sources.append(_source(points, path))
        kinds.append(next((kind for kind, names in KINDS if names & points.keys()), ""))
    for what, found in (("projects", sources), ("algorithms", kinds)):
        if len(set(found) - {""}) > 1:  # a seed that ended before it trained has no kind
            each = ", ".join(f"{path}: {x}" for path, x in zip(paths, found, strict=True))
            raise UsageError(f"the seeds are of different {what} ({each}); give one path per seed of the same training")
    source, kind = sources[0], max(kinds)
    names = _names(source, kind, {tag for points in logs for tag in points})
    rows = [_metrics(points, source, names) for points in logs]
    metrics = {
        name: np.full((len(rows), max(row["env_steps"].size for row in rows)), np.nan, np.float32)
        for name in sorted({name for row in rows for name in row})
    }
    for i, row in enumerate(rows):
        for name, x in row.items():
            with np.errstate(over="ignore"):
                metrics[name][i, : x.size] = x
    seeds: list[Any] = [config.get("seed") for config in configs]
    known = len(set(seeds)) == len(seeds) and all(isinstance(seed, int) for seed in seeds)
    return Log(
        source=source,
        kind=kind,
        metrics=metrics,
        config={name: x for name, x in configs[0].items() if all(c.get(name, ...) == x for c in configs)},
        seeds=seeds if known else list(range(len(seeds))),
        unknown=sorted({tag for points in logs for tag in points if tag not in names and not _bookkeeping(tag)}),
    )


def _bookkeeping(tag: str) -> bool:
    """Whether a name is a clock or a counter; those of Weights & Biases begin with an underscore."""
    return tag.startswith(("time/", "_")) or tag in ("Step", "global_step")


def _source(points: Points, path: Path) -> str:
    if any(tag.startswith("diag/") for tag in points):
        return "rlref"
    known = {"CleanRL": len(points.keys() & CLEANRL.keys()), "Stable-Baselines3": len(points.keys() & SB3.keys())}
    source = max(known, key=lambda name: known[name])
    if not known[source]:
        has = f"it has {', '.join(list(points)[:4])}" if points else "it has no numbers"
        raise UsageError(
            f"{path} holds no known metric ({has}); known are CleanRL's names, such as losses/approx_kl, and "
            "Stable-Baselines3's, such as train/approx_kl"
        )
    return source


def _names(source: str, kind: str, tags: Iterable[str]) -> Names:
    if source == "CleanRL":
        return CLEANRL
    if source == "rlref":  # a custom agent may have metrics that are not in METRICS
        own = {tag: (tag.removeprefix("diag/"), 1.0) for tag in tags if tag.startswith("diag/")}
        return own | {m.tag: (m.name, 1.0) for m in METRICS}
    return SB3 | SB3_LOSS.get(kind, {})


def _metrics(points: Points, source: str, names: Names) -> dict[str, np.ndarray]:
    """One seed's metrics, `[U]`."""
    episodic = EPISODE if source == "CleanRL" else {}  # in rlref's own logs these names hold means
    wanted = {tag: x for tag, x in points.items() if tag in names}
    # SB3 logs time/fps in its regular rows, not after evaluations. An export may lack every name that marks an update.
    mark = {"CleanRL": "losses/", "Stable-Baselines3": "time/fps", "rlref": ""}[source]
    marks = [steps for tag, (steps, _) in wanted.items() if tag.startswith(mark)]
    updates = np.unique(np.concatenate(marks or [steps for steps, _ in wanted.values()]))
    metrics = {"env_steps": updates}
    for tag, (steps, values) in wanted.items():
        name, factor = names[tag]
        if tag in episodic:
            ended = ~np.isnan(values)
            metrics |= _episodes(episodic[tag], values[ended], np.searchsorted(steps[ended], updates, side="right"))
            continue
        at = np.searchsorted(updates, steps)
        inside = at < updates.size
        metrics[name] = np.full(updates.size, np.nan)
        metrics[name][at[inside]] = values[inside] * factor  # of two values for one update the last stays
        if name in FINITE and source != "rlref":
            nonfinite = metrics.setdefault("nonfinite", np.zeros(updates.size))
            nonfinite[at[inside & ~np.isfinite(values)]] = 1
    return metrics


def _episodes(name: str, values: np.ndarray, ended: np.ndarray) -> dict[str, np.ndarray]:
    """Mean, std, min and max `[U]` of `values` `[E]` over the last 100 of the first `ended` `[U]` episodes."""
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([np.full(WINDOW, np.nan), values]), WINDOW)
    spread = {how: np.full(ended.size, np.nan) for how in ("mean", "std", "min", "max")}
    for some in np.array_split(np.flatnonzero(ended), ended.size // 10_000 + 1):  # bounds the memory
        window = windows[ended[some]]
        with np.errstate(invalid="ignore"):  # an infinite return has no standard deviation
            for how, x in spread.items():
                x[some] = getattr(np, f"nan{how}")(window, axis=1)
    counts = {"episodes": np.diff(ended, prepend=0), "return_count": np.minimum(ended, WINDOW)}
    return {f"{name}_{how}": x for how, x in spread.items()} | (counts if name == "return" else {})


def _read(path: Path) -> tuple[Points, dict[str, Any]]:
    """What one log holds, in the order of steps, and its settings."""
    files = _files(path)
    try:
        points, config = (_read_csv(files[0]), {}) if files[0].suffix == ".csv" else _read_events(files)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    back = []
    for tag, (steps, values) in points.items():
        kept = steps <= np.minimum.accumulate(steps[::-1])[::-1]
        if not kept.all() and (tag in CLEANRL | SB3 or tag.startswith("diag/")):
            back.append((tag, int(steps[np.flatnonzero(np.diff(steps) < 0)[0] + 1])))
        points[tag] = steps[kept], values[kept]
    if back:
        warnings.warn(
            f"{path}: steps go back to {back[0][1]} in {back[0][0]}; what was logged earlier for later steps is left "
            "out, as of a run that was resumed there",
            stacklevel=3,
        )
    return points, config


def _files(path: Path) -> list[Path]:
    """The files of one log: a CSV file, or events files in order of time."""
    if path.is_file():
        if path.suffix != ".csv" and "tfevents" not in path.name:
            raise UsageError(f"{path} is neither a .csv file nor TensorBoard's (events.out.tfevents.*)")
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path} does not exist")
    found = [x for x in path.rglob("*") if (x.name == "progress.csv" or "tfevents" in x.name) and x.is_file()]
    folders = sorted({x.parent for x in found})
    if not folders:
        raise UsageError(f"{path} holds no log: neither progress.csv nor events.out.tfevents.* is in it or below it")
    if path not in folders and len(folders) > 1:
        some = ", ".join(x.name for x in folders[:3])
        raise UsageError(f"{path} holds {len(folders)} logs ({some}{', ...' * (len(folders) > 3)}); give one per seed")
    files = [x for x in found if x.parent == (path if path in folders else folders[0])]
    files.sort(key=lambda x: [int(digits) for digits in re.findall(r"\d+", x.name)])  # time stamp, ..., counter
    return [x for x in files if x.suffix == ".csv"] or files  # the same is in both, and CSV needs no package


def _read_csv(path: Path) -> Points:
    """One column per name; empty cells were not logged. Weights & Biases may prefix a name with "run's name - "."""
    import pandas as pd

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # lines longer than the first
            frame = pd.read_csv(path, keep_default_na=False, na_values=[""], low_memory=False, index_col=False)
    except (ValueError, pd.errors.ParserWarning) as error:
        raise UsageError(f"{path} is no CSV file in UTF-8 ({' '.join(str(error).split())})") from error
    columns: dict[str, Any] = {}
    for column in map(str, frame.columns):
        name = column.rsplit(" - ", 1)[-1]
        if name in columns:
            raise UsageError(f"{path} holds several runs: {name} is in it twice; export each run to a file of its own")
        if not name.endswith(("__MIN", "__MAX")):
            columns[name] = frame[column]
    step = next((name for name in STEPS if name in columns), None)
    if step is None:
        raise UsageError(
            f"{path} has no column of steps: {' or '.join(STEPS)}; it has {', '.join(list(columns)[:4])}. In Weights & "
            "Biases choose global_step as the x axis before the export"
        )
    steps, _ = _numbers(columns.pop(step))
    timed = np.isfinite(steps)
    with path.open("rb") as file:
        file.seek(-1, 2)
        if file.read() not in b"\r\n" and steps.size > 1 and not steps[-1] >= steps[-2]:
            timed[-1] = False  # killed while writing its last line: 20480 may be cut to 204
    if not timed.any():
        raise UsageError(f"{path} has no number in its column {step}")
    points = {}
    for name, column in columns.items():
        values, logged = _numbers(column)
        if (logged & timed).any():
            points[name] = steps[logged & timed], values[logged & timed]
    return points


def _numbers(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """A column as float64, and which of its cells hold a number or the word nan."""
    import pandas as pd

    values = pd.to_numeric(column, errors="coerce").to_numpy(float, na_value=np.nan)
    logged = ~np.isnan(values)
    if not pd.api.types.is_numeric_dtype(column):
        logged |= column.astype(str).str.strip().str.lower().eq("nan").to_numpy(bool) & column.notna().to_numpy(bool)
    return values, logged


def _read_events(files: list[Path]) -> tuple[Points, dict[str, Any]]:
    """Scalars and CleanRL's table of settings, of each file up to the first truncated or damaged record.

    A record is a length (8 bytes), its CRC (4), an Event, its CRC (4). They are parsed here, without checking CRCs:
    TensorBoard's own reader takes a minute for the events of 1e6 episodes.
    """
    try:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
        from tensorboardX.proto.event_pb2 import Event
    except ImportError:
        raise UsageError(
            "reading TensorBoard's events takes tensorboardX: pip install tensorboardX, or rlref with its extra "
            "'tensorboard'"
        ) from None
    steps: dict[str, list[int]] = {}
    values: dict[str, list[float]] = {}
    config: dict[str, Any] = {}
    for path in files:
        data, at = path.read_bytes(), 0
        while at + 12 <= len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            if at + 16 + size > len(data):
                break
            try:
                event = Event.FromString(data[at + 12 : at + 12 + size])
            except DecodeError:
                warnings.warn(f"{path} is damaged at byte {at}; what comes after is left out", stacklevel=4)
                break
            at += 16 + size
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    steps.setdefault(value.tag, []).append(event.step)
                    values.setdefault(value.tag, []).append(value.simple_value)
                elif value.tag == "hyperparameters/text_summary" and value.tensor.string_val:
                    config = _settings(value.tensor.string_val[0].decode(errors="replace"))
    if not steps:
        raise UsageError(f"{files[0]} holds no scalars that can be read: it is empty, damaged or of another format")
    return {tag: (np.array(steps[tag], float), np.array(x)) for tag, x in values.items()}, config


def _settings(table: str) -> dict[str, Any]:
    """The settings in CleanRL's Markdown table, |name|value| per line."""
    config: dict[str, Any] = {}
    for line in table.splitlines()[2:]:
        name, _, value = line.strip().removeprefix("|").removesuffix("|").partition("|")
        try:
            config[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError):
            config[name] = value
    return config
