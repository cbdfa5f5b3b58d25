"""Oracles over functions that files of several kinds have."""

import itertools
from functools import partial
from types import ModuleType
from typing import Any, get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces

from probes.environments import Tabular, tables
from probes.oracles.base import (
    DEFINITION,
    LIKENESS,
    SHAPES,
    CannotAskError,
    close,
    configure,
    first_state,
    need,
    oracle,
    settings_in,
    task_of,
)
from probes.ways import has_memory
from rlref.contract import ALL, GRADIENT


@oracle(GRADIENT, "explained variance", DEFINITION, explained_variance="target value")
def explained_variance(module: ModuleType) -> None:
    """1 - Var[target - value] / Var[target]; NaN for constant targets."""
    target, value = jnp.array([0.0, 2.0, 4.0]), jnp.array([1.0, 2.0, 3.0])
    close("explained_variance", module.explained_variance(target, value), 0.75)
    if not np.isnan(module.explained_variance(jnp.ones(3), value)):
        raise AssertionError("explained_variance of constant targets is a number; it is undefined, NaN")


@oracle(
    ALL, "what the network is shown: one-hot, images from 0 to 1, anything else flat", DEFINITION, features="obs space"
)
def shown_features(module: ModuleType) -> None:
    """Discrete observations are one-hot, bytes of images become 0 to 1, and other numbers stay as they are."""
    one_hot = module.features(jnp.array([2, 0]), spaces.Discrete(3))
    close("features of the Discrete observations 2 and 0 of 3", one_hot, [[0, 0, 1], [1, 0, 0]])
    flat = module.features(jnp.arange(12).reshape(2, 3, 2), spaces.Box(0, 255, (3, 2), jnp.int32))
    close("features of whole numbers of shape (3, 2)", flat, np.arange(12).reshape(2, 6))
    image = jnp.zeros((2, 5, 3, 1), jnp.uint8).at[1, 4, 2, 0].set(255)
    shown = module.features(image, spaces.Box(0, 255, (5, 3, 1), jnp.uint8))
    close("the sum of features of an image with one pixel of 255", np.asarray(shown).sum(), 1.0)


@oracle(GRADIENT, "the network on images: convolutions and their strides", LIKENESS, init="task key")
def convolved_images(module: ModuleType) -> None:
    """Values of images are those of the layers written out: windows of each size, as far apart as the stride says."""
    rng = np.random.default_rng(0)
    obs = rng.integers(256, size=(1, 10, 7, 2)).astype(np.uint8)
    params = tables(obs=obs, reward=[[0.0, 0.0]], next=[0])
    windows = ((4, 3, 2), (5, 2, 1))
    for normed, option in layer_norm_options(module):
        config = configure(module, conv_layers=windows, hidden_sizes=(6,), activation="relu", **option)
        try:
            state = first_state(module, task_of(module, config, Tabular(params), params))
        except Exception as error:  # the user's own code: anything can come; here the agent itself cannot begin
            raise AssertionError(f"with conv_layers={windows} it raises {type(error).__name__}: {error}") from error
        layers, head = layers_of(state)
        convolutions = sorted(name for name in layers if "conv" in name)
        hidden = {k: x for k, x in layers.items() if k not in convolutions and not k.endswith("head")}
        if len(convolutions) != 2 or head not in layers or sum("kernel" in layer for layer in hidden.values()) != 1:
            raise CannotAskError(f"its layers are {', '.join(layers)}")
        x = obs[0] / 255
        for name, (features, size, stride) in zip(convolutions, windows, strict=True):
            height, width = ((n - size) // stride + 1 for n in x.shape[:2])
            kernel, out = layers[name]["kernel"].reshape(size, size, -1, features), np.zeros((height, width, features))
            for row, column in itertools.product(range(height), range(width)):
                window = x[row * stride : row * stride + size, column * stride : column * stride + size]
                out[row, column] = np.einsum("hwc,hwcf->f", window, kernel)
            x = np.maximum(out + layers[name]["bias"], 0)
        reached = next(len(layer["kernel"]) for layer in hidden.values() if "kernel" in layer)
        close("how many numbers of an image reach the hidden layer", reached, x.size)
        what = "the value of an image" + " with layer norm" * normed
        x = hidden_layers(hidden, 1, "relu", normed, x.reshape(1, -1), what)
        wanted = x @ layers[head]["kernel"] + layers[head]["bias"]
        value = np.asarray(module.make(config, Tabular(params), params).value(state, jnp.asarray(obs[0])))
        close(what, value, wanted.reshape(value.shape))


def layers_of(state: Any) -> tuple[dict[str, dict[str, np.ndarray]], str]:
    """The parameters of a network's layers, by name, and the name of the layer that gives values."""
    layers = {name: {k: np.asarray(x) for k, x in layer.items()} for name, layer in state.params["params"].items()}
    return layers, "value_head" if "value_head" in layers else "head"


@oracle(GRADIENT, "the network: its hidden layers, or their activation", LIKENESS, init="task key")
def named_activation(module: ModuleType) -> None:
    """Values and policies are those of hidden layers written out, with each activation, and layer norm if it is set."""
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    params = tables(obs=obs, reward=np.zeros((5, 2)), next=[0] * 5)
    need(module, "hidden_sizes", "activation")
    names = [name for name in get_args(get_type_hints(module.Config)["activation"]) if name in SHAPES]
    if not names or has_memory(module):
        raise CannotAskError(f"none of its activations is one of {', '.join(SHAPES)}, or it has a memory")
    for name, (normed, option) in itertools.product(names, layer_norm_options(module)):
        config = configure(module, hidden_sizes=(6, 5), activation=name, **option)
        agent = module.make(config, Tabular(params), params)
        state = first_state(module, task_of(module, config, Tabular(params), params))
        layers, value_head = layers_of(state)
        if value_head not in layers:
            raise CannotAskError(f"its layers are {', '.join(layers)}")
        for head, other, of in ((value_head, "actor", agent.value), ("policy_head", "critic", agent.policy)):
            if head not in layers:
                continue  # of DQN
            hidden = {k: x for k, x in layers.items() if other not in k and not k.endswith("head")}
            what = f"the {'value' if head == value_head else 'policy'}, with hidden layers of {name}"
            x = layers[head]["bias"] + hidden_layers(hidden, 2, name, normed, obs, what) @ layers[head]["kernel"]
            x = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) if head == "policy_head" else x
            got = np.asarray(jax.vmap(partial(of, state))(jnp.asarray(obs)))
            close(what + " and layer norm" * normed, got, x.reshape(got.shape))


