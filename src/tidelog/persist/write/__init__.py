"""Rows become parts."""
