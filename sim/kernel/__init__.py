"""The seeded loop, its clock, and the world with its faults."""
