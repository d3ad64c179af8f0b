"""Raw sources: what there is to be taken, surveyed before it is bound, and read again as bound."""
