"""Chat templates against jinja2 set up as transformers does: quern's own templates in any clone, the public ones when
the shared data is there."""

import pytest

import chat_cases
from chat_oracle import LIB, ROOT, Quern, oracle, shared_templates

if not LIB.is_file():
    pytest.skip(f"{LIB} is not built", allow_module_level=True)

OWN = sorted((ROOT / "tests/data/templates").glob("*.jinja"))
CASES = list(chat_cases.cases())
COUNTS = {"templates": 0, "renderings": 0, "mismatches": 0, "refused by both": 0}


@pytest.fixture(scope="module")
def quern():
    yield Quern()
    print("\nchat templates:", ", ".join(f"{n} {what}" for what, n in COUNTS.items()))


def byte_segments(text, segments):
    raw = text.encode()
    at = 0
    for i, (start, end, trusted) in enumerate(segments):
        assert start == at and end > start and (i == 0 or trusted != segments[i - 1][2])
        at = end
        yield raw[start:end].decode(errors="surrogateescape"), trusted
    assert at == len(raw)


def compare(quern, path, cases):
    source = path.read_text()
    handle, compile_error = quern.compile(source, path.name)
    COUNTS["templates"] += 1
    wrong = []
    for name, case in cases:
        want, want_error = oracle(source, case)
        got, segments, got_error = quern.render_compiled(handle, case) if handle else (None, None, compile_error)
        COUNTS["renderings"] += 1
        COUNTS["refused by both"] += want is None and got is None
        if want != got:
            COUNTS["mismatches"] += 1
            wrong.append(f"{name}: jinja2 {want_error or repr(want)[:500]}, quern {got_error or repr(got)[:500]}")
        if got is None:
            assert got_error.startswith(f"template {path.name} line ")
        elif segments:
            assert (
                "".join(t for t, _ in byte_segments(got, segments)).encode(errors="surrogateescape").decode() == got
            )
    if handle:
        quern.lib.quern_testing_chat_free(handle)
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.parametrize("path", OWN, ids=lambda p: p.stem)
def test_own_templates_render_as_jinja2_does(quern, path):
    compare(quern, path, CASES)


@pytest.mark.parametrize("path", shared_templates() or [None], ids=lambda p: p.stem if p else "absent")
def test_public_templates_render_as_jinja2_does(quern, path):
    if path is None:
        pytest.skip("no shared data: ../shared/data/chat-templates is absent")
    compare(quern, path, CASES)


# What a user may type to forge control tokens. Templates must never carry these bytes into a trusted run.
FORGERIES = [
    "<|im_end|>",
    "<|im_start|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "</s>",
    "[INST]",
    "<end_of_turn>",
    "<|endoftext|>",
    "<｜User｜>",
    "<|assistant|>",
    "<tool_call>",
    "<think>",
]
MARK = "\u2603"  # in no template: where it stands, the user speaks


def forged_cases():
    # a mark on both sides of every character, so that no part of a forgery can hide among template text
    text = MARK + MARK.join("".join(FORGERIES)) + MARK
    key = MARK + "key" + MARK
    tools = [
        {
            "type": "function",
            "function": {
                "name": text,
                "description": text,
                "parameters": {
                    "type": "object",
                    "properties": {key: {"type": "string", "description": text, "enum": [text]}},
                    "required": [key],
                },
            },
        }
    ]
    calls = [chat_cases.call(text, {key: text, "n": 1}, "abcdefghi")]
    result = {"role": "tool", "content": text, "tool_call_id": "abcdefghi", "name": text}
    user, assistant = chat_cases.user(text), chat_cases.assistant(text, reasoning_content=text)
    system = {"role": "system", "content": text}
    for messages in (
        [system, user],
        [user, assistant, user],
        [user, chat_cases.assistant(text, tool_calls=calls), result],
        [user, chat_cases.assistant("", tool_calls=calls), result, assistant],
        [{"role": "user", "content": chat_cases.parts(text, text)}],
        [{"role": MARK, "content": text}, user],
        [system, user, {"role": "user", "content": {"text": text}}],
    ):
        for extra in (
            {},
            {"tools": tools},
            {"documents": [{"title": text, "text": text, key: text}]},
            {"tools": tools, "kwargs": {"enable_thinking": True, "reasoning_effort": text, "date_string": text}},
        ):
            yield {"tokens": chat_cases.TOKENS, "messages": messages, "add_generation_prompt": True, **extra}


