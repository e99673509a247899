"""Whatever comes from a config or a message is text, never markup."""

import pytest

from softmax_exp.report.html import Html, escape, join, tag


def test_text_and_attributes_are_escaped():
    assert tag("p", "<b>x & y</b>", title='"><script>') == (
        '<p title="&quot;&gt;&lt;script&gt;">&lt;b&gt;x &amp; y&lt;/b&gt;</p>'
    )


def test_elements_are_not_escaped_again():
    assert tag("p", tag("b", "<"), Html("<i>"), None, 3) == "<p><b>&lt;</b><i>3</p>"
    assert join(["<", tag("br")], ", ") == "&lt;, <br>"


def test_attributes_may_be_absent_or_without_a_value():
    assert tag("details", open=True, id=None, hidden=False, aria_label="a") == '<details open aria-label="a"></details>'
    assert tag("path", d="M0 0") == '<path d="M0 0"/>'


@pytest.mark.parametrize("letter", ["\u202e", "\u2066", "\u200f"])
def test_letters_that_turn_the_direction_are_shown_as_code_points(letter):
    assert escape(f"a{letter}b é") == f"aU+{ord(letter):04X}b é"
