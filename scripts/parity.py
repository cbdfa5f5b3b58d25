"""One minibatch through Stable-Baselines3's PPO and through rlref's, from the same weights: `python scripts/parity.py`.

Both get the same network, samples, advantages, value targets and old log-probabilities, far enough from the new ones
that ratios are clipped; both learn from these as one minibatch, four times over. Compared are what they log of the
first, its gradient, the weights after the fourth and how they have changed, for a Discrete and for a Box action space:
with rlref as it is, and with two of its lines as Stable-Baselines3 has them. Exit 1 if anything compared differs then.

Writes scripts/results/parity.json, and the table in parity.md, in a minute; Stable-Baselines3 comes into an environment
of its own, made on first use.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import page
from peer_environments import python_with

HERE = Path(__file__).resolve().parent
SB3 = "stable-baselines3==2.9.2"
BATCH, FEATURES, HIDDEN = 64, 11, (64, 64)
CASES = {"Discrete": 4, "Box": 6}  # actions; dimensions
LEARNING_RATE, EPOCHS, CLIP, ENTROPY, VALUE, MAX_NORM = 3e-4, 4, 0.2, 0.01, 0.5, 0.5
EQUAL = 1e-5  # largest difference
EQUAL_CHANGE = 1e-3  # of a change by 1e-3 in weights near 1, which are rounded by 1e-7
TIME_LIMIT = 1_200  # seconds
LINES = {
    "the advantages' standard deviation with n - 1": ("advantage.std() + 1e-8", "advantage.std(ddof=1) + 1e-8"),
    "the value loss without 1/2": ("value_loss = 0.5 * squared_error.mean()", "value_loss = squared_error.mean()"),
}
"""What differs: rlref's text, and the same as Stable-Baselines3 has it."""
ABOUT = """\
`python scripts/parity.py`: the same minibatch, from the same weights, learned from by Stable-Baselines3's PPO and by
[ppo.py](../../rlref/ppo.py), as it is and with two of its lines as Stable-Baselines3 has them: {lines}.
Advantages and targets are given to both, so of rollouts, time limits, GAE, normalisation and how actions are clipped
this says nothing, nor of initial weights, the order of minibatches, annealing, `target_kl` or images. Values are not
clipped (`clip_vloss`): there the two mean different things, as Stable-Baselines3 has no maximum of both errors.
"""
LOGGED = {
    "policy_loss": "policy_gradient_loss", "value_loss": "value_loss", "entropy": "entropy_loss",
    "approx_kl": "approx_kl", "clip_fraction": "clip_fraction",
}  # fmt: skip
"""What is compared of the first step's diagnostics: rlref's names and Stable-Baselines3's."""
GRADIENT, WEIGHTS, CHANGE = "gradient, clipped", f"weights after {EPOCHS} steps", f"their change in {EPOCHS} steps"
Arrays = dict[str, Any]


def problem(kind: str, rng: np.random.Generator) -> Arrays:
    """Weights as kernels `[inputs, outputs]` and biases, and the samples of a minibatch."""
    outputs = CASES[kind]
    shapes = {}
    for name in ("actor", "critic"):
        for i, (n, m) in enumerate(zip((FEATURES, *HIDDEN), HIDDEN, strict=False)):
            shapes[f"{name}_{i}"] = n, m
    shapes |= {"policy_head": (HIDDEN[-1], outputs), "value_head": (HIDDEN[-1], 1)}
    arrays: Arrays = {}
    for name, (n, m) in shapes.items():
        arrays[f"{name}/kernel"] = rng.normal(0, n**-0.5, (n, m))
        arrays[f"{name}/bias"] = rng.normal(0, 0.1, m)
    box = kind == "Box"
    if box:
        arrays["log_std"] = rng.normal(-0.5, 0.2, outputs)
    arrays |= {
        "obs": rng.normal(size=(BATCH, FEATURES)),
        "action": rng.normal(size=(BATCH, outputs)) if box else rng.integers(outputs, size=BATCH),
        "advantage": rng.normal(0.3, 2.0, BATCH),
        "target": rng.normal(0.0, 3.0, BATCH),
        "log_prob_noise": rng.normal(0, 0.3, BATCH),  # the old log-probability is the new one and this
    }
    return {name: x.astype(np.int64 if x.dtype.kind == "i" else np.float32) for name, x in arrays.items()}


