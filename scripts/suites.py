"""What each suite of environments costs and gives here: `python scripts/suites.py [ID ...]`.

For each id, in a process of its own and with nothing compiled before: what its packages add to rlref's own on disk; the
seconds of compiling, and environment steps/s, of bare environments under random actions and of training PPO, 8 seeds of
16 environments; what `rlref inspect` finds; whether `rlref play --gif` draws it. Suites that are not installed keep
their rows, so that navix may have an environment of its own:

    pip install -e '.[brax,craftax,gymnasium,jumanji,pgx,playground,xminigrid]' && python scripts/suites.py
    pip install -e '.[navix]' && python scripts/suites.py navix:Navix-DoorKey-8x8-v0

With --shares instead: where the time of PPO's update goes, of the same seeds and environments on all cores, to the
environments (by as many of their steps under random actions), to choosing actions (what a rollout takes beyond that),
to learning (what is left of an update).

Writes scripts/results/suites.json, and the table in suites.md, in about half an hour on two cores. Leave the machine
alone while it runs.
"""

import argparse
import functools
import importlib.metadata
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import page
from jax.sharding import PartitionSpec as P
from packaging.requirements import Requirement

import rlref
from rlref import ppo
from rlref.envs import make_env
from rlref.envs.suites import SUITES, is_installed
from rlref.errors import UsageError
from rlref.inspection.inspect import inspect
from rlref.runs import compiling

RESULTS = Path(__file__).resolve().parent / "results"
IDS = (
    "brax:inverted_pendulum", "brax:halfcheetah", "brax:ant", "playground:CartpoleBalance", "playground:CheetahRun",
    "craftax:Craftax-Classic-Symbolic-v1", "craftax:Craftax-Symbolic-v1", "navix:Navix-Empty-8x8-v0",
    "navix:Navix-DoorKey-8x8-v0", "xminigrid:MiniGrid-DoorKey-8x8", "xminigrid:XLand-MiniGrid-R1-9x9",
    "jumanji:Snake-v1", "jumanji:Maze-v0", "pgx:minatar-breakout", "pgx:2048", "gymnasium:CartPole-v1",
    "gymnasium:HalfCheetah-v5", "gymnasium:Ant-v5",
)  # fmt: skip
SEEDS, ENVS = 8, 16
SECONDS = 20.0  # that a measurement takes, compiling apart
TIME_LIMIT = 1_500  # of a row


def added_megabytes(requirement: str) -> float:
    """What the packages that a requirement brings, and rlref does not, take on disk."""
    own = with_dependencies({"rlref", "pytest", "pytest-timeout", "pytest-xdist"})
    sizes = [size_of(name) for name in with_dependencies({requirement}) - own]
    return sum(sizes) / 1e6


def with_dependencies(requirements: set[str]) -> set[str]:
    """The names of all installed packages that these take."""
    found: set[str] = set()
    todo = [Requirement(x) for x in requirements]
    while todo:
        one = todo.pop()
        name = one.name.lower().replace("_", "-")
        if name in found:
            continue
        try:
            inner = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        extras = one.extras or {""}
        kept = [Requirement(x) for x in inner]
        todo += [x for x in kept if x.marker is None or any(x.marker.evaluate({"extra": e}) for e in extras)]
    return found


def size_of(package: str) -> int:
    """Bytes of a package's files."""
    places = [Path(str(file.locate())) for file in importlib.metadata.files(package) or ()]
    return sum(place.stat().st_size for place in places if place.is_file())


def random_play(env: Any, params: Any, num_envs: int, key: jax.Array, steps: jax.Array) -> jax.Array:
    """Environments take so many steps under random actions. Returns the sum of all, so that nothing is left out."""
    key, key_reset = jax.random.split(key)
    _, state = jax.vmap(env.reset, (0, None))(jax.random.split(key_reset, num_envs), params)
    return random_steps(env, params, num_envs, key, steps, state)[1]


