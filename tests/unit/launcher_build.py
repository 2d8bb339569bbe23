"""Where these were until all tests name their place."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for programs that have only this folder

from support.launcher_build import *  # noqa: F403
