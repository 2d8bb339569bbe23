"""Where these were until all tests name their place."""

from support.launchers import *  # noqa: F403
