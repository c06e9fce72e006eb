"""What every test runs under: checked shapes, one thread, a fixed choice of examples, a cache of its own."""

import gc
import os
import shutil
import tempfile

import hypothesis
import pytest
import torch
from example_counts import LARGE
from shapes import check_shapes

# Before anything imports them: every annotated shape in the core is checked.
check_shapes(["attendo.nn", "attendo.models"])

torch.set_num_threads(1)
# JAX compiles each tiny function for each shape and runs it once: less time for optimization, more for tests.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """A command of an earlier test may have chosen another number of threads."""
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture
def float64():
    """Within a test new tensors are of float64, and random ones the same in each run."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# The same examples on every machine and every run, however slow it is.
hypothesis.settings.register_profile("attendo", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("attendo")


# What is imported stays: to look through all of it for garbage again and again would take a tenth of the time.
THRESHOLDS = gc.get_threshold()
gc.set_threshold(*THRESHOLDS[:2], 1_000_000)


def pytest_collection_finish():
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


def pytest_configure(config):
    if "not full" not in config.option.markexpr:
        os.environ[LARGE] = "1"
    cache = tempfile.mkdtemp(prefix="attendo-cache-")
    os.environ["ATTENDO_CACHE"] = cache
    config.add_cleanup(lambda: shutil.rmtree(cache, ignore_errors=True))
