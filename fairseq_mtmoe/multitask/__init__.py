"""Base of tasks that train several tasks: sampling, run log, validation by task and by group."""
