"""Task files, and families of tasks that are generated from seeds."""
