"""The tools of a build. Each has a module that finds it and identifies it; ``probe`` keeps the results."""
