"""How a run is doing: shown by its head, read by `top`."""
