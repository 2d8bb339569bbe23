"""TileLang: definitions name functions, of which TileLang makes CUDA source in an environment of its own."""
