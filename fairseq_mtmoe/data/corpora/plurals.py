"""Which translated form of a plural entry belongs to which of its two English messages.

A catalog's `Plural-Forms` gives the form for each number n. Form 0 is not the singular everywhere (Arabic's is for
zero), and the last form is not always the general plural (Latvian's is for zero, Polish's for fractions), so both are
found by counting.
"""

from __future__ import annotations

import gettext
import re
from collections import Counter

_PLURAL_FORMS = re.compile(r"plural\s*=\s*([^;]+)")


def singular_and_plural_form(header: str, num_forms: int) -> tuple[int, int]:
    """Indices of the forms for n = 1, and for most n from 2 to 100, of an entry with `num_forms` (≥ 1) forms.

    `header` is the value of `Plural-Forms`. Without a usable one: the first form and the last.
    """
    match = _PLURAL_FORMS.search(header)
    if match is None:
        return 0, num_forms - 1
    try:
        form_of = gettext.c2py(match[1].strip())  # admits numbers, n and C's operators, nothing else
        singular = form_of(1)
        plural = Counter(form_of(n) for n in range(2, 101)).most_common(1)[0][0]
    except (ValueError, ZeroDivisionError):
        return 0, num_forms - 1
    if not (0 <= singular < num_forms and 0 <= plural < num_forms):
        return 0, num_forms - 1
    return singular, plural
