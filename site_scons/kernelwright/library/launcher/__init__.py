"""The C headers that generated libraries include."""

from pathlib import Path

LAUNCHER = Path(__file__).resolve().parent
"""Folder of the headers."""
