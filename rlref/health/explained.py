"""How well values fit their targets, in words: explained variance, or where that says nothing, the values' error."""

from collections.abc import Mapping

import numpy as np

from rlref import stats
from rlref.health.series import targets_vary

NO_SPREAD = "targets hardly vary"


def fit_in_words(metrics: Mapping[str, np.ndarray], short: bool = False) -> str:
    """Explained variance at the last update, IQM over seeds; `metrics` are `[..., U]`.

    Where targets hardly vary, as on a solved task, it is undefined or far below 0 however right the values are:
    `targets_vary` says so, as in the health checks. If that is at least half of the seeds, the values' root mean square
    error is told instead, as a share of the mean target: sqrt((1 - EV) Var[target] + bias^2) / |mean|, IQM.
    """
    names = ("explained_variance", "target_std", "target_mean", "value_bias")
    known = {name: metrics[name] for name in names if name in metrics}
    index = stats.last_index(known.get("target_std", known["explained_variance"]))[..., None]
    now = {name: np.take_along_axis(x, index, axis=-1).ravel() for name, x in known.items()}
    explained = now["explained_variance"].astype(np.float64)
    nothing = np.full(len(explained), np.nan)
    bias, std, mean = (
        now.get(name, nothing).astype(np.float64) for name in ("value_bias", "target_std", "target_mean")
    )
    label, why = ("EV", "") if short else ("explained_variance", f" ({NO_SPREAD})")
    flat = ~np.broadcast_to(targets_vary(now), explained.shape) & np.isfinite(std)
    if flat.sum() < len(flat) / 2:
        iqm = stats.iqm(explained[~flat])
        some = f" ({(~flat).sum()} of {len(flat)} seeds)" if flat.any() else ""
        return f"{label} {iqm:.4g}{some}" if np.isfinite(iqm) else f"{label} undefined"
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.sqrt((1 - explained) * std**2 + bias**2) / np.abs(mean)
    percent = 100 * stats.iqm(error[flat])
    if not np.isfinite(percent):
        return f"{label} undefined{why}"
    return f"value error {percent:{'.2g' if percent < 100 else '.0f'}} %{'' if short else ' of the return'}{why}"
