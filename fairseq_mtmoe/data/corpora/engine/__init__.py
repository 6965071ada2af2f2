"""From a recipe and raw files to a data directory: streaming, restartable, by all cores or on a cluster.

`pipeline.prepare` is the whole of it, stage by stage. A stage makes a file per block in the work folder (`store`) under
a key of all that it is made from, so that a run that was killed goes on. No stage holds a corpus.
"""
