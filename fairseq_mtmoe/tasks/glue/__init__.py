"""`--task glue`: GLUE, SuperGLUE and others, all of them trained together or some."""
