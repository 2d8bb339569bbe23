"""``python -m kernelwright``."""

from .cli import main

raise SystemExit(main())
