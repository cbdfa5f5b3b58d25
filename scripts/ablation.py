"""Which options matter to PPO on MuJoCo? `pip install -e '.[gymnasium]' && python scripts/ablation.py [ENV ...]`.

Beside rlref's own options those that ppo_options.py plants in a copy of ppo.py, to see which of them earn a place in
it. `rlref ablate` with 5 seeds of 3e5 steps: each option is switched alone, from settings near to Tianshou's for MuJoCo
(8 environments of 256 steps, where it has 64 of 32; half its weight of the value loss, which has no 1/2 there; Adam's
epsilon 1e-5 for 1e-8; the learning rate falls to 0 within these steps, and not within 3e6; actions are not rescaled).
The score is the mean return of a seed's last 100 training episodes.

    --again    instead, those that looked worth it, and some of them together, on ten other seeds
    --long     instead, from swish, what else might be worth it: five seeds more, of 5e5 steps
    --last     instead, what looked worth it there, on ten seeds more
    --tuned    instead, rlref/tuned.py's settings with and without layer norm, on the seeds of scores.md
    --rows     instead, nothing is trained: the rows of a scores.json, which has those seeds with layer norm trained
               again, against both of --tuned

Runs are folders under --run-dir; stopped, the same command goes on where it was. Writes scripts/results/ablation.json,
and the tables in ablation.md, as an environment is done: each takes about an hour on two cores.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import page
import ppo_options
from scipy.stats import mannwhitneyu, rankdata

from rlref import stats, tuned
from rlref.cli import use_compilation_cache
from rlref.cli.terminal import Terminal
from rlref.contract import load_agent
from rlref.search import ablate

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
ENVS = ("gymnasium:HalfCheetah-v5", "gymnasium:Hopper-v5")
SETTINGS: dict[str, Any] = {
    "total_timesteps": 300_000,
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
    "squash and swish": {"squash": True, "activation": "swish"},
}
LONG: dict[str, dict[str, Any]] = {
    "64 x 32": {"num_envs": 64, "num_steps": 32},
    "layer_norm": {"layer_norm": True},
    "recompute_advantages": {"recompute_advantages": True},
}
LAST = {"layer_norm": LONG["layer_norm"]}
SWISH = {**SETTINGS, "activation": "swish", "recompute_advantages": False, "total_timesteps": 500_000}
TUNED = {**tuned.TABLE["ppo"]["gymnasium:Walker2d-v5"].settings, "layer_norm": False}


class Stage(NamedTuple):
    settings: dict[str, Any]
    changes: dict[str, dict[str, Any]] | None  # None: each option of ONLY, each value of ALSO
    seeds: range
    envs: tuple[str, ...]


STAGES = {
    "": Stage(SETTINGS, None, range(5), ENVS),
    "again": Stage(SETTINGS, AGAIN, range(100, 110), ENVS),
    "long": Stage(SWISH, LONG, range(200, 205), ("gymnasium:Hopper-v5", "gymnasium:Walker2d-v5")),
    "last": Stage(SWISH, LAST, range(300, 310), ("gymnasium:Walker2d-v5", "gymnasium:HalfCheetah-v5")),
    "tuned": Stage(TUNED, LAST, range(1000, 1010), (*ENVS, "gymnasium:Walker2d-v5")),
}
JUDGED_BY = {  # stages that had no part in an option's being chosen
    **dict.fromkeys(AGAIN, ("again",)),
    **dict.fromkeys(LONG, ("long",)),
    "layer_norm": ("tuned",),  # taken in when `last` was done
}


def row_of(found: ablate.Ablation, stage: Stage) -> dict[str, Any]:
    """What is kept of an environment."""
    return {"settings": stage.settings, "seeds": len(stage.seeds), **ablate.to_json(found)["comparison"]["results"][0]}


def text_of(found: ablate.Ablation, stage: Stage) -> str:
    """Its table, and the conclusions."""
    (table,) = ablate.tables(found)
    columns = list(table.rows[0])
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(str(row[x]) for x in columns)} |" for row in table.rows]
    said = "\n".join(f"- {x}" for x in ablate.sentences(found))
    given = f"{found.env_id}, {len(stage.seeds)} seeds x {stage.settings['total_timesteps']:,} steps."
    return f"{given} {table.title}\n\n" + "\n".join(lines) + f"\n\n{said}"


def together(rows: dict[str, Any]) -> str:
    """A table of what stages that did not choose an option say of it: over their environments, in one test."""
    groups: dict[str, list[tuple[str, np.ndarray, np.ndarray]]] = {}
    for name, row in rows.items():
        scores = {x["method"]: np.asarray(x["scores"]) for x in row["summaries"]}
        given, stage = scores.pop("as given"), name.partition(" ")[2]
        for option, x in scores.items():
            if stage in JUDGED_BY.get(option, ()):
                groups.setdefault(option, []).append((name, x, given))
    p = {option: stratified(group) for option, group in groups.items()}
    corrected = dict(zip(p, stats.holm(list(p.values())), strict=True))
    lines = ["| option | P(a seed with it is better than one without) | p | p (Holm) |", "|---|---|---|---|"]
    for option in sorted(p, key=p.__getitem__):
        better = [
            f"{name.partition(':')[2]} {stats.probability_of_improvement([x], [given]).value:.2f}"
            for name, x, given in groups[option]
        ]
        lines.append(f"| {option} | {', '.join(better)} | {p[option]:.2g} | {corrected[option]:.2g} |")
    return "\n".join(lines)


def rows_again(tuned_rows: dict[str, Any], scores: dict[str, Any]) -> str:
    """A table of rows of scores.md, with layer norm, against those of --tuned without it, and with it."""
    lines = [
        "| layer norm, trained again, against | P(a seed is better), difference of IQMs, p | p over environments |",
        "|---|---|---|",
    ]
    for arm, what in (("as given", "none"), ("layer_norm", "layer norm, as first trained")):
        cells, group = [], []
        for env_id in STAGES["tuned"].envs:
            arms = {x["method"]: np.asarray(x["scores"]) for x in tuned_rows[f"{env_id} tuned"]["summaries"]}
            x, y = np.asarray(scores[f"ppo/{env_id}"]["scores"], float), arms[arm]
            better = stats.probability_of_improvement([x], [y]).value
            p = mannwhitneyu(x, y).pvalue
            cells.append(f"{env_id.partition(':')[2]} {better:.2f}, {stats.iqm(x) - stats.iqm(y):+.0f}, {p:.2g}")
            group.append((env_id, x, y))
        lines.append(f"| {what} | {'; '.join(cells)} | {stratified(group):.2g} |")
    return "\n".join(lines)


def stratified(group: list[tuple[str, np.ndarray, np.ndarray]], draws: int = 20_000) -> float:
    """The two-sided p of van Elteren's rank test (1960), in which seeds change places within an environment alone."""
    random = np.random.default_rng(0)
    found, null = 0.0, np.zeros(draws)
    for _, x, y in group:
        ranks = rankdata(np.concatenate([x, y])) / (len(x) + len(y) + 1)
        centre = len(x) / 2
        found += ranks[: len(x)].sum() - centre
        null += random.permuted(np.tile(ranks, (draws, 1)), axis=1)[:, : len(x)].sum(axis=1) - centre
    return float((np.sum(np.abs(null) >= abs(found) - 1e-9) + 1) / (draws + 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", metavar="ENV", help="by default the stage's own")
    stages = parser.add_mutually_exclusive_group()
    stages.add_argument("--again", dest="stage", action="store_const", const="again", default="")
    stages.add_argument("--long", dest="stage", action="store_const", const="long")
    stages.add_argument("--last", dest="stage", action="store_const", const="last")
    stages.add_argument("--tuned", dest="stage", action="store_const", const="tuned")
    stages.add_argument("--rows", type=Path, nargs="?", const=RESULTS / "scores.json", metavar="FILE")
    parser.add_argument("--run-dir", type=Path, default=HERE.parent / "runs" / "ablation")
    options = parser.parse_args()
    if options.rows:
        text = rows_again(json.loads((RESULTS / "ablation.json").read_text()), json.loads(options.rows.read_text()))
        if options.rows == RESULTS / "scores.json":
            page.put(RESULTS / "ablation.md", "scripts/ablation.py --rows", text)
        print(text)
        return 0
    use_compilation_cache()
    options.run_dir.mkdir(parents=True, exist_ok=True)
    trial, path = options.run_dir / "ppo_options.py", RESULTS / "ablation.json"
    trial.write_text(ppo_options.source())
    module = load_agent(str(trial))
    stage = STAGES[options.stage]
    for env_id in options.envs or stage.envs:
        config, name = module.Config(env_id=env_id, **stage.settings), f"{env_id} {options.stage}".strip()
        with Terminal() as display:
            given: dict[str, Any] = {
                "num_seeds": len(stage.seeds),
                "seed": stage.seeds.start,
                "folder": options.run_dir / name,
                "display": display,
            }
            if stage.changes:
                found = ablate.against_given(module, config, stage.changes, **given)
            else:
                found = ablate.ablate(module, config, only=ONLY, also=ALSO, **given)
        rows = json.loads(path.read_text()) if path.exists() else {}
        rows |= {name: row_of(found, stage)}
        path.write_text(json.dumps(rows, indent=1) + "\n")
        page.put(RESULTS / "ablation.md", f"scripts/ablation.py {name}", text_of(found, stage))
        page.put(RESULTS / "ablation.md", "scripts/ablation.py, over environments", together(rows))
        print(text_of(found, stage))
    return 0


if __name__ == "__main__":
    sys.exit(main())
