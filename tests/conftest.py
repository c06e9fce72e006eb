"""What every test runs under: checked shapes, one thread, a fixed choice of examples, a cache of its own."""

import functools
import gc
import os
import shutil
import tempfile
from pathlib import Path

import hypothesis
import pytest
import shapes
import torch
from example_counts import LARGE

TESTS = Path(__file__).parent
SRC = TESTS.parent / "src"
CHECKED = {"decoding", "inspecting", "nn", "parity", "properties", "test_models.py", "test_model_config.py"}
CHECKED |= {"training"}
"""Where the shapes of every call are checked in each run; with the large counts, everywhere."""

# Before anything imports them: every annotated shape in the core is checked.
shapes.check_shapes(["attendo.nn", "attendo.models"])

torch.set_num_threads(1)


def measure_once():
    """The speed of this machine is measured once, not again by each command that chooses or plans."""
    from attendo.runs import planning
    from attendo.training import acceleration

    seconds, measured = acceleration._product_seconds, {}

    def product_seconds(product, left, right):
        key = product, left.shape, right.shape, left.dtype
        if key not in measured:
            measured[key] = seconds(product, left, right)
        return measured[key]

    acceleration._product_seconds = product_seconds
    planning.matrix_peak = functools.cache(functools.partial(planning.matrix_peak, size=512))


measure_once()
# JAX compiles each tiny function for each shape and runs it once: less time for optimization, more for tests.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """A command of an earlier test may have chosen another number of threads."""
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    shapes.checking = bool(os.environ.get(LARGE)) or item.path.is_relative_to(SRC) or part_of(item) in CHECKED


def part_of(item):
    """The folder or file of tests/ that a test is in."""
    return item.path.relative_to(TESTS).parts[0]


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


MIN_EXAMPLES = 3

# What is imported stays: to look through all of it for garbage again and again would take a tenth of the time.
THRESHOLDS = gc.get_threshold()
gc.set_threshold(*THRESHOLDS[:2], 1_000_000)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Without the large counts: a quarter of the examples of a property, `some(n)` cases of a test that has more."""
    if os.environ.get(LARGE):
        return
    families = {}
    for item in items:
        function = getattr(item, "function", None)
        chosen = getattr(function, "_hypothesis_internal_use_settings", None)
        if chosen is not None and function not in families:
            n = min(chosen.max_examples, max(MIN_EXAMPLES, chosen.max_examples // 4))
            function._hypothesis_internal_use_settings = hypothesis.settings(chosen, max_examples=n)
        families.setdefault(function, []).append(item)
    left = set()
    for family in families.values():
        marker = family[0].get_closest_marker("some")
        if marker is not None and len(family) > marker.args[0]:
            kept = {round(i * (len(family) - 1) / max(1, marker.args[0] - 1)) for i in range(marker.args[0])}
            left |= {item for number, item in enumerate(family) if number not in kept}
    if left:
        config.hook.pytest_deselected(items=[*left])
        items[:] = [item for item in items if item not in left]


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
    if own := getattr(config, "cache", None):  # in which the compiled library stays for the next session
        kept = own.mkdir("native")
        keep_libraries(kept, Path(cache))
        config.add_cleanup(lambda: keep_libraries(Path(cache), kept))


def keep_libraries(source, target):
    """Copies the libraries, whose names have a hash of their sources."""
    for made in source.glob("native-*"):
        shutil.copytree(made, target / made.name, dirs_exist_ok=True)
