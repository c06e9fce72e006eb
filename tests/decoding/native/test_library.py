"""The compiled library: where it comes from, and what is said where it cannot be had."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attendo.cache import cache_folder
from attendo.decoding.native.library import NoLibrary, find_compiler, is_to_be_made, library, require_suited

CACHE = cache_folder()  # that of the whole session
make = library.__wrapped__  # as on the first call


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENDO_CACHE", str(tmp_path))
    monkeypatch.delenv("ATTENDO_NATIVE", raising=False)
    return tmp_path


def left_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_it_can_be_done_without(monkeypatch):
    monkeypatch.setenv("ATTENDO_NATIVE", "0")
    with pytest.raises(NoLibrary, match="ATTENDO_NATIVE is 0"):
        make()
    assert not is_to_be_made()


def test_a_compiler_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "/no/such/compiler")
    with pytest.raises(NoLibrary, match=r"/no/such/compiler cannot be run .*\. Set CXX"):
        make()


def test_no_compiler_at_all_says_what_to_install(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NoLibrary, match=r"Install one, for example: pip install ziglang"):
        make()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert find_compiler() == (sys.executable, "-m", "ziglang", "c++")


def test_a_compiler_that_fails_leaves_nothing(monkeypatch, empty_cache):
    complains = empty_cache / "cxx"
    complains.write_text("#!/bin/sh\necho 'decoder.cpp:1: error: no such thing' >&2\nexit 3\n")
    complains.chmod(0o755)
    monkeypatch.setenv("CXX", str(complains))
    assert is_to_be_made()
    with pytest.raises(NoLibrary, match=r"cxx failed: decoder.cpp:1: error: no such thing"):
        make()
    assert left_in(empty_cache) == [complains]


def test_a_damaged_library_is_named(monkeypatch, empty_cache):
    silent = empty_cache / "cxx"
    silent.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo damaged && exit\n'  # a key of its own: dlopen knows names
        'while [ "$1" != "-o" ] && [ $# -gt 0 ]; do shift; done\necho damaged > "$2"\n'
    )
    silent.chmod(0o755)
    monkeypatch.setenv("CXX", str(silent))
    with pytest.raises(NoLibrary, match=r"/native-\w+ cannot be loaded: .*Delete its folder, or set ATTENDO_CACHE"):
        make()


def test_a_processor_that_it_is_not_for_is_refused():
    try:
        library()
    except NoLibrary as reason:
        pytest.skip(f"nothing is compiled here: {reason}")
    with pytest.raises(NoLibrary, match="2-bit matrix products are not faster"):
        require_suited(2)


FORKING = """
import os, sys, torch
from attendo.decoding.native.compiled import CompiledModel
from attendo.models import EncoderDecoder, ModelConfig
torch.manual_seed(0)
torch.set_num_threads(2)
compiled = CompiledModel(EncoderDecoder(ModelConfig(vocab_size=600, n_encoder_layers=1, n_decoder_layers=1)).eval())
def states():
    return compiled.states(torch.full((64, 1), 5), compiled.start([[3, 4]] * 64, 1, 4))
before = states()
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(states(), before) else 9)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_gets_threads_of_its_own():
    try:
        library()
    except NoLibrary as reason:
        pytest.skip(f"nothing is compiled here: {reason}")
    environment = os.environ | {"ATTENDO_CACHE": str(CACHE)}
    done = subprocess.run([sys.executable, "-c", FORKING], env=environment, timeout=60, check=False)
    assert done.returncode == 0
