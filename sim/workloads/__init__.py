"""The work of the simulated clients, and the checks of its results."""
