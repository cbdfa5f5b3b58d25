"""All findings that an inspection can make, each with its severity, its meaning, and what to try."""

from typing import Any, NamedTuple

from rlref.health.findings import Finding

_GYMNAX = "gymnax 1.0"
_SCHULMAN = "Schulman 2016, Nuts and Bolts"
_JONES = "Jones 2021, Debugging RL"


class Check(NamedTuple):
    """What all findings of one name have in common."""

    severity: str
    meaning: str
    tries: str
    source: str = _GYMNAX


CHECKS = {
    "cannot_be_made": Check("ERROR", "Nothing can be said about an environment that is not there.", ""),
    "incomplete": Check("ERROR", "Agents call all of these.", "subclass gymnax.environments.environment.Environment"),
    "raises": Check("ERROR", "The environment's own code fails, with or without jit.", "mend it"),
    "space_kind": Check(
        "ERROR",
        "The agents here know Discrete and Box spaces alone, PPO MultiDiscrete actions too.",
        "flatten what it is to one Box or Discrete",
    ),
    "space_wrong": Check("ERROR", "Networks are built by the spaces, and actions drawn from them.", "mend the space"),
    "not_jittable": Check(
        "ERROR",
        "It runs step by step, but training is one compiled program, in which no value is known yet.",
        "jnp.where or lax.cond for `if`, jnp for np, no .item(), bool(), int() or float() of what depends on the state",
    ),
    "impure": Check(
        "ERROR",
        "With the same key, state and action it does something else the second time; compiled, the first is frozen.",
        "keep all that changes in the state, and draw with the key, not with np.random",
    ),
    "not_vmappable": Check("ERROR", "Agents step many environments side by side.", "give callbacks a vmap_method"),
    "old_interface": Check(
        "ERROR",
        "One `done` cannot tell the end of the task from a time limit, whose value still has to be bootstrapped.",
        "return observation, state, reward, terminated, truncated, info with info['final_observation']",
    ),
    "step_values": Check(
        "ERROR", "step returns observation, state, reward, terminated, truncated and info.", "return these six"
    ),
    "no_final_observation": Check(
        "ERROR",
        "At a time limit the value is bootstrapped from the episode's last observation, which the reset hides.",
        "put what the step led to, before any reset, into info['final_observation'] at every step",
    ),
    "final_observation_type": Check(
        "ERROR", "The same network reads both.", "give final_observation the observation's shape and dtype"
    ),
    "final_observation_wrong": Check(
        "ERROR",
        "final_observation does not show what the step led to, so that time limits bootstrap from another episode.",
        "take it before the reset",
    ),
    "ending_type": Check("ERROR", "Agents mask with them.", "return jnp bools of shape ()"),
    "reward_type": Check("ERROR", "One step pays one number.", "return a float32 of shape ()"),
    "reward_integer": Check("INFO", "Agents cast it to float32.", ""),
    "observation_type": Check(
        "ERROR", "The network is built for what observation_space says.", "make the two say the same"
    ),
    "observation_dtype": Check(
        "WARN", "Agents go by the observation itself; the declared dtype is wrong.", "make the two say the same"
    ),
    "reset_and_step_differ": Check(
        "ERROR",
        "lax.scan carries observation and state from step to step, in which shapes and dtypes cannot change.",
        "cast in step, or build it so in reset",
    ),
    "no_auto_reset": Check(
        "ERROR",
        "After an end the next step must be a new episode's first: agents do not call reset again.",
        "reset inside step, as gymnax's Environment.step does around step_env",
    ),
    "nonfinite": Check("ERROR", "One NaN makes all parameters NaN.", "find the division, root or logarithm behind it"),
    "out_of_bounds": Check(
        "WARN",
        "The bounds in observation_space are wrong: who scales or one-hot encodes by them goes wrong too.",
        "correct the bounds, or the observation",
    ),
    "constant_observation": Check(
        "INFO",
        "A random policy sees the same there at every step: nothing can be learnt from it.",
        "see whether it should change",
        _SCHULMAN,
    ),
    "observation_scale": Check(
        "WARN",
        "Networks start from inputs of mean 0 and standard deviation 1; much larger ones saturate them, much smaller "
        "ones are not seen.",
        "--normalize-observations of PPO and CEM, or scale in the environment",
        _SCHULMAN,
    ),
    "reset_ignores_key": Check("INFO", "Every episode begins alike.", "", ""),
    "always_both": Check(
        "WARN",
        "An end that is terminated is not bootstrapped: if these are time limits, their values are wrong.",
        "set terminated (is_terminated, or the done of step_env) only where the task itself is over",
    ),
    "never_ends": Check(
        "WARN", "No episode ends: returns and lengths stay undefined.", "a time limit, which sets truncated", "rlref"
    ),
    "cut": Check("INFO", "The cap on steps was reached first.", "fewer --episodes", "rlref"),
    "unbounded_actions": Check("INFO", "The random policy drew these from N(0, 1).", "", "rlref"),
    "no_signal": Check(
        "WARN",
        "All random episodes return the same: there is nothing to learn from until exploration finds something else.",
        "shape the reward, start nearer to the goal, repeat actions, or explore more",
        _SCHULMAN,
    ),
    "rare_signal": Check(
        "INFO",
        "Few random episodes return anything but the usual, and only they teach anything at first.",
        "large batches and many environments; see action_repeat.png",
        _SCHULMAN,
    ),
    "reward_outliers": Check(
        "WARN",
        "A few rewards outweigh all others in the loss.",
        "see whether they are meant; clip them if not",
        _SCHULMAN,
    ),
    "value_targets": Check(
        "INFO",
        "Value targets should lie within [-10, 10], better [-3, 3]; returns of a better policy may lie further out.",
        "multiply the reward (--scale-rewards of PPO does); never shift it, which changes the will to live",
        _JONES,
    ),
    "resets_in_step": Check(
        "INFO",
        "All episodes have one length, so that the environments of a rollout are all in the same part of it.",
        "rollouts of whole episodes, or many environments and more than one epoch of them",
        "rlref",
    ),
    "short_horizon": Check(
        "INFO",
        "What pays off later than 1 / (1 - gamma) steps hardly counts.",
        "a larger --gamma, or repeated actions",
        _SCHULMAN,
    ),
    "long_horizon": Check(
        "INFO",
        "Discounting hardly matters within an episode; a smaller gamma would lower the variance.",
        "a smaller --gamma",
        _SCHULMAN,
    ),
    "undiscounted": Check(
        "WARN",
        "With gamma 1 and no terminal state values are bootstrapped for ever, and have no bound.",
        "a --gamma below 1",
        "rlref",
    ),
}
"""All checks: default severity, meaning, what to try, source."""


def found(check: str, title: str, severity: str = "", **measured: Any) -> Finding:
    """The finding of a check."""
    c = CHECKS[check]
    return Finding(check, severity or c.severity, title, c.meaning, c.tries, c.source, **measured)


class UnusableError(Exception):
    """Ends an inspection that cannot go on, with a last finding unless the reason has been reported already."""

    def __init__(self, check: str = "", title: str = "") -> None:
        super().__init__(title)
        self.findings = [found(check, title)] if check else []
