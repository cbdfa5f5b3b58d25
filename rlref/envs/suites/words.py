"""Several arrays as one row of 32-bit words, in jax and in NumPy: one transfer to the host, and one back."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Field(NamedTuple):
    """One array of a row."""

    shape: tuple[int, ...]
    dtype: Any
    """float32, int32, uint32, uint8 or bool"""

    @property
    def words(self) -> int:
        size = math.prod(self.shape)
        return -(-size // 4) if np.dtype(self.dtype).itemsize == 1 else size


class Words:
    """A row's layout: its arrays by name, in order."""

    def __init__(self, **fields: Field) -> None:
        self.fields = fields
        ends = np.cumsum([field.words for field in fields.values()]).tolist()
        self.places = {name: slice(end - fields[name].words, end) for name, end in zip(fields, ends, strict=True)}
        self.size = ends[-1]
        self.record = np.dtype(
            {
                "names": [*fields],
                "formats": [(field.dtype, field.shape) for field in fields.values()],
                "offsets": [4 * place.start for place in self.places.values()],
                "itemsize": 4 * self.size,
            }
        )

    def pack(self, **arrays: Any) -> jax.Array:
        """A row `[size]` uint32 of one environment's arrays."""
        return jnp.concatenate([self._to_words(field, arrays[name]) for name, field in self.fields.items()])

    def unpack(self, row: jax.Array) -> dict[str, jax.Array]:
        """The arrays of a row."""
        return {name: self._of_words(field, row[self.places[name]]) for name, field in self.fields.items()}

    def views(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays `[n, ...]` of rows `[n, size]` on the host, to be read and written in place."""
        records = rows.view(self.record)[:, 0]
        return {name: records[name] for name in self.fields}

    @staticmethod
    def _to_words(field: Field, x: Any) -> jax.Array:
        x = jnp.ravel(jnp.asarray(x, field.dtype))
        if field.dtype == bool:
            x = x.astype(jnp.uint8)
        if x.dtype.itemsize == 1:
            x = jnp.pad(x, (0, 4 * field.words - x.size)).reshape(field.words, 4)
        return jax.lax.bitcast_convert_type(x, jnp.uint32)

    @staticmethod
    def _of_words(field: Field, words: jax.Array) -> jax.Array:
        if np.dtype(field.dtype).itemsize != 1:
            return jax.lax.bitcast_convert_type(words, field.dtype).reshape(field.shape)
        x = jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(-1)[: math.prod(field.shape)]
        return x.astype(field.dtype).reshape(field.shape)
