"""Four CPU devices, before jax starts: what is sharded is sharded here too."""

import os

os.environ["JAX_NUM_CPU_DEVICES"] = "4"
