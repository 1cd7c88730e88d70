"""Conversations that every template is rendered with."""

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather of a city, with "quotes" & <tags>.',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "City name — e.g. Zürich"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
                "where": {
                    "type": "object",
                    "description": "place",
                    "properties": {
                        "lat": {"type": "number"},
                        "lon": {"type": "number"},
                        "tags": {"type": "array", "items": {"type": "string"}},
                    },
                    "required": ["lat"],
                },
                "any": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "either"},
            },
            "required": ["city"],
        },
    },
}
TIME = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time.\nTwo lines.",
        "parameters": {"type": "object", "properties": {}},
    },
}
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search",
        "parameters": {
            "type": "object",
            "properties": {"q": {"type": "string"}, "limit": {"type": ["integer", "null"], "default": 10}},
            "required": ["q", "limit"],
        },
        "return": {"type": "object", "description": "hits"},
        "strict": True,
    },
}
TOOLS = [WEATHER, TIME, SEARCH]


def user(text="Hello"):
    return {"role": "user", "content": text}


def assistant(text="Hi there.", **more):
    return {"role": "assistant", "content": text, **more}


def call(name, arguments, id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(text, id="call00001", name="get_weather"):
    return {"role": "tool", "tool_call_id": id, "name": name, "content": text}


def parts(*items):
    return [{"type": "text", "text": i} if isinstance(i, str) else i for i in items]


SYSTEM = {"role": "system", "content": "You are helpful."}
LOOKALIKE = (
    "<|im_end|><|im_start|>system\n<|eot_id|><|start_header_id|></s><s>[INST]<think></think><end_of_turn>"
    "<|endoftext|><｜User｜><|assistant|><|channel|>{{ x }}{% if %}"
)


def conversations():
    one_call = [
        call("get_weather", {"city": "Zürich", "days": 3, "where": {"lat": 1.5, "tags": ["a", "b"]}, "x": None})
    ]
    two_calls = [call("get_weather", {"city": "Oslo"}, "call00001"), call("get_time", {}, "call00002")]
    yield "empty", []
    yield "user", [user()]
    yield "system", [SYSTEM, user()]
    yield "developer", [{"role": "developer", "content": "Be brief."}, user()]
    yield "turns", [SYSTEM, user("  one \n"), assistant("\n two "), user("three"), assistant("four"), user("five")]
    yield "no_system", [user("one"), assistant("two"), user("three")]
    yield "assistant_last", [SYSTEM, user("one"), assistant("two")]
    yield "assistant_first", [assistant("two"), user("one")]
    yield "two_users", [user("one"), user("two"), assistant("x")]
    yield "two_systems", [SYSTEM, user("a"), {"role": "system", "content": "late"}, user("b")]
    yield "unknown_role", [user("a"), {"role": "wizard", "content": "b"}, user("c")]
    yield "unicode", [
        SYSTEM,
        user("Grüße, 世界! 👩‍👩‍👧 \u00a0\u2028 é ﬁ ß İ"),
        assistant("Ω≈ç√ \t\r\n tab"),
        user("«ok»"),
    ]
    yield "lookalike", [
        {"role": "system", "content": LOOKALIKE},
        user(LOOKALIKE),
        assistant(LOOKALIKE),
        user(LOOKALIKE),
    ]
    yield "tool_call", [SYSTEM, user("Weather?"), assistant("", tool_calls=one_call), tool('{"temp": 20}')]
    yield "tool_call_none", [
        user("Weather?"),
        {"role": "assistant", "content": None, "tool_calls": one_call},
        tool("20"),
    ]
    yield "tool_call_no_content", [user("Weather?"), {"role": "assistant", "tool_calls": one_call}, tool("20")]
    yield "tool_calls_two", [
        SYSTEM,
        user("Both?"),
        assistant("Let me see.", tool_calls=two_calls),
        tool("1"),
        tool("2", "call00002", "get_time"),
        assistant("Done."),
        user("Thanks"),
    ]
    yield "tool_args_text", [
        user("W?"),
        assistant("", tool_calls=[call("get_weather", '{"city": "Oslo"}')]),
        tool("ok"),
        assistant("It is ok."),
        user("And?"),
    ]
    yield "tool_bare", [user("W?"), assistant("", tool_calls=[{"name": "get_time", "arguments": {}}]), tool("1")]
    yield "tool_parts", [
        user("W?"),
        assistant(None, tool_calls=one_call),
        {**tool("x"), "content": parts("one", "two")},
    ]
    yield "tool_json", [
        user("W?"),
        assistant(None, tool_calls=one_call),
        {**tool("x"), "content": {"a": [1, 2.5, None]}},
    ]
    yield "tool_only", [tool("orphan")]
    yield "parts", [
        {"role": "system", "content": parts("sys")},
        {"role": "user", "content": parts("one", " two")},
        {"role": "assistant", "content": parts("three")},
        {"role": "user", "content": parts("four")},
    ]
    yield "image", [
        {
            "role": "user",
            "content": parts(
                "look", {"type": "image"}, {"type": "image_url", "image_url": {"url": "http://x/y.png"}}, "and"
            ),
        }
    ]
    yield "audio", [
        {"role": "user", "content": parts({"type": "audio", "audio": "a.wav"}, {"type": "video"}, "hear")}
    ]
    yield "thinking", [
        user("a"),
        assistant("<think>\nhm\n</think>\n\nanswer"),
        user("b"),
        assistant("<think></think>x"),
        user("c"),
    ]
    yield "reasoning", [
        user("a"),
        assistant("answer", reasoning_content="because", thinking="t"),
        user("b"),
        assistant("again", reasoning_content="since", tool_calls=one_call),
        tool("r"),
    ]
    yield "reasoning_last", [user("a"), assistant("answer", reasoning_content="because\n")]
    yield "empty_content", [{"role": "system", "content": ""}, user(""), assistant(""), user(" ")]
    yield "no_content", [{"role": "user"}, {"role": "assistant"}]
    yield "none_content", [{"role": "user", "content": None}, {"role": "assistant", "content": None}]
    yield "number_content", [{"role": "user", "content": 3}, {"role": "assistant", "content": 2.5}]
    yield "names", [
        {"role": "user", "name": "ann", "content": "a"},
        {"role": "assistant", "name": "bob", "content": "b"},
    ]
    yield "query", [{"role": "query", "content": "what"}, {"role": "document", "content": "that"}]
    yield "long", [m for i in range(30) for m in (user(f"question {i}"), assistant(f"answer {i}"))] + [user("last")]


DOCUMENTS = [
    {"title": "One", "text": "first <text>", "doc_id": 1},
    {"title": "Two", "text": "second", "content": "c"},
]

SWITCHES = [
    {},
    {"enable_thinking": True},
    {"enable_thinking": False},
    {"thinking": True},
    {"thinking": False},
    {"reasoning_effort": "high"},
    {"reasoning_effort": "low", "enable_thinking": True},
    {"thinking_effort": "max"},
    {"preserve_thinking": True, "clear_thinking": False},
    {"date_string": "1 Jan 2025", "tools_in_user_message": False},
    {"custom_tools": [WEATHER], "builtin_tools": ["brave_search", "code_interpreter"]},
    {"keep_all_reasoning": True},
    {"available_tools": [TIME], "controls": {"length": "short", "originality": "abstractive"}, "citations": True},
    {"response_format": {"type": "json_object"}},
    {"add_vision_id": True, "image_count": 1},
    {"render_assistant_messages_raw": True},
    {"model_identity": "You are X.", "instruction": "rank", "query": "q"},
    {"continue_final_message": True},
    {"xml_tools": ["a"], "python_tools": ["b"]},
    {"is_fast": True, "low_effort": True},
]


def cases():
    """(name, the input of a rendering)"""
    base = {"tokens": TOKENS}
    for name, messages in conversations():
        for prompt in (False, True):
            for tools in (None, TOOLS):
                case = {**base, "messages": messages, "add_generation_prompt": prompt, "tools": tools}
                yield f"{name}-{'gen' if prompt else 'end'}-{'tools' if tools else 'plain'}", case
    chosen = dict(conversations())
    for i, switch in enumerate(SWITCHES):
        for name in ("turns", "tool_calls_two", "reasoning", "thinking", "user"):
            for tools in (None, TOOLS):
                yield f"{name}-switch{i}-{'tools' if tools else 'plain'}", {
                    **base,
                    "messages": chosen[name],
                    "add_generation_prompt": True,
                    "tools": tools,
                    "kwargs": switch,
                }
    for name in ("user", "turns", "tool_calls_two"):
        yield f"{name}-documents", {
            **base,
            "messages": chosen[name],
            "documents": DOCUMENTS,
            "add_generation_prompt": True,
        }
        yield f"{name}-documents-tools", {**base, "messages": chosen[name], "documents": DOCUMENTS, "tools": TOOLS}
        yield f"{name}-empty-tools", {**base, "messages": chosen[name], "tools": [], "documents": []}
        yield f"{name}-no-tokens", {"messages": chosen[name], "add_generation_prompt": True}
