"""Base of tasks that train several tasks: sampling, run log and validation."""
