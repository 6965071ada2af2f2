from collections import Counter

from fairseq_mtmoe.data.corpora.catalogs import DROP_REASONS, message_key, placeholders, why_dropped
from fairseq_mtmoe.data.corpora.cleaning.normalising import Changes, changes_of, normalise
from fairseq_mtmoe.data.corpora.readers.messages import singular_and_plural_form


def test_normalise():
    for text, expected in (
        ("  two\n lines\t ", "two lines"),
        ("e\u0301te\u0301", "\u00e9t\u00e9"),
        ("non\u00a0breaking\u3000wide\u2028line", "non breaking wide line"),
        ("soft\u00adhyphen \ufeffmark", "softhyphen mark"),
        ("bell\x07 \x00 null", "bell null"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"),
        ("ＡＢＣ ½", "ＡＢＣ ½"),
        ("\n\t ", ""),
    ):
        assert normalise(text) == normalise(expected) == expected


def test_what_normalising_changes():
    for text, changes in (
        ("  two words\t \n", Changes()),
        ("bell\x07 \x00 null", Changes(removed=2)),
        ("\ufeffsoft\u00adhyphen", Changes(removed=2)),
        ("one\u2028two\x0bthree\rfour", Changes(breaks=3)),
        ("the end\x0c", Changes(breaks=1)),
        ("e\u0301te\u0301", Changes(respelled=1)),
        ("e\x07\u0301", Changes(removed=1, respelled=1)),
        ("\u0645\u06cc\u200c\u062e", Changes()),
    ):
        assert changes_of([text]) == changes
        twice = Changes(2 * changes.removed, 2 * changes.breaks, 2 * changes.respelled)
        assert changes_of([text, "nothing", text]) == twice
        assert changes_of([normalise(text)]) == Changes()


def test_the_same_message_has_one_key():
    keys = {message_key(text) for text in ("Add user…", "add  user", "Add User...", "«Add user!»")}
    assert keys == {"add user"}
    assert message_key("Add users") != message_key("Add user")


def test_why_a_pair_is_dropped():
    for source, target, reason in (
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
    ):
        assert why_dropped(source.strip(), target.strip()) == reason
        assert reason is None or reason in DROP_REASONS


def test_placeholders():
    text = "%2$d of %1$s %(name)s %(count)dmin {0}, {name!r:>10} {} {{ no }} 50% of it, 100%% sure"
    expected = ["%s", "%d", "%(name)s", "%(count)d", "{0}", "{name!r:>10}", "{}"]
    assert placeholders(text) == Counter(expected)
    assert placeholders("%.3fs over %-5lu, %*d {a sentence in braces}") == Counter(["%u", "%d"])


def test_the_forms_of_a_plural_are_found_by_the_formula():
    for header, num_forms, expected in (
        ("nplurals=2; plural=(n != 1);", 2, (0, 1)),
        ("nplurals=1; plural=0;", 1, (0, 0)),
        ("nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);", 3, (0, 1)),  # Latvian's last is for zero
        ("nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0);", 4, (1, 0)),
        ("nplurals=2; plural=(n != 1);", 3, (0, 1)),
        ("", 3, (0, 2)),
        ("nplurals=3; plural=n/0;", 3, (0, 2)),
        ("nplurals=3; plural=n*5;", 3, (0, 2)),
        ("nplurals=3; plural=__import__('os').system('false')", 3, (0, 2)),
    ):
        assert singular_and_plural_form(header, num_forms) == expected
