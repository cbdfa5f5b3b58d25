"""What resetting costs: `python scripts/resets.py`, with the extras brax,craftax,jumanji,pgx,playground,xminigrid.

Bare environments under random actions, 8 seeds of 16, at least 1,000 steps, in three ways, compiled in one process and
in turns: `--reset every`, where those that have ended are picked out and reset a few at a time; `--reset pool`, where
they take one of the start states that their environment has drawn once; and all environments reset at each step, most
of it thrown away, as gymnax's own do. steps/s are of the first; the other ways are ratios to it in the same turn, the
median and [least, greatest]. A random policy's episodes are the shortest that there are, and no network takes time.

Writes scripts/results/resets.json, and the table in resets.md, in about half an hour. Leave the machine alone while it
runs. `python scripts/resets.py ID ...` measures these again and keeps the other rows. Each has a process of its own: on
few cores jax can wait for ever, as it did once with brax:ant; a row that is not done in time keeps what it had.
"""

import argparse
import functools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import jax
import page
from suites import ENVS, IDS, SEEDS, by_itself, random_play

from rlref.envs import make_env
from rlref.envs.suites import is_installed, pool
from rlref.envs.suites.base import select

RESULTS = Path(__file__).resolve().parent / "results"
STEPS = 1_000  # at least, where not all are reset at each step
SECONDS = 3.0  # that a measurement takes at least
REPEATS = 3
TIME_LIMIT = 600  # seconds of a row
HEADS = ("id", "a state, KB", "episodes, steps", "starts in a pool", "every, steps/s", "pool", "all at each step")


def all_reset(ended: jax.Array, key: jax.Array, params: Any, old: Any, *, env: Any) -> Any:
    """In place of what a `SuiteEnv` does with what has ended."""
    return select(ended, env.begun(key, params), old)


def measured(env_id: str) -> dict[str, Any]:
    """The row of one environment: steps/s in each way, a list of the turns."""
    keys = jax.random.split(jax.random.key(0), SEEDS)
    env, params = make_env(env_id)
    other, _ = make_env(env_id)
    other.__dict__["_renewed"] = functools.partial(all_reset, env=env)  # a cached property
    count = pool.size(env, ENVS)
    runs = {}
    for name, way in {"every": env, "pool": pool.Pooled(env, count), "all": other}.items():
        play = functools.partial(random_play, way, params, ENVS)
        runs[name] = jax.jit(jax.vmap(play, (0, None))).lower(keys, 1).compile()

    def seconds(name: str, steps: int) -> float:
        begin = time.perf_counter()
        jax.block_until_ready(runs[name](keys, steps))
        return time.perf_counter() - begin

    numbers = {}
    for name in runs:
        steps = 16 if name == "all" else STEPS
        while seconds(name, steps) < SECONDS:
            steps *= 2
        numbers[name] = steps
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(REPEATS):
        for name, steps in numbers.items():
            start = seconds(name, 0)  # with the first resets alone
            speeds[name].append(SEEDS * ENVS * steps / (seconds(name, steps) - start))
    state = jax.eval_shape(env.reset, keys[0], params)[1]
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    return {"kilobytes": size / 1e3, "starts": count, "limit": params.max_steps_in_episode, "speeds": speeds}


def table(rows: dict[str, dict[str, Any]]) -> str:
    lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    for env_id in (x for x in IDS if x in rows):
        row = rows[env_id]
        every = row["speeds"]["every"]
        limit = f"at most {row['limit']:,}" if row["limit"] else "no limit"
        cells = [env_id, f"{row['kilobytes']:,.1f}", limit, str(row["starts"]), f"{statistics.median(every):,.0f}"]
        for name in ("pool", "all"):
            ratios = [x / y for x, y in zip(row["speeds"][name], every, strict=True)]
            cells.append(f"{statistics.median(ratios):.3g} [{min(ratios):.3g}, {max(ratios):.3g}]")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", help="without any, all whose suite is installed, but gymnasium's")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measured(options.row)))
        return 0
    path = RESULTS / "resets.json"
    rows = json.loads(path.read_text()) if path.exists() else {}
    for env_id in options.ids or IDS:
        suite = env_id.partition(":")[0]
        if suite == "gymnasium" or not is_installed(suite):
            continue
        row = by_itself(__file__, env_id, TIME_LIMIT)
        if "error" in row:
            print(f"{env_id}: {row['error']}", flush=True)
            continue
        rows[env_id] = row
        print(table({env_id: rows[env_id]}).splitlines()[-1], flush=True)
        path.write_text(json.dumps(rows, indent=1) + "\n")
        page.put(RESULTS / "resets.md", "scripts/resets.py", table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
