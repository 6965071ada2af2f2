"""Products of sorted rows with a matrix per group: what experts and task gates compute."""
