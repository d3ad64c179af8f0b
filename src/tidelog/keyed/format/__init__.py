"""What runs are made of: records, parts, key directories, and the pages in them. Pure."""