def layer_norm_options(module: ModuleType) -> list[tuple[bool, dict[str, bool]]]:
    """Whether layers are normalised, and the settings with which a network is tried."""
    has = "layer_norm" in settings_in(module)
    return [(normed, {"layer_norm": normed} if has else {}) for normed in ([False, True] if has else [False])]


def hidden_layers(
    layers: dict[str, dict[str, np.ndarray]], count: int, activation: str, layer_norm: bool, x: np.ndarray, what: str
) -> np.ndarray:
    """Layers written out, `[B, n] -> [B, m]`: product, layer norm (arXiv:1607.06450) if it is set, activation.

    Raises CannotAskError unless there are `count` of them, AssertionError if layer norm is set and not of each.
    """
    norms = [name for name in layers if "scale" in layers[name]]
    hidden = [name for name in layers if name not in norms]
    if len(hidden) != count:
        raise CannotAskError(f"its layers are {', '.join(layers)}")
    if layer_norm and len(norms) != count:
        raise AssertionError(f"{what}: layer_norm normalises {len(norms)} of {count}")
    for name, norm in itertools.zip_longest(hidden, norms if layer_norm else ()):
        x = x @ layers[name]["kernel"] + layers[name]["bias"]
        if norm:
            x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-6)
            x = x * layers[norm]["scale"] + layers[norm].get("bias", 0.0)
        x = SHAPES[activation](x)
    return x


@oracle(GRADIENT, "dormant units", DEFINITION, dormant_fraction="hidden tau")
def dormant_units(module: ModuleType) -> None:
    """Units whose mean |activation| is at most tau of their layer's, counted over all layers alike."""
    first = jnp.array([[10.0, -10.0, 0.0, 0.1], [-10.0, 10.0, 0.0, 0.1]])  # the last two
    second = jnp.array([[0.0, 3.0], [0.1, -3.0]])  # the first
    close("dormant_fraction", module.dormant_fraction([first, second], 0.05), 3 / 6)


@oracle(GRADIENT, "mean, standard deviation, minimum and maximum of a metric", DEFINITION, summary="name x where")
def summaries(module: ModuleType) -> None:
    """Of all numbers, and of those that are selected; NaN where none is."""
    x = jnp.array([[3.0, -1.0], [7.0, 100.0]])
    for where, chosen in ((None, [3.0, -1.0, 7.0, 100.0]), (x < 0, [-1.0]), (x > 1, [3.0, 7.0, 100.0]), (x > 1e3, [])):
        got = module.summary("x", x, where)
        for how in ("mean", "std", "min", "max"):
            if chosen:
                close(f"summary's {how} of {chosen}", got[f"x_{how}"], getattr(np.array(chosen), how)())
            elif not np.isnan(got[f"x_{how}"]):
                raise AssertionError(f"summary's {how} of nothing is {got[f'x_{how}']}; it is undefined, NaN")
