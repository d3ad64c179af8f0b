"""What the simulated clients do, and what is compared in the end."""
