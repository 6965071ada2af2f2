from collections import Counter

import pytest

from fairseq_mtmoe.data.corpora.placeholders import placeholders


@pytest.mark.parametrize(
    "text, expected",
    [
        ("%s of %d", ["%s", "%d"]),
        ("%2$d of %1$s", ["%s", "%d"]),
        ("%(name)s: %(count)d", ["%(name)s", "%(count)d"]),
        ("%(count)dmin", ["%(count)d"]),
        ("%d件のうち%d件", ["%d", "%d"]),
        ("%.3fs over %-5lu, %*d", ["%u", "%d"]),
        ("{0} of {1}, {name!r:>10} {}", ["{0}", "{1}", "{name!r:>10}", "{}"]),
        ("{{ variable }} {% tag %}", []),
        ("50% of it, 100%", []),
        ("100%% sure, %%s", []),
        ("${count} pages", ["{count}"]),
        ("{a sentence in braces}", []),
    ],
)
def test_finds_placeholders(text, expected):
    assert placeholders(text) == Counter(expected)