def ours(source: str, kind: str, given: Arrays) -> Arrays:
    """What rlref's file of that text makes of it: diagnostics of the first step, its gradient, weights at the end."""
    import jax
    import jax.numpy as jnp
    from gymnax.environments import spaces
    from jax.flatten_util import ravel_pytree

    from rlref.contract import load_agent

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ppo.py"
        path.write_text(source)
        ppo: Any = load_agent(path)
    config = ppo.Config(
        learning_rate=LEARNING_RATE, clip_coef=CLIP, ent_coef=ENTROPY, vf_coef=VALUE, max_grad_norm=MAX_NORM,
        clip_vloss=False, hidden_sizes=HIDDEN,
    )  # fmt: skip
    discrete, outputs = kind == "Discrete", CASES[kind]
    action_space = spaces.Discrete(outputs) if discrete else spaces.Box(-jnp.inf, jnp.inf, (outputs,))
    network = ppo.Network(outputs, discrete, HIDDEN, config.activation, config.layer_norm, ())
    obs_space = spaces.Box(-jnp.inf, jnp.inf, (FEATURES,))
    task = ppo.Task(config, None, None, obs_space, action_space, outputs, network)
    x = {name: jnp.asarray(y) for name, y in given.items()}
    inner: dict[str, Any] = {} if discrete else {"log_std": x["log_std"]}
    for name, y in x.items():
        layer, _, part = name.partition("/")
        if part:
            inner.setdefault(layer, {})[part] = y
    params = {"params": inner}
    policy, value = ppo.forward(task, params, None, x["obs"])
    log_prob = policy.log_prob(x["action"]) + x["log_prob_noise"]
    batch = ppo.Batch(x["obs"], x["action"], policy, log_prob, value, x["advantage"], x["target"])
    gradient, aux = jax.grad(ppo.loss, has_aux=True)(params, task, None, batch)
    opt_state = ppo.make_optimizer(config, LEARNING_RATE).init(ravel_pytree(params)[0])
    blank: Any = dict.fromkeys(ppo.State.__dataclass_fields__)
    state = ppo.State(**blank | {"params": params, "opt_state": opt_state})
    indices = jnp.tile(jnp.arange(BATCH), (EPOCHS, 1, 1))
    state, _ = ppo.learn(task, state, batch, indices, jnp.float32(LEARNING_RATE))
    norm = jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(gradient)))
    clipped = jax.tree.map(lambda x: x * jnp.minimum(1, MAX_NORM / norm), gradient)
    return {
        "old_log_prob": np.asarray(log_prob),
        "old_value": np.asarray(value),
        **{name: np.asarray(x) for name, x in (aux | {"entropy": policy.entropy().mean()}).items() if name in LOGGED},
        GRADIENT: np.asarray(ravel_pytree(clipped)[0]),
        WEIGHTS: np.asarray(ravel_pytree(state.params)[0]),
        "before": np.asarray(ravel_pytree(params)[0]),
    }


def theirs(kind: str, path: Path) -> None:
    """Stable-Baselines3's own `train` of the arrays in a file; what it makes of them goes there."""
    import gymnasium
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.logger import Logger

    given = dict(np.load(path))
    outputs = CASES[kind]

    class Spaces(gymnasium.Env):
        """Nothing but spaces."""

        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (FEATURES,))
        action_space: Any = (
            gymnasium.spaces.Discrete(outputs) if kind == "Discrete" else gymnasium.spaces.Box(-1.0, 1.0, (outputs,))
        )

    def learnt(epochs: int) -> tuple[Any, dict[str, Any]]:
        model = PPO(
            "MlpPolicy", Spaces(), learning_rate=LEARNING_RATE, n_steps=BATCH, batch_size=BATCH, n_epochs=epochs,
            clip_range=CLIP, ent_coef=ENTROPY, vf_coef=VALUE, max_grad_norm=MAX_NORM, device="cpu",
            policy_kwargs={"net_arch": list(HIDDEN), "activation_fn": torch.nn.Tanh},
        )  # fmt: skip
        model.set_logger(Logger(None, []))
        with torch.no_grad():
            for name, x in layers(model.policy).items():
                x.copy_(torch.as_tensor(given[name].T))
        buffer = model.rollout_buffer
        buffer.observations[:, 0] = given["obs"]
        buffer.actions[:, 0] = given["action"].reshape(BATCH, -1)
        buffer.log_probs[:, 0], buffer.values[:, 0] = given["old_log_prob"], given["old_value"]
        buffer.advantages[:, 0], buffer.returns[:, 0] = given["advantage"], given["target"]
        buffer.full = True
        model.train()
        return model, model.logger.name_to_value

    def layers(policy: Any) -> dict[str, Any]:
        """Its tensors by rlref's names."""
        extractor = policy.mlp_extractor
        modules = {"policy_head": policy.action_net, "value_head": policy.value_net}
        for i in range(len(HIDDEN)):
            modules[f"actor_{i}"], modules[f"critic_{i}"] = extractor.policy_net[2 * i], extractor.value_net[2 * i]
        tensors = {f"{name}/kernel": module.weight for name, module in modules.items()}
        tensors |= {f"{name}/bias": module.bias for name, module in modules.items()}
        return tensors | ({} if kind == "Discrete" else {"log_std": policy.log_std})

    model, logged = learnt(1)
    found: Arrays = {name: np.float64(logged[f"train/{theirs}"]) for name, theirs in LOGGED.items()}
    found["entropy"] = -found["entropy"]
    found |= {f"gradient/{name}": x.grad.numpy().T for name, x in layers(model.policy).items()}
    model, _ = learnt(EPOCHS)
    found |= {f"weights/{name}": x.detach().numpy().T for name, x in layers(model.policy).items()}
    np.savez(path, **found)


