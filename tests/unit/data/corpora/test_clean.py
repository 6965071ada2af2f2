import pytest

from fairseq_mtmoe.data.corpora.clean import DROP_REASONS, Changes, changes_of, message_key, normalise, why_dropped


@pytest.mark.parametrize(
    "text, expected",
    [
        ("  two\n lines\t ", "two lines"),
        ("e\u0301te\u0301", "\u00e9t\u00e9"),
        ("non\u00a0breaking\u3000wide\u2028line", "non breaking wide line"),
        ("soft\u00adhyphen \ufeffmark", "softhyphen mark"),
        ("bell\x07 \x00 null", "bell null"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"),
        ("ＡＢＣ ½", "ＡＢＣ ½"),
        ("\n\t ", ""),
    ],
)
def test_normalise(text, expected):
    assert normalise(text) == expected
    assert normalise(expected) == expected


@pytest.mark.parametrize(
    "text, changes",
    [
        ("  two words\t \n", Changes()),
        ("bell\x07 \x00 null", Changes(removed=2)),
        ("\ufeffsoft\u00adhyphen", Changes(removed=2)),
        ("one\u2028two\x0bthree\rfour", Changes(breaks=3)),
        ("the end\x0c", Changes(breaks=1)),
        ("e\u0301te\u0301", Changes(respelled=1)),
        ("e\x07\u0301", Changes(removed=1, respelled=1)),
        ("\u0645\u06cc\u200c\u062e", Changes()),
    ],
)
def test_what_normalising_changes(text, changes):
    assert changes_of([text]) == changes
    twice = Changes(2 * changes.removed, 2 * changes.breaks, 2 * changes.respelled)
    assert changes_of([text, "nothing", text]) == twice
    assert changes_of([normalise(text)]) == Changes()


def test_the_same_message_has_one_key():
    keys = {message_key(text) for text in ("Add user…", "add  user", "Add User...", "«Add user!»")}
    assert keys == {"add user"}
    assert message_key("Add users") != message_key("Add user")


@pytest.mark.parametrize(
    "source, target, reason",
    [
        ("Open the file", "Datei öffnen", None),
        ("Open the file", "", "empty"),
        (":?.!", "Punkte", "empty"),
        ("Nine", "9", "empty"),
        ("Go", "Aiziet!", None),
        ("Open the file", "打开文件", None),
        ("OpenStreetMap", "openstreetmap.", "copy"),
        ("Delete %(count)d items", "%(count)d Einträge löschen", None),
        ("Delete %(count)d items", "%d Einträge löschen", "placeholders"),
        ("one hour ago", "vor %d Stunde", "placeholders"),
        ("ha " * 200, "he " * 200, "length"),
        ("Interlingua, the language of the association", "Interl", "length"),
        ("Adi", "崩尼-博嘎尔语; 博嘎尔-珞巴语", "length"),
        # 56 Latin letters in 15 wide ones is what a translation into Chinese looks like
        ("Ensure that there are no more than ten digits in total.", "确认总共不超过十个数字位。", None),
    ],
)
def test_why_a_pair_is_dropped(source, target, reason):
    assert why_dropped(source.strip(), target.strip()) == reason
    assert reason is None or reason in DROP_REASONS
