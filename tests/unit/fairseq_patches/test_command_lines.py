"""What fairseq's command lines lack."""

from fairseq import options

from fairseq_mtmoe import register
from tests.golden.old_runs import OLD
from tests.helpers.refused import refused


def parsed(*arguments):
    register()
    return options.parse_args_and_arch(options.get_validation_parser(), [str(OLD / "data"), *arguments])


def test_a_validation_takes_the_task_of_its_checkpoint():
    path = str(OLD / "sparse" / "checkpoint_last.pt")
    assert parsed("--path", path).task == "translation_heated"
    assert parsed("--path", path, "--task", "translation_multi_simple_epoch").task == "translation_multi_simple_epoch"


def test_without_a_checkpoint_there_is_a_sentence():
    with refused("--path"):
        parsed()
    with refused("nowhere.pt"):
        parsed("--path", "nowhere.pt")
