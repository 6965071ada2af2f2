"""What tasks with several tasks in them share: sampling, run log, validation by task and by group."""
