"""The tools of a build: a module for each finds it and asks it who it is; ``probe`` keeps the answers."""
