import pytest

from fairseq_mtmoe.data.corpora.plurals import singular_and_plural_form

RUSSIAN = "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);"
ARABIC = (
    "nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 && n%100<=99 ? 4 : 5;"
)
LATVIAN = "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);"
OLD_SLOVENIAN = "nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0);"


@pytest.mark.parametrize(
    "header, num_forms, expected",
    [
        ("nplurals=2; plural=(n != 1);", 2, (0, 1)),
        ("nplurals=2; plural=n > 1", 2, (0, 1)),
        ("nplurals=1; plural=0;", 1, (0, 0)),
        (RUSSIAN, 3, (0, 2)),
        (ARABIC, 6, (1, 4)),
        (LATVIAN, 3, (0, 1)),
        (OLD_SLOVENIAN, 4, (1, 0)),
        # the catalog has more forms than its header says: the formula still points at the right ones
        ("nplurals=2; plural=(n != 1);", 3, (0, 1)),
    ],
)
def test_finds_the_forms_by_the_formula(header, num_forms, expected):
    assert singular_and_plural_form(header, num_forms) == expected


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nplurals=INTEGER; plural=EXPRESSION;",
        "nplurals=3; plural=n/0;",
        "nplurals=3; plural=n*5;",
        "nplurals=3; plural=__import__('os').system('false')",
        "nplurals=3; plural=" + "(" * 2000 + "n" + ")" * 2000,
    ],
)
def test_an_unusable_formula_means_first_and_last(header):
    assert singular_and_plural_form(header, 3) == (0, 2)
