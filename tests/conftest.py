"""Four CPU devices, before jax starts: what is sharded is sharded here too. Programs compiled once serve all tests."""

import atexit
import os
import tempfile

_cache = tempfile.TemporaryDirectory(prefix="rlref-tests-")
atexit.register(_cache.cleanup)

os.environ["JAX_NUM_CPU_DEVICES"] = "4"
os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
