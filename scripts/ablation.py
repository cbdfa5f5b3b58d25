"""Which options matter to PPO on MuJoCo? `pip install -e '.[gymnasium]' && python scripts/ablation.py [ENV ...]`.

Beside rlref's own options those that ppo_options.py plants in a copy of ppo.py, to see which of them earn a place in
it. `rlref ablate` with 5 seeds of 3e5 steps: each option is switched alone, from settings as Tianshou has them for
MuJoCo (but for 8 environments of 256 steps, where it has 64 of 32). The score is the mean return of a seed's last 100
training episodes.

    --again    instead, those that looked worth it, and some of them together, on ten other seeds

Runs are folders under --run-dir; stopped, the same command goes on where it was. Writes scripts/results/ablation.json,
and the tables in ablation.md, as an environment is done: each takes about an hour on two cores.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import page
import ppo_options

from rlref.cli import use_compilation_cache
from rlref.cli.terminal import Terminal
from rlref.contract import load_agent
from rlref.search import ablate

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
ENVS = ("gymnasium:HalfCheetah-v5", "gymnasium:Hopper-v5")
SEEDS, STEPS = 5, 300_000
SETTINGS: dict[str, Any] = {
    "total_timesteps": STEPS,
    "num_envs": 8,
    "num_steps": 256,
    "num_minibatches": 32,
    "update_epochs": 10,
    "learning_rate": 3e-4,
    "norm_adv": False,
    "clip_vloss": False,
    "ent_coef": 0.0,
    "vf_coef": 0.25,
    "init_log_std": -0.5,
    "normalize_observations": True,
    "scale_rewards": True,
    "recompute_advantages": True,
}
ONLY = (
    "layer_norm", "state_std", "squash", "recompute_advantages", "norm_adv", "clip_vloss", "normalize_observations",
    "scale_rewards", "anneal_lr",
)  # fmt: skip
ALSO: dict[str, list[Any]] = {"activation": ["swish", "elu"], "critic_sizes": [(256, 256)]}
AGAIN: dict[str, dict[str, Any]] = {
    "squash": {"squash": True},
    "swish": {"activation": "swish"},
    "norm_adv": {"norm_adv": True},
    "layer_norm": {"layer_norm": True},
    "squash, swish": {"squash": True, "activation": "swish"},
}
OTHER_SEEDS = range(100, 110)


def row_of(found: ablate.Ablation, seeds: int) -> dict[str, Any]:
    """What is kept of an environment."""
    return {"settings": SETTINGS, "seeds": seeds, **ablate.to_json(found)["comparison"]["results"][0]}


def text_of(found: ablate.Ablation, seeds: int) -> str:
    """Its table, and the conclusions."""
    (table,) = ablate.tables(found)
    columns = list(table.rows[0])
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(str(row[x]) for x in columns)} |" for row in table.rows]
    said = "\n".join(f"- {x}" for x in ablate.sentences(found))
    return f"{found.env_id}, {seeds} seeds x {STEPS:,} steps. {table.title}\n\n" + "\n".join(lines) + f"\n\n{said}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", metavar="ENV", help=f"by default {' and '.join(ENVS)}")
    parser.add_argument("--again", action="store_true", help="what looked worth it, on other seeds")
    parser.add_argument("--run-dir", type=Path, default=HERE.parent / "runs" / "ablation")
    options = parser.parse_args()
    use_compilation_cache()
    options.run_dir.mkdir(parents=True, exist_ok=True)
    trial, path = options.run_dir / "ppo_options.py", RESULTS / "ablation.json"
    trial.write_text(ppo_options.source())
    module = load_agent(str(trial))
    for env_id in options.envs or ENVS:
        config = module.Config(env_id=env_id, **SETTINGS)
        name, seeds = (f"{env_id} again", len(OTHER_SEEDS)) if options.again else (env_id, SEEDS)
        with Terminal() as display:
            given: dict[str, Any] = {"folder": options.run_dir / name, "display": display}
            if options.again:
                first = OTHER_SEEDS.start
                found = ablate.against_given(module, config, AGAIN, num_seeds=seeds, seed=first, **given)
            else:
                found = ablate.ablate(module, config, only=ONLY, also=ALSO, num_seeds=seeds, **given)
        rows = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(rows | {name: row_of(found, seeds)}, indent=1) + "\n")
        page.put(RESULTS / "ablation.md", f"scripts/ablation.py {name}", text_of(found, seeds))
        print(text_of(found, seeds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
