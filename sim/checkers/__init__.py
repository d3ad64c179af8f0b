"""Checkers that share no code with the packages under test."""
