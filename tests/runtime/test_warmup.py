import os
import threading
import time

import pytest

from netreduce.runtime import warmup


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache directory of its own, and a stand-in for the compiler that takes a moment."""
    directory = tmp_path / "0123456789abcdef"
    monkeypatch.setattr(warmup, "CACHE_DIRECTORY", directory)
    monkeypatch.setattr(warmup, "JIT_DISABLED", False)
    compilations = []

    def compile_slowly():
        time.sleep(0.1)
        compilations.append(1)

    monkeypatch.setattr(warmup, "_compile", compile_slowly)
    return directory, compilations


def test_the_first_start_compiles_and_says_so_and_the_next_does_not(cache):
    _, compilations = cache
    said = []
    warmup.ensure_compiled(said.append)
    assert said[0].startswith("compiling the data path (first run only")
    assert said[1].startswith("compiled in")
    warmup.ensure_compiled(said.append)
    assert len(compilations) == 1
    assert len(said) == 2
    assert warmup.is_compiled()


def test_starts_at_the_same_time_compile_once_and_all_wait_for_it(cache):
    _, compilations = cache
    said = []
    threads = [threading.Thread(target=warmup.ensure_compiled, args=(said.append,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compilations) == 1
    assert sum(text.startswith("waiting for another process") for text in said) == 3


def test_a_failed_compilation_is_tried_again(cache, monkeypatch):
    def fail():
        raise OSError("no space left")

    monkeypatch.setattr(warmup, "_compile", fail)
    with pytest.raises(OSError, match="no space"):
        warmup.ensure_compiled()
    assert not warmup.is_compiled()


def test_caches_that_nobody_uses_any_more_are_pruned_and_nothing_else(cache):
    directory, _ = cache
    root = directory.parent
    long_ago = time.time() - (warmup.UNUSED_DAYS_MAX + 1) * 24 * 3600
    for name, is_old in (("0" * 16, True), ("1" * 16, False), ("something else", True)):
        (root / name).mkdir()
        if is_old:
            os.utime(root / name, (long_ago, long_ago))
    warmup.ensure_compiled()
    assert {path.name for path in root.iterdir() if path.is_dir()} == {directory.name, "1" * 16, "something else"}


def test_a_start_keeps_its_cache_from_being_pruned(cache):
    directory, _ = cache
    warmup.ensure_compiled()
    os.utime(directory, (0, 0))
    warmup.ensure_compiled()
    assert directory.stat().st_mtime > 0


def test_with_plain_python_there_is_nothing_to_compile(cache, monkeypatch):
    monkeypatch.setattr(warmup, "JIT_DISABLED", True)
    warmup.ensure_compiled(pytest.fail)
