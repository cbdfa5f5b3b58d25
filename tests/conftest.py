"""Four CPU devices, before jax starts: what is sharded is sharded here too. Programs compiled once serve all tests."""

import atexit
import os
import tempfile

import pytest

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers share the cache of the process that started them
    _cache = tempfile.TemporaryDirectory(prefix="rlref-tests-")
    atexit.register(_cache.cleanup)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache.name

os.environ["JAX_NUM_CPU_DEVICES"] = "4"
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # most tests, and their processes, compile longer than they run


@pytest.fixture(autouse=True, scope="module")
def _optimised_ladder(request):
    """Those that train whole ladders do not."""
    import jax

    jax.config.update("jax_disable_most_optimizations", request.module.__name__ != "test_probes")
