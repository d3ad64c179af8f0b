"""Stores in S3, GCS or Azure."""
