"""Long-running fuzzing of whatever reads files: `make test-fuzz`."""


def all_readers():
    from tests.fuzz import checkpoints

    return checkpoints.readers()