def compared(source: str, kind: str, python: Path) -> dict[str, float]:
    """The largest difference of each thing; of gradient, weights and their change by their largest element."""
    given = problem(kind, np.random.default_rng(0))
    mine = ours(source, kind, given)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "arrays.npz"
        np.savez(path, **given, old_log_prob=mine["old_log_prob"], old_value=mine["old_value"])
        command = [str(python), str(Path(__file__).resolve()), "--worker", kind, str(path)]
        subprocess.run(command, check=True, timeout=TIME_LIMIT)
        other = dict(np.load(path))
    # As flax orders them: by name, biases before kernels.
    for what, name in (("gradient", GRADIENT), ("weights", WEIGHTS)):
        other[name] = np.concatenate([other[x].ravel() for x in sorted(other) if x.startswith(f"{what}/")])
    for arrays in (mine, other):
        arrays[CHANGE] = arrays[WEIGHTS] - mine["before"]
    names = [*LOGGED, GRADIENT, WEIGHTS, CHANGE]
    scales = {name: np.abs(other[name]).max() if other[name].ndim else 1.0 for name in names}
    return {name: float(np.abs(mine[name] - other[name]).max() / scales[name]) for name in names}


def report(found: dict[str, dict[str, dict[str, float]]], packages: str) -> str:
    """Differences, a line for each thing."""
    columns = [(how, kind) for how in found for kind in CASES]
    lines = [
        ABOUT.format(lines=" and ".join(LINES)),
        f"{BATCH} samples, {packages}: the largest difference; of gradient, weights and their change, "
        "by their largest element.",
        "",
        f"| | {' | '.join(f'{kind}, {how}' for how, kind in columns)} |",
        "|---|" + "---|" * len(columns),
    ]
    for name in found["as it is"]["Box"]:
        cells = [f"{found[how][kind][name]:.1e}" for how, kind in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        theirs(options.worker[0], Path(options.worker[1]))
        return 0
    from mutants import plant

    python = python_with("sb3", SB3, "gymnasium[mujoco]", seconds=TIME_LIMIT)
    source = (HERE.parent / "rlref" / "ppo.py").read_text()
    sources = {"as it is": source, "two lines changed": plant("the two lines", source, [*LINES.values()])}
    found = {how: {kind: compared(text, kind, python) for kind in CASES} for how, text in sources.items()}
    path = HERE / "results" / "parity.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    text = report(found, f"jax {version('jax')}, {SB3.replace('==', ' ')}")
    page.put(path.with_suffix(".md"), "parity", text)
    print(text)
    more = differences(found)
    for line in more:
        print(f"differs: {line}")
    return 1 if more else 0


def differences(found: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """What differs although the two lines are changed; what is no number does."""
    return [
        f"{kind}, {name}: {x:.1e}"
        for kind, names in found["two lines changed"].items()
        for name, x in names.items()
        if not x <= (EQUAL_CHANGE if name == CHANGE else EQUAL)
    ]


if __name__ == "__main__":
    sys.exit(main())
