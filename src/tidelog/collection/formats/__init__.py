"""How rows lie in files, and how they are had out of them; pure."""
