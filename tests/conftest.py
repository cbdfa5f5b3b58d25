"""Four CPU devices, before jax starts: what is sharded is sharded here too. Programs compiled once serve all tests."""

import atexit
import ctypes
import gc
import os
import resource
import tempfile
from importlib.metadata import version

import psutil
import pytest

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers share the cache of the process that started them
    _cache = tempfile.TemporaryDirectory(prefix="rlref-tests-")
    atexit.register(_cache.cleanup)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache.name

os.environ["JAX_NUM_CPU_DEVICES"] = "4"
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
# Formulas are held to full float32; on GPUs and TPUs matrix products have less by default.
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # most tests, and their processes, compile longer than they run
gc.set_threshold(100_000, 10, 50)  # tracing makes many objects, few of them garbage
MEMORY = 2e9  # bytes of a process, from which on compiled programs are dropped


@pytest.fixture(autouse=True)
def _programs():
    """Compiled programs are kept from test to test, but not without end: all of them would come to gigabytes."""
    yield
    if psutil.Process().memory_info().rss > MEMORY:
        import jax

        jax.clear_caches()
        gc.collect()
        getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: None)(0)  # glibc keeps what is freed, else


@pytest.fixture(autouse=True)
def _on_cpus(request):
    if request.node.get_closest_marker("cpus"):
        import jax

        if jax.default_backend() != "cpu":
            pytest.skip("of CPUs: what they alone do, or of the four that there are in tests")


@pytest.fixture(autouse=True, scope="module")
def _optimised_ladder(request):
    """Those that train whole ladders do not."""
    import jax

    jax.config.update("jax_disable_most_optimizations", request.module.__name__ != "test_probes")


class PeakMemory:
    """Says at the end how much memory the processes of the tests took, at most."""

    def __init__(self):
        self.peaks = {}

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["peak"] = peak_memory()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.peaks[node.gateway.id] = getattr(node, "workeroutput", {}).get("peak", "unknown: it crashed")

    def pytest_terminal_summary(self, terminalreporter):
        for name, peak in (self.peaks or {"this process": peak_memory()}).items():
            terminalreporter.write_line(f"peak memory of {name}: {peak}")


def peak_memory():
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"


def pytest_configure(config):
    config.pluginmanager.register(PeakMemory())
    # Half of the seconds of compiling, for programs that run a little longer; later versions have no such flag. Flags
    # that are set, were they empty, are left as they are: .ci/run trains ladders as users' programs are compiled.
    if "XLA_FLAGS" not in os.environ and version("jaxlib").startswith("0.10."):
        os.environ["XLA_FLAGS"] = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
