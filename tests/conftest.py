"""Four CPU devices, before jax starts: what is sharded is sharded here too. Programs compiled once serve all tests."""

import atexit
import os
import tempfile

import pytest

_cache = tempfile.TemporaryDirectory(prefix="rlref-tests-")
atexit.register(_cache.cleanup)

os.environ["JAX_NUM_CPU_DEVICES"] = "4"
os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


@pytest.fixture(autouse=True, scope="module")
def _quick_compiler(request):
    """Most tests compile for longer than they run; those that train whole ladders do not."""
    import jax

    quick = request.module.__name__ not in ("test_probes", "test_mutation_score")
    jax.config.update("jax_disable_most_optimizations", quick)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
