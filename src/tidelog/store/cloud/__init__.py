"""Keep objects in S3, GCS or Azure."""