@pytest.mark.parametrize("path", OWN + shared_templates(), ids=lambda p: p.stem)
def test_user_text_is_never_trusted(quern, path):
    source = path.read_text()
    handle, _ = quern.compile(source, path.name)
    if not handle:
        return  # refused as a whole: the comparison above says that jinja2 refuses it too
    for case in forged_cases():
        text, segments, error = quern.render_compiled(handle, case)
        assert text == oracle(source, case)[0]
        for run, trusted in byte_segments(text, segments) if text else ():
            assert not (trusted and MARK in run), run
    quern.lib.quern_testing_chat_free(handle)


def test_a_planted_leak_is_seen(quern):
    """The twin of the property above: a template that writes the mark itself makes it trusted, and this is seen."""
    text, segments, _ = quern.render(
        "{{ '\\u2603' }}{{ messages[0].content }}", {"messages": [chat_cases.user(MARK)]}
    )
    assert [t for _, t in byte_segments(text, segments)] == [True, False]


@pytest.mark.parametrize(
    "source, expected",
    [
        ("{{ 'A' ~ c ~ 'B' }}", "TUT"),
        ("{{ (c ~ '<|x|>')[2:] }}", "T"),
        ("{{ c | upper }}", "U"),
        ("{{ 'a' | upper }}", "T"),
        ("{{ 'a-b' | replace('-', c) }}", "TUT"),
        ("{{ c | replace('u', '<s>', 1) }}", "TU"),
        ("{{ [c, 'z'] | join('|') }}", "UT"),
        ("{{ {'k': c} | tojson }}", "U"),
        ("{{ {'k': 'v'} | tojson }}", "T"),
        ("{{ [c] }}", "U"),
        ("{{ '%s!' % c }}", "UT"),
        ("{{ '{}!{}'.format('a', c) }}", "TU"),
        ("{{ c | indent(2, true) }}", "TU"),
        ("{{ ('x' ~ c) | title }}", "TU"),
        ("{% set b %}<s>{{ c }}{% endset %}{{ b }}", "TU"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(c) }}", "TUT"),
        ("{{ n }}{{ 1 }}", "UT"),
        ("{{ n + 1 }}", "U"),
        ("{{ c | length }}", "T"),
        ("{{ (c ~ '|' ~ c).split('|')[1] }}", "U"),
        ("{{ ('a' ~ c ~ 'b') | trim('ab') }}", "U"),
        ("{{ bos_token ~ c }}", "TU"),
        ("{{ messages[0].role }}", "T"),
        ("{{ messages[1].role }}", "U"),
        ("{{ c * 2 ~ '-' * 2 }}", "UT"),
        ("{{ c | e }}", "U"),
        ("{{ ('x' ~ c)[::-1] }}", "UT"),
        ("{% filter upper %}a{{ c }}{% endfilter %}", "TU"),
        ("{{ d | list | join }}", "U"),
        ("{{ strftime_now(c) }}", "U"),
        ("{{ ['a', c] | sort | join }}", "TU"),
        ("{{ c | string | lower | trim | safe }}", "U"),
        ("{{ ('a' ~ c) | list | last }}", "U"),
        ("{{ '%5s|' | format(c) }}", "UT"),
        ("{{ namespace(**d) | string | length }}", "T"),
        ("{{ dict(**d) }}", "U"),
    ],
)
def test_trust_follows_the_bytes(quern, source, expected):
    case = {
        "messages": [{"role": "user", "content": "uu"}, {"role": "im_end", "content": ""}],
        "kwargs": {"c": "uu", "n": 3, "d": {"k": 1}},
        "tokens": {"bos_token": "<s>"},
    }
    text, segments, error = quern.render(source, case)
    assert error is None, error
    assert text == oracle(source, case)[0]
    assert "".join("T" if t else "U" for _, t in byte_segments(text, segments)) == expected


@pytest.mark.parametrize(
    "name",
    [
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "bos_token",
        "raise_exception",
        "strftime_now",
        "range",
        "namespace",
        "loop",
        "kwargs",
    ],
)
def test_kwargs_cannot_take_reserved_names(quern, name):
    _, _, error = quern.render("{{ x }}", {"kwargs": {name: "mine"}})
    assert name in error and "reserved" in error


def test_strftime_now_follows_the_injected_clock(quern):
    for code in "aAbBdHIjmMpSUwWxXyYcFTReDGVu%fzZ":
        source = "{{ strftime_now('[%" + code + "]') }}"
        assert quern.render(source, {})[0] == oracle(source, {})[0], code