def random_steps(
    env: Any, params: Any, num_envs: int, key: jax.Array, steps: jax.Array | int, state: Any
) -> tuple[Any, jax.Array]:
    """The same, from states `[num_envs]`; with the states after."""

    def step(i: jax.Array, carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        state, total = carry
        key_act, key_env = jax.random.split(jax.random.fold_in(key, i))
        action = jax.vmap(env.action_space(params).sample)(jax.random.split(key_act, num_envs))
        keys = jax.random.split(key_env, num_envs)
        obs, state, reward, *_ = jax.vmap(env.step, (0, 0, 0, None))(keys, state, action, params)
        return state, total + reward.sum() + obs.sum()

    return jax.lax.fori_loop(0, steps, step, (state, 0.0))


def measured(env_id: str) -> Iterator[dict[str, Any]]:
    """What is known of one row, more each time; in a process of its own."""
    env, params = make_env(env_id)

    keys = jax.random.split(jax.random.key(0), SEEDS)
    begin = time.perf_counter()
    bare = functools.partial(random_play, env, params, ENVS)
    run = jax.jit(jax.vmap(bare, (0, None))).lower(keys, 1).compile()
    compiling = time.perf_counter() - begin

    def seconds(steps: int) -> float:
        begin = time.perf_counter()
        jax.block_until_ready(run(keys, steps))
        return time.perf_counter() - begin

    steps, took = 16, seconds(16)
    while took < SECONDS / 4:
        steps *= 4
        took = seconds(steps)
    row: dict[str, Any] = {"bare_compile": compiling, "bare": SEEDS * ENVS * steps / took}
    yield row
    per_update = ENVS * 128
    updates = max(2, min(50, int(row["bare"] / SEEDS * SECONDS / per_update)))
    config = ppo.Config(env_id=env_id, num_envs=ENVS, total_timesteps=updates * per_update)
    with tempfile.TemporaryDirectory() as folder:
        trained = rlref.train("ppo", config, num_seeds=SEEDS, run_dir=Path(folder) / "run", sinks=())
        row |= {"compile": trained.summary["compile_seconds"], "training": trained.summary["steps_per_second"]}
        yield row
        row["gif"] = gif_of(trained, Path(folder) / "play.gif")
    yield row
    found = inspect(env_id, episodes=20)
    limit = params.max_steps_in_episode
    row["endings"] = f"{found.statistics['terminated']:.0%} terminated, {f'limit {limit:,}' if limit else 'no limit'}"
    row["inspect"] = [f"{x.severity} {x.check}" for x in found.findings if x.severity != "INFO"]
    yield row


def shares(env_id: str) -> Iterator[dict[str, Any]]:
    """Seconds of an update, of its rollout alone, and of its environments alone; in a process of its own."""
    env, params = make_env(env_id)
    agent = ppo.make(config := ppo.Config(env_id=env_id, num_envs=ENVS), env, params)
    task, _ = agent.update.args  # type: ignore[attr-defined]
    mesh, _ = compiling.mesh_for(SEEDS)

    def bare(state: Any) -> Any:
        key, key_play = jax.random.split(state.key)
        env_state, total = random_steps(env, params, ENVS, key_play, config.num_steps, state.env_state)
        return replace(state, key=key, env_state=env_state), total

    def rollout(state: Any) -> Any:
        key, key_collect = jax.random.split(state.key)
        return ppo.collect(task, replace(state, key=key), key_collect)

    def on_all_cores(one: Callable[[Any], Any]) -> Any:
        """Of all seeds; those of a core side by side."""
        return jax.jit(compiling.on_each_device(jax.vmap(one), mesh, P("seed"), P("seed")))

    def seconds(one: Callable[[Any], Any], state: Any) -> float:
        """The median of at least 5 calls, one after the other, and of as many as take `SECONDS / 4`."""
        lowered = on_all_cores(one).lower(state)
        done, took = lowered.compile(compiling.options(compiling.LOOP)), list[float]()
        state, _ = done(state)
        while len(took) < 5 or sum(took) < SECONDS / 4:
            begin = time.perf_counter()
            state, _ = jax.block_until_ready(done(state))
            took.append(time.perf_counter() - begin)
        return statistics.median(took)

    state = on_all_cores(agent.init)(jax.random.split(jax.random.key(0), SEEDS))
    parts = {"update": lambda state: agent.update(state, jnp.int32(0)), "rollout": rollout, "environments": bare}
    yield {"shares": {name: seconds(one, state) for name, one in parts.items()}}


def gif_of(run: Any, path: Path) -> str:
    """Whether an episode can be drawn; else why not."""
    try:
        run.policy(0)
        run.trained.draw(0, 0, path)
    except UsageError as error:
        return str(error)
    return "yes"


def table(rows: dict[str, dict[str, Any]]) -> str:
    """A line per id."""
    lines = [
        "| id | its packages, MB | compiling, bare and training, s | steps/s bare, one core | in training, all cores "
        "| of an update's time, %: environments, choosing actions, learning | endings of a random policy "
        "| `rlref inspect` | GIF |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for env_id in (x for x in IDS if x in rows):
        row = rows[env_id]
        seconds = ", ".join(f"{row[x]:.0f}" for x in ("bare_compile", "compile") if x in row)
        speeds = [f"{row[x]:,.0f}" if x in row else row["error"] for x in ("bare", "training")]
        found = (", ".join(row["inspect"]) or "nothing") if "inspect" in row else row["error"]
        endings = row.get("endings", "")
        gif = row.get("gif") or row["error"]
        gif = "not here: MuJoCo draws with OpenGL" if "OpenGL" in gif else gif
        cells = [env_id, f"{row['megabytes']:,.0f}", seconds, *speeds, shares_of(row), endings, found, gif]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def shares_of(row: dict[str, Any]) -> str:
    """Of an update's time: the environments', choosing actions, and learning, in percent."""
    if "shares" not in row:
        return ""
    update, rollout, environments = (row["shares"][x] for x in ("update", "rollout", "environments"))
    return ", ".join(f"{x / update:.0%}".rstrip("%") for x in (environments, rollout - environments, update - rollout))


def by_itself(script: str, env_id: str, time_limit: float, *more: str) -> dict[str, Any]:
    """The last row that `script --row ENV_ID` prints, in a process of its own; with "error" where it fails."""
    row: dict[str, Any] = {}
    command = [sys.executable, script, "--row", env_id, *more]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=time_limit, check=True)
        row = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired as error:
        if lines := (error.stdout or b"").decode().splitlines():
            row = json.loads(lines[-1])
        row["error"] = f"not done after {time_limit} s"
    except subprocess.CalledProcessError as error:
        row["error"] = error.stderr.strip().splitlines()[-1]
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", help="without any, all whose suite is installed")
    parser.add_argument("--shares", action="store_true", help="where the time of an update goes, instead")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        for known in (shares if options.shares else measured)(options.row):
            print(json.dumps(known), flush=True)
        return 0
    path = RESULTS / "suites.json"
    rows = json.loads(path.read_text()) if path.exists() else {}
    for env_id in options.ids or IDS:
        suite = env_id.partition(":")[0]
        if not is_installed(suite):
            print(f"{env_id}: not installed")
            continue
        if options.shares and env_id not in rows:
            print(f"{env_id}: has no row yet; first without --shares")
            continue
        if options.shares:
            row = rows[env_id] | by_itself(__file__, env_id, TIME_LIMIT, "--shares")
        else:
            row = {"megabytes": added_megabytes(SUITES[suite].requirement)} | by_itself(__file__, env_id, TIME_LIMIT)
            row |= {"shares": rows[env_id]["shares"]} if "shares" in rows.get(env_id, {}) else {}
        rows[env_id] = row
        print(env_id, row, flush=True)
        path.write_text(json.dumps(rows, indent=1) + "\n")
        page.put(RESULTS / "suites.md", "scripts/suites.py", table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
