"""How a run is doing: its head shows it, and `top` reads it."""
