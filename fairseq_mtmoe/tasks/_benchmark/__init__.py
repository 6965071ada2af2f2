"""What tasks of the table of tasks share: their splits, metrics, averages, and a validation's report."""
