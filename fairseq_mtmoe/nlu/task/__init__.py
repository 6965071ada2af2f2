"""Base of the tasks of the task table: splits, metrics, averages and reports."""
