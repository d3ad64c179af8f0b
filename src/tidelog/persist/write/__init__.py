"""From rows to parts."""
