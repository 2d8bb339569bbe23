"""Tests that any front end and any backend can run against itself: a function for each promise, with real builds.

With pytest, for a ``Language`` of one's own::

    @pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
    def test_promise(promise, tmp_path):
        promise(LANGUAGE, tmp_path)

For a backend, a ``Caller`` says how it is called. ``CALLS`` are its promises on the CPU, and ``LAUNCHES`` those on a
GPU, which need none: a library stands in for NVIDIA's driver, runs nothing, and notes what it is asked for::

    @pytest.fixture(scope="module")
    def kernels(tmp_path_factory):
        return CALLER.kernels(tmp_path_factory.mktemp("called"))

    @pytest.mark.parametrize("promise", CALLS, ids=lambda promise: promise.__name__)
    def test_promise(promise, kernels):
        promise(CALLER, kernels)

    @pytest.fixture(scope="module")
    def launched(tmp_path_factory):
        return CALLER.launched(tmp_path_factory.mktemp("launched"))

    @pytest.mark.parametrize("promise", LAUNCHES, ids=lambda promise: promise.__name__)
    def test_launch(promise, launched):
        promise(CALLER, launched)

A promise that is not kept is an AssertionError with what the build has printed.
"""

from __future__ import annotations

from .calls import CALLS, Caller
from .languages import PROMISES, Edit, Language, Project
from .launches import LAUNCHES

__all__ = ["CALLS", "LAUNCHES", "PROMISES", "Caller", "Edit", "Language", "Project"]
