"""Copy, fork, rebuild and destroy logs."""
